"""Memory for encoded shares, used again when nobody looks at it any more.

The first write to fresh memory makes the operating system find and clear its pages, which takes
longer than encoding does. A share is an ordinary array; when the last view of it is gone (it was
sent, or computed with), its memory is kept for the next share of about this size.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import kernels

__all__ = ["KEPT_BYTES", "forget", "take"]

Array = NDArray[Any]

KEPT_BYTES = 256 << 20
"""Most bytes kept that are not in use."""
SMALLEST = 1 << 20
"""Smaller memory is left to the allocator, which keeps some itself."""
_SPARE = 1.25
"""Kept memory is used for what is smaller by less than this factor."""

_lock = threading.RLock()  # a garbage collection inside may come back here
_kept: list[Array] = []


class _Lent:
    """Owner of lent memory: NumPy drops it together with the last view."""

    def __init__(self, memory: Array, size: int) -> None:
        self._memory = memory
        self.__array_interface__ = {**memory[:size].__array_interface__}

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # the functions of this module may be gone by then
            _keep(self._memory)


def take(shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Return an uninitialised, cache-line-aligned C-ordered matrix.

    Parameters
    ----------
    shape : (int, int)
    dtype : numpy.dtype

    Returns
    -------
    ndarray
        Writable. Its memory is used for another matrix once no view of it is left.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < SMALLEST:
        return kernels.aligned_empty(shape, dtype)
    memory = _kept_memory(size)
    if memory is None:
        memory = kernels.aligned_empty(size, np.uint8)
    return np.asarray(_Lent(memory, size)).view(dtype).reshape(shape)


def forget() -> None:
    """Give all memory that is not in use back to the operating system."""
    with _lock:
        _kept.clear()


def _kept_memory(size: int) -> Array | None:
    """Return kept memory of about this size; if there is none, forget what does not fit."""
    with _lock:
        for index, memory in enumerate(_kept):
            if size <= memory.size <= _SPARE * size:
                return _kept.pop(index)
        # Other sizes are in use now: old memory and new would add up.
        _kept.clear()
    return None


def _keep(memory: Array) -> None:
    with _lock:
        if sum(other.size for other in _kept) + memory.size <= KEPT_BYTES:
            _kept.append(memory)
