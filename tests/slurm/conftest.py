"""A Slurm cluster of three nodes on this machine, and jobs on it.

Only with ``CODEDLA_TEST_SLURM=1`` (``make test-slurm``): the cluster installs Slurm where there is
none, and the tests take minutes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("cluster.sh")
CANNOT = 77
#: A requeued job begins when its old credential has run out. Here it need not wait so long, only
#: until the node's daemon has forgotten the old try: it refuses a second one of the same number.
SETTLED = 4.0
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they were asked for."""
    if os.environ.get("CODEDLA_TEST_SLURM") == "1":
        return
    for item in items:
        if item.path.parent == SCRIPT.parent:
            item.add_marker(pytest.mark.skip(reason="set CODEDLA_TEST_SLURM=1: make test-slurm"))


class Cluster:
    """The running cluster."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.environ = {**os.environ, **_place(folder)}

    def call(self, *words: str) -> str:
        """Output of a Slurm command, or of the cluster's script."""
        done = subprocess.run(
            words, env=self.environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def lose(self, node: str) -> None:
        """Kill everything that runs on a node, its daemon included."""
        self.call(str(SCRIPT), "lose", node)

    def restore(self, node: str) -> None:
        """Start a node's daemon again."""
        self.call(str(SCRIPT), "restore", node)


@dataclass
class Job:
    """A submitted batch job."""

    cluster: Cluster
    number: str
    output: Path

    @property
    def log(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    @property
    def facts(self) -> dict[str, str]:
        """What ``scontrol`` says of it."""
        text = self.cluster.call("scontrol", "--oneliner", "show", "job", self.number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    @property
    def tries(self) -> int:
        return 1 + int(self.facts["Restarts"])

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; with the job's log when it does not come true."""
        end = time.monotonic() + seconds
        since: float | None = None
        while not condition():
            facts = self.facts
            assert time.monotonic() < end, f"no {what} in {seconds} s: {facts}\n{self.log}"
            waits = (facts["JobState"], facts["Reason"]) == ("PENDING", "BeginTime")
            since = (since or time.monotonic()) if waits and not self.processes() else None
            if since is not None and time.monotonic() > since + SETTLED:
                self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now")
            time.sleep(0.2)

    def end(self, seconds: float = 90) -> tuple[str, str]:
        """Wait for the end of the job and of its processes; return its state and exit code."""
        self.until(lambda: self.facts["JobState"] in OVER, seconds, "end")
        self.until(lambda: not self.processes(), 15, "end of its processes")
        facts = self.facts
        return facts["JobState"], facts["ExitCode"]

    def processes(self, *marks: str) -> list[int]:
        """Living processes of the job whose environment has all these entries."""
        wanted = {f"SLURM_JOB_ID={self.number}", "SLURM_CLUSTER_NAME=codedla-test", *marks}
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                environ = _read(f"/proc/{name}/environ").decode(errors="replace")
                if wanted <= set(environ.split("\0")):
                    found.append(int(name))
        return found

    def rank(self, number: int) -> int:
        """Wait for a rank and return its process."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [
                pid
                for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
                for pid in self.processes(f"{variable}={number}")
                if b"matmul" in _read(f"/proc/{pid}/cmdline")
            ]
            return bool(found)

        self.until(there, 60, f"rank {number}")
        return found[0]

    def under_way(self) -> None:
        """Wait until all ranks have met, of which the master leaves word beside its exit code."""
        environ = _read(f"/proc/{self.rank(0)}/environ").decode().split("\0")
        done = next(entry for entry in environ if entry.startswith("CODEDLA_DONE="))
        begun = Path(done.partition("=")[2] + ".begun")
        self.until(begun.exists, 60, "beginning")
        time.sleep(1)  # into the first tasks


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


def _place(folder: Path) -> dict[str, str]:
    return {"CODEDLA_SLURM_DIR": str(folder), "SLURM_CONF": str(folder / "slurm.conf")}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Bring the cluster up, and in any case down again."""
    # Not below pytest's folder: munged wants its socket where everybody may go.
    folder = Path(tempfile.mkdtemp(prefix="codedla-slurm-"))
    environ = {**os.environ, **_place(folder)}
    try:
        began = time.monotonic()
        done = subprocess.run(
            [SCRIPT, "up", "3"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode == CANNOT:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
        yield Cluster(folder, time.monotonic() - began)
    finally:
        subprocess.run([SCRIPT, "down"], env=environ, timeout=60, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _programs(folder: Path, python: Path) -> Path:
    """Make what a virtual environment with this checkout in it looks like to a job."""
    (folder / "bin").mkdir(parents=True)
    for program, words in (("codedla", "-m codedla"), ("python3", "")):
        path = folder / "bin" / program
        path.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT}" && export PYTHONPATH\nexec "{python}" {words} "$@"\n'
        )
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def openmpi(tmp_path_factory) -> Path:
    """Environment with the Open MPI that these tests run with."""
    from codedla.mpi.launcher import find_launcher

    launcher = find_launcher()
    if launcher is None or not launcher.ulfm:
        pytest.skip("no Open MPI with fault tolerance in this environment")
    return _programs(tmp_path_factory.mktemp("openmpi") / "env", Path(sys.executable))


@pytest.fixture(scope="session")
def mpich(tmp_path_factory) -> Path:
    """Environment with MPICH, made where there is none (``CODEDLA_MPICH_VENV`` says where)."""
    place = Path(os.environ.get("CODEDLA_MPICH_VENV", ROOT / ".venv-mpich"))
    python = place / "bin" / "python"
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "bin" / "mpiexec").exists():
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            _create(python, [*project["dependencies"], "mpich>=4.3"])
    return _programs(tmp_path_factory.mktemp("mpich") / "env", python)


def _create(python: Path, packages: list[str]) -> None:
    place = python.parents[1]
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(place)
        pytest.skip(f"pip could not install MPICH: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture
def submit(cluster, tmp_path) -> Iterator[Callable[..., Job]]:
    """Call ``submit(environment, "x.sbatch", options, *words)`` in the test's own directory."""
    jobs: list[Job] = []

    def call(environment: Path, script: str, options: str, *words: object, **env: str) -> Job:
        output = tmp_path / f"job{len(jobs)}.log"
        done = subprocess.run(
            [
                *("sbatch", "--parsable", f"--output={output}", *options.split()),
                *(str(ROOT / "jobs" / script), *map(str, words)),
            ],
            cwd=tmp_path,
            env={**cluster.environ, "CODEDLA_ENV": str(environment), **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        jobs.append(Job(cluster, done.stdout.strip().split(";")[0], output))
        return jobs[-1]

    yield call
    for job in jobs:
        if job.facts["JobState"] not in OVER:
            cluster.call("scancel", job.number)
            job.end(30)
    for node in cluster.call("sinfo", "-h", "-N", "-o", "%N %t").splitlines():
        if "down" in node or "*" in node:
            cluster.restore(node.split()[0])


@pytest.fixture
def matrices(tmp_path):
    """``A.npy`` (600 x 400) and ``B.npy`` (400 x 300) in the test's directory; their product."""
    rng = np.random.default_rng(6626070)
    a, b = rng.standard_normal((600, 400)), rng.standard_normal((400, 300))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    return a @ b
