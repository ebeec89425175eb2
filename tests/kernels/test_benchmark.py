"""The kernels' benchmarks run, and their figures have the right shape and sense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from codedla import kernels
from tests.benchmark_runs import run_benchmark

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "decode.py"


def test_decode_benchmark(tmp_path):
    target = tmp_path / "decode.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(target)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(target.read_text())
    assert figures["instruction_set"] in kernels.available_instruction_sets()
    assert [row["k"] for row in figures["decode"]] == [4, 16]
    for row in figures["decode"]:
        assert row["combine_to_copy"] > 0
        assert row["speedup_over"]["numpy solve"] > 1
    assert {row["weights"] for row in figures["types"]} == {"real", "complex"}
    assert figures["after_last_arrival"][1]["to_one_shot"]["systematic, progressive"] < 1
    assert "after the last arrival" in done.stdout


def test_encode_benchmark(tmp_path):
    text, figures = run_benchmark("encode.py", tmp_path, "--quick", "--no-mpi")
    rows = {(row["cut"], row["threads"]): row for row in figures["encode"]}
    assert set(rows) == {("rows", 1), ("columns", 1), ("rows", 2), ("columns", 2)}
    for row in rows.values():
        for ratios in row["to_limit"].values():
            assert list(ratios) == ["one by one", "fresh", "again"]
            assert all(ratio > 0 for ratio in ratios.values())
    for row in figures["single"]:
        # Rounded once: the error of a rounding, whatever the number of terms.
        assert row["errors"]["double"] < 3e-8 < row["errors"]["single"]
    assert "parity shares" in text
