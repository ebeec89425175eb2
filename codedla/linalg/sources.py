"""Operands that are read by ranges of rows and columns: in memory, or in files larger than it.

Files are read, not mapped: a mapping of the whole file counts against a limit of the address space
(``ulimit -v``), and what the system keeps of it in memory is not ours to decide.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codedla.engine.facts import Facts, canonical, scan, together
from codedla.errors import UsageError
from codedla.linalg.operands import as_array, as_operand, check_kind

__all__ = ["DatasetSource", "FileSource", "MemorySource", "Range", "Source", "as_source", "survey"]

Range = tuple[int, int]
"""From and to (without)."""

WINDOW_BYTES = 4 << 20
"""Bytes read at a time when a whole operand is passed through."""
_SMALL_GAP = 1 << 14
"""Bytes between two wanted pieces that are read along: less than another call costs."""
_LARGEST_READ = 1 << 30
"""Bytes asked of the system in one call; it gives 2 GiB at the most."""


class Source(Protocol):
    """A matrix of which ranges are read."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    nnz: int | None
    """Stored entries of a sparse matrix, None for a dense one."""
    in_memory: bool
    """Whether :meth:`read` gives a view of memory that is there anyway."""

    def read(self, rows: Range, cols: Range) -> Any:
        """Return these rows and columns: an ndarray (of any memory order), or a sparse matrix.

        Raises
        ------
        OSError
            The file cannot be read.
        """
        ...

    def windows(self, rows: Range, cols: Range) -> Iterator[tuple[Range, Range]]:
        """Cut a range into windows of a few MiB, in the order in which they are best read."""
        ...


class MemorySource:
    """A matrix in memory (or mapped into it).

    Parameters
    ----------
    matrix : ndarray or scipy.sparse, 2-D
        Sparse in any format.
    """

    in_memory = True

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        if not isinstance(matrix, np.ndarray):
            self.matrix = canonical(matrix).tocsr()
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = np.dtype(matrix.dtype)
        self.nnz = None if isinstance(matrix, np.ndarray) else int(self.matrix.nnz)

    def read(self, rows: Range, cols: Range) -> Any:
        """Return a view, or of a sparse matrix a copy; see :class:`Source`."""
        if (rows, cols) == ((0, self.shape[0]), (0, self.shape[1])):
            return self.matrix
        if cols == (0, self.shape[1]):
            return self.matrix[slice(*rows)]
        return self.matrix[slice(*rows), slice(*cols)]

    def windows(self, rows: Range, cols: Range) -> Iterator[tuple[Range, Range]]:
        """Yield the whole; see :class:`Source`."""
        yield rows, cols


class FileSource:
    """Entries one after the other in a file, as in ``.npy`` and contiguous HDF5 datasets.

    Parameters
    ----------
    path : path-like
    offset : int
        Bytes before the first entry.
    shape : (int, int)
    dtype : numpy.dtype
    fortran : bool
        Whether columns are contiguous, not rows.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    in_memory = False
    nnz: int | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        offset: int,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        fortran: bool = False,
    ) -> None:
        self.path, self.offset, self.fortran = Path(path), offset, fortran
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def read(self, rows: Range, cols: Range) -> NDArray[Any]:
        """Return the entries in new memory, in the file's order; see :class:`Source`."""
        if self.fortran:
            return self._read(cols, rows, self.shape[0]).T
        return self._read(rows, cols, self.shape[1])

    def windows(self, rows: Range, cols: Range) -> Iterator[tuple[Range, Range]]:
        """Yield whole lines of the file; see :class:`Source`."""
        lines, along = (cols, rows) if self.fortran else (rows, cols)
        step = max(1, WINDOW_BYTES // max(1, self.dtype.itemsize * (along[1] - along[0])))
        for start in range(*lines, step):
            part = (start, min(start + step, lines[1]))
            yield (rows, part) if self.fortran else (part, cols)

    def _read(self, lines: Range, along: Range, length: int) -> NDArray[Any]:
        """Return pieces ``along`` of some lines of ``length`` entries."""
        out = np.empty((lines[1] - lines[0], along[1] - along[0]), self.dtype)
        item = self.dtype.itemsize
        start = self.offset + (lines[0] * length + along[0]) * item
        if out.size == 0:
            return out
        if out.shape[1] == length:
            self._fill(out, start)
        elif (length - out.shape[1]) * item <= _SMALL_GAP:
            step = max(1, WINDOW_BYTES // (length * item))
            for top in range(*lines, step):
                stop = min(top + step, lines[1])
                whole = self._read((top, stop), (0, length), length)
                out[top - lines[0] : stop - lines[0]] = whole[:, slice(*along)]
        else:
            for index, line in enumerate(out):
                self._fill(line, start + index * length * item)
        return out

    def _fill(self, array: NDArray[Any], place: int) -> None:
        # Bytes, because not every dtype of NumPy has a buffer format.
        rest = array.reshape(-1).view(np.uint8).data
        while len(rest):
            count = os.preadv(self._file, [rest[:_LARGEST_READ]], place)
            if not count:
                raise OSError(errno.EIO, "the file ends early", str(self.path))
            rest, place = rest[count:], place + count


class DatasetSource:
    """An HDF5 dataset in pieces (chunked, compressed, external), read through h5py.

    Parameters
    ----------
    path : path-like
    name : str
        Of the dataset; a vector is a matrix of one column.

    Raises
    ------
    ImportError
        The package h5py is not installed.
    """

    in_memory = False
    nnz: int | None = None

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        import h5py

        self._file = h5py.File(path, "r")
        weakref.finalize(self, self._file.close)
        self._data = self._file[name]
        self.shape, self.dtype = _matrix_shape(self._data.shape), np.dtype(self._data.dtype)

    def read(self, rows: Range, cols: Range) -> NDArray[Any]:
        """Return the entries in new memory; see :class:`Source`."""
        if self._data.ndim == 1:
            vector: NDArray[Any] = self._data[slice(*rows)]
            return vector[:, None][:, slice(*cols)]
        out = np.empty((rows[1] - rows[0], cols[1] - cols[0]), self.dtype)
        if out.size:
            self._data.read_direct(out, np.s_[slice(*rows), slice(*cols)])
        return out

    def windows(self, rows: Range, cols: Range) -> Iterator[tuple[Range, Range]]:
        """Yield whole rows of chunks; see :class:`Source`."""
        chunk = (self._data.chunks or (1,))[0]
        fitting = WINDOW_BYTES // max(1, self.dtype.itemsize * (cols[1] - cols[0]))
        step = max(1, fitting // chunk) * chunk
        start = rows[0]
        while start < rows[1]:
            # Up to a border of chunks, so that none is unpacked twice.
            stop = min((start // step + 1) * step, rows[1])
            yield (start, stop), cols
            start = stop


def as_source(value: Any, name: str) -> Source:
    """Return anything matrix-like as a source; a vector is a matrix of one column.

    Parameters
    ----------
    value : Source, array_like or scipy.sparse
    name : str
        How messages call it.

    Raises
    ------
    UsageError
        Not a matrix or vector of numbers.
    """
    if isinstance(value, MemorySource | FileSource | DatasetSource):
        check_kind(value.dtype, name)
        return value
    if hasattr(value, "tocsr") and hasattr(value, "nnz"):
        # All entries are looked at here, which tells whether the indices are sound.
        return MemorySource(as_operand(value, name).matrix)
    array = as_array(value, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise UsageError(
            f"{name} must be a matrix (2 dimensions); got {array.ndim} dimensions, "
            f"shape {tuple(array.shape)}; reshape it"
        )
    check_kind(array.dtype, name)
    return MemorySource(array)


def survey(source: Source, ranges: Sequence[Range], axis: int) -> list[Facts]:
    """Return the facts of some ranges of rows or columns, in one pass over them.

    Parameters
    ----------
    source : Source
    ranges : sequence of (int, int)
        Rows (axis 0) or columns (axis 1), from and to.
    axis : int

    Returns
    -------
    list of Facts
        One for each range.
    """
    found: list[list[Facts]] = [[] for _ in ranges]
    for spread in _joined(ranges):
        whole = [(0, source.shape[0]), (0, source.shape[1])]
        whole[axis] = spread
        for window in source.windows(whole[0], whole[1]):
            entries: Any = None
            for facts, (start, stop) in zip(found, ranges, strict=True):
                first, last = max(start, window[axis][0]), min(stop, window[axis][1])
                if first >= last:
                    continue
                if entries is None:
                    entries = source.read(*window)
                part = slice(first - window[axis][0], last - window[axis][0])
                facts.append(scan(entries[part] if axis == 0 else entries[:, part]))
    return [together(facts) for facts in found]


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges in order, those that touch or overlap as one."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape as of a matrix, a vector being one column.

    Raises
    ------
    ValueError
        Neither a matrix nor a vector.
    """
    if len(shape) not in (1, 2):
        raise ValueError(f"a matrix has two dimensions; got shape {shape}")
    return int(shape[0]), int(shape[1]) if len(shape) == 2 else 1
