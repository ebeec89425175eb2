"""Checks of coded transforms and convolutions: random combinations that right results agree in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import VerificationFailed

__all__ = [
    "ConvolutionCheck",
    "Projection",
    "TransformCheck",
    "verify_convolution",
    "verify_transform",
]

Array = NDArray[Any]

_MARGIN = 64.0
"""How much more than the usual rounding error a check allows."""
_ORDER = 2**31
"""Sequences are checked at roots of unity of this order, whose powers are known exactly."""


# -- transforms ------------------------------------------------------------------------------------


class Projection:
    r"""A random combination of a spectrum, and what it is of the sequence.

    With :math:`z` a random point of the unit circle, :math:`\sum_{k<H} z^k X_k = \sum_n K_n x_n`
    where :math:`K_n = \sum_{k<H} (z w^n)^k` is a geometric sum, known in closed form.

    Parameters
    ----------
    length, columns : int
        Points of the sequence; entries ``H`` of its spectrum that are there.
    rng : numpy.random.Generator
        A new one by default: nobody can foresee the point.
    """

    def __init__(self, length: int, columns: int, rng: np.random.Generator | None = None) -> None:
        rng = np.random.default_rng() if rng is None else rng
        # Half-way between two roots of unity, more or less: the geometric sum is harmless there.
        whole, part = int(rng.integers(length)), float(rng.uniform(0.25, 0.75))
        self.weights = powers(columns, whole, part, length)
        # The sum is (1 - u^H) / (1 - u) with u = z w^n, and 1 / (1 - u) is (1 + i cot) / 2 of half
        # the angle of u, which is accurate also where that is small.
        n = np.arange(length)
        away = (whole - n) % length
        away = np.where(2 * away > length, away - length, away)
        cotangent = 1.0 / np.tan(np.pi / length * (away + part))
        top = (
            1.0
            - powers(length, -columns, 0.0, length)
            * powers(2, columns * whole, columns * part, length)[1]
        )
        self.kernel = (0.5 + 0.5j * cotangent) * top


class TransformCheck:
    """Tell right replies from wrong ones, in O(N / m) each.

    Parameters
    ----------
    dealt : ndarray (m, batch, N / m)
        The parts.
    columns : int
        Width of a reply.
    weights : callable
        Combinations of parts that make up a share.
    eps : float
        Of the replies.
    """

    def __init__(
        self, dealt: Array, columns: int, weights: Callable[[int], Array], eps: float
    ) -> None:
        m, batch, width = dealt.shape
        projection = Projection(width, columns)
        self._right = projection.weights
        rows = dealt.reshape(m * batch, width)
        self._left = chunked_dot(rows, projection.kernel).reshape(m, batch)
        self._norms = _row_norms(rows).reshape(m, batch)
        self._weights, self._batch = weights, batch
        self._slack = slack(width, eps) * math.sqrt(m)

    def check(self, share: int, reply: Array) -> bool:
        """Tell whether ``reply`` can be the transform of a share."""
        weights = self._weights(share)
        with np.errstate(all="ignore"):
            got = chunked_dot(reply, self._right).reshape(len(weights), self._batch)
            difference = np.abs(got - weights @ self._left)
            # NaN must fail, hence "<=" and not ">".
            return bool((difference <= self._slack * (np.abs(weights) @ self._norms)).all())


def verify_transform(rows: Array, result: Array, error: float) -> None:
    """Compare a random combination of each spectrum with what it is of its sequence.

    Parameters
    ----------
    rows, result : ndarray (batch, N)
        Sequences, and their transforms.
    error : float
        What decoding may err by, relative to the norm.

    Raises
    ------
    VerificationFailed
        They differ by more than rounding explains.
    """
    length = rows.shape[1]
    projection = Projection(length, length)
    with np.errstate(all="ignore"):
        got, due = chunked_dot(result, projection.weights), chunked_dot(rows, projection.kernel)
        explained = slack(length, error + float(np.finfo(result.dtype).eps)) * _row_norms(rows)
        wrong = np.flatnonzero(~(np.abs(got - due) <= explained))
    if wrong.size:
        first = wrong[0]
        raise VerificationFailed(
            f"the transform failed its check in sequence {first}: off by "
            f"{abs(got[first] - due[first]):.1e} where rounding explains {explained[first]:.1e}; a "
            "worker answered wrongly; the transform is not handed out"
        )


# -- convolutions ---------------------------------------------------------------------------------


def _at_random(count: int, rng: np.random.Generator) -> Array:
    """Return the powers of a random point of the unit circle."""
    return powers(count, int(rng.integers(_ORDER // 2)) * 2 + 1, 0.0, _ORDER)


class ConvolutionCheck:
    """Tell right replies from wrong ones: polynomials at a random point multiply.

    Parameters
    ----------
    pieces : (ndarray (m, la), ndarray (n, lb))
    weights : (callable, callable)
        Combinations of pieces that make up a share.
    eps : float
    """

    def __init__(
        self,
        pieces: tuple[Array, Array],
        weights: tuple[Callable[[int], Array], Callable[[int], Array]],
        eps: float,
    ) -> None:
        width = sum(part.shape[1] for part in pieces) - 1
        self._right = _at_random(width, np.random.default_rng())
        self._values = [chunked_dot(part, self._right[: part.shape[1]]) for part in pieces]
        self._norms = [np.linalg.norm(part, axis=1).astype(np.float64) for part in pieces]
        self._weights, self._slack = weights, slack(width, eps)

    def check(self, share: int, reply: Array) -> bool:
        """Tell whether ``reply`` can be the convolution of a share's two parts."""
        due, size = 1.0 + 0.0j, self._slack
        for weights, values, norms in zip(self._weights, self._values, self._norms, strict=True):
            row = weights(share)[0]
            due, size = due * (row @ values), size * float(np.abs(row) @ norms)
        with np.errstate(all="ignore"):
            # NaN must fail, hence "<=" and not ">".
            return bool(abs(chunked_dot(reply, self._right)[0] - due) <= size)


def verify_convolution(a: Array, b: Array, whole: Array, error: float) -> None:
    """Compare values at a random point of the unit circle.

    Parameters
    ----------
    a, b : ndarray (La,), (Lb,)
    whole : ndarray (La + Lb - 1,)
    error : float
        What decoding may err by, relative to the product of the norms.

    Raises
    ------
    VerificationFailed
        They differ by more than rounding explains.
    """
    point = _at_random(whole.size, np.random.default_rng())
    with np.errstate(all="ignore"):
        got = chunked_dot(whole[None, :], point)[0]
        factors = [chunked_dot(x[None, :], point[: x.size])[0] for x in (a, b)]
        norms = [float(np.linalg.norm(x.astype(np.complex128))) for x in (a, b)]
        difference = abs(got - factors[0] * factors[1])
        explained = slack(whole.size, error + 2.0**-52) * norms[0] * norms[1]
    if not difference <= explained:
        raise VerificationFailed(
            f"the convolution failed its check: off by {difference:.1e} where rounding explains "
            f"{explained:.1e}; a worker answered wrongly; the convolution is not handed out"
        )


# -- what both need --------------------------------------------------------------------------------


def slack(length: int, eps: float) -> float:
    """Return the largest honest difference, for sequences of norm 1."""
    # Both sides are up to sqrt(length) times the norm of the errors they are the sums of.
    return _MARGIN * eps * math.sqrt(length) * math.log2(length + 2) + 1e-300


def _row_norms(rows: Array) -> Array:
    wide = np.abs(rows).astype(np.float64)
    peak = wide.max(axis=1, initial=0.0)
    scale = np.where(peak > 0, peak, 1.0)
    return scale * np.sqrt(np.square(wide / scale[:, None]).sum(axis=1))


def chunked_dot(rows: Array, weights: Array) -> Array:
    """Return ``rows @ weights`` in double precision, summed a few thousand terms at a time."""
    step = 1 << 12
    parts = [
        rows[:, at : at + step].astype(np.complex128) @ weights[at : at + step]
        for at in range(0, rows.shape[1], step)
    ]
    return np.sum(parts, axis=0)


def powers(count: int, whole: int, part: float, order: int) -> Array:
    """Return the powers ``0 .. count - 1`` of ``exp(2 pi i (whole + part) / order)``.

    Products of a few accurate ones: whole turns are left out in integers.
    """
    step = max(1, math.isqrt(count))
    return np.outer(
        _few_powers(np.arange(-(-count // step)) * step, whole, part, order),
        _few_powers(np.arange(step), whole, part, order),
    ).ravel()[:count]


def _few_powers(exponents: Array, whole: int, part: float, order: int) -> Array:
    turns = (exponents * whole % order) / order + exponents * (part / order)
    return np.exp(2j * np.pi * turns)
