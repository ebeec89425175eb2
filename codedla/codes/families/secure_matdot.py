r"""Secure MatDot: the inner dimension is cut, and any ``T`` workers together learn nothing.

**Any ``2 p + 2 T - 1`` of ``N`` workers decode; any ``T`` of them know nothing about A and B.**
``A`` is cut into ``p`` column blocks, ``B`` into ``p`` row blocks; ``R_t`` and ``S_t`` are masks,
uniformly random over GF(q) and new for every product. Worker ``w`` multiplies at ``x = w + 1``

.. math:: \tilde A = \sum_{l<p} A_l x^l + \sum_{t<T} R_t x^{p+t}, \qquad
          \tilde B = \sum_{l<p} B_l x^{p-1-l} + \sum_{t<T} S_t x^{p+t}.

The coefficient of ``x**(p-1)`` of the product is :math:`\sum_l A_l B_l = C`: every term with a mask
has a degree of ``p`` or more. The masks of any ``T`` workers are a Vandermonde matrix times
non-zero factors, which is invertible: their shares are uniformly random whatever the data.

``secure-matdot`` is for ``T = 1``, ``secure-matdot:2`` for two colluding workers, and so on.

========== ===================================================================================
threshold  ``2 p + 2 T - 1``
field      GF(q), for as many primes as the size of the result asks for; fresh masks for each
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; the master draws
           ``T (1/p)`` of the operands' entries from the system's random source
========== ===================================================================================

References
----------
Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold of coded matrix
multiplication", IEEE Trans. Inf. Theory 66 (2020). Masks as in A. Shamir, "How to share a secret",
Commun. ACM 22 (1979).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.private import PrivateCode
from codedla.codes.registry import register

__all__ = ["SecureMatDot"]


@register
class SecureMatDot(PrivateCode):
    """``p`` inner blocks and ``T`` masks over GF(q); one coefficient of the product is wanted."""

    name = "secure-matdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p + 2*T - 1"
    citation = "Dutta et al., IEEE Trans. Inf. Theory 66 (2020); Shamir, Commun. ACM 22 (1979)"
    weakness = (
        "integers only; T colluders cost 2*T more replies, each as large as C; the master sees "
        "everything, and sizes are not hidden"
    )

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of the product polynomial."""
        return 2 * grid.p + 2 * cls.colluders - 1

    @property
    def points(self) -> NDArray[np.int64]:
        """Where the workers evaluate; never 0, where masks would vanish."""
        return np.arange(1, self.n_workers + 1)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        p, masks = self.grid.p, self.colluders
        hidden = range(p, p + masks)
        return (
            self.galois.vandermonde(self.points, [*range(p), *hidden]),
            self.galois.vandermonde(self.points, [*reversed(range(p)), *hidden]),
        )

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        unknowns = self.needs(self.grid)
        wanted = np.zeros((1, unknowns), dtype=np.int64)
        wanted[0, self.grid.p - 1] = 1
        return self.galois.vandermonde(self.points, unknowns), wanted
