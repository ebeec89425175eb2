r"""Sparse codes with small integer coefficients: decoded by peeling, with inactivation.

A reply is an equation between the few blocks it mixes. *Peeling* takes an equation with one unknown
left, solves it, and puts the block into the others. Where no such equation is left, one block is
made *inactive*: it is treated as known, to be found at the end. Afterwards every block is a
combination of replies and of inactive blocks, the equations that were not used determine the
inactive ones (a small dense system), and a second pass of peeling puts these in.

Whether replies suffice is a question of rank, answered modulo a prime: without rounding, and quick,
because the dense part is all that is left after the peeling. The rank modulo a prime is never above
the true one; it is below with a probability of about ``k / p``, where one more reply is waited for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.cache import Recent

__all__ = ["CORRECTIONS", "Equation", "Peeling", "PeelingCode"]

Matrix = NDArray[Any]
Residues = NDArray[np.int64]
Equation = tuple[list[int], list[int]]
"""Unknowns of an equation, and their coefficients: small integers, none zero."""

_PRIME = 67_108_859  # below 2**26: sums of a thousand products fit into int64
_CHUNK = 512
_GROWTH = 1e6
"""Noise (variance) that a block may gather on its way through the equations; else it is inactive.
Two corrections then leave nothing of what the first pass lost."""
CORRECTIONS = 2
"""How often the inactive unknowns are corrected by what the unused equations leave."""
_PROBES = 24  # columns of random errors
_SEED = 51_413
_LEAST_SQUARES = 100
"""Up to so many blocks the weights are those of least noise; beyond, those of the peeling, which
is then also how blocks are decoded."""


class Peeling:
    """The order in which equations are solved.

    Parameters
    ----------
    equations : sequence of Equation
    unknowns : int

    Attributes
    ----------
    steps : list of (int, int)
        Equations and the unknowns that they are solved for, in this order: the others in an
        equation are solved for before it, or inactive.
    inactive : list of int
        Unknowns that no equation was solved for.
    checks : list of int
        Equations that were not used: conditions on the inactive unknowns.
    """

    def __init__(self, equations: Sequence[Equation], unknowns: int) -> None:
        self.equations, self.unknowns = equations, unknowns
        self.steps: list[tuple[int, int]] = []
        self.inactive: list[int] = []
        used = self._peel()
        self.checks = [e for e in range(len(equations)) if not used[e]]

    def _peel(self) -> list[bool]:
        equations = self.equations
        holders: list[list[int]] = [[] for _ in range(self.unknowns)]
        for number, (members, _) in enumerate(equations):
            for member in members:
                holders[member].append(number)
        left = [len(members) for members, _ in equations]
        # With one unknown left, the sum of those left is its number.
        sums = [sum(members) for members, _ in equations]
        used = [False] * len(equations)
        active = [True] * self.unknowns
        # First come, first solved: chains stay short, and so does what rounding errors add up to.
        ripe = deque(number for number, count in enumerate(left) if count == 1)
        noise = [0.0] * self.unknowns
        # The most wanted first: making it inactive shortens most equations.
        waiting = sorted(range(self.unknowns), key=lambda u: len(holders[u]))

        def settle(unknown: int) -> None:
            active[unknown] = False
            for number in holders[unknown]:
                left[number] -= 1
                sums[number] -= unknown
                if left[number] == 1:
                    ripe.append(number)

        while True:
            while ripe:
                number = ripe.popleft()
                if left[number] == 1:
                    unknown = sums[number]
                    gathered = 1.0 + sum(noise[member] for member in equations[number][0])
                    if gathered > _GROWTH:
                        self.inactive.append(unknown)
                    else:
                        noise[unknown] = gathered
                        used[number] = True
                        self.steps.append((number, unknown))
                    settle(unknown)
            while waiting and not active[waiting[-1]]:
                waiting.pop()
            if not waiting:
                return used
            unknown = waiting.pop()
            self.inactive.append(unknown)
            settle(unknown)

    # -- modulo a prime ------------------------------------------------------------------------

    @cached_property
    def kernel(self) -> Residues:
        """Return a basis of what the equations leave open, modulo the prime: (unknowns, d).

        ``d`` is 0 where they determine every unknown.
        """
        slots = len(self.inactive)
        if slots == 0:
            return np.zeros((self.unknowns, 0), dtype=np.int64)
        # Every unknown as a combination of the inactive ones, up to what the replies say.
        mixed = np.zeros((self.unknowns, slots), dtype=np.int64)
        mixed[self.inactive, np.arange(slots)] = 1
        for number, unknown in self.steps:
            members, values = self.equations[number]
            coefficient = values[members.index(unknown)]
            rest = np.array(values) @ mixed[members]  # its own row is still zero
            mixed[unknown] = -rest % _PRIME * pow(coefficient, -1, _PRIME) % _PRIME
        conditions = np.array(
            [np.array(values) @ mixed[members] for members, values in self._check_equations()],
            dtype=np.int64,
        ).reshape(len(self.checks), slots)
        open_ends = _null_space(conditions % _PRIME)
        return _multiplied(mixed, open_ends)

    def _check_equations(self) -> list[Equation]:
        return [self.equations[number] for number in self.checks]

    # -- in floating point ---------------------------------------------------------------------

    def weights(self, norms: NDArray[np.float64] | None) -> Matrix:
        """Return the weights (unknowns, equations) that turn the replies into the unknowns.

        Parameters
        ----------
        norms : ndarray (equations,) or None
            Noise of every reply: then the weights are those of least noise, and else those that
            the peeling itself comes down to.

        Raises
        ------
        numpy.linalg.LinAlgError
            The inactive unknowns are not determined in double precision.
        """
        count = len(self.equations)
        if norms is not None and count > 2 * self.unknowns:
            return self._least_squares(norms)
        found = self.solved(np.eye(count))
        if norms is None:
            return found
        if count > self.unknowns:
            # What the replies must satisfy, whatever the blocks are, tells part of the noise.
            conditions = self.remainders(found, np.eye(count))
            spread = (found * norms**2) @ conditions.T
            gram = (conditions * norms**2) @ conditions.T
            # Conditions that say the same twice are harmless.
            found -= spread @ np.linalg.pinv(gram, rcond=1e-12, hermitian=True) @ conditions
        # Rounding errors that long chains of equations gathered.
        return found + (np.eye(self.unknowns) - self._applied(found)) @ found

    def solved(self, replies: Matrix) -> Matrix:
        """Return the unknowns for some columns of replies, (unknowns, columns).

        Raises
        ------
        numpy.linalg.LinAlgError
            The inactive unknowns are not determined in double precision.
        """
        found = np.zeros((self.unknowns, replies.shape[1]))
        self._solve(found, replies)
        for _ in range(CORRECTIONS if self.inactive else 0):
            found[self.inactive] += self.fill @ self.remainders(found, replies)
            self._solve(found, replies)
        return found

    def _least_squares(self, norms: NDArray[np.float64]) -> Matrix:
        """Return the weights of least noise of many replies, where peeling saves nothing."""
        q, r = np.linalg.qr(self._rows / norms[:, None])
        found: Matrix = np.linalg.solve(r, q.T) / norms
        rest = np.eye(self.unknowns) - self._applied(found)
        if not np.abs(rest).max(initial=0.0) < 1e-2:
            raise np.linalg.LinAlgError("the blocks are not determined")
        return found + rest @ found

    @cached_property
    def _rows(self) -> Matrix:
        """The equations as rows of a matrix."""
        rows = np.zeros((len(self.equations), self.unknowns))
        for row, (members, values) in zip(rows, self.equations, strict=True):
            row[members] = values
        return rows

    def _applied(self, weights: Matrix) -> Matrix:
        """Return what weights make of the equations: the identity, but for rounding errors."""
        applied: Matrix = weights @ self._rows
        return applied

    @cached_property
    def fill(self) -> Matrix:
        """Weights (inactive, checks) of what the unused equations leave: the inactive unknowns.

        Raises
        ------
        numpy.linalg.LinAlgError
            These are not determined in double precision.
        """
        slots = len(self.inactive)
        mixed = np.zeros((self.unknowns, slots))
        mixed[self.inactive, np.arange(slots)] = 1.0
        self._solve(mixed, np.zeros((len(self.equations), slots)))
        conditions = -self.remainders(mixed, np.zeros((len(self.equations), slots)))
        fill: Matrix = np.linalg.pinv(conditions)
        if not np.abs(fill @ conditions - np.eye(slots)).max(initial=0.0) < 1e-2:
            raise np.linalg.LinAlgError("the inactive blocks are not determined")
        return fill

    def _solve(self, found: Matrix, replies: Matrix) -> None:
        """Solve for all unknowns but the inactive ones, which are in ``found``."""
        for number, unknown in self.steps:
            members, values = self.equations[number]
            own = members.index(unknown)
            others = members[:own] + members[own + 1 :]
            rest = np.array(values[:own] + values[own + 1 :], dtype=float) @ found[others]
            found[unknown] = (replies[number] - rest) / values[own]

    def remainders(self, found: Matrix, replies: Matrix) -> Matrix:
        """Return what the unused replies are more than ``found`` explains, (checks, columns)."""
        left = [
            replies[number] - np.array(values, dtype=float) @ found[members]
            for number, (members, values) in zip(self.checks, self._check_equations(), strict=True)
        ]
        return np.array(left).reshape(len(self.checks), found.shape[1])


class PeelingCode(Code):
    """A code whose coefficients are small integers, most of them zero, on one coded operand.

    Families state :meth:`_generators`; any replies whose rows have full rank decode.
    """

    splits = ("m",)
    operation = "matvec"

    def __init__(self, n_workers: int, grid: Any, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self._peelings: Recent[Peeling] = Recent(2)

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        return self.generator_a, np.eye(self.grid.outputs)  # B goes to everybody as it is

    @property
    def peels(self) -> bool:
        """Whether weights and blocks are found by peeling alone, not by least squares."""
        return self.integral or self.grid.outputs > _LEAST_SQUARES

    @cached_property
    def equations(self) -> list[Equation]:
        """The equation that the reply to each share is; one without members for no share."""
        if not np.array_equal(self.generator_a, np.rint(self.generator_a)):
            raise ValueError(f"code {self.name}: coefficients must be integers")
        starts = np.zeros(self.n_shares + 1, dtype=np.int64)
        rows, columns = np.nonzero(self.generator_a)
        np.cumsum(np.bincount(rows, minlength=self.n_shares), out=starts[1:])
        values = self.generator_a[rows, columns].astype(np.int64).tolist()
        members = columns.tolist()
        return [(members[i:j], values[i:j]) for i, j in pairwise(starts)]

    def peeling(self, shares: tuple[int, ...]) -> Peeling:
        """Return how the replies to these shares, sorted, are peeled."""
        known = self._peelings.get(shares)
        if known is None:
            known = Peeling([self.equations[share] for share in shares], self.grid.outputs)
            self._peelings.put(shares, known)
        return known

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the rows of these shares have full rank."""
        shares = tuple(sorted(self._existing.intersection(responders)))
        if len(shares) < self.grid.outputs:
            return False
        return self.peeling(shares).kernel.shape[1] == 0

    def watch(self) -> Callable[[int], bool]:
        """Return a function that keeps what the replies so far leave open; see :class:`Code`."""
        told: set[int] = set()
        open_ends: Residues | None = None

        def suffice(share: int) -> bool:
            nonlocal open_ends
            if share in self._existing and share not in told:
                told.add(share)
                if open_ends is not None and open_ends.shape[1]:
                    open_ends = _narrowed(open_ends, self.equations[share])
            if open_ends is None and len(told) >= self.grid.outputs:
                open_ends = self.peeling(tuple(sorted(told))).kernel
            return open_ends is not None and open_ends.shape[1] == 0

        return suffice

    def _weights(self, survivors: tuple[int, ...]) -> Matrix:
        exist = np.array([share in self._existing for share in survivors])
        shares = tuple(np.array(survivors)[exist].tolist())
        weights = np.zeros((self.grid.outputs, len(survivors)))
        norms = None if self.peels else self.norms[list(shares)]
        weights[:, exist] = self.peeling(shares).weights(norms)
        return weights

    def amplification(self, responders: Iterable[int]) -> float:
        """Return how much rounding errors grow; see :class:`Code`.

        Of many blocks it is estimated (within some 20 %) from what becomes of random errors: the
        weights themselves would take longer than everything else.
        """
        survivors = self._survivors(responders)
        if self.grid.outputs <= _LEAST_SQUARES or not self.decodable(survivors):
            return super().amplification(survivors)
        shares = tuple(share for share in survivors if share in self._existing)
        signs = np.random.default_rng(_SEED).choice((-1.0, 1.0), (len(shares), _PROBES))
        try:
            grown = self.peeling(shares).solved(signs * self.norms[list(shares), None])
        except np.linalg.LinAlgError:
            return math.inf
        return float(np.linalg.norm(grown)) / math.sqrt(_PROBES * self.grid.outputs)

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        return (
            f"{self.threshold} independent replies to the {len(self.shares)} shares of "
            f"{self.active} workers"
        )


def _narrowed(open_ends: Residues, equation: Equation) -> Residues:
    """Return what is still open when one more equation is known."""
    members, values = equation
    row = np.array(values) @ open_ends[members] % _PRIME
    (places,) = np.nonzero(row)
    if places.size == 0:
        return open_ends
    pivot = int(places[0])
    factors = row * pow(int(row[pivot]), -1, _PRIME) % _PRIME
    rest = np.delete(np.arange(row.size), pivot)
    return (open_ends[:, rest] - open_ends[:, [pivot]] * factors[rest]) % _PRIME


def _null_space(matrix: Residues) -> Residues:
    """Return a basis (columns, d) of the vectors that ``matrix`` takes to 0, modulo the prime."""
    work = matrix.copy()
    rows, columns = work.shape
    pivots: list[int] = []
    for column in range(columns):
        row = len(pivots)
        (candidates,) = np.nonzero(work[row:, column])
        if candidates.size == 0:
            continue
        found = row + int(candidates[0])
        work[[row, found]] = work[[found, row]]
        work[row] = work[row] * pow(int(work[row, column]), -1, _PRIME) % _PRIME
        factors = work[:, column].copy()
        factors[row] = 0
        (others,) = np.nonzero(factors)
        work[others] = (work[others] - factors[others, None] * work[row]) % _PRIME
        pivots.append(column)
        if len(pivots) == rows:
            break
    free = np.setdiff1d(np.arange(columns), pivots)
    basis = np.zeros((columns, free.size), dtype=np.int64)
    basis[free, np.arange(free.size)] = 1
    basis[pivots] = -work[: len(pivots)][:, free] % _PRIME
    return basis


def _multiplied(a: Residues, b: Residues) -> Residues:
    """Return ``a @ b`` modulo the prime, in pieces that do not overflow."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.int64)
    for start in range(0, a.shape[1], _CHUNK):
        piece = slice(start, start + _CHUNK)
        total = (total + a[:, piece] @ b[piece]) % _PRIME
    return total
