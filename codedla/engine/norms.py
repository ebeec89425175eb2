"""Euclidean norms that neither overflow nor vanish where the numbers themselves do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["column_norms", "norm", "unit"]

Array = NDArray[Any]


def norm(values: Array) -> float:
    """Return the Euclidean norm of all entries, in double precision.

    ``numpy.linalg.norm`` sums squares: of entries of 1e200 it is infinite, of 1e-200 it is zero,
    and an iteration that stops at small errors takes either for an answer.
    """
    return float(column_norms(np.reshape(values, (-1, 1)))[0])


def column_norms(columns: Array) -> NDArray[np.float64]:
    """Return the norms of the columns of a matrix."""
    # Before the modulus, which leaves the range of single precision sooner than its parts.
    sizes = np.abs(_wide(columns))
    peaks = sizes.max(axis=0, initial=0.0)
    # NaN and infinity, too, are their own norms.
    usual = np.isfinite(peaks) & (peaks > 0.0)
    scaled = sizes / np.where(usual, peaks, 1.0)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->j", scaled, scaled)) * peaks
    return np.where(usual, lengths, peaks)


def unit(vector: Array) -> Array:
    """Return a vector that is finite and not zero, scaled to norm 1, in its own precision."""
    # In two steps: the norm of large numbers need not be one.
    wide = _wide(vector)
    scaled = wide / np.abs(wide).max()
    return np.asarray(scaled / norm(scaled), vector.dtype)


def _wide(values: Array) -> Array:
    values = np.asarray(values)
    return values.astype(np.result_type(values.dtype, np.float64), copy=False)
