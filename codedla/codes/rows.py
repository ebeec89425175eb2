"""Algebra on the rows of generators that several families need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["frozen", "row_kronecker", "scaled_rows"]

# float64 or complex128.
Matrix = NDArray[Any]


def row_kronecker(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix whose row ``w`` is ``kron(a[w], b[w])`` (Khatri-Rao product of rows).

    Parameters
    ----------
    a : ndarray (N, m)
    b : ndarray (N, n)

    Returns
    -------
    ndarray (N, m * n)
    """
    product: Matrix = (a[:, :, None] * b[:, None, :]).reshape(a.shape[0], -1)
    return product


def scaled_rows(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the rows scaled to norm ``sqrt(width)``: parity shares stay at the scale of the data.

    Parameters
    ----------
    rows : ndarray (s, width)
        No row zero.

    Returns
    -------
    ndarray (s, width), float64
    """
    scaled: NDArray[np.float64] = rows * (
        math.sqrt(rows.shape[1]) / np.linalg.norm(rows, axis=1, keepdims=True)
    )
    return scaled


def frozen(matrix: Matrix) -> Matrix:
    """Return a C-ordered float64 or complex128 copy that nobody can write to."""
    kind = np.complex128 if np.iscomplexobj(matrix) else np.float64
    copy: Matrix = np.array(matrix, dtype=kind, order="C")
    copy.setflags(write=False)
    return copy
