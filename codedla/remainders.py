"""Integers from their residues modulo several primes, by the Chinese remainder theorem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla import kernels
from codedla.errors import UsageError
from codedla.galois import QUICK, Field, centred, longest_sum

__all__ = ["crt"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def crt(residues: Sequence[ArrayLike], primes: Sequence[int], *, wrap: bool = True) -> NDArray[Any]:
    """Return the integers of least magnitude that have these residues.

    With ``P`` the product of the (different) primes, these are the integers ``-P/2 < x < P/2``:
    whatever is that small is found exactly.

    Parameters
    ----------
    residues : sequence of array_like
        One array for each prime, all of one shape; those of float64 hold balanced residues.
    primes : sequence of int
    wrap : bool
        True: int64 modulo 2**64, as NumPy's integers overflow. False: Python integers.

    Returns
    -------
    ndarray
        int64, or of dtype object.

    Raises
    ------
    UsageError
        No prime, the same twice, or as many arrays as there are not primes.
    """
    if not primes or len(set(primes)) != len(primes) or len(residues) != len(primes):
        raise UsageError(
            "the Chinese remainder theorem needs different primes and one array of residues for "
            f"each; got {len(residues)} arrays and the primes {tuple(primes)}; match them"
        )
    # Mixed radix: x = d0 + p0 (d1 + p1 (d2 + ...)), every digit balanced and found modulo its p.
    quick = max(primes) < QUICK
    digits: list[NDArray[Any]] = []
    for p, values in zip(primes, residues, strict=True):
        digits.append((_quick_digit if quick else _digit)(Field(p), values, primes, digits))
    kind = np.int64 if wrap else object
    total = digits[-1].astype(np.int64).astype(kind)
    for p, digit in zip(primes[-2::-1], digits[-2::-1], strict=True):
        total *= p
        total += digit.astype(np.int64)
    return total


def _digit(
    field: Field, values: ArrayLike, primes: Sequence[int], digits: list[NDArray[Any]]
) -> Integers:
    """Return the next digit in mixed radix, given those before it."""
    rest = field.reduce(values)
    for known, digit in zip(primes, digits, strict=False):
        rest = (rest - digit) * int(field.inv(known)) % field.p
    return np.where(rest > field.p // 2, rest - field.p, rest)


def _quick_digit(
    field: Field, values: ArrayLike, primes: Sequence[int], digits: list[NDArray[Any]]
) -> Floats:
    """Return the same as float64: one combination of the residues and all digits before it."""
    array = np.asarray(values)
    own = array if array.dtype == np.float64 else field.balanced(array)
    if not digits:
        return own
    shape, blocks = own.shape, [np.ravel(block) for block in (own, *digits)]
    place, factors = 1, []
    for known in primes[: len(digits)]:
        factors.append(-place)
        place *= known
    inverse = pow(place, -1, field.p)
    weights = np.array([[centred(inverse * factor, field.p) for factor in (1, *factors)]])
    digit, most = np.empty(own.size), longest_sum(field.p) - 1
    for start in range(0, len(blocks), most):
        group = slice(start, start + most)
        kernels.combine_mod(
            weights[:, group], blocks[group], [digit], field.p, accumulate=start > 0
        )
    return digit.reshape(shape)
