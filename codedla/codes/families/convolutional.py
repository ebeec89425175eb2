r"""Convolutional: one coded operand, decoded by additions and subtractions only.

**All shares of any ``k`` of ``N`` workers decode**, and so do as many independent shares of more of
them. ``A`` is cut into ``k`` row blocks of ``q = k`` parts each, ``B`` goes to everybody. Message
worker ``i < k`` holds the parts :math:`A_{i,0}, \ldots, A_{i,q-1}` as they are; parity worker ``r``
holds sums of delayed ones,

.. math:: \sum_i A_{i,\, t - \delta_{ri}}, \qquad t = 0, 1, \ldots, \qquad
          \delta_{ri} = e_r i \;\; (e_r \ge 0), \quad |e_r| (k - 1 - i) \;\; (e_r < 0),

with :math:`e = 0, 1, -1, 2, -2, \ldots`: the first parity is the plain sum, the next ones have
:math:`(k - 1) |e_r|` shares more than the others. Parities delay the messages differently, so some
part always stands alone: where messages ``i < j`` are lost and parities ``e > f`` are used, the sum
with ``e`` sees ``i`` earlier than that with ``f`` does. So any losses are peeled, without a single
multiplication. Both signs of ``e`` halve the longest delay, compared with ``e = 0, 1, 2, ...``.

========== ================================================================================
threshold  ``k q`` replies in the best case; all of any ``k`` workers
field      real; coefficients 0, 1; up to two losses also the weights are -1, 0, 1, exact in
           integers
cost       worker ``1/k`` of the product, parities ``1 + |e|`` times that; decoding by additions
weakness   later parity workers are more loaded; 2 to 3 digits are lost at k = 24 and 5 losses
========== ================================================================================

References
----------
Das, Ramamoorthy, Vaswani, "Efficient and robust distributed matrix computations via convolutional
coding", IEEE Trans. Inf. Theory 67 (2021) (arXiv:1907.08064).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.peeling import PeelingCode
from codedla.codes.registry import register

__all__ = ["Convolutional"]


@register
class Convolutional(PeelingCode):
    """Plain parts of row blocks, and sums of delayed ones."""

    name = "convolutional"
    threshold_formula = "k^2 parts in the best case, all shares of any k workers"
    citation = "Das, Ramamoorthy, Vaswani, IEEE Trans. Inf. Theory 67 (2021)"
    weakness = "later parity workers have up to 1 + s/2 times the work of the others"

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.load = grid.m + (grid.m - 1) * (self.tolerates // 2)
        self.integral = self.tolerates <= 2

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Cut every block into as many parts as there are blocks."""
        return Grid(blocks.m**2, 1, 1)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of parts."""
        return grid.m**2

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of parity workers."""
        return n_workers - grid.m

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks = parts = self.blocks.m
        rows = np.zeros((self.load, self.n_workers, blocks, parts))
        part = np.arange(parts)
        for block in range(blocks):
            rows[part, block, block, part] = 1.0
            for parity in range(self.tolerates):
                # 0, 1, -1, 2, -2, ...
                exponent = (parity + 1) // 2
                delay = exponent * (block if parity % 2 else blocks - 1 - block)
                rows[part + delay, blocks + parity, block, part] = 1.0
        return rows.reshape(self.n_shares, -1), np.ones((self.n_shares, 1))

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        return (
            f"all replies of any {self.blocks.m} of {self.active} workers, or "
            f"{self.threshold} independent ones"
        )
