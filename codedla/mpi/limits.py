"""Seconds that are set by environment variables."""

from __future__ import annotations

import math
import os

from codedla.errors import UsageError

__all__ = ["orphan_limit", "start_limit"]

_ORPHAN = 60.0
_START = 120.0


def orphan_limit() -> float:
    """Seconds without a word from a master on another host after which a worker gives up.

    Raises
    ------
    UsageError
        ``CODEDLA_ORPHAN`` is no positive number.
    """
    return _seconds("CODEDLA_ORPHAN", _ORPHAN)


def start_limit() -> float:
    """Seconds that all ranks have to meet, from when the first was seen; as many until it is.

    Generous by default: Python is slow to start from a busy file server.

    Raises
    ------
    UsageError
        ``CODEDLA_START`` is no positive number.
    """
    return _seconds("CODEDLA_START", _START)


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise UsageError(
            f"{name} must be a positive number of seconds; got {text!r}; correct it, or unset it"
        )
    return number
