r"""GASP: both operands cut by rows and columns, and any ``T`` workers together learn nothing.

**Any ``K(m, n, T)`` of ``N`` workers decode; any ``T`` of them know nothing about A and B.** With
masks ``R_t``, ``S_t``, uniformly random over GF(q) and new for every product, worker ``w``
multiplies at its point ``x``

.. math:: \tilde A = \sum_{i<m} A_i x^i + \sum_{t<T} R_t x^{a_t}, \qquad
          \tilde B = \sum_{j<n} B_j x^{m j} + \sum_{t<T} S_t x^{b_t},

.. math:: b_t = m n + t, \qquad a_t = m n + (t \bmod r) + m \lfloor t / r \rfloor.

The coefficient of :math:`x^{i + m j}`, below ``m n``, is ``A_i B_j``; every term with a mask has a
higher degree. Only coefficients that appear are unknown, so ``K`` is the number of different
degrees: gaps, and sums that coincide, save workers. The length ``1 <= r <= min(m, T)`` of the runs,
and which operand plays which part, are tried for the fewest (``r = 1`` is GASP-small,
``r = min(m, T)`` GASP-big). E.g. ``3 x 3`` blocks and ``T = 2`` need 18 replies, where GASP-big
needs 19 and all coefficients up to its degree would take 21.

Polynomials with gaps are not determined by any ``K`` points: points are drawn until every set of
workers decodes, or a sample of the sets where there are many; replies that do not suffice after all
are waited for. That the masks of any ``T`` workers hide everything is proved (Vandermonde in ``x``
or ``x**m``) or tried for every set. ``gasp`` is for ``T = 1``, ``gasp:2`` for two colluding
workers, and so on.

========== ===================================================================================
threshold  number of different degrees, ``m n + m + n`` at ``T = 1``, 18 at ``3 x 3``, ``T = 2``
field      GF(q), for as many primes as the size of the result asks for; fresh masks for each
cost       worker ``1/(m n)`` of the flops; decoding ``K`` blocks; the master draws ``T/m`` and
           ``T/n`` of the operands' entries from the system's random source
========== ===================================================================================

References
----------
D'Oliveira, El Rouayheb, Karpuk, "GASP codes for secure distributed matrix multiplication", IEEE
Trans. Inf. Theory 66 (2020). D'Oliveira, El Rouayheb, Heinlein, Karpuk, "Degree tables for secure
distributed matrix multiplication", IEEE J. Sel. Areas Inf. Theory 2 (2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.cache import Recent
from codedla.codes.degrees import degree_table, hiding_points, product_degrees
from codedla.codes.private import PrivateCode
from codedla.codes.registry import register

__all__ = ["Gasp"]

_REMEMBERED = 1024  # ranks of sets of replies


@register
class Gasp(PrivateCode):
    """``m x n`` blocks and ``T`` masks of each operand over GF(q), at degrees with few sums."""

    name = "gasp"
    operation = "matmul"
    threshold_formula = "number of different degrees, m*n + m + n at T = 1"
    citation = "D'Oliveira, El Rouayheb, Karpuk, IEEE Trans. Inf. Theory 66 (2020)"
    weakness = (
        "integers only; decodes all coefficients even when nobody is late; about one set of "
        "replies in q does not suffice and takes one more; the master sees everything"
    )

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of different degrees of the product polynomial."""
        return len(product_degrees(*degree_table(grid.m, grid.n, cls.colluders)))

    def smallest_prime(self) -> int:
        """Return a bound below which no points can be found."""
        return self.n_workers + 1

    @cached_property
    def degrees(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Degrees of the blocks and masks of A, and of B."""
        return degree_table(self.grid.m, self.grid.n, self.colluders)

    @cached_property
    def points(self) -> NDArray[np.int64]:
        """Where the workers evaluate."""
        return hiding_points(self.n_workers, self.grid.m, self.grid.n, self.colluders, self.prime)

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether these replies determine the product: by the rank of their rows."""
        rows = tuple(sorted(self._existing.intersection(responders)))
        if len(rows) < self.threshold:
            return False
        known = self._known_ranks.get(rows)
        if known is None:
            known = self.galois.rank(self.generator[list(rows)])
            self._known_ranks.put(rows, known)
        return known == self.generator.shape[1]

    @cached_property
    def _known_ranks(self) -> Recent[int]:
        return Recent(_REMEMBERED)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        a, b = self.degrees
        return self.galois.vandermonde(self.points, a), self.galois.vandermonde(self.points, b)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        a, b = self.degrees
        unknowns = product_degrees(a, b)
        place = {degree: column for column, degree in enumerate(unknowns)}
        m, n = self.grid.m, self.grid.n
        wanted = np.zeros((m * n, len(unknowns)), dtype=np.int64)
        for i, j in itertools.product(range(m), range(n)):
            wanted[i * n + j, place[a[i] + b[j]]] = 1
        return self.galois.vandermonde(self.points, unknowns), wanted
