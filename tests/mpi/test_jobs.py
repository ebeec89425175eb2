"""Real MPI jobs: right, soon, and gone when they are done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from codedla.mpi import launch

from .conftest import ROOT, SCRIPTS

pytestmark = pytest.mark.jobs


def ulfm() -> bool:
    launcher = launch.find_launcher()
    return launcher is not None and launcher.ulfm


# -- right ------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "limit", "faults"),
    [
        (2, 0, []),
        (5, 0, []),
        (9, 0, []),
        (5, 1000, []),
        (5, 90, []),
        (5, 0, ["random:bimodal:0.3:0.02:11"]),
        (5, 1000, ["delay:2:0.05"]),
    ],
)
def test_products(job, ranks, limit, faults):
    ended = job("correct.py", ranks, limit, *faults, timeout=120)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["bad"] == []
    assert result["done"] >= (60 if ranks == 2 else 100), ended
    assert all("use" in text for text in result["refused"])
    assert ended.job.stderr == ""
    assert not ended.job.killed


def test_messages_of_every_size(job):
    ended = job("sizes.py", 4, timeout=120)
    assert ended.code == 0, ended
    assert ended.data["result"]
    assert [size for size, right in ended.data["result"].items() if not right] == []
    assert {"0", "8", "65528", "65536", "65544", str(64 * 2**20)} <= set(ended.data["result"])


# -- soon ------------------------------------------------------


def test_a_straggler_is_not_waited_for(job):
    ended = job("products.py", 5, 3, 200, 0, "delay:2:30")
    assert ended.code == 0, ended
    assert ended.data["result"]["worst"] < 1e-11
    assert all(r["stragglers"] == [2] for r in ended.data["result"]["reports"])
    assert ended.data["result"]["seconds"] < 2
    assert ended.job.seconds < 12
    assert not ended.job.hung


@pytest.mark.parametrize("rows", [20, 700])
def test_late_replies_do_not_mix_into_later_rounds(job, rows):
    """Inline and large replies; a third of the tasks is a little late."""
    ended = job("products.py", 5, 60, rows, 0, "random:bimodal:0.35:0.015:5")
    assert ended.code == 0, ended
    assert ended.data["result"]["worst"] < 1e-10
    late = [r for r in ended.data["result"]["reports"] if r["stragglers"]]
    assert len(late) > 10


@pytest.mark.alone
def test_a_slow_worker_does_not_slow_five_hundred_rounds(job):
    ended = job("rounds.py", 5, 500, 400, "delay:3:0.1")
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["worst"] < 1e-10
    assert result["late"] >= 490
    assert result["seconds"] < 6, "a tenth of the 50 s that waiting would take"
    assert ended.job.seconds < 20


@pytest.mark.parametrize("rows", [400, 60_000])
def test_memory_is_flat_over_many_rounds(job, rows):
    """On the master and on every worker, with late replies all the time."""
    rounds = 2000 if rows == 400 else 500
    ended = job("rounds.py", 5, rounds, rows, "random:bimodal:0.2:0.004:3", timeout=120)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["worst"] < 1e-10
    assert result["late"] > rounds / 10
    assert result["sends"] <= 3
    settled, last = result["memory"][rounds // 400], result["memory"][-1]
    growth = [(now - then) / 2**20 for now, then in zip(last, settled, strict=True)]
    assert max(growth) < 3, f"MiB: {growth}"


# -- gone ------------------------------------------------------


@pytest.mark.parametrize("rows", [50, 1500])
def test_shutdown_with_work_in_flight(job, rows):
    """The last product's straggler is computing, or sending, when the pool closes."""
    for fault in ("delay:1:20", "slow:4:50"):
        ended = job("products.py", 5, 2, rows, 0, fault)
        assert ended.code == 0, ended
        assert ended.data["result"]["worst"] < 1e-10
        assert ended.job.seconds < 12
        assert not ended.job.killed


def test_pools_one_after_the_other(job):
    ended = job("lifecycle.py", 4, OPENBLAS_NUM_THREADS="2")
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["right"]
    assert result["second"]
    assert result["part"]
    assert (result["part workers"], result["clean"]) == (2, True)
    assert result["closed"].startswith("PoolClosed: this pool is closed")
    assert result["closed store"].startswith("PoolClosed")
    assert result["outside"].startswith("UsageError: use the pool inside its with block")
    assert "worker ranks 1 to 3; got rank 9" in result["no such rank"]
    assert result["threads"].startswith("UsageError: threads must be >= 1; got 0")
    assert "ranks 1, 2, 3" in result["nested"]
    assert result["alone"].startswith("UsageError: at least 2 ranks")
    for name, what in (
        ("None", "NoneType"),
        ("3", "int"),
        ("null", "COMM_NULL"),
        ("between", "Intercomm"),
    ):
        assert result[f"comm {name}"].startswith(
            f"UsageError: comm must be an mpi4py intracommunicator; got {what}"
        )
    assert ended.data["forgotten"]
    # The caller's own messages arrive where they were sent, and nothing else does.
    assert result["untouched"]
    assert result["mine"] == [7.0] * 4
    assert ended.data["theirs"] == [5.0] * 3
    for rank in (1, 2, 3):
        seen = ended.data[f"threads{rank}"]
        assert seen["before"] == seen["after"]
        assert seen["inside"]
        assert all(entry == [1] for entry in seen["inside"])


def test_a_pool_outlives_interrupts_and_what_progress_functions_do(job):
    ended = job("interrupts.py", 4)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["interrupted"] == result["right after"] == 100
    assert result["progress raises"] == [["RuntimeError: the caller's own", True]] * 10
    for what in ("product inside", "close inside"):
        error, right_after = result[what]
        assert error.startswith("UsageError"), error
        assert "progress=" in error
        assert right_after
    assert [done for done, _, _ in result["counted"]] == list(range(1, len(result["counted"]) + 1))
    assert result["counted"]
    assert result["threads"] == [True] * 4


@pytest.mark.parametrize("words", [[], ["map"]])
def test_a_frozen_reply_does_not_spoil_a_later_product(job, words):
    """The same array is decoded into while a rank is frozen in the middle of an older reply."""
    # Without single copies a reply can stop half-way.
    ended = job("frozen_reply.py", 4, *words, OMPI_MCA_smsc="^cma,xpmem,knem")
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["failed"] >= 4
    assert result["wrong"] == 0
    if words:  # a map is received into directly: refused rather than spoilt
        assert result["right"] + result["refused"] == 8
    else:
        assert result["right"] == 8


@pytest.mark.alone
def test_idle_workers_cost_little(job):
    ended = job("idle.py", 5)
    assert ended.code == 0, ended
    assert max(ended.data["result"]) < 0.15


@pytest.mark.parametrize("under", ["a shell", "mpirun -n 1"])
def test_one_rank_is_too_few(tmp_path, under):
    launcher = launch.find_launcher()
    if launcher is None:
        pytest.skip("no mpirun on this machine")
    argv = [sys.executable, str(SCRIPTS / "idle.py"), str(tmp_path)]
    line = argv if under == "a shell" else launch.command(launcher, 1, argv)
    done = subprocess.run(
        line,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "UsageError: at least 2 ranks are needed, a master and a worker; got 1" in done.stderr
    assert "start with mpirun -n R or --ranks R" in done.stderr


# -- when something goes wrong ------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("master", ["rank 0 on", "RuntimeError: the master fails inside the pool"]),
        ("task", ["WorkerError: rank 2 on", "RuntimeError: injected exception in task 2"]),
        ("worker after", ["rank 2 on", "RuntimeError: a worker fails after the pool"]),
        ("worker last", ["rank 2 on", "RuntimeError: a worker fails after the pool"]),
        ("master last", ["rank 0 on", "RuntimeError: the master fails after the pool"]),
    ],
)
def test_an_exception_ends_the_job(job, what, words):
    """Soon, with a code other than 0, and with the traceback of the rank that raised."""
    ended = job("failing.py", 4, what, timeout=30)
    assert ended.code != 0, ended
    assert not ended.job.hung, ended
    assert ended.job.seconds < 10, ended
    assert "Traceback (most recent call last)" in ended.job.stderr
    for text in words:
        assert text in ended.job.stderr
    if what == "task":
        assert "worker.py" in ended.job.stderr, "the worker's own traceback"


def test_an_exception_before_the_pool_is_bounded_by_the_time_out(job):
    """Nobody can tell the others then: MPI's own start and end are collective."""
    ended = job("failing.py", 4, "worker outside", timeout=5)
    assert ended.job.code != 0
    assert ended.job.hung
    assert ended.job.seconds < 10
    assert "RuntimeError: a worker fails before the pool" in ended.job.stderr


def test_a_handled_exception_is_no_end(job):
    ended = job("failing.py", 3, "caught")
    assert ended.code == 0, ended
    assert {"end0", "end1", "end2"} <= set(ended.data)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("script", ["failing.py", "program_run.py"])
def test_signals(tmp_path, signum, script):
    """Handed to the job by the launcher's side; bounded, and 128 + the signal's number."""
    if launch.find_launcher() is None:
        pytest.skip("no mpirun on this machine")
    words = ["sleep"] if script == "failing.py" else ["500", "1"]
    argv = [sys.executable, str(SCRIPTS / script), str(tmp_path), *words]
    code = f"import sys; from codedla.mpi.launch import run_job; sys.exit(run_job({argv}, 4).code)"
    started = tmp_path / ("started.json" if script == "failing.py" else "result.json")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        end = time.monotonic() + 30
        while not started.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert started.exists()
        began = time.monotonic()
        process.send_signal(signum)
        assert process.wait(30) == 128 + signum
        assert time.monotonic() - began < 12
    shared = json.loads((tmp_path / "shared.json").read_text())
    assert [p for p in shared for n in os.listdir("/dev/shm") if n in p] == []


def test_a_killed_worker_is_survived(job):
    if not ulfm():
        pytest.skip("this MPI ends the job when a rank is killed")
    ended = job("program_run.py", 5, 12, 2, "kill:2:0.5")
    assert ended.code == 0, ended
    assert ended.data["result"]["worst"] < 1e-10
    assert list(ended.data["result"]["lost"]) == ["2"]
    assert max(ended.data["result"]["seconds"]) < 3
    assert "rank 2 " in ended.job.stderr
    assert "is lost" in ended.job.stderr or "was lost" in ended.job.stderr
    assert ended.job.seconds < 15
    assert not ended.job.hung


def test_a_frozen_worker_is_survived(job):
    ended = job("program_run.py", 5, 12, 2, "hang:3:0.5")
    assert ended.code == 0, ended
    assert ended.data["result"]["worst"] < 1e-10
    assert max(ended.data["result"]["seconds"]) < 3
    assert ended.job.seconds < 15
    assert not ended.job.hung


def test_a_master_finishes_its_script_after_a_worker_froze(job):
    """Workers that are done before it must not take it along, as they would with MPICH."""
    ended = job("last_word.py", 4)
    assert ended.data["worst"] < 1e-10, ended
    assert not ended.job.hung
    if launch.find_launcher().kind == "mpich":
        assert ended.job.launcher_code == 0


def test_a_killed_worker_of_a_plain_script_is_survived(job):
    if not ulfm():
        pytest.skip("this MPI ends the job when a rank is killed")
    ended = job("products.py", 5, 12, 60, 0.1, "kill:4:0.4")
    assert ended.data["result"]["worst"] < 1e-10, ended
    assert ended.data["result"]["reports"][-1]["lost"] == [4]
    assert ended.job.seconds < 15
    assert not ended.job.hung


def test_more_losses_than_tolerated_are_made_up_for(job):
    if not ulfm():
        pytest.skip("this MPI ends the job when a rank is killed")
    ended = job("program_run.py", 5, 15, 2, "kill:1:0.4", "kill:2:0.6", "kill:4:0.8")
    assert ended.code == 0, ended
    assert ended.data["result"]["worst"] < 1e-10
    assert sorted(ended.data["result"]["lost"]) == ["1", "2", "4"]
    assert not ended.job.hung


def test_the_loss_of_all_workers_ends_the_job_with_code_3(job):
    if not ulfm():
        pytest.skip("this MPI ends the job when a rank is killed")
    kills = [f"kill:{rank}:{0.3 + 0.2 * rank}" for rank in (1, 2, 3, 4)]
    ended = job("program_run.py", 5, 100, 2, *kills)
    assert ended.code == 3, ended
    (line,) = [x for x in ended.job.stderr.splitlines() if x.startswith("codedla: error:")]
    for text in ("needs any 2 of 4 workers", *(f"rank {rank} (" for rank in (1, 2, 3, 4))):
        assert text in line
    assert ended.job.seconds < 20
    assert not ended.job.hung


def test_bad_usage_ends_the_job_with_code_2(job):
    ended = job("program_run.py", 3, 1, 2)
    assert ended.code == 2, ended
    assert ended.job.stderr.startswith("codedla: error: ")
    assert ended.job.stderr.count("\n") == 1


def test_the_package_is_imported_without_mpi():
    code = (
        "import sys, codedla; print([m for m in ('mpi4py', 'scipy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"
