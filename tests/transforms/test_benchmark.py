"""The benchmark of transforms runs as users run it, and its errors are small."""

from __future__ import annotations

from pathlib import Path

from tests.benchmark_runs import run_benchmark


def test_errors_are_within_a_few_of_scipys(tmp_path: Path) -> None:
    printed, document = run_benchmark("transforms.py", tmp_path, "--quick", "--accuracy")
    assert {row["operation"] for row in document["accuracy"]} == {"fft", "convolve"}
    assert len(document["accuracy"]) == 3 * 4 + 2 * 5
    for row in document["accuracy"]:
        assert row["error"] < 12 * row["scipy"], row
        assert 0.3 < row["estimate_least"] <= row["estimate_most"] < 50, row
    assert "mds unity" in printed
