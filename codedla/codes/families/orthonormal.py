r"""Random orthonormal frame: one coded operand, for many losses.

**Any ``k`` of ``N`` workers decode, with probability 1.** ``A`` is cut into ``k`` row blocks (grid
``k x 1 x 1``), ``B`` goes to everybody, and worker ``w`` replies with :math:`\sum_j G_{wj} A_j B`.

* nodes ``frame``: ``G`` consists of ``k`` orthonormal random columns of length ``N``, its rows
  scaled to norm ``sqrt(k)``.
* nodes ``systematic``: ``G = [I; P]``, ``P`` of orthonormal random rows (of orthonormal columns if
  there are more parities than blocks), scaled in the same way.

The seeds are fixed and the best of a few draws is taken: an unlucky draw costs two digits more. In
contrast to points on a circle or a line no survivor set is hopeless, however many workers are lost.

========== ================================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(k)`` blocks (``frame``), ``O(e)`` for
           ``e`` lost ones (``systematic``)
weakness   a good draw is a matter of search: nothing is proven about the worst pattern
========== ================================================================================

References
----------
Chen and Dongarra, "Numerically stable real number codes based on random matrices", ICCS 2005.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.draws import best_frame, best_parity, orthonormal_columns
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Orthonormal"]


@register
class Orthonormal(Code):
    """``k`` row blocks of one operand, mixed by random orthonormal coefficients."""

    name = "orthonormal"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    citation = "Chen and Dongarra, ICCS 2005"
    weakness = "the worst pattern is known by search only; up to 6 digits are lost at k=64"
    node_choices = ("frame", "systematic")

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.systematic = self.nodes == "systematic"

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks, losses = self.grid.m, self.tolerates
        if self.systematic:
            rows = np.concatenate([np.eye(blocks), best_parity(_draw, blocks, losses)])
        else:
            rows = best_frame(_draw, blocks, losses)
        return rows, np.ones((self.n_workers, 1))


def _draw(label: str, count: int, width: int) -> NDArray[np.float64]:
    tall, thin = max(count, width), min(count, width)
    columns = orthonormal_columns(label, tall, thin)
    return scaled_rows(columns if count >= width else columns.T)
