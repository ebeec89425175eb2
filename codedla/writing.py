"""Small files that are written whole or not at all."""

from __future__ import annotations

import uuid
from pathlib import Path

__all__ = ["write_bytes", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8) as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file under a temporary name and rename it.

    Raises
    ------
    OSError
        With the file's name; what was there before is as it was.
    """
    # Cut, because a name has at most 255 bytes.
    temporary = path.with_name(f".{path.name[:50]}.{uuid.uuid4().hex[:12]}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        # A full disk has no name of its own, and the temporary one means nothing to anybody.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
