"""The journal of an unfinished product: which rows are on disk, and for which command.

One line of text per fact, each with a checksum of its own, so that a damaged line costs that line
and not the others::

    91f0c5d2a3b4e6f7 {"format": "codedla.journal/1", "identity": {...}, ...}
    5a7cdb02c1cf1d5e {"rows": [0, 250], "digest": "...", "verified": "off"}

The first line says what is being computed, every other one that a range of rows is finished. Ranges
of rows, not numbers of panels: a restart may cut the rest differently.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "FORMAT",
    "Contents",
    "Entry",
    "cut",
    "decode",
    "digest",
    "encode",
    "read",
    "remaining",
    "sync_folder",
    "write",
]

FORMAT = "codedla.journal/1"
_LARGEST = 1 << 26
"""Bytes; no journal is that large, but a file under its name may be."""
_PIECE = 1 << 24
"""Bytes hashed at a time: a signal is heard in between."""


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
    """

    start: int
    stop: int
    digest: str
    verified: str = "off"


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
    facts += [
        {"rows": [e.start, e.stop], "digest": e.digest, "verified": e.verified} for e in entries
    ]
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
    good = sorted((e for e in entries if e is not None), key=lambda entry: entry.start)
    kept: list[Entry] = []
    for entry in good:
        if not kept or entry.start >= kept[-1].stop:
            kept.append(entry)
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


def remaining(rows: int, entries: Iterable[Entry]) -> list[tuple[int, int]]:
    """Return the ranges of ``rows`` rows that no entry covers (entries as in Contents)."""
    gaps, end = [], 0
    for entry in entries:
        if entry.start > end:
            gaps.append((end, entry.start))
        end = entry.stop
    if end < rows:
        gaps.append((end, rows))
    return gaps


def cut(ranges: Sequence[tuple[int, int]], height: int) -> list[tuple[int, int]]:
    """Cut ranges of rows into panels of at most ``height`` rows."""
    return [panel for start, stop in ranges for panel in _pieces(start, stop, height)]


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


def _entry(fact: Mapping[str, Any]) -> Entry | None:
    match fact:
        case {"rows": [int(start), int(stop)], "digest": str(text), "verified": str(verified)}:
            return Entry(start, stop, text, verified) if 0 <= start < stop else None
    return None
