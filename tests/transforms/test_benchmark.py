"""The benchmark of transforms runs as users run it, and its errors are small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_errors_are_within_a_few_of_scipys(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / "transforms.py",
            "--quick",
            "--accuracy",
            "--json",
            "out.json",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert {row["operation"] for row in document["accuracy"]} == {"fft", "convolve"}
    assert len(document["accuracy"]) == 3 * 4 + 2 * 5
    for row in document["accuracy"]:
        assert row["error"] < 12 * row["scipy"], row
        assert 0.3 < row["estimate_least"] <= row["estimate_most"] < 50, row
    assert "mds unity" in done.stdout
