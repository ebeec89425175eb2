"""Gao's decoder: the polynomial that most of some values over GF(p) are of.

References
----------
S. Gao, "A new algorithm for decoding Reed-Solomon codes", Communications, Information and Network
Security, Kluwer 2003.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.galois import Field

__all__ = ["gao"]

Integers = NDArray[np.int64]


def gao(field: Field, points: Integers, values: Integers, size: int) -> Integers | None:
    """Return the polynomial of ``size`` coefficients that most of these values are of, or None.

    Parameters
    ----------
    field : Field
    points : ndarray (n,)
        Different from each other.
    values : ndarray (n,)
        At most ``(n - size) // 2`` of them wrong.
    size : int

    Returns
    -------
    ndarray (size,), int64
        None if more values are wrong.
    """
    count, p = len(points), field.p
    product = np.ones(1, dtype=np.int64)
    for point in field.reduce(points):
        product = np.append(0, product) - np.append(product * int(point) % p, 0)
        product %= p
    high, low = product, _trimmed(field.interpolate(points, values))
    before, factor = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    # Half of Euclid's algorithm: factor * interpolant = low modulo the product.
    while 2 * (len(low) - 1) >= count + size and low.any():
        quotient, rest = _divided(field, high, low)
        high, low = low, rest
        before, factor = factor, _difference(before, _times(field, quotient, factor), p)
    found, rest = _divided(field, low, factor)
    if rest.any() or len(found) > size:
        return None
    found = np.append(found, np.zeros(size - len(found), dtype=np.int64))
    wrong = np.count_nonzero(field.evaluate(found, points) != field.reduce(values))
    return found if 2 * wrong <= count - size else None


def _trimmed(coefficients: Integers) -> Integers:
    """Drop the zeros of the highest degrees; 0 keeps one."""
    used = np.flatnonzero(coefficients)
    return coefficients[: used[-1] + 1] if used.size else coefficients[:1]


def _times(field: Field, a: Integers, b: Integers) -> Integers:
    result = np.zeros(len(a) + len(b) - 1, dtype=np.int64)
    for degree, coefficient in enumerate(a):
        part = result[degree : degree + len(b)]
        part[...] = (part + int(coefficient) * b) % field.p
    return result


def _difference(a: Integers, b: Integers, p: int) -> Integers:
    result = np.zeros(max(len(a), len(b)), dtype=np.int64)
    result[: len(a)] = a
    result[: len(b)] -= b
    return _trimmed(result % p)


def _divided(field: Field, a: Integers, b: Integers) -> tuple[Integers, Integers]:
    """Return quotient and remainder of two polynomials; ``b`` is trimmed and not 0."""
    rest, inverse = a.copy(), int(field.inv(b[-1]))
    quotient = np.zeros(max(1, len(a) - len(b) + 1), dtype=np.int64)
    for degree in range(len(a) - len(b), -1, -1):
        factor = int(rest[degree + len(b) - 1]) * inverse % field.p
        quotient[degree] = factor
        part = rest[degree : degree + len(b)]
        part[...] = (part - factor * b) % field.p
    return quotient, _trimmed(rest)
