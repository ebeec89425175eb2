"""The fixed-point benchmark runs, writes its figures and keeps its promises."""

import pytest

from tests.benchmark_runs import run_benchmark

pytest.importorskip("matplotlib")


def test_fixed_points(tmp_path):
    text, figures = run_benchmark("fixed_points.py", tmp_path, "--quick", "--png", "f.png")
    assert (tmp_path / "f.png").stat().st_size > 0
    rows = {row["decoding"]: row for row in figures["pagerank"]["rows"]}
    assert all(len(row["errors"]) == 80 for row in rows.values())
    assert [row["T"] for row in figures["linear_inverse"]] == [10, 20, 40, 60]
    assert "while spare workers suffice: yes" in text
