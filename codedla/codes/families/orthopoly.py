r"""OrthoPoly: the polynomial code in the Chebyshev basis, both operands coded, real arithmetic.

**Any ``m n`` of ``N`` workers decode.** Worker ``w`` has the Chebyshev point
:math:`x_w = \cos((2w+1)\pi/2N)` and multiplies

.. math:: \tilde A = \sum_i A_i \hat T_i(x), \qquad \tilde B = \sum_j B_j \hat T_{mj}(x), \qquad
          \hat T_0 = 1,\ \hat T_d = \sqrt2\,T_d.

The products :math:`\hat T_i \hat T_{mj}` span all polynomials of degree below ``m n``, so that any
``m n`` replies determine all :math:`A_i B_j`. The coefficients of a worker are a Kronecker product
of two rows (Khatri-Rao form), the whole system is nearly orthogonal, and the condition number of a
survivor set grows like ``N**(2 s)`` only, not exponentially as with powers. Neighbouring workers
have distant points.

========== =====================================================================
threshold  ``m n``
field      real
cost       worker one block product; decoding ``O(m n)`` blocks, whoever is late
weakness   fine for two losses; from three on points on the circle are better
========== =====================================================================

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
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["OrthoPoly"]


@register
class OrthoPoly(Code):
    """``m x n`` blocks, both operands coded by Chebyshev polynomials at Chebyshev points."""

    name = "orthopoly"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "real"
    citation = "Fahim and Cadambe, IEEE Trans. Inf. Theory 67 (2021)"
    weakness = (
        "decodes all blocks even when nobody is late; loses more than 6 digits from 3 losses and "
        "m*n=36 on (5 losses: m*n=16)"
    )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        return self._evaluate(np.arange(m)), self._evaluate(m * np.arange(n))

    def _evaluate(self, degrees: NDArray[np.integer]) -> NDArray[np.float64]:
        place = points.spread(self.n_workers, self.tolerates)
        return points.chebyshev_basis(place, degrees, self.n_workers)
