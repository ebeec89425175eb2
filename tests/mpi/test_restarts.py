"""A rank that is lost before all have met costs the job a second start, nothing else."""

from __future__ import annotations

import os
import sys

import pytest

from codedla.mpi import launch

from .conftest import ROOT, living

pytestmark = pytest.mark.jobs

SCRIPT = """
import os, signal, sys
from pathlib import Path

tries, how = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
if rank == 2:
    with tries.open("a") as file:
        file.write("x")
    first = tries.read_text() == "x"
    if how == "always" or (how == "kill" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "freeze" and first:
        os.kill(os.getpid(), signal.SIGSTOP)
from codedla.mpi import program

def job(pool):
    return 0 if pool.n_workers == 3 else 1

if how == "raise" and rank == 2:
    from codedla.mpi import world
    world.install_abort_hook(world.import_mpi(finalize=False).COMM_WORLD)
    raise ArithmeticError("it would only be raised again")
sys.exit(program.run(job))
"""


@pytest.fixture
def start(tmp_path):
    if launch.find_launcher() is None:
        pytest.skip("no mpirun on this machine")
    script, tries = tmp_path / "script.py", tmp_path / "tries"
    script.write_text(SCRIPT)

    def run(how: str) -> tuple[launch.JobResult, int]:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        result = launch.run_job(
            [sys.executable, str(script), str(tries), how],
            4,
            timeout=90,
            env={"PYTHONPATH": paths},
            capture=True,
            begins=True,
            restarts=2,
        )
        return result, len(tries.read_text())

    yield run
    assert living(str(tmp_path)) == []


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_rank_lost_at_the_start_costs_a_second_start(start, capfd, how):
    result, tries = start(how)
    assert (result.code, tries) == (0, 2), result
    (line,) = [x for x in capfd.readouterr().err.splitlines() if "warning" in x]
    assert "ended or froze while the ranks were starting; they are started again" in line


def test_the_job_is_given_up_after_three_starts(start, capfd):
    result, tries = start("always")
    assert (result.reported, tries) == (False, 3), result
    assert result.code != 0
    assert capfd.readouterr().err.count("started again") == 2


def test_an_exception_is_not_tried_again(start, capfd):
    result, tries = start("raise")
    assert (result.reported, tries) == (False, 1), result
    assert result.code != 0
    assert "ArithmeticError: it would only be raised again" in result.stderr
