"""Read what callers pass: numbers, choices, pools, in plain words when they are not what is due."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from codedla.errors import UsageError

__all__ = [
    "MOST_BLOCKS",
    "MOST_WORKERS",
    "block_counts",
    "check_choice",
    "check_pool",
    "check_progress",
    "positive",
    "whole_number",
]

MOST_BLOCKS = 10**6
"""More blocks than workers of any pool; keeps arithmetic with a mistyped number short."""
MOST_WORKERS = 20_000
"""Choosing a code takes a minute for so many, and soon hours; one master could not serve them."""


def whole_number(value: Any, name: str, *, least: int) -> int:
    """Return ``value`` as int: Python's and NumPy's integers pass, bools and floats do not.

    Raises
    ------
    UsageError
        Not a whole number, or less than ``least``.
    """
    try:
        number = _index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number; got {value!r}; give an int") from None
    if number < least:
        raise UsageError(f"{name} must be >= {least}; got {number}; give a larger one")
    return number


def positive(value: Any, name: str) -> float:
    """Return ``value`` as a positive float; infinity passes, NaN does not.

    Raises
    ------
    UsageError
        Not a real number, or not positive.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise UsageError(f"{name} must be a positive number; got {value!r}; give an int or a float")
    number = float(value)
    if not number > 0:
        raise UsageError(f"{name} must be positive; got {value}; give a larger one")
    return number


def fraction(value: Any, name: str, *, zero: bool, cure: str) -> float:
    """Return ``value`` as a float below 1 and above 0, or with ``zero`` 0 itself.

    Raises
    ------
    UsageError
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    if not real or not 0 <= value < 1 or (value == 0 and not zero):
        rule = "from 0 up to, not including, 1" if zero else "between 0 and 1"
        raise UsageError(f"{name} must be {rule}; got {value!r}; {cure}")
    return float(value)


def block_counts(blocks: Any) -> int | tuple[int, ...]:
    """Return numbers of blocks as an int, or as a tuple of one to three ints.

    Raises
    ------
    UsageError
        Not positive integers, too many of them, or too large.
    """
    try:
        counts = _index(blocks)
        parts: tuple[int, ...] = (counts,)
    except TypeError:
        counts = None
        try:
            parts = () if isinstance(blocks, str | bytes) else tuple(_index(b) for b in blocks)
        except TypeError:
            parts = ()
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise UsageError(
            "blocks must be one, two or three positive integers (K, MxN or MxPxN); "
            f"got {blocks!r}; write for instance blocks=(2, 2)"
        )
    if math.prod(parts) > MOST_BLOCKS:
        raise UsageError(f"blocks are at most {MOST_BLOCKS} in all; got {blocks!r}; use fewer")
    return parts if counts is None else counts


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    """Raise UsageError unless ``value`` is one of these words."""
    if not (isinstance(value, str) and value in choices):
        known = ", ".join(map(repr, choices))
        raise UsageError(f"{name} must be one of {known}; got {value!r}; choose one")


def check_pool(pool: Any) -> None:
    """Raise UsageError unless this is a pool."""
    if not (hasattr(pool, "n_workers") and hasattr(pool, "run")):
        raise UsageError(
            f"pool must be a SerialPool, SimulatedPool or MPIPool; got {pool!r}; worker ranks get "
            "None: compute inside 'if pool is not None'"
        )


def check_progress(progress: Any) -> None:
    """Raise UsageError unless this is a function that is told of progress, or None."""
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress must be a function of (done, needed, total); got {progress!r}; pass one"
        )


def _index(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError("a bool is no number")
    return operator.index(value)
