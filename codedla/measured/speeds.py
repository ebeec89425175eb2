"""How fast this cluster is: as ``codedla bench --save`` measured it, else assumed.

Predictions compare codes with each other, and for that the ratio of the two speeds is what matters.
The figures are kept in one small file of the user's: ``codedla/speeds.json`` in
``$XDG_CONFIG_HOME`` (``~/.config`` by default), or where the environment variable
``CODEDLA_SPEEDS`` points; set to nothing, it has the assumed figures used.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from codedla.errors import CodedlaWarning
from codedla.writing import write_text

__all__ = ["ASSUMED", "SCHEMA", "Speeds", "load", "save", "speeds", "speeds_file"]

SCHEMA = "codedla.speeds/1"
_VARIABLE = "CODEDLA_SPEEDS"


@dataclass(frozen=True)
class Speeds:
    """What predictions reckon with.

    Parameters
    ----------
    flops : float
        flop/s of one worker in a float64 product, while the others compute, too.
    bandwidth : float
        bytes/s of the master's memory and links.
    source : str
        Where the figures come from, in words.
    """

    flops: float
    bandwidth: float
    source: str = "assumed"

    def __str__(self) -> str:
        flops, rate = self.flops / 1e9, self.bandwidth / 1e9
        return f"{flops:.3g} Gflop/s per worker, {rate:.3g} GB/s at the master ({self.source})"


ASSUMED = Speeds(2e10, 4e9)
"""Round figures of one core and a fast network."""


def speeds_file() -> Path | None:
    """Return where measured figures are kept; None where they are not to be used."""
    named, config, home = _settings()
    if named is not None:
        return Path(named) if named else None
    return Path(config or Path(home) / ".config") / "codedla" / "speeds.json"


def speeds() -> Speeds:
    """Return the measured figures, as they were when this process first asked, or the assumed."""
    return _known(_settings())


def _settings() -> tuple[str | None, str, str]:
    """Return what the place of the file depends on; every product asks, so no path is made."""
    env = os.environ
    return env.get(_VARIABLE), env.get("XDG_CONFIG_HOME", ""), env.get("HOME", "")


@lru_cache(maxsize=8)
def _known(settings: tuple[str | None, str, str]) -> Speeds:
    path = speeds_file()
    if path is None:
        return ASSUMED
    try:
        return load(path)
    except FileNotFoundError:
        return ASSUMED
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the measured speeds cannot be used ({error}); predictions assume {ASSUMED}; measure "
            "anew with codedla bench --save",
            CodedlaWarning,
            stacklevel=2,
        )
        return ASSUMED


def load(path: Path) -> Speeds:
    """Read measured figures.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    ValueError
        It holds something else; the message says what is wrong.
    """
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} must be of schema {SCHEMA}; got {schema!r}")
    found: dict[str, float] = {}
    for name in ("flops", "bandwidth"):
        value = document.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} in {path} must be a positive number; got {value!r}")
        found[name] = float(value)
    where, when = document.get("host", "?"), str(document.get("date", "?"))
    return Speeds(**found, source=f"measured on {where}, {when}")


def save(path: Path, figures: Speeds, about: dict[str, Any]) -> None:
    """Write measured figures.

    Parameters
    ----------
    path : Path
        Its folder is made if need be.
    figures : Speeds
    about : dict
        JSON-ready; ``host`` and ``date`` are shown beside predictions.

    Raises
    ------
    OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": SCHEMA,
        "flops": figures.flops,
        "bandwidth": figures.bandwidth,
        **about,
    }
    write_text(path, json.dumps(document, indent=2) + "\n")
    _known.cache_clear()
