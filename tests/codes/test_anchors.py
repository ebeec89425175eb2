"""The published condition numbers are reproduced, and a wrong one would be noticed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import anchors
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_benchmark_runs_as_users_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "anchors.py"), "--quick", "--json", "out.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 not as published" in done.stdout
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["sets"] for row in rows} == {465, 816}


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
