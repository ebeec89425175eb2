"""Facts about an operand's values that decide how it may be coded: finiteness, size, norm.

They are found in one pass over the operand, a few rows at a time, so that a memory-mapped matrix
larger than memory is read once and never copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Facts", "canonical", "scan", "spread", "together"]

CHUNK_BYTES = 4 << 20
_TINY = 1e-280
"""Sums of squares below this have lost digits to underflow."""


@dataclass(frozen=True)
class Facts:
    """Values of one operand.

    Parameters
    ----------
    finite : bool
        No NaN and no infinity.
    max_abs : float
        Largest absolute value (of real and imaginary parts); NaN-free only when ``finite``.
    norm : float
        Frobenius norm.
    """

    finite: bool
    max_abs: float
    norm: float


def together(parts: Iterable[Facts]) -> Facts:
    """Return the facts of an operand from those of its parts."""
    known = list(parts)
    return Facts(
        all(facts.finite for facts in known),
        max((facts.max_abs for facts in known), default=0.0),
        math.hypot(*(facts.norm for facts in known)),
    )


def canonical(matrix: Any) -> Any:
    """Return a sparse matrix as CSR or CSC in which every entry is stored once.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix
        Any format. Never modified; returned itself when it is in such a form already.
    """
    whole = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
    if not whole.has_canonical_format:
        # A copy before summing duplicates, because the caller's matrix is not ours to change.
        whole = whole.copy()
        whole.sum_duplicates()
    if not len(whole.data) == len(whole.indices) == whole.indptr[-1]:
        # Room beyond the last entry belongs to nobody; what travels is exactly the entries.
        whole = whole.copy()
        whole.prune()
    return whole


def scan(matrix: Any) -> Facts:
    """Scan an operand.

    Parameters
    ----------
    matrix : ndarray or scipy.sparse, 2-D
        Numeric; not modified.

    Returns
    -------
    Facts
    """
    values = matrix if isinstance(matrix, np.ndarray) else canonical(matrix).data.reshape(-1, 1)
    if values.size == 0:
        return Facts(True, 0.0, 0.0)
    if values.flags.f_contiguous and not values.flags.c_contiguous:
        values = values.T
    step = max(1, CHUNK_BYTES // max(1, values.itemsize * values.shape[1]))
    largest, norms, finite = 0.0, [], True
    for top in range(0, values.shape[0], step):
        chunk = np.ascontiguousarray(values[top : top + step])
        flat = _real_view(chunk)
        low, high = float(flat.min()), float(flat.max())
        finite = finite and math.isfinite(low) and math.isfinite(high)
        largest = max(largest, abs(low), abs(high))
        wide = flat if flat.dtype == np.float64 else flat.astype(np.float64)
        norms.append(_norm(wide, max(abs(low), abs(high))))
    return Facts(finite, largest, math.hypot(*norms) if finite else math.nan)


def spread(matrix: Any, axis: int) -> float:
    """Return how much the rows or columns of a matrix differ in size.

    Decoding is accurate relative to the blocks it mixes; a row 1e12 times smaller than the others
    loses 12 digits of its own when it has to be recovered from them.

    Parameters
    ----------
    matrix : ndarray or scipy.sparse, 2-D
        Finite.
    axis : int
        1 compares rows, 0 columns.

    Returns
    -------
    float
        Largest over smallest maximum norm, without those that are zero; 1.0 for fewer than two.
    """
    if 0 in matrix.shape:
        return 1.0
    if not isinstance(matrix, np.ndarray):
        peaks = abs(matrix).max(axis=axis).toarray().ravel()
    elif axis == 1:
        step = max(1, CHUNK_BYTES // max(1, matrix.itemsize * matrix.shape[1]))
        tops = range(0, matrix.shape[0], step)
        peaks = np.concatenate([np.abs(matrix[top : top + step]).max(axis=1) for top in tops])
    else:
        return spread(matrix.T, 1)
    peaks = peaks[peaks > 0].astype(np.float64)
    with np.errstate(over="ignore"):
        return float(peaks.max() / peaks.min()) if peaks.size else 1.0


def _real_view(chunk: np.ndarray) -> np.ndarray:
    flat = chunk.reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(flat.real.dtype)
    return flat.astype(np.float64) if flat.dtype.kind == "b" else flat


def _norm(flat: np.ndarray, peak: float) -> float:
    """Euclidean norm, also where the squares of the entries (at most ``peak``) leave the range."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        total = float(np.dot(flat, flat))
        if not _TINY < total < math.inf and 0.0 < peak < math.inf:
            scaled = flat / peak
            return peak * math.sqrt(float(np.dot(scaled, scaled)))
    return math.sqrt(total) if total >= 0.0 else math.nan
