"""The benchmarks of solvers and gradients run, and faults made on purpose show in their figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
LAUNCHER = find_launcher()
JOBS = [
    pytest.mark.jobs,
    pytest.mark.skipif(LAUNCHER is None, reason="no MPI launcher (mpirun) was found"),
]
MEGABYTE = 1e6


def run(name, folder, *options, code=0):
    target = folder / "figures.json"
    argv = [sys.executable, BENCHMARKS / name, "--quick", "--json", target, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done, json.loads(target.read_text()) if target.exists() else None


class TestOperators:
    pytestmark = JOBS

    def test_solvers(self, tmp_path):
        done, figures = run("operators.py", tmp_path, "--solvers", "eigsh", "cg")
        rows = {row["solver"]: row for row in figures["rows"]}
        assert list(rows) == ["eigsh", "cg"]
        for row in rows.values():
            assert row["difference"] < figures["due"]["difference"]
            assert min(row["late"][rank] for rank in ("3", "6")) > 0.9 * row["rounds"]
        usage = figures["usage"]
        assert all(grown["uss"] < 5 * MEGABYTE for grown in usage["growth"])
        before, after = usage["requests"]
        assert after[1:] == before[1:]
        assert "requests before" in done.stdout

    def test_faults_show(self, tmp_path):
        options = ["--solvers", "cg", "--perturb", "1e-8", "--leak", "2"]
        _, figures = run("operators.py", tmp_path, *options)
        assert figures["rows"][0]["difference"] > figures["due"]["difference"]
        usage = figures["usage"]
        grown = [rank for rank, each in enumerate(usage["growth"]) if each["uss"] > 5 * MEGABYTE]
        assert grown == [2]
        before, after = usage["requests"]
        assert after[2] > before[2]


class TestGradient:
    pytestmark = JOBS

    @pytest.mark.alone
    def test_losses(self, tmp_path):
        done, figures = run("gradient.py", tmp_path)
        rows = {row["case"]: row for row in figures["rows"]}
        assert all(row["loss"] < 1e-9 for row in rows.values())
        settings = figures["settings"]
        waiting = settings["iterations"] * settings["delay"]
        assert rows["uncoded, one late"]["iterations"] >= waiting
        assert rows["uncoded, one late"]["not_waited"] == 0
        assert rows["cyclic, one late"]["not_waited"] > settings["iterations"] / 2
        assert {name: row["lost"] for name, row in rows.items() if row["lost"]} == (
            {name: 2 for name in rows if "killed" in name}
        )
        assert ("killed" in done.stdout) == LAUNCHER.ulfm

    def test_wrong_gradients_are_refused(self, tmp_path):
        options = ["--cases", "uncoded", "--perturb", "1e-6"]
        done, _ = run("gradient.py", tmp_path, *options, code=1)
        assert "losses deviate" in done.stderr


class TestGradientCodes:
    def test_all_survivor_sets(self, tmp_path):
        done, figures = run("gradient_codes.py", tmp_path)
        rows = {row["scheme"]: row for row in figures["rows"]}
        assert all(row["kept"] for row in rows.values())
        assert max(row["residual"] for row in rows.values() if row["exact"]) < 1e-9
        # All sets of up to seven workers without the empty ones.
        assert rows["cyclic"]["sets"] == sum(2**n - 1 for n in range(1, 8))
        assert rows["expander"]["residual"] > 0.1
        assert "NO" not in done.stdout

    def test_faults_show(self, tmp_path):
        done, figures = run("gradient_codes.py", tmp_path, "--perturb", "1e-8", code=1)
        rows = {row["scheme"]: row["kept"] for row in figures["rows"]}
        assert not any(rows[name] for name in ("cyclic", "fractional", "heterogeneous", "uncoded"))
        assert "NO" in done.stdout
