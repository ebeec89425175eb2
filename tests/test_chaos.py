"""A small slice of the chaos harness; ``make chaos`` runs more of it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import Fault
from codedla.mpi.launch import find_launcher
from tests import chaos
from tests.chaos_jobs import Strike, compare, run_command

needs_launcher = pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")


def test_simulated():
    score = chaos.run_many("simulated", range(chaos.SEED, chaos.SEED + 300))
    assert score.failures == []
    # Enough happens for this to mean something.
    assert score.ends["right"] > 300
    assert min(score.ends[end] for end in ("right, redispatched", "nobody left", "refused")) > 10
    assert score.ends["refused"] < 0.15 * score.ends.total()


@pytest.mark.jobs
@needs_launcher
@pytest.mark.parametrize("seed", [20177, 20178, 20182, 20187])
def test_real_ranks(seed):
    chaos.run_job(chaos.draw_job(seed))


def test_a_seed_is_a_case():
    assert str(chaos.draw_case(20177)) == str(chaos.draw_case(20177))
    assert str(chaos.draw_job(20177)) == str(chaos.draw_job(20177))
    assert str(chaos.draw_case(20177)) != str(chaos.draw_case(20178))


def case_of(faults, **options):
    """A case of one product of 6 x 6 matrices on four workers."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 6, 6))
    step = chaos.Step("matmul", a, b, {}, options.pop("verify", "off"), None, out=False)
    return chaos.Case(1, "simulated", 4, faults, None, 0.0, None, [step])


def test_each_end_is_told_apart():
    kill = [Fault("kill", worker, 0.0) for worker in range(4)]
    lie = [Fault("corrupt", 1, 1.0, corruption="scale")]
    assert chaos.run_case(case_of([])) == ["right"]
    assert chaos.run_case(case_of(kill)) == ["nobody left"]
    assert chaos.run_case(case_of(kill[:3])) == ["right, redispatched"]
    assert chaos.run_case(case_of(lie)) == ["not checked"]
    assert chaos.run_case(case_of(lie, verify="freivalds")) == ["found wrong"]
    assert chaos.run_case(case_of(lie, verify="locate"))[0].startswith("right")
    assert chaos.run_case(case_of([Fault("raise", 1, 1.0)])) == ["raised"]


def test_wrong_numbers_are_seen(monkeypatch):
    """The harness would notice what it is there to notice."""
    real = codedla.matmul

    def off(*args, **options):
        product, report = real(*args, **options)
        product[2, 3] += 1e-3
        return product, report

    monkeypatch.setattr(codedla, "matmul", off)
    with pytest.raises(chaos.Wrong, match=r"error .* of .*; estimate"):
        chaos.run_case(case_of([]))


def test_giving_up_too_early_is_seen(monkeypatch):
    def gives_up(*args, **options):
        raise codedla.NotDecodable("no worker is left")

    monkeypatch.setattr(codedla, "matmul", gives_up)
    with pytest.raises(chaos.Wrong, match=r"gave up although ranks \[1, 2, 3, 4\] live"):
        chaos.run_case(case_of([]))


def test_an_honest_worker_accused_is_seen(monkeypatch):
    real = codedla.matmul

    def accuses(*args, **options):
        product, report = real(*args, **options)
        report.wrong = [2]
        return product, report

    monkeypatch.setattr(codedla, "matmul", accuses)
    with pytest.raises(chaos.Wrong, match=r"ranks \[2\] accused"):
        chaos.run_case(case_of([]))


def test_a_case_without_an_end_is_seen(monkeypatch):
    def turns(*args, **options):
        while True:
            pass

    monkeypatch.setattr(codedla, "matmul", turns)
    monkeypatch.setattr(chaos, "WALL", 0.2)
    with pytest.raises(chaos.Hung):
        chaos.run_case(case_of([]))


def test_command_line(tmp_path, monkeypatch, capsys):
    figures = tmp_path / "figures.json"
    assert chaos.main(["--simulated", "5", "--json", str(figures)]) == 0
    document = json.loads(figures.read_text())
    assert sum(document["simulated"]["ends"].values()) >= 5
    assert "0 failures" in capsys.readouterr().out

    def fails(case):
        raise chaos.Wrong("on purpose")

    monkeypatch.setattr(chaos, "run_case", fails)
    assert chaos.main(["--simulated", "1", "--seed", "77"]) == 1
    assert "--replay 77" in capsys.readouterr().err
    assert chaos.main(["--replay", "77"]) == 1
    assert "on purpose" in capsys.readouterr().out


LEAVES = """
import subprocess, sys, tempfile
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(50)"])
tempfile.mkstemp(suffix="-left")
open("half.part", "w").close()
"""


def test_what_a_command_leaves_is_seen(tmp_path):
    ended = run_command([], tmp_path, program=[sys.executable, "-c", LEAVES])
    process, temporary, part = ended.left
    assert "time.sleep(50)" in process
    assert temporary.startswith("tmp/")
    assert temporary.endswith("-left")
    assert part == "half.part"
    assert (ended.code, ended.hung) == (0, False)


def test_a_command_without_an_end_is_ended(tmp_path):
    sleeper = [sys.executable, "-c", "import time; time.sleep(50)"]
    ended = run_command([], tmp_path, program=sleeper, limit=0.5)
    assert ended.hung
    assert ended.code == -15
    assert ended.left == []


@pytest.mark.jobs
@needs_launcher
def test_a_strike_meets_its_rank(tmp_path):
    if not find_launcher().tolerant:
        pytest.skip("needs fault tolerance: a killed rank ends a job of this MPI")
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((2, 40, 40))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", 4, "--tolerate", 1]
    slow = ["--inject", "delay:1:1", "--inject", "delay:2:1", "--inject", "delay:3:1"]
    strike = Strike(2, 9, 0.1, "met")
    ended = run_command([*words, *slow], tmp_path, [strike], kept=["C.npy"])
    assert (ended.code, ended.left) == (0, []), ended.err
    assert [s.phase for s in ended.struck] == ["running"]
    assert "rank 2 was lost" in ended.err
    assert compare(tmp_path / "C.npy", a @ b) is True
    assert compare(tmp_path / "C.npy", a @ b + 1) is False
    assert compare(tmp_path / "D.npy", a @ b) is None


def test_replay_is_told_as_a_command():
    path = Path(chaos.__file__)
    argv = [sys.executable, str(path), "--replay", "20179"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "ended: " in done.stdout


@pytest.mark.jobs
@needs_launcher
def test_survival(tmp_path):
    target = tmp_path / "figures.json"
    script = Path(__file__).parents[1] / "benchmarks" / "survival.py"
    # Where a killed rank ends the job, only frozen ones are survived.
    killed = ["none-left"] if find_launcher().tolerant else []
    options = ["--runs", "1", "--ranks", "4", "--size", "60", "--cases", "freeze", *killed]
    argv = [sys.executable, str(script), *options, "--json", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["case"]: row for row in json.loads(target.read_text())["rows"]}
    assert rows["freeze"]["codes"] == {"0": 1}
    assert rows["freeze"]["correct"] == 1
    assert {row["left"] for row in rows.values()} == {0}
    assert "1 or 2 workers frozen" in done.stdout
    if killed:
        assert set(rows["none-left"]["codes"]) <= {"0", "3"}
        assert "all workers killed" in done.stdout
