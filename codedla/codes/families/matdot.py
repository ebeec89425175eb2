r"""MatDot: the inner dimension is cut, so that the threshold grows only with ``2 p``.

**Any ``2 p - 1`` of ``N`` workers decode.** ``A`` is cut into ``p`` column blocks, ``B`` into ``p``
row blocks (grid ``1 x p x 1``) and worker ``w`` multiplies, at its point ``x``,

.. math:: \tilde A = \sum_l A_l \hat T_l(x), \qquad \tilde B = \sum_l B_l \hat T_l(x).

The Chebyshev polynomials :math:`\hat T_0 = 1, \hat T_l = \sqrt2 T_l` are orthonormal, so the mean
of the product over the Chebyshev measure is :math:`\sum_l A_l B_l = C`: of the ``2 p - 1``
Chebyshev coefficients of :math:`\tilde A \tilde B` only the first is wanted. When all reply, the
Gauss rule, ``1/N`` each, is one choice of weights; those of least noise are near it.

With ``unity`` or ``equispaced`` points the factors are :math:`\sum_l A_l x^l` and
:math:`\sum_l B_l x^{p-1-l}`, and the coefficient of ``x**(p-1)`` is wanted.

========== =======================================================================
threshold  ``2 p - 1``
field      real (``chebyshev``, ``equispaced``); complex (``unity``)
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; decoding
           ``2 p - 1`` blocks the size of ``C``
========== =======================================================================

References
----------
Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold of coded matrix
multiplication", IEEE Trans. Inf. Theory 66 (2020). Fahim and Cadambe, "Numerically stable
polynomially coded computing", IEEE Trans. Inf. Theory 67 (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["MatDot"]


@register
class MatDot(Code):
    """``p`` inner blocks; every reply is as large as ``C``, and only one functional is wanted."""

    name = "matdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p - 1"
    field = "real"
    systematic = False
    citation = "Dutta et al., IEEE Trans. Inf. Theory 66 (2020)"
    weakness = (
        "every reply is as large as C; nodes chebyshev lose more than 6 digits from 5 losses and "
        "p=9 on, unity and chebyshev-powers from p=50 and p=13 on, equispaced all from p=19 on"
    )
    node_choices = ("chebyshev", "unity", "chebyshev-powers", "equispaced")

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``2 p - 1``, the number of coefficients of the product polynomial."""
        return 2 * grid.p - 1

    def _evaluate(self, degrees: NDArray[np.integer]) -> NDArray[Any]:
        return points.at_workers(self.nodes, degrees, self.n_workers, self.tolerates)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        degrees = np.arange(self.grid.p)
        b = degrees if self.nodes == "chebyshev" else degrees[::-1]
        return self._evaluate(degrees), self._evaluate(b)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        unknowns = 2 * self.grid.p - 1
        wanted = np.zeros((1, unknowns))
        wanted[0, 0 if self.nodes == "chebyshev" else self.grid.p - 1] = 1.0
        return self._evaluate(np.arange(unknowns)), wanted
