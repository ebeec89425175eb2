"""The journal of an unfinished product: which rows are on disk, and for which command.

One line of text per fact, each with a checksum of its own, so that a damaged line costs that line
and not the others::

    91f0c5d2a3b4e6f7 {"format": "codedla.journal/2", "identity": {...}, ...}
    5a7cdb02c1cf1d5e {"rows": [0, 250], "digest": "...", "verified": "off"}
    0b1d7c5e88a20f34 {"rows": [250, 500], "columns": [0, 90], "digest": "...", "verified": "off"}

The first line says what is being computed, every other one that a range of rows, or only these
columns of it, is finished. Ranges, not numbers of panels: a restart may cut the rest differently.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = [
    "FORMAT",
    "Contents",
    "Entry",
    "Panel",
    "Range",
    "decode",
    "digest",
    "encode",
    "read",
    "remaining",
    "sync_folder",
    "tile",
    "write",
]

FORMAT = "codedla.journal/2"
_LARGEST = 1 << 26
"""Bytes; no journal is that large, but a file under its name may be."""
_PIECE = 1 << 24
"""Bytes hashed at a time: a signal is heard in between."""


Range = tuple[int, int]
"""From and to (without)."""
Panel = tuple[Range, Range]
"""Rows and columns."""


@dataclass(frozen=True)
class Entry:
    """Rows ``start`` to ``stop`` (without it) are finished.

    Parameters
    ----------
    start, stop : int
    digest : str
        Of the rows' bytes; see :func:`digest`.
    verified : str
        The check that they passed, as in the report.
    columns : (int, int), optional
        Which columns of them; all when omitted.
    """

    start: int
    stop: int
    digest: str
    verified: str = "off"
    columns: Range | None = None

    def across(self, width: int) -> Range:
        """Columns of a product of this width."""
        return self.columns or (0, width)


@dataclass
class Contents:
    """What a journal says.

    Parameters
    ----------
    header : dict
        Empty when it cannot be used.
    entries : list of Entry
        In order of rows, without overlaps.
    damaged : int
        Lines that were dropped.
    problem : str
        Why the header cannot be used; empty when it can.
    """

    header: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    damaged: int = 0
    problem: str = ""


def digest(pieces: Iterable[Any]) -> str:
    """Return the checksum of bytes that come in pieces (anything with the buffer protocol)."""
    state = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), _PIECE):
            state.update(view[start : start + _PIECE])
    return state.hexdigest()


def encode(header: Mapping[str, Any], entries: Iterable[Entry]) -> bytes:
    """Return a journal as bytes."""
    facts: list[Mapping[str, Any]] = [{"format": FORMAT, **header}]
    facts += [_line(entry) for entry in entries]
    lines = []
    for fact in facts:
        text = json.dumps(fact, sort_keys=True).encode()
        lines.append(_mark(text) + b" " + text + b"\n")
    return b"".join(lines)


def decode(data: bytes) -> Contents:
    """Read a journal; whatever the bytes are, what is undamaged is returned."""
    lines = data.split(b"\n")
    # What follows the last line break is a line that was cut off.
    damaged = int(lines.pop() != b"")
    facts = [_fact(line) for line in lines]
    if not facts or facts[0] is None or "format" not in facts[0]:
        return Contents(problem="its first line is damaged" if data else "it is empty")
    header = facts[0]
    if header["format"] != FORMAT:
        return Contents(problem="another version of codedla wrote it")
    entries = [None if fact is None else _entry(fact) for fact in facts[1:]]
    kept = _apart(e for e in entries if e is not None)
    return Contents(header, kept, damaged + len(entries) - len(kept))


def read(path: Path) -> Contents | None:
    """Read a journal file; None when there is none."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return Contents(problem="it is no file")
        if status.st_size > _LARGEST:
            return Contents(problem="it is too large")
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return Contents(problem=f"it cannot be read ({error.strerror})")


def write(path: Path, fresh: Path, header: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    """Replace a journal file: the old one stays whole until the new one is safe on disk.

    Parameters
    ----------
    path, fresh : Path
        The journal, and a name beside it under which the new one is written first.
    header, entries
        See :func:`encode`.

    Raises
    ------
    OSError
        The disk is full, for instance; the old journal is still there.
    """
    try:
        with fresh.open("wb") as stream:
            stream.write(encode(header, entries))
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            fresh.unlink()
        what = f"the journal cannot be written ({error.strerror})"
        raise OSError(error.errno, what, str(path)) from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring renamed names to the disk, where the file system knows how to."""
    number = os.open(folder, os.O_RDONLY)
    try:
        # Network file systems refuse this for directories, and keep names safe in their own way.
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def remaining(shape: tuple[int, int], entries: Iterable[Entry]) -> list[Panel]:
    """Return the parts of a product of this shape that no entry covers (entries as in Contents).

    Strips of columns from left to right; of each, the gaps between rows.
    """
    rows, width = shape
    known = sorted(entries, key=lambda entry: entry.start)
    borders = {0, width}.union(*(entry.across(width) for entry in known))
    strips: list[tuple[Range, list[Range]]] = []
    for left, right in pairwise(sorted(border for border in borders if border <= width)):
        covering = [e for e in known if e.across(width)[0] <= left and right <= e.across(width)[1]]
        gaps = _gaps(rows, covering)
        if strips and strips[-1][1] == gaps:
            strips[-1] = ((strips[-1][0][0], right), gaps)
        else:
            strips.append(((left, right), gaps))
    return [(gap, strip) for strip, gaps in strips for gap in gaps]


def _gaps(rows: int, entries: Iterable[Entry]) -> list[Range]:
    gaps, end = [], 0
    for entry in entries:
        if entry.start > end:
            gaps.append((end, entry.start))
        end = max(end, entry.stop)
    if end < rows:
        gaps.append((end, rows))
    return gaps


def tile(parts: Sequence[Panel], height: int, width: int) -> list[Panel]:
    """Cut parts of a product into panels of at most this height and width, columns by columns."""
    wide = [(rows, piece) for rows, cols in parts for piece in _pieces(*cols, width)]
    # Panels of the same columns follow each other, so that B's are read once.
    wide.sort(key=lambda part: part[1])
    return [(piece, cols) for rows, cols in wide for piece in _pieces(*rows, height)]


def _pieces(start: int, stop: int, height: int) -> Iterator[tuple[int, int]]:
    for top in range(start, stop, height):
        yield top, min(top + height, stop)


def _mark(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode()


def _fact(line: bytes) -> dict[str, Any] | None:
    """Return what a line says, None when it is damaged."""
    mark, _, text = line.partition(b" ")
    if mark != _mark(text):
        return None
    try:
        fact = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fact if isinstance(fact, dict) else None


def _line(entry: Entry) -> dict[str, Any]:
    fact: dict[str, Any] = {"rows": [entry.start, entry.stop]}
    if entry.columns is not None:
        fact["columns"] = list(entry.columns)
    return {**fact, "digest": entry.digest, "verified": entry.verified}


def _entry(fact: Mapping[str, Any]) -> Entry | None:
    match fact:
        case {"rows": [int(start), int(stop)], "digest": str(text), "verified": str(verified)}:
            match fact.get("columns"):
                case None:
                    columns = None
                case [int(left), int(right)] if 0 <= left < right:
                    columns = left, right
                case _:
                    return None
            return Entry(start, stop, text, verified, columns) if 0 <= start < stop else None
    return None


def _apart(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries in order of rows, without those that overlap an earlier one."""
    kept: list[Entry] = []
    # Of each range of columns, where its rows end so far.
    ends: dict[Range | None, int] = {}
    for entry in sorted(entries, key=lambda each: each.start):
        ours = entry.columns
        if all(
            end <= entry.start
            or (ours and theirs and (ours[1] <= theirs[0] or theirs[1] <= ours[0]))
            for theirs, end in ends.items()
        ):
            kept.append(entry)
            ends[ours] = entry.stop
    return kept
