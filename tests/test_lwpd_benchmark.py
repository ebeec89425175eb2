"""The benchmark of projective derivative codes runs, and its figures are those that it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "lwpd.py"

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found"),
]


@pytest.mark.alone
def test_lwpd(tmp_path):
    target = tmp_path / "figures.json"
    options = ["--quick", "--ranks", "7", "--methods", "lwpd", "gradient"]
    argv = [sys.executable, SCRIPT, *options, "--json", target]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(target.read_text())
    frames = figures["frames"]
    for row in frames[:4]:
        assert row["tight"]
        assert row["lowest"] == pytest.approx(row["m_over_k"])
        assert row["highest"] == pytest.approx(row["m_over_k"])
    assert not any(row["tight"] for row in frames[4:])
    # The tolerance, and what chance adds to few trials.
    assert all(row["off_by"] < 0.05 for row in figures["errors"])
    rows = {(r["network"], r["condition"], r["method"]): r for r in figures["training"]}
    conditions = 1 + bool(getattr(find_launcher(), "tolerant", False))
    assert len(rows) == 2 * conditions * 2
    for row in rows.values():
        # How far it comes in a moment is a matter of the machine.
        reached = [each >= row["target"] for each in row["course"]["accuracy"]]
        assert row["met"] <= (sum(reached) >= 3)
        assert row["course"]["losses"][-1] < row["course"]["losses"][0]
        assert row["replies"] >= row["steps"] > 0
    lossy = rows["softmax", "quarter late", "LWPD, immediate, ring"]
    assert lossy["replies"] == lossy["steps"]
    assert "784-200-100-10, quarter late" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json"}
