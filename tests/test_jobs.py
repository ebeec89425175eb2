"""The job scripts are short, clean shell, say what a Slurm user needs, and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codedla.mpi.launch import find_launcher

ROOT = Path(__file__).resolve().parents[1]
SBATCH = sorted((ROOT / "jobs").glob("*.sbatch"))
SCRIPTS = [*SBATCH, ROOT / "jobs" / "local.sh"]

needs_mpi = pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")


def name(path: Path) -> str:
    return path.name


def test_there_are_jobs():
    assert {path.name for path in SBATCH} == {"matmul.sbatch", "matvec.sbatch", "bench.sbatch"}


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_shell_syntax(path):
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(path.read_text().splitlines()) <= 30
    assert "codedla doctor" in path.read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_shellcheck(path):
    program = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=str(Path(sys.executable).parent)
    )
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", SBATCH, ids=name)
@pytest.mark.parametrize(
    "option",
    [
        "--ntasks",
        "--cpus-per-task",
        "--time",
        "--no-kill",
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@60",
    ],
)
def test_slurm_options(path, option):
    head = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    assert any(option in line for line in head)
    assert "OMP_NUM_THREADS" in path.read_text()


@pytest.fixture
def shell(tmp_path):
    """Run a script in the test's directory with a ``codedla`` on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, words in (("codedla", "-m codedla"), ("python3", "")):
        path = programs / program
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)

    def run(script: Path, *words: str, **env: str):
        settings = {**os.environ, "PYTHONPATH": str(ROOT), **env}
        settings["PATH"] = f"{programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", script, *words],
            cwd=tmp_path,
            env=settings,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


def test_missing_arguments_are_named(shell):
    done = shell(ROOT / "jobs" / "local.sh")
    assert done.returncode == 2
    assert "A.npy B.npy C.npy [RANKS [OPTIONS]]" in done.stderr


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("script", ["local.sh", "matmul.sbatch"])
def test_matmul_runs(shell, tmp_path, script):
    rng = np.random.default_rng(1618034)
    a, b = rng.standard_normal((40, 30)), rng.standard_normal((30, 20))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    ranks = ["4"] if script == "local.sh" else []
    done = shell(ROOT / "jobs" / script, "A.npy", "B.npy", "C.npy", *ranks, SLURM_NTASKS="4")
    assert done.returncode == 0, done.stderr
    assert "3 workers" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-10, atol=1e-12)
    assert json.loads((tmp_path / "C.npy.json").read_text())["n_workers"] == 3


@needs_mpi
@pytest.mark.jobs
def test_matvec_runs(shell, tmp_path):
    import scipy.sparse

    rng = np.random.default_rng(5772157)
    a = scipy.sparse.random_array((60, 30), density=0.2, rng=rng, format="csr")
    x = rng.standard_normal(30)
    scipy.sparse.save_npz(tmp_path / "A.npz", a)
    np.save(tmp_path / "x.npy", x)
    done = shell(ROOT / "jobs" / "matvec.sbatch", "A.npz", "x.npy", "y.npy", SLURM_NTASKS="3")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), a @ x, rtol=1e-10, atol=1e-12)


@needs_mpi
@pytest.mark.jobs
@pytest.mark.slow
def test_bench_runs(shell):
    done = shell(ROOT / "jobs" / "bench.sbatch", "60", SLURM_NTASKS="4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("== code") == done.stdout.count("written to") == 4
