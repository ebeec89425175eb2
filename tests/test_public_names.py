"""The package's face: every public name is there, once, and importing it stays light."""

import ast
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
    assert typed == homes == set(codedla.__all__)


@pytest.mark.parametrize("name", [name for name in codedla.__all__ if name != "MPIPool"])
def test_every_public_name_resolves_and_is_documented(name):
    if name == "CodedModule":
        pytest.importorskip("torch", reason="CodedModule needs PyTorch (codedla[torch])")
    assert getattr(codedla, name).__doc__
    assert name in dir(codedla)


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
