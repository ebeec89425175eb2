"""The table of codes: two lines to enter one, one call to find it.

    @register
    class MyCode(Code): ...

Third parties register at run time in the same way, after ``import codedla.codes``.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from typing import Any, TypeVar

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.errors import UsageError

__all__ = [
    "available",
    "describe",
    "entry",
    "example",
    "families",
    "get",
    "register",
    "table",
    "unregister",
]

_CODES: dict[str, type[Code]] = {}
_SIZES = (2, 4, 3, 1)  # blocks a dimension of an example, in the order they are tried
_WORKERS = 100
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
    """Return the code family called ``name``, or its variant ``name:parameter``.

    Raises
    ------
    UsageError
        There is none; the message lists the names there are.
    """
    family, colon, parameter = name.partition(":")
    if family not in _CODES:
        close = difflib.get_close_matches(family, available(), n=3)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"unknown code {name!r}{meant}; the codes are {', '.join(available())}")
    return _CODES[family].variant(parameter) if colon else _CODES[family]


def available() -> list[str]:
    """Return the names of all codes, in the order of registration."""
    return list(_CODES)


def families() -> tuple[type[Code], ...]:
    """Return all code families, in the order of registration."""
    return tuple(_CODES.values())


def table() -> list[dict[str, Any]]:
    """Return one dict per code, ready for JSON: what ``codedla codes`` prints."""
    return [entry(code) for code in _CODES.values()]


def entry(code: type[Code]) -> dict[str, Any]:
    """Return what the table says of one family, which may be a variant that is not in it."""
    shown = example(code)
    numbers = {
        "blocks": str(shown.blocks),
        "workers": shown.n_workers,
        "shares": len(shown.shares),
        "threshold": shown.threshold,
        "tolerates": shown.tolerates,
    }
    replies = f"{shown.threshold} replies"
    if shown.load > 1:
        # Whose they are matters then, and the formula says what suffices at best.
        replies = f"{shown.threshold} of {len(shown.shares)} shares at best"
    return {
        "name": code.name,
        "operation": code.operation,
        "threshold": f"{code.threshold_formula} (e.g. blocks {shown.blocks} on "
        f"{shown.n_workers} workers: {replies})",
        "threshold_formula": code.threshold_formula,
        "example": numbers,
        # Of the default nodes; others may differ.
        "field": shown.field,
        "systematic": shown.systematic,
        "approximate": shown.approximate,
        "citation": code.citation,
        "weakness": code.weakness,
        "nodes": list(code.node_choices),
        "splits": list(code.splits),
    }


def example(code: type[Code]) -> Code:
    """Return a small instance of a family: two blocks a dimension, two losses if it can.

    Raises
    ------
    UsageError
        No small grid on less than a hundred workers is one of the family's.
    """
    for size in _SIZES:
        grid = Grid(*(size if d in code.splits else 1 for d in ("m", "p", "n")))
        enough = [n for n in range(1, _WORKERS) if code.survives(n, grid) >= 0]
        for workers in _candidates(code, grid, enough):
            try:
                return code(workers, grid)
            except UsageError:
                continue  # a rule of the family's own, such as a power of two
    raise UsageError(f"code {code.name} has no example with up to {max(_SIZES)} blocks a dimension")


def describe(code: type[Code]) -> str:
    """Return what a family says about itself: the text at the top of its file, else of its class.

    In reStructuredText, without indentation; "" if it says nothing.
    """
    own = inspect.cleandoc(code.__doc__ or "")
    # Of a file with several codes, or of a notebook, the first lines need not be about this one.
    alone = sum(other.__module__ == code.__module__ for other in _CODES.values()) == 1
    module = sys.modules.get(code.__module__)
    top = inspect.cleandoc(getattr(module, "__doc__", None) or "")
    # Variants are made on the way; what they derive from is in the file.
    here = [c for c in code.__mro__ if c.__module__ == code.__module__]
    if code.__module__ == "__main__" or not any(getattr(module, c.__name__, 0) is c for c in here):
        return own
    return top if top and alone else f"{own}\n\n{top}".strip()


def _candidates(code: type[Code], grid: Grid, enough: list[int]) -> list[int]:
    """Numbers of workers for an example: those with two spare ones, or losses, first."""
    two = [n for n in enough if code.survives(n, grid) >= 2]
    return [*two, *(n for n in enough if n >= enough[0] + 2), *enough]
