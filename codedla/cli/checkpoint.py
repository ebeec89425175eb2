"""The state of an iteration in a file, which is written whole or not at all."""

from __future__ import annotations

import argparse
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.writing import write_bytes

__all__ = ["Checkpoint", "check_resume"]

_FORMAT = "codedla.checkpoint/1"
_DAMAGED = (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile)


def check_resume(args: argparse.Namespace) -> None:
    """Check ``--checkpoint`` and ``--resume`` before what is to be resumed is known.

    Raises
    ------
    UsageError
    """
    if args.checkpoint is not None:
        Checkpoint(Path(args.checkpoint), {}).check(resume=args.resume, force=args.force)
    elif args.resume:
        raise UsageError("--resume goes on from a file; got none; name it with --checkpoint")


class Checkpoint:
    """An ``.npz`` file with arrays, a count, and what they belong to.

    Parameters
    ----------
    path : Path
    identity : dict
        What must be the same for the iteration to be continued; JSON-ready. Its entries are called
        by their keys in messages.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))

    def check(self, *, resume: bool, force: bool) -> None:
        """Make sure that it can be written, and replaces nothing that is wanted.

        Raises
        ------
        UsageError
        """
        folder = self.path.parent
        if self.path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(
                f"a checkpoint must be a file in a directory that can be written to; got "
                f"{str(self.path)!r}; choose another name"
            )
        if self.path.exists() and not (resume or force):
            raise UsageError(
                f"a checkpoint must not exist yet; got {self.path}; --resume goes on from it, "
                "--force begins again"
            )

    def save(self, count: int, **arrays: NDArray[Any]) -> None:
        """Write the state after ``count`` iterations."""
        facts = {"format": _FORMAT, "identity": self.identity, "count": count}
        buffer = io.BytesIO()
        whole: dict[str, Any] = {"facts": np.array(json.dumps(facts)), **arrays}
        np.savez(buffer, **whole)
        write_bytes(self.path, buffer.getvalue())

    def load(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """Return the count and the arrays; None when there is no such file.

        Raises
        ------
        UsageError
            It is damaged, or of another iteration.
        """
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(str(arrays.pop("facts")))
            if facts["format"] != _FORMAT:
                raise ValueError(f"its format is {facts['format']}")
            identity, count = facts["identity"], int(facts["count"])
            different = [k for k, value in self.identity.items() if identity.get(k) != value]
        except _DAMAGED as error:
            raise UsageError(
                f"a checkpoint must be complete and undamaged; got {self.path} ({error}); remove "
                "it, and begin again"
            ) from error
        if different:
            raise UsageError(
                f"a checkpoint is continued with the same files; {self.path} is of others, or they "
                f"have changed: {', '.join(different)}; remove it, or name another one"
            )
        return count, arrays

    def remove(self) -> None:
        """Remove the file when it is not needed any more."""
        self.path.unlink(missing_ok=True)
