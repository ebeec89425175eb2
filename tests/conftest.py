"""What holds for all tests."""

from __future__ import annotations

import os

import pytest

# Predictions are those of the assumed speeds, whatever the user of this machine has measured.
os.environ["CODEDLA_SPEEDS"] = ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a folder or case that happens to be called "mpi".

    pytest-mpi looks for its marker among all names of a test, its folders' included, and would
    skip them without a word.
    """
    for item in items:
        if item.get_closest_marker("mpi") is None:
            item.own_markers[:] = [
                mark
                for mark in item.own_markers
                if mark.kwargs.get("reason") != "need --with-mpi option to run"
            ]
