"""The benchmark of verification runs as users run it, and finds nothing wrong."""

from __future__ import annotations

from pathlib import Path

from tests.benchmark_runs import run_benchmark


def test_liars_are_named_and_nobody_else(tmp_path: Path) -> None:
    printed, document = run_benchmark("verify.py", tmp_path, "--quick")
    assert "0 wrong results, 0 honest workers accused" in printed
    assert {row["code"] for row in document["cost"]} == {"khatri-rao", "mds", "polynomial"}
    assert all(row["to_product"] > 0 for row in document["cost"])
    for row in document["liars"]:
        assert row["liars"] == row["named"] + row["unnoticed"]
        assert row["kind"] == "flip" or not row["unnoticed"]
    assert sum(row["named"] for row in document["liars"]) > 20


def test_integer_products_are_numpys(tmp_path: Path) -> None:
    _, document = run_benchmark("integers.py", tmp_path, "--quick")
    rows = document["products"]
    assert sum(row["products"] for row in rows) == 200 > sum(row["pooled"] for row in rows) == 20
    assert {row["code"] for row in rows} == {"base3", "galois"}
    assert not any(row["different"] for row in rows) and len(rows) == 16
    assert all(row["galois"] > 0 for row in document["speed"])
