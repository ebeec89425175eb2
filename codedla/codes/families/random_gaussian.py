r"""Random Gaussian frame: one coded operand, the simplest random code.

**Any ``k`` of ``N`` workers decode, with probability 1.** ``A`` is cut into ``k`` row blocks (grid
``k x 1 x 1``), ``B`` goes to everybody, and worker ``w`` replies with :math:`\sum_j G_{wj} A_j B`.

* nodes ``frame``: all entries of ``G`` are independent and (nearly) normal, its rows scaled to norm
  ``sqrt(k)``.
* nodes ``systematic``: ``G = [I; P]`` with such a ``P``.

The seeds are fixed and the best of a few draws is taken. A square Gaussian matrix has a condition
number of about ``k``, and among all survivor sets there are worse ones: orthonormal columns
(``orthonormal``) keep about half a digit more.

========== ================================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(k)`` blocks (``frame``), ``O(e)`` for
           ``e`` lost ones (``systematic``)
weakness   nothing is proven about the worst pattern; for comparison
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
from codedla.codes.draws import best_frame, best_parity, random_rows
from codedla.codes.registry import register

__all__ = ["RandomGaussian"]


@register
class RandomGaussian(Code):
    """``k`` row blocks of one operand, mixed by independent normal coefficients."""

    name = "random-gaussian"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    citation = "Chen and Dongarra, ICCS 2005"
    weakness = (
        "the worst pattern is known by search only; rare ones cost 7 digits at k=64 (3 losses); "
        "orthonormal rows are better"
    )
    node_choices = ("frame", "systematic")

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.systematic = self.nodes == "systematic"

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks, losses = self.grid.m, self.tolerates
        if self.systematic:
            rows = np.concatenate([np.eye(blocks), best_parity(random_rows, blocks, losses)])
        else:
            rows = best_frame(random_rows, blocks, losses)
        return rows, np.ones((self.n_workers, 1))
