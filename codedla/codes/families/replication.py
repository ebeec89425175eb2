"""Replication: every block is computed by ``r = floor(N / (m n))`` workers or one more.

**Any set of workers that together hold all ``m n`` blocks decodes**; any ``N - r + 1`` are enough
for certain, because ``r - 1`` losses leave a copy of each block.

Worker ``w`` multiplies the plain blocks of output ``w mod (m n)``. Of several copies of a block the
lowest-numbered worker's is taken: the output is bit for bit that of the uncoded product.

========== ==========================================================
threshold  ``N - r + 1`` in the worst case, ``m n`` in the best
field      none needed: replies are copied
cost       ``r`` times the uncoded work; decoding nothing
========== ==========================================================

References
----------
Folklore. Wang, Joshi, Wornell, "Using straggler replication to reduce latency in large-scale
parallel computing", SIGMETRICS Performance Evaluation Review 43 (2015).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Replication"]


@register
class Replication(Code):
    """Each block on several workers."""

    name = "replication"
    operation = "matmul"
    threshold_formula = "N - floor(N/(m*n)) + 1, or any workers that cover all blocks"
    field = "real"
    systematic = True
    integral = True
    citation = "folklore; analysed in Wang, Joshi, Wornell, SIGMETRICS 2015"
    purpose = "plain copies: every bit of the uncoded product, NaN and Inf in their places"
    weakness = "each loss survived costs a full copy of all blocks"

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of spare copies of the block with the fewest."""
        if n_workers < grid.outputs:
            return n_workers - grid.outputs
        return n_workers // grid.outputs - 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        block = np.arange(self.n_workers) % (m * n)
        return np.eye(m)[block // n], np.eye(n)[block % n]

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the responders hold every block."""
        outputs = self.grid.outputs
        if len(responders) < outputs:
            return False
        return len({w % outputs for w in responders}) == outputs

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        weights = np.zeros((self.grid.outputs, len(survivors)))
        blocks = np.array(survivors) % self.grid.outputs
        block, first = np.unique(blocks, return_index=True)
        weights[block, first] = 1.0
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        return f"a copy of each of {self.grid.outputs} blocks from {self.active} workers"
