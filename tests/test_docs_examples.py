"""What the pages in docs/ show runs, and is understood by the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codedla.cli.main import build_parser

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "iterative.md").read_text()
PROGRAMS = re.findall(r"(<!-- needs (\w+) -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_on_iterating_runs():
    """One after the other, as they stand there; their own assertions are the test."""
    names: dict[str, object] = {}
    plain = [program for _, needs, program in PROGRAMS if not needs]
    assert len(plain) == 10
    for program in plain:
        exec(program, names)


def test_its_program_with_torch_runs():
    pytest.importorskip("torch", reason="needs the package torch (codedla[torch])")
    (program,) = [program for _, needs, program in PROGRAMS if needs == "torch"]
    start = (
        "import numpy as np\nimport codedla\n"
        "rng = np.random.default_rng(0)\npool = codedla.SerialPool(8)\n"
        "X, labels = rng.standard_normal((600, 8)), rng.integers(0, 2, 600)\n"
    )
    exec(start + program + "pool.close()\n", {})


def test_every_scheme_is_in_its_table():
    from codedla.codes.gradient import SCHEMES
    from codedla.iterative.robust import ROBUST

    table = PAGE.split("### Schemes")[1].split("###")[0]
    rows = re.findall(r'^\| `"?([\w-]+)"?`', table, re.MULTILINE)
    assert sorted(rows) == sorted([*SCHEMES, *ROBUST])


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_commands_are_understood(page):
    parser = build_parser()
    text = page.read_text().replace("\\\n", " ")
    for words in re.findall(r"^    (?:mpirun -n \d+ )?codedla (.*)$", text, re.MULTILINE):
        parser.parse_args(words.split())
