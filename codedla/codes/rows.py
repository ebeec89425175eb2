"""Algebra on the rows of generators that several families need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points

__all__ = ["frozen", "row_kronecker", "scaled_rows", "trigonometric_parity"]

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


def trigonometric_parity(blocks: int, losses: int) -> NDArray[np.float64]:
    """Return parity rows ``P`` such that any ``blocks`` rows of ``[I; P]`` are independent.

    The real trigonometric frame on ``blocks + losses`` angles, made systematic at evenly spread
    ones. One parity is the plain sum.

    Parameters
    ----------
    blocks, losses : int

    Returns
    -------
    ndarray (losses, blocks), float64
        Rows of norm ``sqrt(blocks)``.
    """
    if losses <= 1 or blocks == 1:
        return np.ones((losses, blocks))
    workers = blocks + losses
    frame = points.trigonometric_basis(np.arange(workers), blocks, workers)
    even = (2 * np.arange(blocks) + 1) * workers // (2 * blocks)
    rest = np.setdiff1d(np.arange(workers), even)
    # Neighbouring blocks lie on neighbouring workers, which fail together: part them.
    even = even[points.spread(blocks, losses)]
    return scaled_rows(np.linalg.solve(frame[even].T, frame[rest].T).T)


def frozen(matrix: Matrix) -> Matrix:
    """Return a C-ordered float64 or complex128 copy that nobody can write to."""
    kind = np.complex128 if np.iscomplexobj(matrix) else np.float64
    copy: Matrix = np.array(matrix, dtype=kind, order="C")
    copy.setflags(write=False)
    return copy
