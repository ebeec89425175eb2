"""The recipe for new codes does what it says: its examples are executed as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codedla.codes import Code, available, get, unregister

RECIPE = Path(__file__).parents[2] / "docs" / "adding-a-code.md"


@pytest.fixture
def names():
    """What the examples define; the code they register is taken out again."""
    before = set(available())
    yield {}
    for name in set(available()) - before:
        unregister(name)


def test_examples_run(names) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", RECIPE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(RECIPE), "exec"), names)
    assert get("gaussian") is names["Gaussian"]
    assert names["y"].shape == (101,)


def test_every_attribute_named_exists() -> None:
    table = [line for line in RECIPE.read_text().splitlines() if line.startswith("| `")]
    stated = {name for line in table for name in re.findall(r"`(\w+)", line.split("|")[1])}
    assert len(stated) >= 12
    known = {*dir(Code), *Code.__annotations__}
    assert stated <= known, stated - known


def test_files_named_exist() -> None:
    root = RECIPE.parents[1]
    for name in set(re.findall(r"`((?:codedla|tests|benchmarks)/[\w/]+\.py)", RECIPE.read_text())):
        assert (root / name).is_file(), name
