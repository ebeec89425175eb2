r"""OrthMatDot: MatDot in an orthogonal basis, the product read off by quadrature.

**Any ``2 p - 1`` of ``N`` workers decode.** ``A`` is cut into ``p`` column blocks, ``B`` into ``p``
row blocks (grid ``1 x p x 1``). With the Chebyshev polynomials :math:`\hat T_0 = 1,
\hat T_l = \sqrt2\,T_l`, orthonormal on [-1, 1], worker ``w`` multiplies, at its Chebyshev point,

.. math:: \tilde A = \sum_l A_l \hat T_l(x_w), \qquad \tilde B = \sum_l B_l \hat T_l(x_w).

Any ``2 p - 1`` replies interpolate the product polynomial, which is then evaluated at the ``p``
Chebyshev points :math:`\xi_r = \cos((2r+1)\pi/2p)`. The Gauss rule on them is exact for its degree
``2 p - 2``, hence

.. math:: C = \frac1p \sum_{r<p} \tilde A(\xi_r) \tilde B(\xi_r).

The rule is the first Chebyshev coefficient in disguise: ``matdot`` with nodes ``chebyshev`` reads
that one off, and both give the same weights.

========== ===========================================================================
threshold  ``2 p - 1``
field      real
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; decoding
           ``2 p - 1`` blocks the size of ``C``
weakness   the condition number grows like ``N**(2 s)`` with the losses ``s``
========== ===========================================================================

References
----------
Fahim and Cadambe, "Numerically stable polynomially coded computing", IEEE Trans. Inf. Theory 67
(2021), arXiv 1903.08326.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["OrthMatDot"]


@register
class OrthMatDot(Code):
    """``p`` inner blocks in the Chebyshev basis; the product is a quadrature of the replies."""

    name = "orthmatdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p - 1"
    field = "real"
    citation = "Fahim and Cadambe, IEEE Trans. Inf. Theory 67 (2021)"
    weakness = (
        "every reply is as large as C; 2 losses cost 6 digits at a threshold of 99, 5 losses more "
        "than 6 digits from a threshold of 17 on"
    )

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``2 p - 1``, the number of coefficients of the product polynomial."""
        return 2 * grid.p - 1

    def _evaluate(self, degrees: NDArray[np.integer]) -> NDArray[np.float64]:
        place = points.spread(self.n_workers, self.tolerates)
        return points.chebyshev_basis(place, degrees, self.n_workers)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        factor = self._evaluate(np.arange(self.grid.p))
        return factor, factor

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        p = self.grid.p
        degrees = np.arange(2 * p - 1)
        quadrature = points.chebyshev_basis(np.arange(p), degrees, p).mean(axis=0, keepdims=True)
        return self._evaluate(degrees), quadrature
