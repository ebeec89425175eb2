r"""Lagrange coded computing: a polynomial through the data blocks, and the function of it.

**Any ``2 (p + T - 1) + 1`` of ``N`` workers decode; any ``T`` of them know nothing about the
data.** The data are ``p`` pairs ``(A_i, B_i)``: the column blocks of ``A`` and the row blocks of
``B``. With ``T`` pairs of masks, uniformly random over GF(q) and new for every product, the
polynomials of degree ``p + T - 1``

.. math:: u(z) = \sum_{i<p} A_i \ell_i(z) + \sum_{t<T} R_t \ell_{p+t}(z), \qquad
          v(z) = \sum_{i<p} B_i \ell_i(z) + \sum_{t<T} S_t \ell_{p+t}(z)

pass through the data at the points :math:`\beta_i` (:math:`\ell` are the Lagrange polynomials).
Worker ``w`` multiplies at its own point: the value of :math:`h = u v`, of degree
``2 (p + T - 1)``. Interpolation gives every :math:`A_i B_i = h(\beta_i)`, of which a product wants
the sum and a batch of products (:func:`codedla.batch_matmul`) each; a polynomial of degree ``d`` in
the data needs ``d (p + T - 1) + 1`` replies (:func:`codedla.lagrange_map`). With ``S`` stragglers
and ``E`` wrong answers that are to be found, ``N >= d (p + T - 1) + S + 2 E + 1``.

``lagrange`` is for ``T = 1``, ``lagrange:2`` for two colluding workers; ``lagrange:0`` hides
nothing. ``lagrange-real`` is the same without masks in floating point, in terms of Chebyshev
polynomials at Chebyshev points. (Masks do not hide real numbers: none are uniform.)

========== ===================================================================================
threshold  ``2 p + 2 T - 1``
field      GF(q); real (``lagrange-real``)
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; encoding ``p + T`` blocks a
           share
========== ===================================================================================

References
----------
Yu, Li, Raviv, Kalan, Soltanolkotabi, Avestimehr, "Lagrange coded computing: optimal design for
resiliency, security, and privacy", AISTATS 2019, PMLR 89. Berrut and Trefethen, "Barycentric
Lagrange interpolation", SIAM Review 46 (2004).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.interpolate import CITATION, values_between
from codedla.codes.private import PrivateCode
from codedla.codes.registry import register

__all__ = ["Lagrange", "LagrangeReal"]


@register
class Lagrange(PrivateCode):
    """``p`` pairs of blocks and ``T`` pairs of masks over GF(q), interpolated."""

    name = "lagrange"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*(p + T - 1) + 1"
    citation = CITATION
    weakness = (
        "integers only; every share mixes all blocks and every reply is as large as C; the master "
        "sees everything, and sizes are not hidden"
    )

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of ``h``."""
        return 2 * (grid.p + cls.colluders - 1) + 1

    def smallest_prime(self) -> int:
        """Return a bound from which on data, masks and workers have points of their own."""
        return self.n_workers + self.grid.p + self.colluders

    @property
    def points(self) -> NDArray[np.int64]:
        """Where the workers evaluate: none of the points of the data."""
        return self.grid.p + self.colluders + np.arange(self.n_workers)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        held = np.arange(self.grid.p + self.colluders)
        values = values_between(self.galois, held, self.points)
        return values, values

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        count = self.needs(self.grid)
        at_data = self.galois.vandermonde(np.arange(self.grid.p), count)
        return self.galois.vandermonde(self.points, count), at_data.sum(axis=0, keepdims=True)


@register
class LagrangeReal(Code):
    """``p`` pairs of blocks over the reals, at Chebyshev points; nothing is hidden."""

    name = "lagrange-real"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p - 1"
    field = "real"
    citation = CITATION
    weakness = (
        "no privacy; digits are lost fast with the number of replies that are missing: 5 of 22 "
        "workers at p=9 cost more than 6"
    )

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of ``h``."""
        return 2 * grid.p - 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        p = self.grid.p
        rows = points.at_workers("chebyshev", np.arange(p), self.n_workers, self.tolerates)
        # The discrete orthogonality of the Chebyshev polynomials: no system has to be solved.
        values = rows @ points.chebyshev_basis(np.arange(p), np.arange(p), p).T / p
        return values, values

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        p, count = self.grid.p, np.arange(2 * self.grid.p - 1)
        wanted = points.chebyshev_basis(np.arange(p), count, p).sum(axis=0, keepdims=True)
        return points.at_workers("chebyshev", count, self.n_workers, self.tolerates), wanted
