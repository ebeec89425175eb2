"""Many products with stored matrices, nearly all of them in quick rounds. Words: scenario."""

from __future__ import annotations

import os
import signal
import time
import warnings

import numpy as np
import psutil
from common import FOLDER, WORDS, faults, write
from mpi4py import MPI

import codedla
from codedla.mpi import swift

(scenario,) = WORDS
RNG = np.random.default_rng(90127)
RANK = MPI.COMM_WORLD.Get_rank()
(FOLDER / f"pid{RANK}").write_text(str(os.getpid()))
result = {"worst": 0.0, "quick": 0, "given_up": 0, "rounds": 0}


def count_quick():
    """Count the quick rounds that sufficed, and those that were given up."""
    original = swift.run_quick

    def counted(*words):
        done = original(*words)
        result["quick" if done else "given_up"] += 1
        return done

    from codedla.mpi import master

    master.run_quick = counted


def multiply(stored, a, x, **options):
    y = stored.matvec(x, **options)
    expected = a @ x
    assert y.shape == expected.shape, (y.shape, expected.shape)
    assert y.dtype == expected.dtype
    # Shares are made in the matrix's own precision.
    eps = max(float(np.finfo(a.dtype).eps), float(np.finfo(y.dtype).eps))
    scale = float(np.linalg.norm(a)) * float(np.linalg.norm(x)) * eps
    result["worst"] = max(result["worst"], float(np.linalg.norm(y - expected)) / scale)
    result["rounds"] += 1
    return stored.last_report


def real(*shape):
    return RNG.standard_normal(shape)


def kinds(pool):
    """Vectors of several dtypes and widths in turn, also ones that are too long to be quick."""
    a = real(211, 190)
    with codedla.store(a, pool=pool, tolerate=1) as stored:
        xs = [real(190), real(190, 3), real(190) * (1 + 2j), real(190).astype("f4"), real(190, 30)]
        for _ in range(8):
            for x in xs:
                report = multiply(stored, a, x)
                assert report.error_estimate < 1e-5
                assert len(report.responders) >= pool.n_workers - 1
                replies = [event.worker for event in report.events if event.kind == "reply"]
                assert set(replies) <= {rank - 1 for rank in report.responders}
        x = real(400)[::2][:190]
        multiply(stored, a, x)
        # Reversed rows and Fortran order.
        multiply(stored, a, xs[1][:, ::-1])
        multiply(stored, a, np.asfortranarray(xs[1]))
        for bad in (np.nan, np.inf, 1e306):
            x = real(190)
            x[7] = bad
            try:
                stored @ x
            except codedla.UsageError as error:
                assert "x must be finite" in str(error)
            else:
                raise AssertionError(f"{bad} was not refused")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tiny = np.full(190, 1e-200)
            y = stored @ tiny
        np.testing.assert_allclose(y, a @ tiny, rtol=1e-9)
        assert not (stored @ np.zeros(190)).any()
    with codedla.store(a.astype("f4"), pool=pool, tolerate=1) as stored:
        for x in (real(190).astype("f4"), real(190)) * 6:
            multiply(stored, a.astype("f4"), x)


def codes(pool):
    """Every code that a matrix can be stored with, and NaN where blocks are never mixed."""
    a = real(160, 120)
    for options in (
        {"code": "mds"},
        {"code": "uncoded"},
        {"code": "replication", "tolerate": 1},
        {"code": "polynomial", "tolerate": 1},
        {"blocks": (3, 1)},
        {"tolerate": 2},
    ):
        with codedla.store(a, pool=pool, **options) as stored:
            for _ in range(6):
                multiply(stored, a, real(120))
    with codedla.store(a, pool=pool, code="replication", tolerate=1) as stored:
        x = real(120)
        for _ in range(4):
            stored @ x
        x[3] = np.nan
        assert np.isnan(stored @ x).all()


def trouble(pool):
    """A worker freezes, wakes up, is killed: products go on, and say so."""
    a = real(300, 200)
    with codedla.store(a, pool=pool, tolerate=1) as stored:
        for _ in range(50):
            multiply(stored, a, real(200))
        before = result["quick"]
        pid = int((FOLDER / "pid2").read_text())
        os.kill(pid, signal.SIGSTOP)
        end, slowest = time.monotonic() + 1.5, 0.0
        while time.monotonic() < end:
            began = time.monotonic()
            report = multiply(stored, a, real(200))
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(1e-3)
        result["frozen"] = 2 not in report.responders
        result["slowest"] = slowest
        os.kill(pid, signal.SIGCONT)
        began, back = time.monotonic(), False
        while not back and time.monotonic() - began < 10:
            report = multiply(stored, a, real(200))
            back = 2 in report.responders and not report.lost
            time.sleep(1e-3)
        result["back"] = back
        result["before"] = before
        again = result["quick"]
        for _ in range(600):
            multiply(stored, a, real(200))
        result["again"] = result["quick"] - again
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        for _ in range(20):
            report = multiply(stored, a, real(200))
        result["lost"] = sorted(report.lost)


def liar(pool):
    """A worker answers wrongly: replies are checked in quick rounds as well."""
    a = real(120, 90)
    with codedla.store(a, pool=pool, tolerate=1, verify="locate") as stored:
        wrong = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(40):
                report = multiply(stored, a, real(90))
                assert report.verified == "locate"
                wrong |= set(report.wrong)
        result["wrong"] = sorted(wrong)


def mixed(pool):
    """Products of other matrices, drops and time-outs in between."""
    a, b = real(130, 110), real(70, 110)
    with codedla.store(a, pool=pool, tolerate=1) as first:
        for _ in range(6):
            with codedla.store(b, pool=pool, tolerate=1) as second:
                for _ in range(3):
                    multiply(first, a, real(110), timeout=30)
                    multiply(second, b, real(110))
                    c = codedla.matmul(a, b.T, pool=pool, tolerate=1)
                    assert np.abs(c - a @ b.T).max() < 1e-10
    try:
        first @ real(110)
    except codedla.PoolClosed:
        result["closed"] = True


def usage(pool):
    """Thousands of rounds: memory and open requests."""
    a, links = real(400, 300), pool._master.links
    with codedla.store(a, pool=pool, tolerate=1) as stored:
        x = real(300)
        for _ in range(200):
            stored @ x
        processes = [psutil.Process()] + [psutil.Process(link.pid) for link in links]
        before = [process.memory_info().rss for process in processes]
        most = 0
        began = time.monotonic()
        while result["rounds"] < 10_000 and time.monotonic() - began < 5:
            for _ in range(100):
                stored @ x
            result["rounds"] += 100
            most = max(most, *(len(k.sends) + len(k.orders) + len(k.receipts) for k in links))
        result["growth"] = max(
            process.memory_info().rss - was for process, was in zip(processes, before, strict=True)
        )
        result["most"] = most
        multiply(stored, a, x)


spoilt = {"liar": ["corrupt:2:0.5:scale"], "late": ["delay:1:0.05"]}.get(scenario, [])
scenarios = (kinds, codes, trouble, liar, mixed, usage)
with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(spoilt)) as pool:
    if pool is not None:
        count_quick()
        {function.__name__: function for function in scenarios}[scenario](pool)
        write("result", result)
