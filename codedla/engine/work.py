"""The one thing a worker computes: the product of its two shares, in panels.

Between panels the worker looks for newer orders. A panel is as large as BLAS needs to run near its
full speed (small panels pack the same operand again and again: 256 x 512 costs 12 %, 128 x 256
costs 29 % at an inner dimension of 4000), yet takes well below a tenth of a second, so that a late
worker is never deaf for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PANEL_FLOPS", "multiply"]

PANEL_FLOPS = 2e9
"""Target size of a panel: about 40 ms on one core at 50 GF/s."""
MIN_ROWS, MIN_COLS = 256, 512
SPARSE_COST = 20.0
"""A sparse product runs at about this fraction of the dense speed; integers have no BLAS at all."""
COST = {"f": 1.0, "c": 4.0, "i": 100.0, "u": 100.0}


def multiply(
    a: Any,
    b: Any,
    out: NDArray[np.generic],
    carry_on: Callable[[], bool] = lambda: True,
) -> bool:
    """Write ``a @ b`` into ``out``; stop early when ``carry_on()`` says no.

    Parameters
    ----------
    a : ndarray or scipy.sparse (r, l)
    b : ndarray or scipy.sparse (l, c)
    out : ndarray (r, c)
    carry_on : callable
        Asked before every panel.

    Returns
    -------
    bool
        Whether the product is complete.
    """
    rows, cols = out.shape
    inner = a.shape[1]
    dense = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    flops = PANEL_FLOPS / COST[out.dtype.kind]
    if dense:
        # Only BLAS packs operands, and so only there are small panels dear.
        smallest = (MIN_ROWS, MIN_COLS) if out.dtype.kind in "fc" else (1, 64)
        height, width = _panel(rows, inner, cols, flops, smallest)
    else:
        height, width = _sparse_panel(a, b, rows, cols, flops / SPARSE_COST)
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            if not carry_on():
                return False
            piece = out[top : top + height, left : left + width]
            right = b if width >= cols else b[:, left : left + width]
            left_rows = a if height >= rows else a[top : top + height]
            if dense:
                # NaN and overflow are the caller's data, to be handed back as NumPy would.
                with np.errstate(all="ignore"):
                    np.matmul(left_rows, right, out=piece)
            else:
                product = left_rows @ right
                piece[...] = product if isinstance(product, np.ndarray) else product.toarray()
    return True


def _panel(
    rows: int, inner: int, cols: int, flops: float, smallest: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of one dense panel: whole rows first, narrower only when they are long."""
    per_row = 2.0 * max(inner, 1) * max(cols, 1)
    height = max(int(flops / per_row), smallest[0])
    width = cols
    if height * per_row > 2 * flops:
        width = max(int(flops / (2.0 * max(inner, 1) * height)), smallest[1])
    return max(min(height, rows), 1), max(width, 1)


def _sparse_panel(a: Any, b: Any, rows: int, cols: int, flops: float) -> tuple[int, int]:
    """Rows of one panel when an operand is sparse; columns are not cut (CSR slices by rows)."""
    if isinstance(a, np.ndarray):
        per_row = 2.0 * b.nnz
    else:
        per_row = 2.0 * a.nnz / max(rows, 1) * max(cols, 1)
    return max(min(int(flops / max(per_row, 1.0)), rows), 1), max(cols, 1)
