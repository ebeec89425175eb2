"""The package's face: every public name is there, once, and importing it stays light."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import codedla


def test_the_three_lists_of_public_names_agree():
    tree = ast.parse(Path(codedla.__file__).read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    homes = {name for names in codedla._HOMES.values() for name in names}
    extras = {
        name
        for package, names in codedla._EXTRAS.items()
        if importlib.util.find_spec(package) is None
        for name in names
    }
    assert typed == homes == {*codedla.__all__, *extras}


@pytest.mark.parametrize("name", sorted({*codedla._HOME_OF} - {"MPIPool"}))
def test_every_public_name_resolves_and_is_documented(name):
    if name == "CodedModule":
        pytest.importorskip("torch", reason="CodedModule needs PyTorch (codedla[torch])")
    assert getattr(codedla, name).__doc__
    assert name in dir(codedla)


@pytest.mark.parametrize("missing", ["", "torch", "sklearn", "torch sklearn"])
def test_a_star_import_takes_what_there_is(missing):
    """Also without packages that only some names need; these say so when they are asked for."""
    code = f"""
import importlib.util
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {missing.split()}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
before = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {missing.split()} else before(name)
from codedla import *
import codedla
for package in {missing.split()}:
    for name in codedla._EXTRAS[package]:
        assert name not in globals() and name in dir(codedla)
        try:
            getattr(codedla, name)
        except codedla.UsageError as error:
            assert "pip install" in str(error)
        else:
            raise AssertionError(name)
print(matmul.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "matmul", done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        codedla.matmull  # noqa: B018 - the lookup is the test


def test_importing_the_package_needs_neither_mpi_nor_scipy():
    code = (
        "import sys, codedla, codedla.linalg.matmul, codedla.pools; "
        "print([m for m in ('mpi4py', 'scipy', 'rich', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
