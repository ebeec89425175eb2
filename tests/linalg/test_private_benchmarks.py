"""The benchmarks of liars and of privacy run as users run them, and find nothing wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, folder: Path, *options: str) -> tuple[str, dict]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--json", "out.json", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": "", "OPENBLAS_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text())


def test_liars_are_found_and_named(tmp_path: Path) -> None:
    printed, document = run("adversary.py", tmp_path, "--runs", "45")
    assert "0 missed, 0 honest workers accused, 0 that did not end as they should" in printed
    rows = document["rows"]
    assert sum(row["runs"] for row in rows) == 45 * 6
    for row in rows:
        assert row[row["expected"]] == row["runs"] == 5
        # One spare reply finds one liar, two name it.
        if row["verify"] == "spares" and row["liars"]:
            assert row["expected"] == ("named" if row["spares"] >= 2 * row["liars"] else "noticed")


def test_colluders_learn_nothing(tmp_path: Path) -> None:
    printed, document = run("privacy.py", tmp_path, "--draws", "1500", "--products", "5")
    assert "largest chi-square 0;" in printed and "0 shares came twice" in printed
    for row in document["small_fields"]:
        assert row["chi2_all_masks"] == 0 and min(row["uniform"], row["independent"]) > 1e-8
        assert row["uniform_T+1"] < 1e-30
    assert {row["code"] for row in document["repeated"]} >= {"gasp", "lagrange", "secure-matdot"}
