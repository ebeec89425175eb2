"""Products by the program on real ranks: right, in time, with the right code and one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from codedla.mpi.launch import command, find_launcher
from tests.cli.conftest import ROOT

LAUNCHER = find_launcher()
pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine"),
]
survives_kills = pytest.mark.skipif(
    LAUNCHER is None or LAUNCHER.kind != "openmpi", reason="this launcher ends jobs with lost ranks"
)

PRODUCT = ("matmul", "A.npy", "B.npy", "-o", "C.npy")


def check(tmp_path, matrices):
    a, b = matrices
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-10, atol=1e-12)
    assert not list(tmp_path.glob(".*.part"))


@pytest.fixture
def under_mpirun(tmp_path_factory):
    """The words before the program when a user calls mpirun, with a folder of its own."""

    def words(n_ranks: int) -> tuple[str, ...]:
        folder = tmp_path_factory.mktemp("mpirun")
        return ("env", f"TMPDIR={folder}", *command(LAUNCHER, n_ranks, []))

    return words


def test_summary_report_and_json(program, matrices, tmp_path):
    done = program(*PRODUCT, "--ranks", 4, "--report", "r.json", "--json", "--verify")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert report == json.loads((tmp_path / "r.json").read_text())
    assert report["schema"] == "codedla.report/1"
    assert (report["n_workers"], report["verified"]) == (3, "locate")
    check(tmp_path, matrices)
    again = program(*PRODUCT, "--ranks", 4)
    assert again.code == 2
    assert "give --force" in again.err
    forced = program(*PRODUCT, "--ranks", 4, "--force", "-q")
    assert (forced.code, forced.out, forced.err) == (0, "", "")


@pytest.mark.parametrize("code", ["replication", "polynomial"])  # others have tests below
def test_codes(program, matrices, tmp_path, code):
    done = program(*PRODUCT, "--ranks", 5, "--code", code)
    assert (done.code, done.err) == (0, "")
    assert f"code {code}" in done.out
    check(tmp_path, matrices)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(program, matrices, tmp_path, closed):
    """The numbers of closed streams must not be given to files: nothing is printed into those."""
    words = ("sh", "-c", f'"$0" "$@" {closed}')
    answer = program(*PRODUCT, "--ranks", 3, "--report", "r.json", before=words)
    assert answer.code == 0, answer
    assert answer.err == ""
    check(tmp_path, matrices)
    assert json.loads((tmp_path / "r.json").read_text())["n_workers"] == 2


def test_without_a_home(program, matrices, tmp_path):
    words = ("env", "-u", "HOME")
    # Where a killed rank ends the job, the job itself is what there is to try.
    lose = LAUNCHER is not None and LAUNCHER.tolerant
    fault = ("--inject", "kill:1:0") if lose else ()
    answer = program(*PRODUCT, "--ranks", 4, *fault, before=words)
    assert answer.code == 0, answer
    check(tmp_path, matrices)


def test_under_mpirun(program, matrices, tmp_path, under_mpirun):
    done = program(*PRODUCT, "--blocks", "2x1", before=under_mpirun(4))
    assert done.code == 0, done.err
    assert done.out.count("written to C.npy") == 1
    check(tmp_path, matrices)


def test_slow_rank_is_not_waited_for(program, matrices, tmp_path):
    start = time.monotonic()
    done = program(*PRODUCT, "--ranks", 4, "--inject", "delay:2:60", "--report", "r.json")
    assert done.code == 0, done.err
    assert time.monotonic() - start < 30
    assert json.loads((tmp_path / "r.json").read_text())["stragglers"] == [2]
    check(tmp_path, matrices)


@survives_kills
@pytest.mark.parametrize("fault", ["kill:2:0", "hang:2:0"])
def test_lost_rank(program, matrices, tmp_path, fault):
    done = program(*PRODUCT, "--ranks", 5, "--inject", fault, "--tolerate", 1, timeout=60)
    assert done.code == 0, done.err
    assert done.error_lines == []
    check(tmp_path, matrices)


@survives_kills
def test_more_lost_ranks_than_tolerated(program, matrices, tmp_path):
    faults = ("--inject", "kill:1:0", "--inject", "kill:2:0")
    done = program(*PRODUCT, "--ranks", 4, *faults, "--code", "mds", "--tolerate", 1, timeout=60)
    assert done.code == 0, done.err
    check(tmp_path, matrices)


@survives_kills
def test_all_ranks_lost(program, matrices, tmp_path):
    faults = [word for rank in (1, 2, 3) for word in ("--inject", f"kill:{rank}:0")]
    done = program(*PRODUCT, "--ranks", 4, *faults, "--code", "mds", "--tolerate", 1, timeout=60)
    assert done.code == 3
    (line,) = done.error_lines
    assert "needs any 2 of 3 workers" in line
    assert all(f"rank {rank}" in line for rank in (1, 2, 3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "B.npy"]


def test_wrong_numbers_are_found(program, matrices, tmp_path):
    words = ("--ranks", 4, "--inject", "corrupt:1:1", "--code", "uncoded", "--verify")
    done = program(*PRODUCT, *words, "freivalds", timeout=60)
    assert done.code == 4
    assert len(done.error_lines) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "B.npy"]
    done = program(*PRODUCT, *words, "--report", "r.json", timeout=60)
    assert done.code == 0, done.err
    assert "rank 1" in done.err
    assert json.loads((tmp_path / "r.json").read_text())["wrong"] == [1]
    check(tmp_path, matrices)


def test_a_workers_own_error_names_its_rank(program, matrices, tmp_path):
    words = ("--ranks", 3, "--inject", "raise:2:1", "--code", "uncoded")
    done = program(*PRODUCT, *words, timeout=60)
    assert done.code == 1
    (line,) = done.error_lines
    assert "rank 2 on" in line
    assert "RuntimeError" in line
    assert "Traceback (most recent call last)" in done.err
    assert not (tmp_path / "C.npy").exists()


def test_timeout(program, matrices, tmp_path):
    words = ("--ranks", 3, "--inject", "delay:1:60", "--code", "uncoded", "--timeout", 2)
    start = time.monotonic()
    done = program(*PRODUCT, *words, timeout=60)
    assert done.code == 3
    assert len(done.error_lines) == 1
    assert time.monotonic() - start < 30
    assert not (tmp_path / "C.npy").exists()


@pytest.mark.parametrize("ranks", ["before", "after"])
def test_bad_input_under_both_ways_to_start(program, matrices, under_mpirun, ranks):
    words = ("matmul", "A.npy", "A.npy", "-o", "C.npy")
    if ranks == "before":
        done = program(*words, before=under_mpirun(3), timeout=60)
        assert len(done.error_lines) == 1
    else:
        done = program(*words, "--ranks", 3)
        assert len(done.err.splitlines()) == 1
    assert done.code == 2
    assert "inner dimensions must agree" in done.err
    assert done.out == ""


def test_one_rank_under_mpirun(program, matrices, under_mpirun):
    done = program(*PRODUCT, before=under_mpirun(1), timeout=60)
    assert done.code == 2
    assert len(done.error_lines) == 1
    assert "got 1 rank" in done.err


def test_bad_options_under_mpirun(program, matrices, under_mpirun):
    done = program(*PRODUCT, "--colour", before=under_mpirun(3), timeout=60)
    assert done.code == 2
    assert len(done.error_lines) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_leaves_nothing(matrices, tmp_path, signum):
    words = [*PRODUCT, "--ranks", "3", "--inject", "delay:1:100", "--code", "uncoded"]
    with subprocess.Popen(
        [sys.executable, "-m", "codedla", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        limit = time.monotonic() + 60
        while not list(tmp_path.glob(".C.npy.*.part")):
            assert time.monotonic() < limit, "the product never started"
            time.sleep(0.05)
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signum)
        assert process.wait(60) == 128 + signum
        assert time.monotonic() - start < 20
        assert process.stderr.read().count("codedla: ") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A.npy", "B.npy"]


def test_other_formats(program, tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(5772157)
    a = scipy.sparse.random_array((40, 30), density=0.3, rng=rng, format="csr")
    b = rng.standard_normal((30, 6))
    scipy.io.mmwrite(tmp_path / "A.mtx", a)
    with h5py.File(tmp_path / "B.h5", "w") as file:
        file["b"] = b
    done = program("matmul", "A.mtx", "B.h5:/b", "-o", "C.h5:/c", "--ranks", 4)
    assert (done.code, done.err) == (0, "")
    with h5py.File(tmp_path / "C.h5") as file:
        np.testing.assert_allclose(file["c"][...], a @ b, rtol=1e-10, atol=1e-12)


def test_integers_stay_integers(program, tmp_path):
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (12, 20)), rng.integers(-9, 9, (20, 5))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    done = program(*PRODUCT, "--ranks", 5)
    assert (done.code, done.err) == (0, "")
    c = np.load(tmp_path / "C.npy")
    assert c.dtype == np.int64
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_matvec(program, tmp_path, shape):
    rng = np.random.default_rng(2)
    a, x = rng.standard_normal((40, 30)), rng.standard_normal(shape)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "x.npy", x)
    done = program("matvec", "A.npy", "x.npy", "-o", "y.npy", "--ranks", 4)
    assert (done.code, done.err) == (0, "")
    y = np.load(tmp_path / "y.npy")
    assert y.shape == (40, *shape[1:])
    np.testing.assert_allclose(y, a @ x, rtol=1e-10, atol=1e-12)


def test_a_file_found_broken_late(program, tmp_path, matrices):
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, scipy.sparse.eye_array(20))
    os.truncate(path, path.stat().st_size - 30)
    done = program("matmul", "A.mtx", "B.npy", "-o", "C.npy", "--ranks", 3, timeout=60)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "must be a complete file; got A.mtx" in done.err
    assert not (tmp_path / "C.npy").exists()


@pytest.mark.slow
def test_demo(program):
    done = program("demo", "--json", "--ranks", 6, "--delay", 4, timeout=90)
    assert (done.code, done.err) == (0, "")
    coded, uncoded = json.loads(done.out)["runs"]
    assert coded["to_result"] < 4 < uncoded["to_result"]
    assert coded["to_exit"] < uncoded["to_exit"]
    assert coded["late"] == [2, 5]


def test_doctor_probe(program):
    done = program("doctor", "--ranks", 3, "--json")
    assert done.code == 0
    found = {f["name"]: f for f in json.loads(done.out)["findings"]}
    assert found["probe"]["state"] == "ok"
    assert found["probe"]["data"]["size"] == 3
    assert {"rank 0", "rank 1", "rank 2"} <= set(found)
    for rank in range(3):
        assert found[f"rank {rank}"]["data"]["cores"] == sorted(os.sched_getaffinity(0))
        assert found[f"rank {rank}"]["data"]["blas"]["threads"] == 1


def test_doctor_finds_too_many_threads_and_leaves_no_trace_of_its_own(program):
    count = len(os.sched_getaffinity(0)) + 1
    done = program("doctor", "--ranks", 2, "--threads", count, "--json")
    assert done.code == 0
    found = {f["name"]: f for f in json.loads(done.out)["findings"]}
    assert found["rank 1"]["data"]["blas"]["threads"] == count
    assert f"up to {count} BLAS threads" in found["placement 1"]["value"]
    assert "--threads auto" in found["placement 1"]["cure"]


def test_doctor_under_a_launcher_asks_its_ranks(program):
    done = program("doctor", "--json", before=tuple(command(LAUNCHER, 2, [])))
    assert done.code == 0, done.err
    found = {f["name"]: f for f in json.loads(done.out)["findings"]}
    assert found["probe"]["data"]["size"] == 2
    assert {"rank 0", "rank 1"} <= set(found)
