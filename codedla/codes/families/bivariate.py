r"""Bivariate: two coded operands, every product of every worker counts.

**Any ``m n`` of all ``N m`` products decode, for almost all points**; all products of any ``n`` of
``N`` workers do for certain. ``A`` is cut into ``m`` row blocks, ``B`` into ``n`` column blocks.
Worker ``w`` holds one combination of the blocks of ``B``, takes one combination of those of ``A``
after the other, up to ``m``, and replies with each product:

.. math:: \Big(\sum_i \phi_i(x_{wt}) A_i\Big) \Big(\sum_j \phi_j(y_w) B_j\Big), \qquad
          t = 0, \ldots, m - 1.

The products are values of one polynomial in ``x`` and ``y`` with ``m n`` coefficients, here a
trigonometric one. Its values on a grid determine it: ``n`` workers that have finished. For other
sets, think of :math:`\phi(x)` and :math:`\phi(y)` as any vectors: as no worker has more than ``m``
products, the former can be chosen to be unit vectors such that each of the ``m`` is used by ``n``
workers, which decodes; so the determinant is not always zero, and then it is zero almost nowhere.
A set of products that is singular for the points in use waits for one more.

* nodes ``trig`` (default): equally spaced angles, dealt out such that those of one worker, and of
  neighbouring workers, lie far apart.
* nodes ``random``: ``phi(x)`` is replaced by an orthonormal random basis for each worker.

========== ================================================================================
threshold  ``m n`` of ``N m`` products
field      real
cost       ``1/(m n)`` of the product at a time; a worker's part of ``B`` is sent once, parts of
           ``A`` as it gets on, all of its size at most; decoding ``O(m n)`` blocks
weakness   sets of products that are nearly singular are rare, but cannot be told beforehand
========== ================================================================================

References
----------
Hasircioglu, Gomez-Vilardebo, Gunduz, "Bivariate polynomial coding for exploiting stragglers in
heterogeneous coded computing systems" (arXiv:2001.07227).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.draws import orthonormal_columns
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Bivariate"]


@register
class Bivariate(Code):
    """Products of several combinations of A's blocks and one of B's blocks on every worker."""

    name = "bivariate"
    operation = "matmul"
    threshold_formula = "m*n of all products, almost surely"
    field = "real"
    citation = "Hasircioglu, Gomez-Vilardebo, Gunduz, arXiv:2001.07227"
    weakness = (
        "decodes all blocks even when nobody is late; which sets of products are badly "
        "conditioned is not known beforehand"
    )
    node_choices = ("trig", "random")

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.load = grid.m

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return how many workers there are beyond ``n``."""
        return n_workers - grid.n

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        workers, m, n, shares = self.n_workers, self.grid.m, self.grid.n, self.n_shares
        angles = points.spread(workers, self.tolerates)
        columns = points.trigonometric_basis(angles, n, workers)
        if self.nodes == "random":
            bases = [
                scaled_rows(orthonormal_columns(f"bivariate {workers} {m} {worker}", m, m))
                for worker in range(workers)
            ]
            rows = np.stack(bases, axis=1).reshape(shares, m)
        else:
            rows = points.trigonometric_basis(points.spread(shares, shares - m), m, shares)
        return rows, np.tile(columns, (m, 1))
