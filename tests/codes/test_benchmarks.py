"""The accuracy benchmark runs as users run it; the helpers all benchmarks share do their part."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import _common
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_accuracy_runs_and_keeps_its_promises(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "accuracy.py"), "--quick", "--json", "out.json"]
    done = subprocess.run(
        [*command, "--code", "khatri-rao", "uncoded"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken promises" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["machine"]["cores"] >= 1 and "numpy" in document["machine"]["versions"]
    worst = [row for row in document["rows"] if row["k"] == 64 and row["s"] == 2]
    assert {row["dtype"] for row in worst} == {"float64", "float32"}
    assert all(row["worst"] < 1e-12 for row in worst if row["dtype"] == "float64")


def test_cases_take_turns() -> None:
    order: list[str] = []
    ticks = iter(range(1000))
    seconds = _common.interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        repeats=3,
        warmups=2,
        clock=lambda: float(next(ticks)),
    )
    assert order == ["a", "b"] * 5
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_ratios_cancel_drift() -> None:
    seconds = {"base": [1.0, 2.0, 4.0], "case": [3.0, 6.0, 12.0]}
    assert _common.ratios(seconds, "base") == {"base": 1.0, "case": 3.0}
    assert _common.medians(seconds) == {"base": 2.0, "case": 6.0}


def test_json_is_plain_and_replaces_whole_files(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    target.write_text("old")
    rows = [{"x": np.float64(1.5), "n": np.int64(3), "bad": math.inf, "pair": (1.0, math.nan)}]
    _common.write_json(target, {"rows": rows})
    document = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert document["rows"] == [{"x": 1.5, "n": 3, "bad": None, "pair": [1.0, None]}]
    assert list(tmp_path.iterdir()) == [target]


def test_plain_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    _common.print_table("title", ["name", "s"], [["a", "1.25"], ["longer", "10.5"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["", "title", "name       s", "------  ----", "a       1.25", "longer  10.5"]
