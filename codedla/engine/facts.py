"""Facts about an operand's values that decide how it may be coded: finiteness, size, norm.

They are found in one pass over the operand, a few rows at a time, so that a memory-mapped matrix
larger than memory is read once and never copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Facts", "scan"]

CHUNK_BYTES = 4 << 20


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
    values = matrix if isinstance(matrix, np.ndarray) else matrix.data.reshape(-1, 1)
    if values.size == 0:
        return Facts(True, 0.0, 0.0)
    if values.flags.f_contiguous and not values.flags.c_contiguous:
        values = values.T
    step = max(1, CHUNK_BYTES // max(1, values.itemsize * values.shape[1]))
    largest, squares, finite = 0.0, [], True
    for top in range(0, values.shape[0], step):
        chunk = np.ascontiguousarray(values[top : top + step])
        flat = _real_view(chunk)
        low, high = float(flat.min()), float(flat.max())
        finite = finite and math.isfinite(low) and math.isfinite(high)
        largest = max(largest, abs(low), abs(high))
        wide = flat if flat.dtype == np.float64 else flat.astype(np.float64)
        squares.append(_square_norm(wide))
    return Facts(finite, largest, math.sqrt(math.fsum(squares)) if finite else math.nan)


def _real_view(chunk: np.ndarray) -> np.ndarray:
    flat = chunk.reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(flat.real.dtype)
    return flat.astype(np.float64) if flat.dtype.kind == "b" else flat


def _square_norm(flat: np.ndarray) -> float:
    """Sum of squares; infinite when entries above 1e150 overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(flat, flat))
    return total if math.isfinite(total) else math.inf
