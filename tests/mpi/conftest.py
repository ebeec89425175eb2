"""Run one script of ``scripts/`` as an MPI job, bounded in time, and look at what it left."""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from codedla.mpi import launch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"


@dataclass
class Ended:
    """A job that has ended, and what its ranks wrote."""

    job: launch.JobResult
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> int | None:
        """The master's code; of a script that reports none, the launcher's."""
        return self.job.code if self.job.reported else self.job.launcher_code

    def __str__(self) -> str:
        """Everything that explains a failed assertion."""
        return f"{self.job}\n{self.data}"


def living(mark: str) -> list[str]:
    """Command lines of living processes with ``mark`` in them."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(f"{name}: {line.decode().replace(chr(0), ' ')}")
    return found


@pytest.fixture
def outlives():
    """Call ``outlives()`` in a test that loses a rank: it skips where that ends the whole job."""

    def check() -> None:
        launcher = launch.find_launcher()
        if launcher is None or not launcher.ulfm:
            pytest.skip("this MPI ends the job when a rank is gone")

    return check


@pytest.fixture
def job(tmp_path):
    """Call ``job("script.py", ranks, "argument", ...)``; nothing of it may stay behind."""
    if launch.find_launcher() is None:
        pytest.skip("no mpirun on this machine")
    results: list[Ended] = []

    def run(
        script: str,
        n_ranks: int,
        *words: object,
        timeout: float = 60.0,
        begins: bool = False,
        **env: str,
    ) -> Ended:
        folder = tmp_path / f"job{len(results)}"
        folder.mkdir()
        argv = [sys.executable, str(SCRIPTS / script), str(folder), *map(str, words)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ended = Ended(
            launch.run_job(
                argv,
                n_ranks,
                timeout=timeout,
                env={"PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1", **env},
                capture=True,
                begins=begins,
            )
        )
        for file in sorted(folder.glob("*.json")):
            ended.data[file.stem] = json.loads(file.read_text())
        results.append(ended)
        return ended

    yield run
    end = time.monotonic() + 2
    while living(str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert living(str(tmp_path)) == []
    for ended in results:
        for prefix in ended.data.get("shared", []):
            assert glob.glob(glob.escape(prefix) + "*") == []
