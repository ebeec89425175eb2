r"""Approximate MatDot: half the replies of MatDot, and a product that is not exact.

**Any ``p`` of ``N`` workers decode, up to an error of order ``delta``.** ``A`` is cut into ``p``
column blocks, ``B`` into ``p`` row blocks (grid ``1 x p x 1``), and worker ``w`` multiplies

.. math:: \tilde A = \sum_l A_l\, x^l, \qquad \tilde B = \sum_l B_l\, x^{p-1-l}, \qquad
          x_w = \delta \cos\frac{(2 w + 1)\pi}{2 N}

as in MatDot, but all points lie close to 0. ``p`` replies interpolate a polynomial of degree
``p - 1`` only; its leading coefficient is ``C`` but for the terms of higher degree, which small
``delta`` suppresses. Rounding errors grow like ``delta**-(p-1)``, so ``delta`` balances the two.
Of more than ``p`` replies the weights of least noise are taken.

With exactly ``p`` replies the coefficient of ``x**(p-1+d)`` enters with the complete homogeneous
symmetric polynomial :math:`h_d` of their points (weights of more replies are averages of these), so
that ``method_error``, the sum of the largest :math:`|h_d|`, bounds
:math:`\|\hat C - C\|_F / (\|A\|_F \|B\|_F)` without rounding.

========== ==============================================================================
threshold  ``p``
field      real
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; decoding ``p`` blocks
weakness   approximate: 7 digits at ``p = 2``, 4 at 3, 3 at 4, none from about 8 on
========== ==============================================================================

A caveat is published: counted by the bits that the workers must carry for the precision of the
result, approximate MatDot codes need more storage than plain replication (arXiv 2105.07567). They
are here to be compared with; for results use ``matdot``, ``khatri-rao`` or ``replication``.

References
----------
Jeong, Devulapalli, Cadambe, Calmon, "epsilon-approximate coded matrix multiplication is nearly
twice as efficient as exact multiplication", arXiv 2105.01973.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.solve import Completion

__all__ = ["EpsMatDot", "balanced"]

_EPS = 2.0**-52


@register
class EpsMatDot(Code):
    """``p`` inner blocks, decoded from ``p`` replies, approximately."""

    name = "eps-matdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "p"
    field = "real"
    approximate = True
    citation = "Jeong, Devulapalli, Cadambe, Calmon, arXiv 2105.01973"
    weakness = (
        "approximate: relative error 1e-7 at p=2, 1e-4 at p=3, 1e-3 at p=4, useless from p=8 on; "
        "at equal precision replication stores less (arXiv 2105.07567)"
    )

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.delta = balanced(grid.p)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``p``."""
        return grid.p

    @cached_property
    def _points(self) -> NDArray[np.float64]:
        """The workers' points divided by ``delta``."""
        place = points.spread(self.n_workers, self.tolerates)
        return points.chebyshev(self.n_workers)[place]

    @cached_property
    def method_error(self) -> float:  # type: ignore[override]
        """Bound on the error without rounding, relative to ``||A||_F ||B||_F``."""
        p = self.grid.p
        largest = np.sort(np.abs(self._points))[-p:] * self.delta
        # h_d of these points: coefficients of prod 1 / (1 - x t), one factor after the other.
        series = np.zeros(p)
        series[0] = 1.0
        for x in largest:
            for d in range(1, p):
                series[d] += x * series[d - 1]
        return float(series[1:].sum())

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        powers = points.monomials(self.delta * self._points, np.arange(self.grid.p))
        return powers, powers[:, ::-1]

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The replies as polynomials of degree ``p - 1``: all that ``p`` of them can tell."""
        p = self.grid.p
        place = points.spread(self.n_workers, self.tolerates)
        # In the Chebyshev basis, whose last member has leading coefficient sqrt(2) 2**(p-2).
        basis = points.chebyshev_basis(place, np.arange(p), self.n_workers)
        leading = 1.0 if p == 1 else math.sqrt(2.0) * (2.0 / self.delta) ** (p - 1) / 2.0
        wanted = np.zeros((1, p))
        wanted[0, p - 1] = leading
        return basis, wanted

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        # Solved for the leading coefficient 1: it is huge, and no error bound is absolute.
        scale = self.wanted[0, -1]
        solver = Completion(self.generator, self.wanted / scale, self.norms)
        return solver.weights(np.array(survivors)) * scale


def balanced(p: int) -> float:
    """Return the ``delta`` at which rounding errors are about as large as the method's own."""
    if p == 1:
        return 1.0
    return min(1.0, 2.0 * (_EPS / 4.0) ** (1.0 / p))
