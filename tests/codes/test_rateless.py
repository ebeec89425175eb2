"""The benchmark of rateless codes runs as users run it, and shows what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_rateless_code_is_near_the_ideal(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "rateless.py"), "--quick", "--rows", "3000"]
    done = subprocess.run(
        [*command, "--json", "out.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["scheme"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert 1 <= rows["lt"]["mean"] <= rows["lt"]["largest"] < 1.08
    assert all(1 <= row["mean"] <= row["largest"] for row in rows.values())
    # What waits for whole shares of slow workers takes far longer.
    assert min(rows[name]["mean"] for name in ("mds", "replication", "uncoded")) > 1.4
    assert all(row["error"] < 1e-10 for row in rows.values())
    assert "time by the ideal time, 2 draws" in done.stdout
