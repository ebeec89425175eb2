"""The benchmark of rateless codes runs as users run it, and shows what it promises."""

from __future__ import annotations

from tests.benchmark_runs import run_benchmark


def test_the_rateless_code_is_near_the_ideal(tmp_path):
    printed, document = run_benchmark("rateless.py", tmp_path, "--quick", "--rows", "3000")
    rows = {row["scheme"]: row for row in document["rows"]}
    assert 1 <= rows["lt"]["mean"] <= rows["lt"]["largest"] < 1.08
    assert all(1 <= row["mean"] <= row["largest"] for row in rows.values())
    # What waits for whole shares of slow workers takes far longer.
    assert min(rows[name]["mean"] for name in ("mds", "replication", "uncoded")) > 1.4
    assert all(row["error"] < 1e-10 for row in rows.values())
    assert "time by the ideal time, 2 draws" in printed
