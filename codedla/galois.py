r"""Arithmetic modulo primes.

Elements of GF(p) are int64 residues ``0 .. p - 1``; ``p < 2**31`` keeps every product of two of
them inside int64. Matrix products go through the floating-point BLAS on *balanced* residues
``-p/2 < x < p/2``: a sum of ``inner`` products is exact while

.. math:: \mathrm{inner} \cdot \lfloor p/2 \rfloor^2 + 2 p < 2^{53},

and longer sums are cut. The way back to integers is in :mod:`codedla.remainders`.

References
----------
J.-G. Dumas, P. Giorgi, C. Pernet, "Dense linear algebra over word-size prime fields: the FFLAS and
FFPACK packages", doi:10.1145/1391989.1391992.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla import kernels
from codedla.errors import UsageError

__all__ = [
    "EXACT",
    "QUICK",
    "Field",
    "balance",
    "centred",
    "is_prime",
    "largest_prime",
    "longest_sum",
    "primes_below",
]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

EXACT = 2**53
"""Every integer of smaller magnitude is a float64."""
LARGEST = 2**31
"""Primes are smaller: a product of two residues then fits int64."""
_SHORT = 64
"""Sums that must be cut shorter than this are worth halving one operand's bits."""
QUICK = 2**26
"""Residues modulo smaller primes are found in floating point, by the kernels."""
_LOWER_BITS = 42
"""Lower part of 64-bit integers: the upper one, 22 bits, times a residue stays exact as well."""
# Strong pseudoprimes to all four bases are larger than 3.2e9.
_WITNESSES = (2, 3, 5, 7)


def is_prime(number: int) -> bool:
    """Tell whether ``number < 2**31`` is prime (Miller-Rabin with bases that leave no doubt).

    Raises
    ------
    UsageError
        ``number`` is 2**31 or more.
    """
    number = operator.index(number)
    if number >= LARGEST:
        raise UsageError(f"primes must be below 2**31; got {number}; choose a smaller one")
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    for base in _WITNESSES:
        x = pow(base, odd, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def primes_below(limit: int, count: int) -> tuple[int, ...]:
    """Return the ``count`` largest primes below ``limit``, largest first.

    Raises
    ------
    UsageError
        There are not as many, or ``limit`` is above 2**31.
    """
    if limit > LARGEST:
        raise UsageError(f"primes must be below 2**31; got the limit {limit}; use a smaller one")
    found: list[int] = []
    number = limit - 1
    while len(found) < count:
        if number < 2:
            raise UsageError(
                f"there are only {len(found)} primes below {limit}; got a request for {count}; "
                "raise the limit"
            )
        if is_prime(number):
            found.append(number)
        number -= 1
    return tuple(found)


def largest_prime(inner: int) -> int:
    """Return the largest prime whose sums of ``inner`` products are exact in float64.

    Raises
    ------
    UsageError
        Not even residues modulo 3 can be summed.
    """
    inner = max(1, operator.index(inner))
    limit = min(2 * math.isqrt(EXACT // inner) + 2, LARGEST)
    while limit > 3:
        (limit,) = primes_below(limit, 1)
        if longest_sum(limit) >= inner:
            return limit
    raise UsageError(
        f"sums of products are exact in float64 up to 2**53 terms; got {inner}; "
        "cut the inner dimension"
    )


def longest_sum(p: int) -> int:
    """Return how many products of balanced residues modulo ``p`` may be summed in float64.

    Their sum stays below ``2**53 - 2 * p``, as its reduction asks for.
    """
    return (EXACT - 1 - 2 * p) // (p // 2) ** 2


def balance(values: Floats, p: int) -> Floats:
    """Reduce integers held in float64, in place, to ``-p/2 < x < p/2`` (0 or 1 modulo 2).

    Parameters
    ----------
    values : ndarray, float64
        Integers of magnitude below ``2**53 - 2 * p``, 1-D or 2-D.
    p : int
        Below 2**27.

    Returns
    -------
    ndarray
        ``values``.
    """
    kernels.combine_mod(np.ones((1, 1)), [values], [values], p)
    return values


class Field:
    """The integers modulo a prime ``p < 2**31``, on int64 arrays.

    Arguments may be any integers, as arrays or nested sequences (Python integers of any size,
    too); results are residues ``0 .. p - 1``.

    Parameters
    ----------
    p : int

    Raises
    ------
    UsageError
        ``p`` is not a prime below 2**31.
    """

    def __init__(self, p: int) -> None:
        self.p = operator.index(p)
        if not is_prime(self.p):
            raise UsageError(
                f"a field GF(p) needs a prime p; got {self.p}; the next one below is "
                f"{primes_below(self.p, 1)[0] if self.p > 2 else 'none: the least is 2'}"
            )

    def __repr__(self) -> str:
        return f"Field({self.p})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and other.p == self.p

    def __hash__(self) -> int:
        return hash(("Field", self.p))

    # -- residues ------------------------------------------------------------------------------

    def reduce(self, values: ArrayLike) -> Integers:
        """Return the residues ``0 .. p - 1`` of integers of any dtype, objects included."""
        array = np.asarray(values)
        if array.dtype.kind == "f":
            if not (np.isfinite(array).all() and np.array_equal(array, np.rint(array))):
                raise UsageError("residues are of integers; got fractions or NaN; round them first")
            array = np.fmod(array, self.p)
        elif array.dtype.kind not in "iubO":
            raise UsageError(f"residues are of integers; got {array.dtype}; convert the values")
        elif array.dtype.kind == "b" or array.dtype.itemsize < 8:
            # Narrow types cannot hold p itself.
            array = array.astype(np.int64)
        # NumPy gives a scalar for 0-d input, of objects one of Python's integers.
        return np.asarray(array % self.p).astype(np.int64)

    def balanced(self, values: ArrayLike) -> Floats:
        """Return balanced residues ``-p/2 < x < p/2`` as float64, ready for the BLAS."""
        array = np.asarray(values)
        if self.p < QUICK and array.dtype.kind in "iub" and array.ndim:
            return self._quickly(array)
        residues = self.reduce(array)
        return np.where(residues > self.p // 2, residues - self.p, residues).astype(np.float64)

    def _quickly(self, array: NDArray[Any]) -> Floats:
        """Balance integers of a dtype by the kernels, several times as fast as by integer ``%``."""
        if array.dtype.itemsize < 8:
            whole = np.array(array, dtype=np.float64, order="C")
            return balance(whole.reshape(-1), self.p).reshape(array.shape)
        array = np.ascontiguousarray(array)
        upper = (array >> _LOWER_BITS).astype(np.float64)
        lower = (array & array.dtype.type((1 << _LOWER_BITS) - 1)).astype(np.float64)
        weights = [[centred(1 << _LOWER_BITS, self.p), 1]]
        flat = lower.reshape(-1)
        kernels.combine_mod(weights, [upper.reshape(-1), flat], [flat], self.p)
        return lower

    def multiply(self, a: ArrayLike, b: ArrayLike) -> Integers:
        """Return the elementwise product."""
        return np.asarray(self.reduce(a) * self.reduce(b) % self.p)

    def power(self, base: ArrayLike, exponents: ArrayLike) -> Integers:
        """Return ``base ** exponents`` elementwise; ``0 ** 0`` is 1.

        Raises
        ------
        UsageError
            A negative exponent: invert the base first.
        """
        left = np.asarray(exponents, dtype=np.int64)
        if (left < 0).any():
            raise UsageError(
                f"exponents must not be negative; got {int(left.min())}; invert the base first"
            )
        square, left = np.broadcast_arrays(self.reduce(base), left)
        result = np.full(left.shape, 1 % self.p, dtype=np.int64)
        while left.any():
            result = np.where(left & 1, result * square % self.p, result)
            square, left = square * square % self.p, left >> 1
        return result

    def inv(self, values: ArrayLike) -> Integers:
        """Return the multiplicative inverses.

        Raises
        ------
        UsageError
            One of the values is 0 modulo p.
        """
        residues = self.reduce(values)
        if (residues == 0).any():
            raise UsageError(f"0 has no inverse modulo {self.p}; leave zeros out")
        return self.power(residues, self.p - 2)

    # -- matrices ------------------------------------------------------------------------------

    def matmul(self, a: ArrayLike, b: ArrayLike) -> Integers:
        """Return the matrix product of two 2-D (or vector) operands, through the BLAS."""
        left, right = self.balanced(a), self.balanced(b)
        half, base = self.p // 2, 1
        if longest_sum(self.p) < min(_SHORT, left.shape[-1]):
            # Large p: multiply the lower and the upper half of the bits of the left operand.
            base = 1 << (half.bit_length() + 1) // 2
            upper = np.rint(left / base)
            low = self._chunked(left - upper * base, right, (EXACT - 1) // (half * base))
            high = self._chunked(upper, right, (EXACT - 1) // (half * base))
            return np.asarray((high * base + low) % self.p)
        return self._chunked(left, right, max(1, longest_sum(self.p)))

    def product(self, left: Any, right: Floats) -> Integers:
        """Return the matrix product of balanced residues, ``p < 2**26``; sparse ones, too."""
        return self._chunked(left, right, longest_sum(self.p))

    def _chunked(self, left: Any, right: Floats, most: int) -> Integers:
        """Multiply with at most ``most`` terms to a sum, and reduce in between."""
        total: Any = 0
        for start in range(0, max(1, left.shape[-1]), most):
            chunk = slice(start, start + most)
            exact = np.asarray((left[:, chunk] if left.ndim == 2 else left[chunk]) @ right[chunk])
            if self.p < QUICK and exact.ndim:
                exact = balance(np.ascontiguousarray(exact).reshape(-1), self.p).reshape(
                    exact.shape
                )
            total = (total + exact.astype(np.int64)) % self.p
        return np.asarray(total)

    def echelon(self, matrix: ArrayLike) -> tuple[Integers, tuple[int, ...]]:
        """Return the reduced row echelon form and its pivot columns."""
        rows = self.reduce(matrix).copy()
        pivots: list[int] = []
        for column in range(rows.shape[1]):
            rank = len(pivots)
            candidates = np.flatnonzero(rows[rank:, column])
            if candidates.size == 0:
                continue
            swap = rank + int(candidates[0])
            rows[[rank, swap]] = rows[[swap, rank]]
            rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, self.p) % self.p
            factors = rows[:, column].copy()
            factors[rank] = 0
            rows = (rows - factors[:, None] * rows[rank] % self.p) % self.p
            pivots.append(column)
            if len(pivots) == rows.shape[0]:
                break
        return rows, tuple(pivots)

    def rank(self, matrix: ArrayLike) -> int:
        """Return the rank of a matrix."""
        rows = self.reduce(matrix).copy()
        rank = 0
        # Elimination downwards only: half the work of the reduced form, and it shrinks.
        for column in range(rows.shape[1]):
            candidates = np.flatnonzero(rows[rank:, column])
            if candidates.size == 0:
                continue
            swap = rank + int(candidates[0])
            rows[[rank, swap]] = rows[[swap, rank]]
            pivot = rows[rank, column:] * pow(int(rows[rank, column]), -1, self.p) % self.p
            below = rows[rank + 1 :, column:]
            below -= below[:, :1] * pivot % self.p
            below %= self.p
            rank += 1
            if rank == rows.shape[0]:
                break
        return rank

    def null_space(self, matrix: ArrayLike) -> Integers:
        """Return a basis, in columns, of all ``x`` with ``matrix @ x == 0``."""
        rows, pivots = self.echelon(matrix)
        free = [column for column in range(rows.shape[1]) if column not in pivots]
        basis = np.zeros((rows.shape[1], len(free)), dtype=np.int64)
        basis[free, np.arange(len(free))] = 1
        basis[list(pivots), :] = -rows[: len(pivots), free] % self.p
        return basis

    def solve(self, matrix: ArrayLike, right: ArrayLike) -> Integers:
        """Return the unique ``x`` with ``matrix @ x == right``; more rows than columns are fine.

        Raises
        ------
        numpy.linalg.LinAlgError
            There is no solution, or more than one.
        """
        left, sides = self.reduce(matrix), self.reduce(right)
        columns = left.shape[1]
        wide = sides if sides.ndim == 2 else sides[:, None]
        rows, pivots = self.echelon(np.hstack([left, wide]))
        if pivots[:columns] != tuple(range(columns)):
            raise np.linalg.LinAlgError(f"the matrix has dependent columns modulo {self.p}")
        if len(pivots) > columns:
            raise np.linalg.LinAlgError(f"the equations contradict each other modulo {self.p}")
        found = rows[:columns, columns:]
        return found if sides.ndim == 2 else found[:, 0]

    def inverse(self, matrix: ArrayLike) -> Integers:
        """Return the inverse of a square matrix.

        Raises
        ------
        numpy.linalg.LinAlgError
            The matrix is singular modulo p.
        """
        square = self.reduce(matrix)
        if square.ndim != 2 or square.shape[0] != square.shape[1]:
            raise UsageError(f"only a square matrix has an inverse; got the shape {square.shape}")
        return self.solve(square, np.eye(len(square), dtype=np.int64))

    # -- polynomials ---------------------------------------------------------------------------

    def vandermonde(self, points: ArrayLike, degrees: int | Sequence[int]) -> Integers:
        """Return ``points[i] ** degrees[j]``; a number ``d`` means the degrees ``0 .. d - 1``."""
        exponents = np.arange(degrees) if isinstance(degrees, int) else np.asarray(degrees)
        return self.power(np.reshape(self.reduce(points), (-1, 1)), exponents[None, :])

    def evaluate(self, coefficients: ArrayLike, points: ArrayLike) -> Integers:
        """Return the polynomial ``sum_d coefficients[d] x**d`` at all points."""
        at = self.reduce(points)
        value = np.zeros_like(at)
        for coefficient in self.reduce(coefficients)[::-1]:
            value = (value * at + coefficient) % self.p
        return value

    def interpolate(self, points: ArrayLike, values: ArrayLike) -> Integers:
        """Return the coefficients of the polynomial of least degree through all points.

        Parameters
        ----------
        points : array_like (k,)
            Distinct modulo p.
        values : array_like (k,) or (k, width)

        Returns
        -------
        ndarray (k,) or (k, width), int64

        Raises
        ------
        UsageError
            Two points are the same modulo p.
        """
        at = self.reduce(points)
        if np.unique(at).size != at.size:
            raise UsageError(
                f"points must differ modulo {self.p}; got {at.size} points of which "
                f"{np.unique(at).size} differ; use others, or a larger prime"
            )
        return self.solve(self.vandermonde(at, at.size), values)


def centred(number: int, p: int) -> int:
    """Return the balanced residue of one integer, of any size."""
    residue = number % p
    return residue - p if residue > p // 2 else residue
