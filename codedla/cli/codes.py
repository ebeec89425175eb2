"""``codedla codes``: the table of codes."""

from __future__ import annotations

import argparse
import json
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

    rows = registry.table()
    if args.name is not None:
        registry.get(args.name)
        rows = [row for row in rows if row["name"] == args.name]
    if args.json:
        print(json.dumps(rows, indent=2))
    elif args.name is not None:
        print(_in_full(rows[0]))
    else:
        print(_table(rows))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    heads = ("name", "operation", "field", "systematic", "exact", "threshold")
    cells = [
        (
            row["name"],
            row["operation"],
            row["field"],
            "yes" if row["systematic"] else "no",
            "no" if row["approximate"] else "yes",
            row["threshold"],
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)][:-1]
    lines = [heads, *cells]
    table = "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]])
        for line in lines
    )
    return f"{table}\n\n'codedla codes NAME' prints citation and weakness."


def _in_full(row: dict[str, Any]) -> str:
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    text = []
    for key, value in row.items():
        if isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        text.append(
            textwrap.fill(
                str(value), width, initial_indent=f"{key:<13}", subsequent_indent=" " * 13
            )
        )
    return "\n".join(text)
