"""The table of codes: two lines to enter one, one call to find it.

    @register
    class MyCode(Code): ...

Third parties register at run time in the same way, after ``import codedla.codes``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.errors import UsageError

__all__ = ["available", "get", "register", "table", "unregister"]

_CODES: dict[str, type[Code]] = {}
_STATED = ("name", "operation", "threshold_formula", "field", "citation", "weakness")

CodeClass = TypeVar("CodeClass", bound=type[Code])


def register(code: CodeClass) -> CodeClass:
    """Enter a code family under its ``name`` and return it (a class decorator).

    Raises
    ------
    UsageError
        The name is taken, or the class leaves out something the table shows.
    """
    missing = [attribute for attribute in _STATED if not getattr(code, attribute, "")]
    if missing:
        raise UsageError(
            f"a code states {', '.join(_STATED)}; {code.__name__} lacks {', '.join(missing)}"
        )
    known = _CODES.get(code.name)
    if known is not None:
        raise UsageError(
            f"code names are unique, {code.name!r} is already {known.__module__}."
            f"{known.__qualname__}; choose another name for {code.__module__}.{code.__qualname__}"
        )
    _CODES[code.name] = code
    return code


def unregister(name: str) -> None:
    """Take a code out of the table again (for notebooks and tests)."""
    get(name)
    del _CODES[name]


def get(name: str) -> type[Code]:
    """Return the code family called ``name``.

    Raises
    ------
    UsageError
        There is none; the message lists the names there are.
    """
    try:
        return _CODES[name]
    except KeyError:
        raise UsageError(f"unknown code {name!r}; the codes are {', '.join(available())}") from None


def available() -> list[str]:
    """Return the names of all codes, in the order of registration."""
    return list(_CODES)


def table() -> list[dict[str, Any]]:
    """Return one dict per code, ready for JSON: what ``codedla codes`` prints."""
    return [_entry(code) for code in _CODES.values()]


def _entry(code: type[Code]) -> dict[str, Any]:
    grid = Grid(*(2 if d in code.splits else 1 for d in ("m", "p", "n")))
    workers = next(n for n in range(1, 64) if code.survives(n, grid) >= 0)
    example = code(workers + 2, grid)
    return {
        "name": code.name,
        "operation": code.operation,
        "threshold": f"{code.threshold_formula} (e.g. blocks {grid} on {example.n_workers} "
        f"workers: {example.threshold} replies)",
        "field": code.field,
        "systematic": code.systematic,
        "approximate": code.approximate,
        "citation": code.citation,
        "weakness": code.weakness,
        "nodes": list(code.node_choices),
    }
