"""The benchmarks of liars and of privacy run as users run them, and find nothing wrong."""

from __future__ import annotations

from pathlib import Path

from tests.benchmark_runs import run_benchmark


def test_liars_are_found_and_named(tmp_path: Path) -> None:
    printed, document = run_benchmark("adversary.py", tmp_path, "--runs", "45")
    assert "0 missed, 0 honest workers accused, 0 that did not end as they should" in printed
    rows = document["rows"]
    assert sum(row["runs"] for row in rows) == 45 * 6
    for row in rows:
        assert row[row["expected"]] == row["runs"] == 5
        # One spare reply finds one liar, two name it.
        if row["verify"] == "spares" and row["liars"]:
            assert row["expected"] == ("named" if row["spares"] >= 2 * row["liars"] else "noticed")


def test_colluders_learn_nothing(tmp_path: Path) -> None:
    printed, document = run_benchmark("privacy.py", tmp_path, "--draws", "1500", "--products", "5")
    assert "largest chi-square 0;" in printed and "0 shares came twice" in printed
    for row in document["small_fields"]:
        assert row["chi2_all_masks"] == 0 and min(row["uniform"], row["independent"]) > 1e-8
        assert row["uniform_T+1"] < 1e-30
    assert {row["code"] for row in document["repeated"]} >= {"gasp", "lagrange", "secure-matdot"}
