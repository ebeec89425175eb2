"""Uncoded: one block per worker, no redundancy; what all codes are compared with.

**All ``m n`` workers in use must reply**: ``K = m n``, no loss is survived.

Worker ``w = i n + j`` multiplies the plain blocks ``A_i`` and ``B_j``; its reply is ``C_ij``.
Workers beyond ``m n`` are idle.

========== =================================================
threshold  ``m n`` of the ``m n`` workers in use
field      none needed: replies are copied
cost       worker 1 block product; decoding nothing
========== =================================================

References
----------
None: the ordinary block product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Uncoded"]


@register
class Uncoded(Code):
    """Plain blocks, nothing spare."""

    name = "uncoded"
    operation = "matmul"
    threshold_formula = "m*n, all of the workers in use"
    field = "real"
    systematic = True
    integral = True
    citation = "none: the ordinary block product"
    purpose = "nothing may be lost, so nothing is coded"
    weakness = "one slow or lost worker delays or ends the job; workers beyond m*n stay idle"

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return 0, or a negative number when there are fewer workers than blocks."""
        return min(0, n_workers - grid.outputs)

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of blocks: further workers would only repeat work."""
        return grid.outputs

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        a = np.zeros((self.n_workers, m))
        b = np.zeros((self.n_workers, n))
        block = np.arange(m * n)
        a[block, block // n] = 1.0
        b[block, block % n] = 1.0
        return a, b
