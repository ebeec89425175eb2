"""The recipe for new codes does what it says: one file is enough, and its examples run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codedla.codes import Code, available, get, unregister

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "adding-a-code.md"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", RECIPE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def names():
    """What the examples define; the code they register is taken out again."""
    before = set(available())
    yield {}
    for name in set(available()) - before:
        unregister(name)


def test_examples_run(names) -> None:
    blocks = examples()
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(RECIPE), "exec"), names)
    assert get("toy") is names["Toy"]
    assert names["y"].shape == (101,)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, its benchmarks, docs and conformance suite, and the new file."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("codedla", "benchmarks", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    (copy / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conformance.py", copy / "tests")
    (copy / "codedla" / "codes" / "families" / "toy.py").write_text(examples()[0])
    return copy


def run(checkout: Path, *argv: str) -> str:
    """What a command prints in the copy, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_new_file_is_short() -> None:
    assert len(examples()[0].splitlines()) <= 60


def test_the_new_code_is_listed(checkout: Path) -> None:
    where = run(checkout, "-c", "import codedla; print(codedla.__file__)")
    assert Path(where.strip()).is_relative_to(checkout)
    assert re.search(r"^toy +matvec +real", run(checkout, "-m", "codedla", "codes"), re.MULTILINE)
    text = run(checkout, "-m", "codedla", "codes", "toy")
    assert "citation     folklore" in text and "Any k of N workers decode" in text
    assert "toy" not in available()


def test_the_new_code_is_held_to_the_rules(checkout: Path) -> None:
    run(
        checkout,
        *("-W", "error", "-c"),
        "from tests.conformance import check_code, get; check_code(get('toy'))",
    )


def test_the_new_code_is_measured(checkout: Path) -> None:
    text = run(checkout, "benchmarks/accuracy.py", "--quick", "--code", "toy")
    rows = re.findall(r"^toy +\d+ +[125] +float\d\d ", text, re.MULTILINE)
    assert len(rows) == 18 and "18 cases, 0 broken promises" in text


def test_the_new_code_has_a_page(checkout: Path) -> None:
    pytest.importorskip("docutils")
    pytest.importorskip("markdown_it")
    script = (
        "import sys, pathlib; sys.path.insert(0, 'docs'); import build; "
        "sys.exit(bool(build.pages_of_codes(pathlib.Path('out/codes'), ['toy'], None)))"
    )
    (checkout / "out").mkdir()
    (checkout / "out" / "index.html").touch()
    run(checkout, "-c", script)
    page = (checkout / "out" / "codes" / "toy.html").read_text()
    assert "<math" in page and "an unlucky draw loses digits" in page
    assert "toy.html" in (checkout / "out" / "codes" / "index.html").read_text()
    assert "<svg" in (checkout / "out" / "codes" / "toy.svg").read_text()


def test_every_attribute_named_exists() -> None:
    tables = RECIPE.read_text().split("| attribute or method |")[1:]
    lines = [line for table in tables for line in table.split("\n\n")[0].splitlines()[2:]]
    stated = {name for line in lines for name in re.findall(r"`(\w+)", line.split("|")[1])}
    assert len(stated) >= 20
    known = {*dir(Code), *Code.__annotations__}
    assert stated <= known, stated - known


def test_files_named_exist() -> None:
    text = RECIPE.read_text()
    for name in set(re.findall(r"`((?:codedla|tests|benchmarks)/[a-z_/]+\.py)", text)):
        assert (ROOT / name).is_file(), name
    families = ROOT / "codedla" / "codes" / "families"
    for name in set(re.findall(r"`(\w+\.py)`", text)) - {"toy.py"}:
        found = (families / name, families.parent / name, ROOT / "codedla" / name)
        assert any(path.is_file() for path in found), name
