"""The published condition numbers are reproduced, and a wrong one would be noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import anchors
import pytest

from tests.benchmark_runs import run_benchmark


def test_the_benchmark_runs_as_users_run_it(tmp_path: Path) -> None:
    printed, document = run_benchmark("anchors.py", tmp_path, "--quick")
    assert "0 not as published" in printed
    assert {row["sets"] for row in document["rows"]} == {465, 816}


@pytest.mark.parametrize("code", ["trig-frame", "khatri-rao"])
def test_a_figure_that_does_not_fit_is_noticed(code: str) -> None:
    anchor = next(a for a in anchors.ANCHORS if a.code == code and a.workers < 32)
    assert anchors.measure(anchor)["agrees"]
    wrong = dataclasses.replace(anchor, worst=anchor.worst / 200)
    assert not anchors.measure(wrong)["agrees"]


def test_rotation_embeddings_condition_like_roots_of_unity() -> None:
    anchor = next(a for a in anchors.ANCHORS if a.code == "rotation-mds")
    row = anchors.measure(anchor)
    assert row["worst"] == pytest.approx(anchor.worst, rel=0.01)
    assert row["mean"] == pytest.approx(anchor.mean, rel=0.01)
