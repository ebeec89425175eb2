r"""PolyDot: between polynomial and MatDot codes, all three dimensions may be cut.

**Any ``m n (2 p - 1)`` of ``N`` workers decode.** ``A`` is cut into ``m x p`` blocks, ``B`` into
``p x n``, and worker ``w`` multiplies, at its point ``x``,

.. math:: \tilde A = \sum_{ik} A_{ik}\, x^{i + m k}, \qquad
          \tilde B = \sum_{kj} B_{kj}\, x^{m (p-1-k) + m (2p-1) j}.

These are three variables in one: ``x`` counts rows, ``y = x**m`` aligns the inner blocks as in
MatDot, ``z = x**(m (2 p - 1))`` counts columns. Block ``(i, j)`` of the product is the coefficient
of exponent ``i + m (p-1) + m (2p-1) j``; the other coefficients are decoded and thrown away. With
``m = n = t``, ``p = s`` this is the published threshold ``t**2 (2 s - 1)``; the entangled code
overlaps what is thrown away and needs fewer.

========== ================================================================================
threshold  ``m n (2 p - 1)``
field      complex (``unity``); real (``chebyshev``, ``equispaced``)
cost       worker ``1/(m n p)`` of the flops; decoding ``m n`` blocks from all replies
weakness   waits for nearly twice as many workers as ``entangled``; real points lose digits
========== ================================================================================

References
----------
Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold of coded matrix
multiplication", IEEE Trans. Inf. Theory 66 (2020), arXiv 1801.10292.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["PolyDot"]


@register
class PolyDot(Code):
    """``m x p x n`` blocks, three variables of polynomials folded into one."""

    name = "polydot"
    operation = "matmul"
    splits = ("m", "p", "n")
    threshold_formula = "m*n*(2*p - 1)"
    field = "complex"
    citation = "Dutta et al., IEEE Trans. Inf. Theory 66 (2020)"
    weakness = (
        "waits for nearly twice as many workers as entangled; nodes chebyshev and equispaced are "
        "plain powers and lose more than 6 digits from a threshold of about 20 on"
    )
    node_choices = ("unity", "chebyshev", "equispaced")

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``m n (2 p - 1)``, the number of coefficients of the product polynomial."""
        return grid.m * grid.n * (2 * grid.p - 1)

    def _powers(self, exponents: NDArray[np.integer]) -> NDArray[Any]:
        return points.powers_at_workers(self.nodes, exponents, self.n_workers, self.tolerates)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.grid.m, self.grid.p, self.grid.n
        i, k, j = np.arange(m), np.arange(p), np.arange(n)
        a = np.add.outer(i, m * k)
        b = np.add.outer(m * k[::-1], m * (2 * p - 1) * j)
        return self._powers(a.ravel()), self._powers(b.ravel())

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.grid.m, self.grid.p, self.grid.n
        count = self.needs(self.grid)
        wanted = np.add.outer(np.arange(m), m * (p - 1) + m * (2 * p - 1) * np.arange(n))
        return self._powers(np.arange(count)), np.eye(count)[wanted.ravel()]
