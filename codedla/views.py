"""Matrices in files: how another process finds the same one."""

from __future__ import annotations

import mmap
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FileView", "Unreadable", "file_view"]

Array = NDArray[Any]

_SAMPLES, _SAMPLE_BYTES = 16, 64
"""Places of a file that are compared, and the bytes looked at in each."""


class Unreadable(RuntimeError):
    """A rank cannot read an operand's file; another rank may."""


@dataclass(frozen=True)
class FileView:
    """A matrix in a file.

    Parameters
    ----------
    path : str
        Absolute.
    offset : int
        Bytes before the first entry.
    shape, strides : (int, int)
        Strides in bytes, none negative.
    dtype : str
        NumPy's name with the byte order.
    size : int
        Bytes of the file.
    sample : int
        CRC-32 of a few bytes here and there in the file: another host may have another one.
    """

    path: str
    offset: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: str
    size: int
    sample: int

    def open(self) -> Array:
        """Return the matrix, mapped into memory and read-only.

        Raises
        ------
        Unreadable
            There is no such file here, or it is another one than the master's.
        """
        try:
            content = np.memmap(self.path, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot read {self.path}: {error}") from error
        if content.size != self.size or _sample(content) != self.sample:
            raise Unreadable(f"{self.path} is another file here than on rank 0")
        return np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)


def file_view(matrix: Any) -> FileView | None:
    """Return where a memory-mapped matrix, or a part of one, lies in its file; else None.

    None, too, where the file is not what was mapped: deleted, replaced, or changed in memory only.
    """
    owner = matrix
    while owner is not None and not isinstance(owner, np.memmap):
        owner = getattr(owner, "base", None)
    if owner is None or owner.filename is None or min(matrix.strides) < 0:
        return None
    if owner.mode == "c":
        return None  # what was changed in memory is not in the file
    # A view of a map is one, too, and says nothing of its own place; the map begins at a page.
    mapped: Any = owner
    while not isinstance(mapped, mmap.mmap):
        mapped = getattr(mapped, "base", None)
        if mapped is None:
            return None  # a copy, which keeps the name of the file
    start = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
    memory = np.frombuffer(mapped, np.uint8)
    place = matrix.ctypes.data - memory.ctypes.data
    path = os.path.abspath(owner.filename)
    try:
        content = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError):
        return None  # it has been deleted since
    there = content[start : start + memory.size]
    # Of a file that is shorter now, the end of the old map cannot be looked at.
    if there.size < memory.size or _sample(there) != _sample(memory):
        return None  # another one has taken its name
    return FileView(
        path=path,
        offset=start + place,
        shape=(int(matrix.shape[0]), int(matrix.shape[1])),
        strides=(int(matrix.strides[0]), int(matrix.strides[1])),
        dtype=matrix.dtype.str,
        size=int(content.size),
        sample=_sample(content),
    )


def _sample(content: Array) -> int:
    """Return the checksum of bytes here and there, the first and the last ones among them."""
    last = max(content.size - _SAMPLE_BYTES, 0)
    total = 0
    for place in range(_SAMPLES):
        start = last * place // (_SAMPLES - 1)
        total = zlib.crc32(content[start : start + _SAMPLE_BYTES].tobytes(), total)
    return total
