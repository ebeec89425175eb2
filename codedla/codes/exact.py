r"""Codes whose arithmetic is exact: integers modulo 2**64, or modulo a prime.

A family states its generators as Python integers or int64 and derives from

* :class:`WrapCode`: workers multiply int64 blocks, and everything wraps around modulo 2**64.
  Dividing by an even number costs bits: a lost block is ``(weights @ replies) >> shift``, which
  is exact while its entries are below ``2**(63 - shift)``.
* :class:`ModularCode`: workers multiply residues modulo a prime ``p``, held in float64, small
  enough for exact sums. :meth:`ModularCode.modulo` is the same code over another prime; several
  primes determine integers of any size (:func:`codedla.remainders.crt`).

Nothing is rounded, so whatever decodes has amplification 1.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.rows import row_kronecker
from codedla.errors import NotDecodable, UsageError
from codedla.galois import Field, largest_prime, primes_below

__all__ = ["DEFAULT_PRIME", "ExactCode", "ModularCode", "WrapCode", "primes_covering", "wrapped"]

Integers = NDArray[np.int64]
Matrix = NDArray[Any]

DEFAULT_PRIME = 2_097_143
"""The largest prime below 2**21: sums of 8192 products are exact in float64."""
_MODULUS = 2**64


class ExactCode(Code):
    """A code over a ring of integers; generators and weights are int64.

    Families derive from :class:`WrapCode` or :class:`ModularCode`.
    """

    computes: ClassVar[np.dtype]
    """dtype of shares and replies."""

    @abstractmethod
    def reduced(self, values: Matrix) -> Integers:
        """Return integers as elements of the ring."""

    @abstractmethod
    def multiplied(self, a: Integers, b: Integers) -> Integers:
        """Return a matrix product in the ring."""

    # -- generators ----------------------------------------------------------------------------

    @cached_property
    def _factors(self) -> tuple[Integers, Integers]:
        a, b = self._generators()
        return self._element(a), self._element(b)

    @cached_property
    def _system(self) -> tuple[Integers, Integers]:
        generator, wanted = self._unknowns()
        return self._element(generator), self._element(wanted)

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        outputs = np.eye(self.grid.outputs, dtype=np.int64)
        return row_kronecker(self.generator_a, self.generator_b), outputs

    def _element(self, values: Matrix) -> Integers:
        element = np.array(self.reduced(np.asarray(values)), order="C")
        element.setflags(write=False)
        return element

    # -- accuracy ------------------------------------------------------------------------------

    def amplification(self, responders: Iterable[int]) -> float:
        """Return 1: nothing is rounded.

        Raises
        ------
        NotDecodable
            Too few replies.
        """
        self.weights(responders)
        return 1.0

    @cached_property
    def _worst(self) -> tuple[float, tuple[int, ...]]:
        # The first set that decodes is as good as any.
        sets = itertools.combinations(range(self.active), self.threshold)
        return 1.0, next(members for members in sets if self.decodable(members))

    def digits_warning(self, eps: float = 2.0**-52, tolerance: float = 1e-6) -> str | None:
        """Return None: no digit is ever lost."""
        return None

    # -- systematic codes ----------------------------------------------------------------------

    def _pattern(self, survivors: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
        """Return blocks received, blocks lost, and as many parity workers as blocks are lost."""
        blocks = self.grid.outputs
        present = [w for w in survivors if w < blocks]
        lost = sorted(set(range(blocks)) - set(present))
        parities = [w for w in survivors if blocks <= w < self.active]
        return present, lost, parities[: len(lost)]

    def _filled(
        self, survivors: tuple[int, ...], solved: Integers, scale: Integers | None = None
    ) -> Integers:
        """Return all weights, given those of the parity residuals for the lost blocks."""
        present, lost, parities = self._pattern(survivors)
        column = {worker: place for place, worker in enumerate(survivors)}
        weights = np.zeros((self.grid.outputs, len(survivors)), dtype=np.int64)
        weights[present, [column[w] for w in present]] = 1
        if lost:
            known = self.generator[np.ix_(parities, present)]
            weights[np.ix_(lost, [column[w] for w in parities])] = solved
            weights[np.ix_(lost, [column[w] for w in present])] = self.reduced(
                -self.multiplied(solved, known)
            )
        return weights


class WrapCode(ExactCode):
    """A systematic code modulo 2**64; ``_generators`` returns Python integers (dtype object).

    Workers ``0 .. m*n - 1`` hold plain blocks, the others parity rows. A block is recovered as
    ``((weights @ replies) mod 2**64) >> shift``, arithmetically.
    """

    field = "int64"
    systematic = True
    computes = np.dtype(np.int64)

    def reduced(self, values: Matrix) -> Integers:
        """Return the values modulo 2**64, as int64."""
        return wrapped(values)

    def multiplied(self, a: Integers, b: Integers) -> Integers:
        """Return the product modulo 2**64."""
        return a @ b

    @cached_property
    def _parity(self) -> Matrix:
        """Parity rows in full, as Python integers."""
        a, b = (np.asarray(part, dtype=object) for part in self._generators())
        return row_kronecker(a[self.grid.outputs :], b[self.grid.outputs :])

    def _weights(self, survivors: tuple[int, ...]) -> Integers:
        _, lost, parities = self._pattern(survivors)
        return self._filled(survivors, self._recovery(lost, parities)[0])

    def shifts(self, responders: Iterable[int]) -> Integers:
        """Return by how many bits each decoded block must be shifted to the right, (m*n,)."""
        _, lost, parities = self._pattern(self._survivors(responders))
        shifts = np.zeros(self.grid.outputs, dtype=np.int64)
        shifts[lost] = self._recovery(lost, parities)[1]
        return shifts

    def _recovery(self, lost: list[int], parities: list[int]) -> tuple[Integers, list[int]]:
        """Return ``V`` and shifts: lost blocks = ``(V @ residuals) >> shift``."""
        if len(parities) < len(lost):
            raise NotDecodable(
                f"{len(lost)} blocks and {len(parities)} parities: wait for more of them",
                need=self.threshold,
            )
        if not lost:
            return np.zeros((0, 0), dtype=np.int64), []
        rows = [worker - self.grid.outputs for worker in parities]
        inverse = _inverse(self._parity[np.ix_(rows, lost)])
        shifts = [max(_twos(entry.denominator) for entry in row) for row in inverse]
        scaled = [
            [_unit(entry, shift) for entry in row]
            for row, shift in zip(inverse, shifts, strict=True)
        ]
        return wrapped(np.array(scaled, dtype=object)), shifts

    @property
    @abstractmethod
    def lost_bits(self) -> int:
        """The largest shift of any survivor set: products below ``2**(63 - lost_bits)`` decode."""


class ModularCode(ExactCode):
    """A code over GF(p).

    Parameters
    ----------
    n_workers : int
    grid : Grid
    nodes : str, optional
    prime : int
        The order ``p`` of the field.
    """

    field = "GF(p)"
    computes = np.dtype(np.float64)

    def __init__(
        self, n_workers: int, grid: Grid, *, nodes: str | None = None, prime: int = DEFAULT_PRIME
    ) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.galois = Field(prime)
        smallest = self.smallest_prime()
        if prime < smallest:
            raise UsageError(
                f"code {self.name} on {self.n_workers} workers and blocks {grid} needs a prime of "
                f"at least {smallest}; got {prime}; use a larger prime or fewer workers"
            )

    @property
    def prime(self) -> int:
        """The order of the field."""
        return self.galois.p

    def smallest_prime(self) -> int:
        """Return a bound from which on every prime has room for this code."""
        return self.n_workers + 1

    def modulo(self, prime: int) -> ModularCode:
        """Return the same code over another field."""
        if prime == self.prime:
            return self
        return type(self)(self.n_workers, self.blocks, nodes=self.nodes, prime=prime)

    def primes(self, inner: int, largest: int) -> tuple[int, ...]:
        """Return primes that determine a product and keep all sums exact in float64.

        Parameters
        ----------
        inner : int
            Terms of the sums that a worker forms.
        largest : int
            No entry of the product is larger in magnitude.

        Raises
        ------
        UsageError
            Sums this long leave no room for a prime that is large enough for the code.
        """
        terms = max(inner, self.generator.shape[1] + 1, self.n_shares + 1)
        found = primes_covering(terms, largest)
        if found[-1] < self.smallest_prime():
            raise UsageError(
                f"code {self.name} needs primes of at least {self.smallest_prime()}, and sums of "
                f"{terms} products modulo one are exact up to {found[0]}; use fewer workers or "
                "cut the inner dimension"
            )
        return found

    def reduced(self, values: Matrix) -> Integers:
        """Return the residues ``0 .. p - 1``."""
        return self.galois.reduce(values)

    def multiplied(self, a: Integers, b: Integers) -> Integers:
        """Return the product modulo p."""
        return self.galois.matmul(a, b)

    def _weights(self, survivors: tuple[int, ...]) -> Integers:
        if self.systematic:
            _, lost, parities = self._pattern(survivors)
            solved = self.galois.inverse(self.generator[np.ix_(parities, lost)])
            return self._filled(survivors, solved)
        # Some independent replies; the others are not needed where nothing is rounded.
        count = len(survivors)
        equations = np.hstack([self.generator[list(survivors)].T, self.wanted.T])
        rows, chosen = self.galois.echelon(equations)
        if chosen and chosen[-1] >= count:
            raise np.linalg.LinAlgError("these replies do not determine what is wanted")
        weights = np.zeros((len(self.wanted), count), dtype=np.int64)
        weights[:, list(chosen)] = rows[: len(chosen), count:].T
        return weights


@lru_cache(maxsize=256)
def primes_covering(terms: int, largest: int) -> tuple[int, ...]:
    """Return primes for sums of ``terms`` products that together exceed ``2 * largest``."""
    found = [largest_prime(terms)]
    product = found[0]
    while product <= 2 * largest:
        found += primes_below(found[-1], 1)
        product *= found[-1]
    return tuple(found)


def wrapped(values: Matrix) -> Integers:
    """Return integers of any size modulo 2**64, as int64."""
    array = np.asarray(values)
    if array.dtype == object:
        return (array % _MODULUS).astype(np.uint64).view(np.int64)
    return array.astype(np.int64)


def _inverse(matrix: Matrix) -> list[list[Fraction]]:
    """Invert a small matrix of Python integers."""
    size = len(matrix)
    rows = [
        [Fraction(int(x)) for x in row] + [Fraction(int(i == j)) for j in range(size)]
        for i, row in enumerate(matrix)
    ]
    for column in range(size):
        pivot = next((i for i in range(column, size) if rows[i][column]), None)
        if pivot is None:
            raise np.linalg.LinAlgError("the parity rows are dependent")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for i in range(size):
            if i != column and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]


def _twos(number: int) -> int:
    """Return how often 2 divides a number other than 0."""
    return (number & -number).bit_length() - 1


def _unit(entry: Fraction, shift: int) -> int:
    """Return ``entry * 2**shift`` modulo 2**64; its denominator must become odd."""
    scaled = entry * (1 << shift)
    return scaled.numerator * pow(scaled.denominator, -1, _MODULUS) % _MODULUS
