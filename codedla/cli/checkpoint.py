"""The state of an iteration in a file, which is written whole or not at all.

A file that holds anything else is the user's: it is neither replaced nor are users told to remove
it.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.writing import write_bytes

__all__ = ["EVERY", "Checkpoint", "check_resume"]

EVERY = 30.0
"""Seconds between checkpoints where nothing is said."""

_FORMAT = "codedla.checkpoint/"
_VERSION = "1"
_HEAD = (b"PK\x03\x04", b"facts.npy")
"""How such a file begins: the mark of an archive, and 30 bytes on the name of its first entry."""
_DAMAGED = (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)


def check_resume(args: argparse.Namespace) -> None:
    """Check ``--checkpoint`` and what goes with it before what is to be resumed is known.

    Raises
    ------
    UsageError
    """
    if args.checkpoint is not None:
        Checkpoint(Path(args.checkpoint), args.command).check(resume=args.resume, force=args.force)
    elif args.resume:
        raise UsageError("--resume goes on from a file; got none; name it with --checkpoint")
    elif args.checkpoint_every is not None:
        raise UsageError(
            "--checkpoint-every says how often --checkpoint is written; got --checkpoint-every "
            f"{args.checkpoint_every:g} alone; name a file with --checkpoint, or leave it out"
        )


class Checkpoint:
    """An ``.npz`` file with arrays, a count, and what they belong to.

    Parameters
    ----------
    path : Path
    command : str
        Whose it is.
    identity : dict
        What must be the same for the iteration to be continued; JSON-ready. Its entries are called
        by their keys in messages.
    """

    def __init__(self, path: Path, command: str, identity: dict[str, Any] | None = None) -> None:
        self.path = path
        self.command = command
        self.identity: dict[str, Any] = json.loads(json.dumps(identity or {}))

    def check(self, *, resume: bool, force: bool) -> None:
        """Make sure that it can be written, and replaces nothing that is wanted.

        Raises
        ------
        UsageError
        """
        why = ""
        try:
            # Asking for permission is not enough: nobody can write to some file systems.
            with tempfile.TemporaryFile(dir=self.path.parent):
                refused = self.path.exists() and not self.path.is_file()
        except OSError as error:
            refused, why = True, f" ({error.strerror})"
        if refused:
            raise UsageError(
                f"a checkpoint must be a file in a directory that can be written to; got "
                f"{str(self.path)!r}{why}; choose another name"
            )
        if not self.path.exists():
            return
        if not (resume or force):
            raise UsageError(
                f"a checkpoint must not exist yet; got {self.path}; --resume goes on from it, "
                "--force begins again, or choose another name"
                if self._is_one()
                else f"a checkpoint must not exist yet; got {self.path}, which is none; choose "
                "another name"
            )
        if not self._is_one():
            raise UsageError(
                f"--checkpoint must name a checkpoint, or a file that does not exist yet; got "
                f"{self.path}, which is none; choose another name"
            )

    def save(self, count: int, **arrays: NDArray[Any]) -> None:
        """Write the state after ``count`` iterations."""
        facts = {
            "format": _FORMAT + _VERSION,
            "command": self.command,
            "identity": self.identity,
            "count": count,
        }
        buffer = io.BytesIO()
        whole: dict[str, Any] = {"facts": np.array(json.dumps(facts)), **arrays}
        np.savez(buffer, **whole)
        write_bytes(self.path, buffer.getvalue())

    def load(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """Return the count and the arrays; None when there is no such file.

        Raises
        ------
        UsageError
            It is none, is damaged, or of another command or iteration.
        """
        if not self.path.exists():
            return None
        if not self._is_one():
            raise UsageError(
                f"--resume goes on from a checkpoint; got {self.path}, which is none; name another "
                "file with --checkpoint"
            )
        try:
            with self.path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(str(arrays.pop("facts")))
            if facts["format"] != _FORMAT + _VERSION:
                raise ValueError(f"its format is {facts['format']}")
            identity, count, command = facts["identity"], int(facts["count"]), facts["command"]
            different = [k for k, value in self.identity.items() if identity.get(k) != value]
        except _DAMAGED as error:
            raise UsageError(
                f"a checkpoint must be complete and undamaged; got {self.path} ({error}); begin "
                "again with another name"
            ) from error
        if command != self.command:
            raise UsageError(
                f"a checkpoint must be of the same command; got {self.path}, which is of codedla "
                f"{command}, not {self.command}; name another one"
            )
        if different:
            raise UsageError(
                f"a checkpoint is continued with the same files and options; {self.path} is of "
                f"others, or they have changed: {', '.join(different)}; use those, or begin again "
                "with another name"
            )
        return count, arrays

    def remove(self) -> None:
        """Remove the file when it is not needed any more."""
        self.path.unlink(missing_ok=True)

    def _is_one(self) -> bool:
        """Tell whether the file is a checkpoint of any command, be it a damaged one.

        Raises
        ------
        UsageError
            It cannot be read.
        """
        mark, name = _HEAD
        try:
            with self.path.open("rb") as stream:
                head = stream.read(30 + len(name))
                if not (head.startswith(mark) and head.endswith(name)):
                    return False
                stream.seek(0)
                try:
                    with np.load(stream, allow_pickle=False) as file:
                        facts = str(file["facts"])
                except _DAMAGED:
                    return True  # cut short: what is there begins like one
        except OSError as error:
            raise UsageError(
                f"a checkpoint must be a file that can be read; got {self.path} "
                f"({error.strerror}); choose another name"
            ) from error
        return f'"{_FORMAT}' in facts
