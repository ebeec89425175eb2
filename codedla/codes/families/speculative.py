"""Speculative: plain blocks, nothing spare; a late worker's block is given to an idle one as well.

**All ``m n`` blocks must be there, whoever computed them**: ``K = m n``. Once three quarters are, a
block that takes half as long again as the typical one is also computed by a worker that is done.
The first reply counts.

Worker ``w = i n + j`` multiplies the plain blocks ``A_i`` and ``B_j``; its reply is ``C_ij``. Other
codes can be combined with speculation (``speculate=True``, ``--speculate``); this one is nothing
else, and what task schedulers do instead of coding.

========== =======================================================================
threshold  ``m n`` blocks
field      none needed: replies are copied
cost       worker 1 block product, and one for every late block; decoding nothing
========== =======================================================================

With a typical task of ``t`` seconds a late block costs ``1.5 t`` until it is noticed, and then its
transfer and ``t`` once more: about ``2.5 t`` in all, where a code that tolerates the late worker
takes ``t`` of somewhat larger tasks.

References
----------
Dean, Ghemawat, "MapReduce: simplified data processing on large clusters", OSDI 2004 (backup tasks).
Zaharia, Konwinski, Joseph, Katz, Stoica, "Improving MapReduce performance in heterogeneous
environments", OSDI 2008.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Speculative"]


@register
class Speculative(Code):
    """Plain blocks, late ones computed twice."""

    name = "speculative"
    operation = "matmul"
    threshold_formula = "m*n, all blocks, whoever computed them"
    field = "real"
    systematic = True
    integral = True
    speculative = True
    citation = "backup tasks: Dean, Ghemawat, OSDI 2004; Zaharia et al., OSDI 2008"
    weakness = (
        "a late worker is noticed only when most are done, and costs a whole task and its "
        "transfer more"
    )

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return 0, or a negative number when there are fewer workers than blocks."""
        return min(0, n_workers - grid.outputs)

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of blocks: further workers only take over what is late."""
        return grid.outputs

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        block = np.arange(m * n)
        a = np.zeros((self.n_workers, m))
        b = np.zeros((self.n_workers, n))
        a[block, block // n] = 1.0
        b[block, block % n] = 1.0
        return a, b

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        blocks = self.grid.outputs
        return "its only block" if blocks == 1 else f"each of {blocks} blocks, from whomever"
