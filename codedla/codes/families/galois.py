r"""Galois: exact integers of any size, modulo several primes, at the speed of floating point.

**Any ``m n`` of ``N`` workers decode.** Workers multiply residues modulo a prime ``p`` that is
small enough for exact sums in float64, :math:`L \lfloor p/2 \rfloor^2 < 2^{53}` for the inner
dimension ``L``; the round is repeated with further primes, and the Chinese remainder theorem puts
the product together, however large it is.

* Up to three losses, systematic: worker ``i n + j`` computes the plain product ``A_i B_j``, parity
  worker ``r`` multiplies :math:`\sum_i g^{r i} A_i` by :math:`\sum_j g^{r m j} B_j`. The minors
  of the rows :math:`g^{r d}`, ``r < 3``, are Vandermonde in :math:`z_d = g^d`, or in
  :math:`z_d^2`: the base ``g`` is chosen such that all of these differ.
* More losses: the polynomial code at the points ``1 .. N``, :math:`\tilde A = \sum_i x^i A_i`,
  :math:`\tilde B = \sum_j x^{m j} B_j`; any ``m n`` values determine the polynomial. (A fourth
  parity row could form a singular minor.)

========== =====================================================================================
threshold  ``m n``
field      GF(p), for as many primes as the size of the result asks for
cost       worker one block product in float64 for each prime; decoding ``O(e)`` blocks for ``e``
           lost up to three losses, else ``O(m n)``
========== =====================================================================================

References
----------
Yu, Maddah-Ali, Avestimehr, "Polynomial codes: an optimal design for high-dimensional coded matrix
multiplication", NeurIPS 2017. Dumas, Giorgi, Pernet, "Dense linear algebra over word-size prime
fields: the FFLAS and FFPACK packages", doi:10.1145/1391989.1391992.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.exact import DEFAULT_PRIME, ModularCode
from codedla.codes.registry import register
from codedla.galois import Field

__all__ = ["Galois"]

MOST_PARITIES = 3
"""Up to here every minor of the parity rows is known not to vanish."""


@register
class Galois(ModularCode):
    """``m x n`` blocks over GF(p): systematic up to three losses, else polynomial."""

    name = "galois"
    operation = "matmul"
    threshold_formula = "m*n"
    systematic = True
    purpose = "residues modulo primes are exact at the speed of floating point"
    citation = "Yu, Maddah-Ali, Avestimehr, NeurIPS 2017; Dumas, Giorgi, Pernet 2008"
    weakness = (
        "integers only; one round for each prime, about one for 20 bits of the result; "
        "decodes all blocks when four losses or more are tolerated"
    )

    def __init__(
        self, n_workers: int, grid: Grid, *, nodes: str | None = None, prime: int = DEFAULT_PRIME
    ) -> None:
        super().__init__(n_workers, grid, nodes=nodes, prime=prime)
        self.systematic = self.tolerates <= MOST_PARITIES

    def smallest_prime(self) -> int:
        """Return a bound from which on every prime has room for this code."""
        # A generator of the multiplicative group has order p - 1.
        return max(self.n_workers + 1, 2 * self.grid.outputs + 1)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n, field = self.grid.m, self.grid.n, self.galois
        if not self.systematic:
            points = np.arange(1, self.n_workers + 1)
            return field.vandermonde(points, m), field.vandermonde(points, range(0, m * n, m))
        block = np.arange(m * n)
        rows = field.power(_base(field, m * n), np.arange(self.tolerates))
        return (
            np.concatenate([np.eye(m, dtype=np.int64)[block // n], field.vandermonde(rows, m)]),
            np.concatenate(
                [
                    np.eye(n, dtype=np.int64)[block % n],
                    field.vandermonde(rows, range(0, m * n, m)),
                ]
            ),
        )


def _base(field: Field, count: int) -> int:
    """Return the least ``g`` whose first ``count`` powers differ, and the squares of these."""
    exponents = 2 * np.arange(count)
    return next(g for g in range(1, field.p) if np.unique(field.power(g, exponents)).size == count)
