"""The file of an unfinished product: where the product lies in it, and what of it is undamaged.

A header before the product and, in an HDF5 file, other data around it belong to the file as much as
the product's rows: they have a checksum as a whole, every finished panel has one of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from codedla.cli.journal import Contents, Entry, digest

__all__ = ["file_facts", "intact_entries", "product_place", "recorded_place"]

_PIECE = 1 << 24
"""Bytes read at a time."""


def file_facts(number: int, array: NDArray[Any]) -> dict[str, Any]:
    """Return what a journal says of the file: where the product lies, a checksum of all the rest.

    Parameters
    ----------
    number : int
        The open file.
    array : ndarray
        The product, mapped.
    """
    facts = product_place(number, array)
    end = facts["offset"] + array.nbytes
    around = [(0, facts["offset"]), (end, facts["size"])]
    return {**facts, "digest": digest(_bytes(number, around))}


def product_place(number: int, array: NDArray[Any]) -> dict[str, int]:
    """Return sizes of file and row and the start of the mapped product, in bytes, and its rows."""
    return {
        "size": os.fstat(number).st_size,
        "offset": int(getattr(array, "offset", 0)),
        "row": array.nbytes // array.shape[0],
        "rows": array.shape[0],
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
    sound = []
    for entry in contents.entries:
        span = (offset + entry.start * row, offset + entry.stop * row)
        try:
            good = entry.stop <= place["rows"] and digest(_bytes(number, [span])) == entry.digest
        except OSError:
            good = False
        if good:
            sound.append(entry)
    return sound


def _bytes(number: int, spans: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of some spans of a file, a few at a time."""
    for start, stop in spans:
        while start < stop:
            piece = os.pread(number, min(_PIECE, stop - start), start)
            if not piece:
                raise OSError(errno.EIO, "the file ends early")
            yield piece
            start += len(piece)
