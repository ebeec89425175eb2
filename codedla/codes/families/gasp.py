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
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.cache import Recent
from codedla.codes.private import PrivateCode, reveals, singular_sets
from codedla.codes.registry import register
from codedla.errors import UsageError
from codedla.galois import Field

__all__ = ["Gasp", "degree_table"]

DRAWS = 60
"""Drawn points that are tried; a set of workers is singular with probability about ``1/q``."""
_REMEMBERED = 1024  # ranks of sets of replies
MOST_SETS = 4000
"""Sets of lost workers that are tried of each draw: all, or a sample of them."""


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
        return len(_sums(*degree_table(grid.m, grid.n, cls.colluders)))

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
        return _points(self.n_workers, self.grid.m, self.grid.n, self.colluders, self.prime)

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
        unknowns = _sums(a, b)
        place = {degree: column for column, degree in enumerate(unknowns)}
        m, n = self.grid.m, self.grid.n
        wanted = np.zeros((m * n, len(unknowns)), dtype=np.int64)
        for i, j in itertools.product(range(m), range(n)):
            wanted[i * n + j, place[a[i] + b[j]]] = 1
        return self.galois.vandermonde(self.points, unknowns), wanted


@lru_cache(maxsize=4096)
def degree_table(m: int, n: int, colluders: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the degrees of A's blocks and masks, and of B's, with the fewest different sums."""
    tables = []
    for rows, cols, swapped in ((m, n, False), (n, m, True)):
        start = rows * cols
        b = [*range(0, start, rows), *range(start, start + colluders)]
        for run in range(1, max(1, min(rows, colluders)) + 1):
            a = [*range(rows), *(start + t % run + rows * (t // run) for t in range(colluders))]
            table = (tuple(b), tuple(a)) if swapped else (tuple(a), tuple(b))
            # Of equal tables those whose masks are Vandermonde matrices come first.
            proved = run in (1, min(rows, colluders))
            tables.append((len(_sums(*table)), not proved, swapped, run, table))
    return min(tables)[-1]


def _sums(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the different degrees of the product."""
    return tuple(sorted({i + j for i in a for j in b}))


@lru_cache(maxsize=256)
def _points(workers: int, m: int, n: int, colluders: int, prime: int) -> NDArray[np.int64]:
    """Draw points at which any ``K`` workers decode, and no ``T`` see anything.

    Raises
    ------
    UsageError
        None were found: the field is too small.
    """
    field = Field(prime)
    a, b = degree_table(m, n, colluders)
    degrees = _sums(a, b)
    rng = np.random.default_rng([workers, m, n, colluders, prime])
    for _ in range(DRAWS):
        # Not 0, where masks vanish.
        points = rng.choice(prime - 1, workers, replace=False) + 1
        hidden = [field.vandermonde(points, part[blocks:]) for part, blocks in ((a, m), (b, n))]
        if any(
            not _proved(points, part[blocks:], field) and reveals(masks, prime) is not None
            for masks, (part, blocks) in zip(hidden, ((a, m), (b, n)), strict=True)
        ):
            continue
        if not singular_sets(field.vandermonde(points, degrees), prime, MOST_SETS):
            points.setflags(write=False)
            return points
    raise UsageError(
        f"code gasp found no {workers} points for blocks {m}x1x{n} and T={colluders} modulo "
        f"{prime}; use a larger prime, or fewer workers"
    )


def _proved(points: NDArray[np.int64], degrees: tuple[int, ...], field: Field) -> bool:
    """Tell whether masks of these degrees are Vandermonde matrices on different points."""
    steps = set(np.diff(degrees).tolist())
    if len(steps) > 1:
        return False
    step = steps.pop() if steps else 1
    return np.unique(field.power(points, step)).size == points.size
