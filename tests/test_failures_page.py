"""The page on failures names tests; every one of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"
LINK = re.compile(r"\[`(test_\w+)`\]\((\.\./tests/[\w/]+\.py)\)")


def test_every_test_it_names_exists():
    named = LINK.findall(PAGE.read_text())
    assert len(named) > 10
    for name, path in named:
        tree = ast.parse((PAGE.parent / path).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in defined, f"{path} has no {name}"


def test_every_row_of_the_first_table_names_one():
    first = PAGE.read_text().split("\n## ")[1]
    rows = [line for line in first.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    for row in rows:
        assert LINK.search(row), row
        assert row.count(" | ") == 4, row
