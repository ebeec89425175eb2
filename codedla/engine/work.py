"""The one thing a worker computes: the product of its two shares, in panels.

Between panels the worker looks for newer orders; a panel is sized to take a few milliseconds, so
that a late worker is never deaf for long and BLAS still runs near its full speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PANEL_FLOPS", "multiply"]

PANEL_FLOPS = 2e8
"""Target size of a panel: about 10 ms on one core at 20 GF/s."""
MIN_ROWS, MIN_COLS = 128, 256


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
    height, width = _panel(rows, inner, cols) if dense else _sparse_panel(a, b, rows, cols)
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


def _panel(rows: int, inner: int, cols: int) -> tuple[int, int]:
    """Rows and columns of one dense panel: whole rows first, narrower only when they are long."""
    flops_per_row = 2.0 * max(inner, 1) * max(cols, 1)
    height = max(int(PANEL_FLOPS / flops_per_row), MIN_ROWS)
    width = cols
    if height * flops_per_row > 4 * PANEL_FLOPS:
        width = max(int(PANEL_FLOPS / (2.0 * max(inner, 1) * height)), MIN_COLS)
    return max(min(height, rows), 1), max(width, 1)


def _sparse_panel(a: Any, b: Any, rows: int, cols: int) -> tuple[int, int]:
    """Rows of one panel when an operand is sparse; columns are not cut (CSR slices by rows)."""
    if isinstance(a, np.ndarray):
        flops_per_row = 2.0 * b.nnz
    else:
        flops_per_row = 2.0 * a.nnz / max(rows, 1) * max(cols, 1)
    return max(min(int(PANEL_FLOPS / 20 / max(flops_per_row, 1.0)), rows), 1), max(cols, 1)
