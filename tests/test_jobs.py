"""The job scripts are short, clean shell, say what a Slurm user needs, and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
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
    assert {path.name for path in SBATCH} == {
        "bench.sbatch",
        "matmul.sbatch",
        "matmul-mpich.sbatch",
        "matvec.sbatch",
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_shell_syntax(path):
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(path.read_text().splitlines()) <= 50
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


def options(path: Path) -> list[str]:
    """Options that the script gives to sbatch."""
    head = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    return [line.split()[1] for line in head]


@pytest.mark.parametrize("path", SBATCH, ids=name)
@pytest.mark.parametrize(
    "option", ["--ntasks", "--cpus-per-task", "--time", "--requeue", "--open-mode=append"]
)
def test_slurm_options(path, option):
    assert any(given.startswith(option) for given in options(path))
    assert "OMP_NUM_THREADS" in path.read_text()


@pytest.mark.parametrize("path", SBATCH, ids=name)
def test_only_what_can_be_resumed_is_told_to_stop(path):
    assert ("--signal=B:TERM@60" in options(path)) == ("--resume" in path.read_text())


def test_only_mpich_outlives_a_node():
    # Without --no-kill Slurm itself ends and requeues a job that has lost a node.
    assert [path.name for path in SBATCH if "--no-kill" in options(path)] == ["matmul-mpich.sbatch"]


def test_the_scripts_that_resume_wait_and_try_again_alike():
    """What a batch shell has to do is said once, and copied: sbatch runs lone files."""
    ends = {
        path.read_text().partition("job=$!\n")[2] for path in SBATCH if "mpich" not in path.name
    }
    assert len(ends - {""}) == 1


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


@pytest.fixture
def batch(tmp_path, shell):
    """Run a script as Slurm would, with stand-ins for ``codedla`` and Slurm's commands.

    ``batch(code, state, restarts)``: codedla waits for SIGTERM, which is sent to the script alone,
    and ends with ``code``; the job is in ``state`` and has been restarted ``restarts`` times.
    """

    def run(code: int, state: str = "RUNNING", restarts: int = 0) -> tuple[int, list[str]]:
        for program, line in (
            ("codedla", '[ "$1" = doctor ] || exec "$PYTHON" codedla.py'),
            ("squeue", f'echo {state}; echo "$*" >>calls'),
            ("scontrol", 'echo "$*" >>calls'),
        ):
            (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / "bin" / program).chmod(0o755)
        (tmp_path / "codedla.py").write_text(STANDIN.format(code=code))
        process = subprocess.Popen(
            ["bash", ROOT / "jobs" / "matmul.sbatch", "A", "B", "C"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "PYTHON": sys.executable,
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": str(restarts),
            },
        )
        try:
            end = time.monotonic() + 20
            while not (tmp_path / "ready").exists():
                assert time.monotonic() < end
                time.sleep(0.02)
            process.terminate()
            returned = process.wait(20)
        finally:
            process.kill()
        calls = tmp_path / "calls"
        return returned, calls.read_text().splitlines() if calls.exists() else []

    return run


STANDIN = """\
import pathlib, signal, sys, time
def told(*_):
    time.sleep(0.3)
    sys.exit({code})
signal.signal(signal.SIGTERM, told)
pathlib.Path("ready").touch()
time.sleep(20)
"""


@pytest.mark.parametrize("code", [143, 1])
def test_stopped_jobs_are_tried_again(batch, code):
    returned, calls = batch(code)
    assert returned == code
    assert calls[-1] == "requeue 7"


@pytest.mark.parametrize(
    ("code", "state", "restarts"),
    [(0, "RUNNING", 0), (3, "RUNNING", 0), (143, "COMPLETING", 0), (143, "RUNNING", 5)],
)
def test_others_are_not(batch, code, state, restarts):
    returned, calls = batch(code, state, restarts)
    assert returned == code
    assert not any(call.startswith("requeue") for call in calls)


def test_mpich_script_names_what_it_needs(shell):
    done = shell(ROOT / "jobs" / "matmul-mpich.sbatch", "A.npy", "B.npy", "C.npy", SLURM_JOB_ID="")
    assert done.returncode != 0
    assert "submit it with sbatch" in done.stderr


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
    done = shell(ROOT / "jobs" / "bench.sbatch", "60", "--repeats", "1", SLURM_NTASKS="4")
    assert done.returncode == 0, done.stderr
    assert "4 ranks met" in done.stdout
    assert "60 x 60 float64 on 4 ranks" in done.stdout
    assert "- When all ranks are well" in done.stdout
