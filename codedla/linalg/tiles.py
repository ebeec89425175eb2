"""Products of a matrix and a few columns, read in tiles that stay in the cache.

Whatever dtype an operand has, its tiles are cast to double precision or to 64-bit integers, never
the whole matrix. Dense and sparse tiles answer the same questions here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "column_peaks",
    "mixed_product",
    "row_product",
    "row_squares",
    "scale_columns",
    "tiled_product",
    "tiles",
]

Array = NDArray[Any]

TILE_BYTES = 1 << 20
"""Operands are read in tiles that stay in the cache while they are used several times."""


def tiles(block: Any, dtype: Any) -> Iterator[tuple[slice, slice, Any]]:
    """Cut a block into tiles along its memory; yield rows, columns and the tile in ``dtype``.

    Parameters
    ----------
    block : ndarray or scipy.sparse
        A sparse block is one tile.
    dtype : dtype
        float64 or int64; complex blocks are cut into complex128 in any case.
    """
    rows, cols = block.shape
    if rows == 0 or cols == 0:
        return
    if block.dtype.kind == "c":
        dtype = np.complex128
    if not isinstance(block, np.ndarray):
        yield slice(0, rows), slice(0, cols), block.astype(dtype, copy=False)
        return
    item = np.dtype(dtype).itemsize
    if abs(block.strides[0]) < abs(block.strides[1]):
        step = max(1, TILE_BYTES // (item * rows))
        for left in range(0, cols, step):
            part = slice(left, min(left + step, cols))
            yield slice(0, rows), part, block[:, part].astype(dtype, copy=False)
        return
    step = max(1, TILE_BYTES // (item * cols))
    for top in range(0, rows, step):
        part = slice(top, min(top + step, rows))
        yield part, slice(0, cols), block[part].astype(dtype, copy=False)


def tiled_product(matrix: Any, right: Array) -> Array:
    """Multiply a matrix of any dtype by a vector or a few columns, tile by tile.

    Parameters
    ----------
    matrix : ndarray or scipy.sparse (M, N)
    right : ndarray (N,) or (N, z)
        Of int64: the matrix holds integers, whatever its dtype, and the product wraps around.

    Returns
    -------
    ndarray (M,) or (M, z)
    """
    exact = right.dtype.kind == "i"
    # Integers may be held in floating point.
    rounding = exact and matrix.dtype.kind not in "iub"
    kind = np.result_type(matrix.dtype if not rounding else right, right)
    product = np.zeros((matrix.shape[0], *right.shape[1:]), right.dtype if exact else kind)
    for rows, cols, tile in tiles(matrix, np.float64 if rounding or not exact else np.int64):
        if rounding:
            with np.errstate(invalid="ignore"):
                tile = np.rint(tile.real).astype(np.int64)
        product[rows] += mixed_product(tile, right[cols])
    return product


def mixed_product(left: Any, right: Array) -> Array:
    """Multiply without casting a real factor, which would double its size, to complex numbers."""
    if left.dtype.kind != "c" and right.dtype.kind == "c":
        product = np.empty((left.shape[0], *right.shape[1:]), right.dtype)
        product.real, product.imag = left @ right.real, left @ right.imag
        return product
    result: Array = left @ right
    return result


def row_product(left: Array, right: Any) -> Array:
    """Multiply a few rows by a matrix, dense or sparse."""
    if isinstance(right, np.ndarray):
        return mixed_product(right.T, left.T).T
    return np.asarray((right.T @ left.T).T)


def column_peaks(tile: Any) -> Array:
    """Return the largest absolute value of every column."""
    if isinstance(tile, np.ndarray):
        return np.asarray(np.abs(tile).max(axis=0))
    return np.asarray(abs(tile).max(axis=0).toarray()).reshape(-1)


def scale_columns(tile: Any, scales: Array) -> Any:
    """Return the tile with its columns multiplied by the scales."""
    if isinstance(tile, np.ndarray):
        return tile * scales
    columns = tile.tocsr()
    return type(columns)(
        (columns.data * scales[columns.indices], columns.indices, columns.indptr), columns.shape
    )


def row_squares(tile: Any) -> Array:
    """Return the squared norm of every row."""
    if not isinstance(tile, np.ndarray):
        squares = type(tile)((np.abs(tile.data) ** 2, tile.indices, tile.indptr), tile.shape)
        return np.asarray(squares.sum(axis=1)).reshape(-1)
    parts = (tile.real, tile.imag) if tile.dtype.kind == "c" else (tile,)
    return np.sum([np.einsum("ij,ij->i", part, part) for part in parts], axis=0)
