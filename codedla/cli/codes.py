"""``codedla codes``: the table of codes."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import textwrap
from typing import Any

from codedla.cli.options import add_json

NAME = "codes"
HELP = "list the codes: what they compute, how many replies they need, where they are weak"
EPILOG = """\
examples:
  codedla codes                  the table
  codedla codes polynomial       everything about one code
  codedla codes --json           for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="one code in full")
    add_json(parser, "the list")


def run(args: argparse.Namespace) -> int:
    """Carry out the command."""
    import codedla.codes  # noqa: F401  enters the codes into the table
    from codedla.codes import registry

    if args.name is None:
        rows = registry.table()
        print(json.dumps(rows, indent=2) if args.json else _table(rows))
        return 0
    code = registry.get(args.name)
    row = registry.entry(code)
    about = registry.describe(code)
    if args.json:
        print(json.dumps([{**row, "description": about}], indent=2))
    else:
        print(f"{_in_full(row)}\n\n{_plain(about)}")
    return 0


def _width(most: int) -> int:
    return min(shutil.get_terminal_size((most, 24)).columns, most)


def _table(rows: list[dict[str, Any]]) -> str:
    heads = ("name", "operation", "field", "kind", "example", "replies needed")
    cells = [
        (
            row["name"],
            row["operation"],
            row["field"],
            _kind(row),
            _example(**row["example"]),
            row["threshold_formula"],
        )
        for row in sorted(rows, key=lambda row: row["operation"])
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)][:-1]
    room = max(20, _width(140) - sum(widths) - 2 * len(widths))
    table = "\n".join(
        "  ".join(
            [
                *(c.ljust(w) for c, w in zip(line, widths, strict=False)),
                textwrap.shorten(line[-1], room, placeholder=" ..."),
            ]
        )
        for line in (heads, *cells)
    )
    return (
        f"{table}\n\n{len(rows)} codes; example: replies needed, workers, blocks of C (inner "
        "blocks in the middle).\nThose for matvec do for matmul as well: they cut A alone.\n"
        "'codedla codes NAME' prints everything about one."
    )


def _example(threshold: int, workers: int, shares: int, blocks: str, tolerates: int) -> str:
    if shares > workers:
        return f"{threshold}+ of {shares} shares, {blocks}"
    # Workers beyond the shares are idle.
    return f"{threshold} of {min(workers, shares)}, {blocks}"


def _kind(row: dict[str, Any]) -> str:
    words = [key for key in ("systematic", "approximate") if row[key]]
    return ", ".join(words) or "-"


def _in_full(row: dict[str, Any]) -> str:
    example = row["example"]
    shown = {
        "name": row["name"],
        "operation": row["operation"],
        "threshold": row["threshold"],
        "survives": f"{example['tolerates']} lost workers in that example",
        "field": row["field"],
        "systematic": row["systematic"],
        "approximate": row["approximate"],
        "may cut": _cuts(row["splits"]),
        "nodes": row["nodes"] or "none to choose",
        "citation": row["citation"],
        "weakness": row["weakness"],
    }
    width = _width(100)
    text = []
    for key, value in shown.items():
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        text.append(
            textwrap.fill(
                str(value), width, initial_indent=f"{key:<13}", subsequent_indent=" " * 13
            )
        )
    return "\n".join(text)


def _cuts(splits: list[str]) -> str:
    names = {"m": "rows of A (m)", "p": "inner dimension (p)", "n": "columns of B (n)"}
    return ", ".join(names[dimension] for dimension in splits) or "nothing"


def _plain(text: str) -> str:
    """The text without the marks that only a renderer of reStructuredText needs."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    text = re.sub(r"^( *)\.\. math:: *", r"\1    ", text, flags=re.MULTILINE)
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", text, flags=re.DOTALL)
    return text.replace("``", "")
