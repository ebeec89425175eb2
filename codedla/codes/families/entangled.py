r"""Entangled polynomial code (generalised PolyDot): all three dimensions cut, fewest replies.

**Any ``p m n + p - 1`` of ``N`` workers decode.** ``A`` is cut into ``m x p`` blocks, ``B`` into
``p x n``, and worker ``w`` multiplies, at its point ``x``,

.. math:: \tilde A = \sum_{ik} A_{ik}\, x^{k + i p}, \qquad
          \tilde B = \sum_{kj} B_{kj}\, x^{p-1-k + j p m}.

Terms with equal inner index meet at exponent ``p-1 + i p + j p m``, whose coefficient is block
``(i, j)`` of the product. All others are interference and overlap each other ("entangled"), so that
the product polynomial has ``p m n + p - 1`` coefficients only. With ``p = 1`` this is the
polynomial code, with ``m = n = 1`` MatDot.

========== ============================================================================
threshold  ``p m n + p - 1``
field      complex (``unity``); real (``chebyshev``, ``equispaced``)
cost       worker ``1/(m n p)`` of the flops; decoding ``m n`` blocks from all replies
weakness   complex shares cost four real products; real points lose digits quickly
========== ============================================================================

References
----------
Yu, Maddah-Ali, Avestimehr, "Straggler mitigation in distributed matrix multiplication: fundamental
limits and optimal coding", IEEE Trans. Inf. Theory 66 (2020). Dutta, Bai, Jeong, Low, Grover, "A
unified coded deep neural network training strategy based on generalized PolyDot codes", ISIT 2018,
arXiv 1811.10751.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Entangled"]


@register
class Entangled(Code):
    """``m x p x n`` blocks, interference aligned in the unwanted coefficients."""

    name = "entangled"
    operation = "matmul"
    splits = ("m", "p", "n")
    threshold_formula = "p*m*n + p - 1"
    field = "complex"
    citation = "Yu, Maddah-Ali, Avestimehr, IEEE Trans. Inf. Theory 66 (2020)"
    weakness = (
        "complex shares, nothing plain; nodes chebyshev and equispaced are plain powers and lose "
        "more than 6 digits from a threshold of 19 on"
    )
    node_choices = ("unity", "chebyshev", "equispaced")

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``p m n + p - 1``, the number of coefficients of the product polynomial."""
        return grid.p * grid.m * grid.n + grid.p - 1

    def _powers(self, exponents: NDArray[np.integer]) -> NDArray[Any]:
        return points.powers_at_workers(self.nodes, exponents, self.n_workers, self.tolerates)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.grid.m, self.grid.p, self.grid.n
        i, k, j = np.arange(m), np.arange(p), np.arange(n)
        a = np.add.outer(p * i, k)
        b = np.add.outer(k[::-1], p * m * j)
        return self._powers(a.ravel()), self._powers(b.ravel())

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.grid.m, self.grid.p, self.grid.n
        count = self.needs(self.grid)
        wanted = np.add.outer(p - 1 + p * np.arange(m), p * m * np.arange(n))
        return self._powers(np.arange(count)), np.eye(count)[wanted.ravel()]
