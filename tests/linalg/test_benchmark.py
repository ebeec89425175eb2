"""The benchmark of verification runs as users run it, and finds nothing wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_liars_are_named_and_nobody_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "verify.py"), "--quick", "--json", "out.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong results, 0 honest workers accused" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert {row["code"] for row in document["cost"]} == {"khatri-rao", "mds", "polynomial"}
    assert all(row["to_product"] > 0 for row in document["cost"])
    for row in document["liars"]:
        assert row["liars"] == row["named"] + row["unnoticed"]
        assert row["kind"] == "flip" or not row["unnoticed"]
    assert sum(row["named"] for row in document["liars"]) > 20


def test_integer_products_are_numpys(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "integers.py"), "--quick", "--json", "out.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    rows = document["products"]
    assert sum(row["products"] for row in rows) == 200 > sum(row["pooled"] for row in rows) == 20
    assert {row["code"] for row in rows} == {"base3", "galois"}
    assert not any(row["different"] for row in rows) and len(rows) == 16
    assert all(row["galois"] > 0 for row in document["speed"])
