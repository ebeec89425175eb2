r"""Base 3: exact integers without a finite field, in wrap-around int64.

**Any ``m n`` of ``N`` workers decode.** Worker ``i n + j`` computes the plain product ``A_i B_j``;
parity worker ``r = 0, 1, 2`` multiplies :math:`\sum_i 3^{r i} A_i` by :math:`\sum_j 3^{r m j} B_j`
and so replies with :math:`\sum_{ij} 3^{r (i + m j)} C_{ij}`, all modulo :math:`2^{64}`. Powers of 3
with different exponents make every minor of the parity rows non-zero, and they are odd: one lost
block costs nothing, whatever overflows. More of them cost the bits by which a minor is even:

.. math:: v_2(3^d - 1) = 1 \text{ for odd } d, \qquad 2 + v_2(d) \text{ for even } d.

With ``v`` the worst such loss, results are exact while :math:`|C| < 2^{63 - v}`; larger ones are
refused, except of dtypes with no more than ``64 - v`` bits, which wrap around exactly as NumPy's
do. With one parity ``v = 0``, and all of them do.

========== =====================================================================================
threshold  ``m n``, of at most ``m n + 3`` workers
field      integers modulo :math:`2^{64}`
cost       worker one block product in int64 (no BLAS); decoding ``O(e)`` blocks for ``e`` lost
========== =====================================================================================

References
----------
The determinants are those of A. Vandermonde at the points ``3**j``; that matrices of powers of
positive numbers are totally positive: F. Gantmacher, M. Krein, "Oscillation matrices and kernels
and small vibrations of mechanical systems", AMS Chelsea 2002.
"""

from __future__ import annotations

import itertools
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.exact import WrapCode, wrapped
from codedla.codes.registry import register

__all__ = ["Base3", "worst_shift"]

MOST_PARITIES = 3
"""A fourth lost block could cost more bits than most products have to spare."""


@register
class Base3(WrapCode):
    """``m x n`` plain products, and up to three parities with powers of 3 as coefficients."""

    name = "base3"
    operation = "matmul"
    threshold_formula = "m*n"
    purpose = "powers of 3 as coefficients are exact in wrap-around integers"
    citation = "Vandermonde determinants at powers of 3; Gantmacher and Krein, AMS Chelsea 2002"
    weakness = (
        "integers only, at the speed of integer products; two lost blocks of 100 cost 8 of 63 "
        "bits, three 15; at most three losses"
    )

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return how many lost workers are survived, at most three."""
        return min(n_workers - grid.outputs, MOST_PARITIES)

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return how many workers get a share: no more than three beyond the blocks."""
        return min(n_workers, grid.outputs + MOST_PARITIES)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        a = np.zeros((self.n_workers, m), dtype=object)
        b = np.zeros((self.n_workers, n), dtype=object)
        blocks = np.arange(m * n)
        a[blocks, blocks // n] = 1
        b[blocks, blocks % n] = 1
        for r in range(self.tolerates):
            a[m * n + r] = [3 ** (r * i) for i in range(m)]
            b[m * n + r] = [3 ** (r * m * j) for j in range(n)]
        return a, b

    @cached_property
    def lost_bits(self) -> int:
        """The largest shift of any survivor set; see :class:`codedla.codes.exact.WrapCode`."""
        return worst_shift(self.grid.outputs, self.tolerates)


@lru_cache(maxsize=256)
def worst_shift(blocks: int, losses: int) -> int:
    """Return the most bits that up to ``losses`` lost blocks among ``blocks`` can cost.

    Every minor is looked at, with the first lost block moved to exponent 0: this multiplies the
    parity rows by powers of 3, which are odd.
    """
    worst = 0
    powers = wrapped(
        np.array([[3 ** (r * d) for d in range(blocks)] for r in range(losses)], object)
    )
    for lost in range(2, min(losses, blocks) + 1):
        others = np.array(list(itertools.combinations(range(1, blocks), lost - 1)))
        columns = np.concatenate([np.zeros((len(others), 1), dtype=int), others], axis=1)
        for rows in itertools.combinations(range(losses), lost):
            minors = powers[np.array(rows)[None, :, None], columns[:, None, :]]
            worst = max(worst, int(_shifts(minors).max()))
    return worst


def _shifts(minors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the power of 2 in the denominators of the inverses of 2 x 2 or 3 x 3 matrices."""
    if minors.shape[-1] == 2:
        (a, b), (c, d) = minors.transpose(1, 2, 0)
        # The adjugate is odd.
        return _twos(a * d - b * c)
    x, y, z = (minors[:, :, i] for i in range(3))
    determinant = (np.cross(x, y) * z).sum(axis=1)
    adjugate = np.stack([np.cross(y, z), np.cross(z, x), np.cross(x, y)], axis=1)
    return (_twos(determinant)[:, None] - _twos(adjugate).min(axis=2)).max(axis=1)


def _twos(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often 2 divides int64 values; 64 of zero."""
    bits = values.astype(np.uint64)
    return np.bitwise_count((bits & -bits) - np.uint64(1)).astype(np.int64)
