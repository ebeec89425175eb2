"""Every example runs: in this process, and those that take a pool on four real ranks too."""

import subprocess
import sys
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher, run_job

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/[!_]*.py"))
WITH_POOL = [path for path in EXAMPLES if "from _run import run" in path.read_text()]


def test_there_are_examples():
    assert {"matmul", "power_iteration"} <= {path.stem for path in WITH_POOL}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_in_process(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.jobs
@pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found")
@pytest.mark.parametrize("path", WITH_POOL, ids=lambda path: path.stem)
def test_example_runs_on_four_ranks(path):
    job = run_job([sys.executable, str(path)], 4, timeout=60, capture=True)
    # A plain script leaves no report of its own: the launcher's word is all there is.
    assert job.launcher_code == 0, job.stdout + job.stderr
    assert not job.hung
