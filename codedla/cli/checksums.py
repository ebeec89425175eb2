"""The file of an unfinished product: where the product lies in it, and what of it is undamaged.

A header before the product and, in an HDF5 file, other data around it belong to the file as much as
the product's rows: they have a checksum as a whole, every finished panel has one of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli.journal import Contents, Entry, Panel, digest

__all__ = ["Place", "file_facts", "intact_entries", "product_place", "recorded_place"]

_PIECE = 1 << 24
"""Bytes read or written at a time."""


@dataclass(frozen=True)
class Place:
    """Where a product lies in a file.

    Parameters
    ----------
    offset : int
        Bytes before its first entry.
    shape : tuple of int
        Of a matrix or a vector.
    dtype : numpy.dtype
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Columns; one of a vector."""
        return self.shape[1] if len(self.shape) > 1 else 1

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    def write(self, number: int, panel: Panel, block: NDArray[Any]) -> None:
        """Write a panel of the product into an open file.

        Raises
        ------
        OSError
            The disk is full, for instance.
        """
        (start, stop), (left, right) = panel
        first = self.offset + start * self.row + left * self.dtype.itemsize
        if right - left == self.width:
            _write(number, block, first)
            return
        for index in range(stop - start):
            _write(number, block[index], first + index * self.row)


def file_facts(number: int, place: Place) -> dict[str, Any]:
    """Return what a journal says of the file: where the product lies, a checksum of all the rest.

    Parameters
    ----------
    number : int
        The open file.
    place : Place
        Of the product.
    """
    facts = product_place(number, place)
    end = facts["offset"] + facts["row"] * facts["rows"]
    around = [(0, facts["offset"]), (end, facts["size"])]
    return {**facts, "digest": digest(_bytes(number, around))}


def product_place(number: int, place: Place) -> dict[str, int]:
    """Return sizes of file and row and the start of the product, in bytes, and its rows."""
    return {
        "size": os.fstat(number).st_size,
        "offset": place.offset,
        "row": place.row,
        "rows": place.shape[0],
    }


def recorded_place(header: Mapping[str, Any]) -> dict[str, int]:
    """Return the same as a journal's header has it.

    Raises
    ------
    KeyError, TypeError
        It has not.
    """
    return {name: header["file"][name] for name in ("size", "offset", "row", "rows")}


def intact_entries(number: int, contents: Contents) -> list[Entry] | None:
    """Return the entries whose bytes are still in the file; None when it is another file.

    Parameters
    ----------
    number : int
        The open file.
    contents : Contents
        Of its journal.

    Notes
    -----
    The bytes are read, not mapped: an unreadable disk block is then an error, not a signal.
    """
    try:
        place = recorded_place(contents.header)
        offset, row = place["offset"], place["row"]
        end = offset + row * place["rows"]
        if os.fstat(number).st_size != place["size"] or not 0 <= offset <= end <= place["size"]:
            return None
        around = _bytes(number, [(0, offset), (end, place["size"])])
        if digest(around) != contents.header["file"]["digest"]:
            return None
    except (OSError, KeyError, TypeError, ValueError):
        return None
    try:
        item = np.dtype(contents.header["product"]["dtype"]).itemsize
    except (KeyError, TypeError):
        return None
    sound = []
    for entry in contents.entries:
        left, right = (item * border for border in entry.across(row // max(item, 1)))
        first, last = offset + entry.start * row, offset + entry.stop * row
        spans: Iterable[tuple[int, int]] = [(first, last)]
        if right - left < row:
            spans = ((top + left, top + right) for top in range(first, last, row))
        try:
            fits = entry.stop <= place["rows"] and right <= row
            good = fits and digest(_bytes(number, spans)) == entry.digest
        except OSError:
            good = False
        if good:
            sound.append(entry)
    return sound


def _write(number: int, array: NDArray[Any], place: int) -> None:
    # Bytes, because not every dtype of NumPy has a buffer format.
    rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while len(rest):
        count = os.pwrite(number, rest[:_PIECE], place)
        rest, place = rest[count:], place + count


def _bytes(number: int, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of some spans of a file, a few at a time."""
    for start, stop in spans:
        while start < stop:
            piece = os.pread(number, min(_PIECE, stop - start), start)
            if not piece:
                raise OSError(errno.EIO, "the file ends early")
            yield piece
            start += len(piece)
