"""``benchmarks/iterative.py`` runs its jobs and writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "iterative.py"

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found"),
]


def run(folder, *options):
    target = folder / "figures.json"
    argv = [sys.executable, SCRIPT, "--quick", "--json", target, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(target.read_text())


@pytest.mark.alone
def test_losses(tmp_path):
    options = ["--late", "2", "--schemes", "cyclic", "fractional", "--workers", "4"]
    text, figures = run(tmp_path, "--only", "losses", *options)
    both = figures["loss_2_late"] + figures.get("loss_one_killed", [])
    rows = {(row["condition"], row["scheme"]): row for row in both}
    base, cyclic = rows["2 late", "uncoded"], rows["2 late", "cyclic"]
    steps, delay = figures["settings"]["steps"], figures["settings"]["delay"]
    assert len(cyclic["losses"]) == len(cyclic["seconds"]) == steps
    assert cyclic["last_loss"] == pytest.approx(base["last_loss"], rel=1e-9)
    assert cyclic["losses"][-1] < cyclic["losses"][0]
    # Who is not waited for costs nothing.
    assert cyclic["all"] < steps * delay <= base["all"]
    assert "multiple of" in rows["2 late", "fractional"]["refused"]
    if getattr(find_launcher(), "tolerant", False):
        killed = rows["one killed", "cyclic"]
        assert killed["last_loss"] == pytest.approx(base["last_loss"], rel=1e-9)
    assert "to target s" in text
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "iterative.png"}


@pytest.mark.alone
def test_rounds(tmp_path):
    options = ["--ranks", "4", "--size", "200", "--peers", "futures"]
    text, figures = run(tmp_path, "--only", "rounds", *options)
    rows = {row["loop"]: row for row in figures["rounds"]}
    assert list(rows) == ["coded", "sleep", "mpi", "futures"]
    assert all(row["round"] > 0 for row in rows.values())
    assert rows["sleep"]["ratio"] == pytest.approx(rows["coded"]["round"] / rows["sleep"]["round"])
    assert rows["futures"]["ratio"] > 1
    assert "mpi4py by hand" in text
