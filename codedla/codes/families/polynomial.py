r"""Polynomial code: both operands coded, one block product per worker, optimal threshold.

**Any ``m n`` of ``N`` workers decode.** Worker ``w`` has a point ``x`` and multiplies

.. math:: \tilde A = \sum_i A_i x^i, \qquad \tilde B = \sum_j B_j x^{m j}, \qquad
          \tilde A \tilde B = \sum_{ij} C_{ij} x^{i + m j},

a polynomial with ``m n`` coefficients, all of them wanted. With nodes ``chebyshev`` the powers are
replaced by Chebyshev polynomials; products :math:`T_i T_{mj}` still span all degrees below ``m n``.

========== ===========================================================================
threshold  ``m n``
field      complex (``unity``); real (``chebyshev``, ``equispaced``)
cost       worker one block product (4 real ones if complex); decoding ``O(m n)`` blocks
========== ===========================================================================

References
----------
Yu, Maddah-Ali, Avestimehr, "Polynomial codes: an optimal design for high-dimensional coded matrix
multiplication", NeurIPS 2017. Fahim and Cadambe, "Numerically stable polynomially coded computing",
IEEE Trans. Inf. Theory 67 (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Polynomial"]


@register
class Polynomial(Code):
    """``m x n`` blocks, both operands coded by polynomials evaluated at one point per worker."""

    name = "polynomial"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "complex"
    systematic = False
    citation = "Yu, Maddah-Ali, Avestimehr, NeurIPS 2017"
    purpose = "no survivor set loses many digits"
    weakness = (
        "decodes all blocks even when nobody is late, and in complex numbers; nodes chebyshev "
        "(code orthopoly) lose more than 6 digits from 3 losses and m*n=36 on, chebyshev-powers "
        "from m*n=25 on, equispaced from m*n=16 on"
    )
    node_choices = ("unity", "chebyshev", "chebyshev-powers", "equispaced")

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        a, b = np.arange(m), m * np.arange(n)
        return self._evaluate(a), self._evaluate(b)

    def _evaluate(self, degrees: NDArray[np.integer]) -> NDArray[Any]:
        return points.at_workers(self.nodes, degrees, self.n_workers, self.tolerates)
