"""Who starts a job and is told to stop says so itself, once: rank 0's words may be lost."""

from __future__ import annotations

import signal

import pytest

from codedla.cli import bench, demo, jobs
from codedla.cli.main import main
from codedla.mpi.launch import JobResult
from codedla.mpi.output import NoiseFilter

COMMANDS = (
    "matmul A.npy B.npy -o C.npy --ranks 3",
    "pagerank g.txt -o r.csv --ranks 3",
    "bench --ranks 3 --quick",
    "demo --ranks 5",
)


@pytest.fixture
def ended(tmp_path, monkeypatch, matrices):
    """Have every job end in the same way."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.txt").write_text("1 2\n")

    def end(**how):
        result = JobResult(launcher_code=1, stdout="", stderr="", hung=False, **how)
        for module in (bench, demo, jobs):
            monkeypatch.setattr(module, "run_job", lambda *_, **__: result)

    return end


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_it_is_said_once(ended, capsys, line, reported, number, code, words):
    ended(code=code, reported=reported, signal=number)
    assert main(line.split()) == code
    assert capsys.readouterr().err == f"codedla: {words}\n"


@pytest.mark.parametrize("line", [line for line in COMMANDS if "demo" not in line])
def test_a_job_that_was_done_in_time_is_done(ended, capsys, line):
    ended(code=0, reported=True, signal=signal.SIGINT)
    assert main(line.split()) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"code": 130, "signal": signal.SIGINT}, "codedla: interrupted; the iterate in c is safe"),
        ({"code": 1, "reason": "rank 0 died"}, "codedla: the iterate in c is safe"),
        ({"code": 3, "reported": True}, "codedla: the iterate in c is safe"),
        ({"code": 2, "reported": True}, None),
        ({"code": 0, "reported": True}, None),
    ],
)
def test_what_was_saved_is_said(ended, tmp_path, monkeypatch, capsys, how, said):
    ended(**how)
    words = "pagerank g.txt -o r.csv --ranks 3 --checkpoint c"
    assert main(words.split()) == how["code"]
    assert "is safe" not in capsys.readouterr().err, "there is none"

    run_job = jobs.run_job
    monkeypatch.setattr(jobs, "run_job", lambda *_, **__: (tmp_path / "c").touch() or run_job())
    assert main(words.split()) == how["code"]
    last = capsys.readouterr().err.splitlines()[-1:]
    assert [line.startswith(said or "-") for line in last] == ([True] if said else [])


def test_farewells_of_ranks_are_dropped():
    noise = NoiseFilter()
    assert noise.feed(b"codedla: interrupted\n") == []
    assert noise.end(drop_remarks=True, drop_farewells=True) == b""
