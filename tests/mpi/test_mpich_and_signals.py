"""Signals to each process of a job; launchers that are killed; what MPICH does not tolerate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from codedla.mpi import launch
from codedla.mpi.leftovers import Leftovers, Process

from .conftest import ROOT, SCRIPTS, living

LAUNCHER = launch.find_launcher()

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine"),
]
needs_tolerance = pytest.mark.skipif(
    LAUNCHER is not None and not LAUNCHER.ulfm,
    reason="needs fault tolerance: a killed rank ends a job of this MPI",
)
needs_intolerance = pytest.mark.skipif(
    LAUNCHER is None or LAUNCHER.kind != "mpich",
    reason="tells what MPICH does not tolerate; this is another MPI",
)


class Running:
    """A job of ``program_run.py``, by default for a minute, with its processes.

    Started by codedla, or ``plain``, by a launcher of one's own; with ``bare=True`` that is not
    told to tolerate anything.
    """

    def __init__(
        self,
        folder: Path,
        n_ranks: int = 4,
        *,
        plain: bool = False,
        bare: bool = False,
        products: int = 500,
    ) -> None:
        self.folder = folder
        argv = [sys.executable, str(SCRIPTS / "program_run.py"), str(folder), str(products), "1"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        if plain or bare:
            line = launch.command(LAUNCHER, n_ranks, argv, export=["CODEDLA_JOB"])
            if bare:
                tolerance = ("--with-ft", "ulfm", "-disable-auto-cleanup")
                line = [word for word in line if word not in tolerance]
            env["CODEDLA_JOB"] = str(folder)
        else:
            code = f"from codedla.mpi.launch import run_job; run = run_job({argv}, {n_ranks}, "
            code += "begins=True); raise SystemExit(run.code)"
            line = [sys.executable, "-c", code]
        self.process = subprocess.Popen(
            line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        result = folder / "result.json"
        end = time.monotonic() + 60
        while not result.exists() and time.monotonic() < end:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        assert result.exists()
        self.began = time.monotonic()

    def processes(self) -> list[Process]:
        for name in os.listdir("/proc"):
            try:
                if not name.isdigit() or int(name) == os.getpid():
                    continue
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            marks = [e.partition(b"=")[2] for e in entries if e.startswith(b"CODEDLA_JOB=")]
            if marks and str(self.folder).encode() in line:
                return Leftovers(marks[0].decode()).processes()
        raise AssertionError("no process of the job")

    def rank(self, number: int) -> int:
        (pid,) = [p.pid for p in self.processes() if p.rank == number]
        return pid

    def launcher(self) -> int:
        """The launcher that was called: the parent of all its helpers."""
        return min(p.pid for p in self.processes() if p.rank is None)

    def end(self, within: float) -> tuple[int, str]:
        """Wait for it, and see that nothing is left; return its code and its words."""
        self.began = time.monotonic()
        _, err = self.process.communicate(timeout=60)
        assert time.monotonic() - self.began < within, err
        while living(str(self.folder)) and time.monotonic() - self.began < within:
            time.sleep(0.05)
        assert living(str(self.folder)) == []
        shared = json.loads((self.folder / "shared.json").read_text())
        left = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
        assert [path for path in left for stem in shared if path.startswith(stem)] == []
        assert [path.name for path in self.folder.glob("codedla-*")] == []
        return self.process.returncode, err


@pytest.fixture
def running(tmp_path):
    """Start jobs; end what a failed test leaves of them."""
    started: list[Running] = []

    def start(*words: object, **options: object) -> Running:
        started.append(Running(tmp_path, *words, **options))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_master(running, signum):
    job = running()
    os.kill(job.rank(0), signum)
    code, err = job.end(10)
    assert code == 128 + signum
    assert ("interrupted" if signum == signal.SIGINT else "terminated") in err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher(running, signum):
    job = running()
    os.kill(job.launcher(), signum)
    code, _ = job.end(10)
    assert code != 0


@needs_tolerance
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_worker_is_a_loss(running, signum):
    """The others go on without it; nobody waits."""
    job = running()
    os.kill(job.rank(2), signum)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        result = json.loads((job.folder / "result.json").read_text())
        if result["lost"]:
            break
        time.sleep(0.1)
    assert list(result["lost"]) == ["2"]
    after = len(result["seconds"])
    time.sleep(2)
    result = json.loads((job.folder / "result.json").read_text())
    assert len(result["seconds"]) > after + 3, "it goes on"
    assert result["worst"] < 1e-10
    job.process.send_signal(signal.SIGTERM)
    code, err = job.end(10)
    assert code == 143
    assert "Segmentation" not in err


@needs_intolerance
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_worker_ends_the_job(running, signum):
    job = running()
    os.kill(job.rank(2), signum)
    code, _ = job.end(10)
    assert code != 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_launcher_of_ones_own(running, signum):
    """``mpirun ... python`` without codedla in front of it."""
    job = running(plain=True)
    os.kill(job.launcher(), signum)
    code, _ = job.end(10)
    assert code != 0


def test_ranks_leave_when_their_launcher_is_killed(running):
    """``kill -9`` of one's own ``mpirun``: it cannot end its ranks."""
    job = running(plain=True)
    os.kill(job.launcher(), signal.SIGKILL)
    code, _ = job.end(10)
    assert code == -signal.SIGKILL


def test_ranks_leave_when_their_master_is_killed(running):
    """Whatever code its launcher makes of it: Open MPI's may say 0."""
    job = running(plain=True)
    os.kill(job.rank(0), signal.SIGKILL)
    job.end(10)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_job_of_a_bare_launcher(running, victim):
    job = running(bare=True)
    os.kill(job.rank(victim), signal.SIGKILL)
    code, _ = job.end(10)
    # So hydra tells it.
    assert code == (9 if LAUNCHER.kind == "mpich" else 128 + signal.SIGKILL)


def test_a_frozen_rank_does_not_hold_up_the_job_of_a_bare_launcher(running):
    job = running(bare=True, products=40)
    os.kill(job.rank(2), signal.SIGSTOP)
    code, err = job.end(25)
    assert code == 0, err
    result = json.loads((job.folder / "result.json").read_text())
    assert len(result["seconds"]) == 40
    assert result["worst"] < 1e-10


@needs_intolerance
def test_a_killed_worker_ends_the_job_and_says_so(tmp_path):
    rng = np.random.default_rng(2718281)
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 150))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    words = [sys.executable, "-m", "codedla", "matmul", "A.npy", "B.npy", "-o", "C.npy"]
    words += ["--ranks", "4", "--panel-rows", "30", "-q"]

    def run(*more: str) -> tuple[subprocess.CompletedProcess, float]:
        began = time.monotonic()
        done = subprocess.run(
            [*words, *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done, time.monotonic() - began

    slow = [word for rank in (1, 2, 3) for word in ("--inject", f"delay:{rank}:0.3")]
    done, seconds = run(*slow, "--inject", "kill:2:1.5")
    assert done.returncode == 1
    assert seconds < 15
    assert done.stdout == ""
    (line,) = [x for x in done.stderr.splitlines() if "error:" in x]
    assert "a rank was ended" in line
    assert "this MPI (mpich" in line
    assert "--resume" in done.stderr
    assert not (tmp_path / "C.npy").exists()
    done, _ = run("--resume")
    assert done.returncode == 0, done.stderr
    assert np.abs(np.load(tmp_path / "C.npy") - a @ b).max() < 1e-10
