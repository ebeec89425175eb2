"""The growth benchmark runs and writes what docs/scaling.md promises."""

import pytest

from tests.benchmark_runs import run_benchmark


def test_growth(tmp_path):
    text, figures = run_benchmark("growth.py", tmp_path, "--quick", "--png", "g.png")
    rows = {(row["encoding"], row["scheme"], row["workers"]): row for row in figures["rows"]}
    assert len(rows) == 2 * 2 * 2
    by_master, by_workers = (rows[e, "uncoded", 64] for e in ("master", "workers"))
    # The work of each worker is the same; what the master does for each is not.
    assert by_master["ideal"] == pytest.approx(rows["master", "uncoded", 16]["ideal"], rel=0.01)
    assert by_workers["p50"] < by_master["p50"]
    assert figures["saturation"]["master"] < figures["saturation"]["workers"]
    assert "the master is busy longer" in text
    assert (tmp_path / "g.png").exists()
