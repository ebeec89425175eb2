"""Asynchronous iterations on real ranks. Words: scenario."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from common import FOLDER, WORDS, faults, write
from mpi4py import MPI

import codedla
from codedla.iterative.asynchronous import AsyncMap

scenario, *specs = WORDS
RANK = MPI.COMM_WORLD.Get_rank()
(FOLDER / f"pid{RANK}").write_text(str(os.getpid()))
RNG = np.random.default_rng(90217)
result = {}


def problem(n_workers):
    """Least squares, cut into parts; its solution is 1, 2, 3, ..."""
    a = RNG.standard_normal((60 * n_workers, 6))
    x = np.arange(1.0, 7.0)
    return list(zip(np.split(a, n_workers), np.split(a @ x, n_workers), strict=True)), x


def gradient(a, b, x):
    return a.T @ (a @ x - b) / len(b)


def descend(asynchronous, epochs, nwait, x, between=None):
    """Descend along the newest gradients of all workers, stale ones included."""
    slowest = 0.0
    for number in range(epochs):
        if between is not None:
            between(number)
        began = time.perf_counter()
        epoch = asynchronous(x, nwait)
        slowest = max(slowest, time.perf_counter() - began)
        known = [reply for reply in epoch.replies if reply is not None]
        x = x - 0.3 * sum(known) / len(known)
    return x, slowest


def note(asynchronous, x, solution, slowest):
    report = asynchronous.report
    result.update(
        error=float(np.abs(x - solution).max()),
        slowest=slowest,
        staleness={k: {str(a): n for a, n in v.items()} for k, v in report.staleness.items()},
        lost=sorted(report.lost),
        silent=sorted(report.silent),
        dropped=sum(report.dropped.values()),
        bytes=report.bytes,
    )


def delayed(pool):
    """One worker sleeps in every task; nobody waits for it, and its replies are used."""
    shares, solution = problem(pool.n_workers)
    began = time.perf_counter()
    with AsyncMap(gradient, shares, pool=pool) as asynchronous:
        x, slowest = descend(asynchronous, 400, pool.n_workers - 1, np.zeros(6))
        note(asynchronous, x, solution, slowest)
        result["one_at_a_time"] = refuses(lambda: codedla.matvec(np.eye(3), np.ones(3), pool=pool))
    result["seconds"] = time.perf_counter() - began
    # The pool is as good as new.
    result["after"] = bool(np.allclose(codedla.matvec(np.eye(8), np.ones(8), pool=pool), 1))


def killed(pool):
    """A worker is killed midway."""
    shares, solution = problem(pool.n_workers)

    def kill(number):
        if number == 60:
            os.kill(int((FOLDER / "pid2").read_text()), signal.SIGKILL)

    with AsyncMap(gradient, shares, pool=pool) as asynchronous:
        x, slowest = descend(asynchronous, 400, pool.n_workers - 1, np.zeros(6), kill)
        note(asynchronous, x, solution, slowest)
        try:
            asynchronous(x, pool.n_workers)
        except codedla.NotDecodable as error:
            result["message"] = str(error)


def frozen(pool):
    """A worker is stopped for a while: skipped, said so, and back."""
    shares, solution = problem(pool.n_workers)
    pid = int((FOLDER / "pid3").read_text())
    with AsyncMap(gradient, shares, pool=pool) as asynchronous:
        x, _ = descend(asynchronous, 20, None, np.zeros(6))
        os.kill(pid, signal.SIGSTOP)
        end = time.perf_counter() + 10
        while not asynchronous.report.silent and time.perf_counter() < end:
            x, _ = descend(asynchronous, 20, pool.n_workers - 1, x)
        result["skipped"] = sorted(asynchronous.report.silent)
        os.kill(pid, signal.SIGCONT)
        x, slowest = descend(asynchronous, 200, None, x)
        note(asynchronous, x, solution, slowest)


def leave(pool):
    """Leave while everybody is in the middle of a long task."""
    large = np.ones((300, 1000))

    def slow(share, x):
        time.sleep(20)
        return x

    with AsyncMap(slow, [np.ones(2)] * pool.n_workers, pool=pool) as asynchronous:
        asynchronous(large, 0)
        time.sleep(0.1)
        began = time.perf_counter()
    pool.close()
    result["leaving"] = time.perf_counter() - began


def cancelled(pool):
    """Whoever is late is told to stop, and takes part in the next epoch at once."""
    shares, solution = problem(pool.n_workers)
    with AsyncMap(gradient, shares, pool=pool, late="cancel") as asynchronous:
        x, slowest = descend(asynchronous, 300, pool.n_workers - 1, np.zeros(6))
        note(asynchronous, x, solution, slowest)


def raising(pool):
    """A task raises; the pool goes on."""

    def bad(share, x):
        raise ZeroDivisionError("on purpose")

    with AsyncMap(bad, [np.ones(2)] * pool.n_workers, pool=pool) as asynchronous:
        try:
            asynchronous(np.ones(2))
        except codedla.WorkerError as error:
            result["message"] = str(error)
    result["after"] = bool(np.allclose(codedla.matvec(np.eye(8), np.ones(8), pool=pool), 1))


def interrupted(pool):
    """Ctrl-C comes again and again, at any moment; the map goes on as if nothing had been."""
    shares = [np.full(3, float(w)) for w in range(pool.n_workers)]
    result["times"] = result["wrong"] = 0
    with AsyncMap(lambda share, x: share * x, shares, pool=pool) as asynchronous:
        asynchronous(np.ones(3))
        for number in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0003 * number)
            try:
                while True:
                    asynchronous(RNG.standard_normal(3), number % pool.n_workers)
            except KeyboardInterrupt:
                result["times"] += 1
            epoch = asynchronous(np.full(3, float(number)))
            for worker, reply in enumerate(epoch.replies):
                result["wrong"] += not np.array_equal(reply, np.full(3, float(worker * number)))
    result["after"] = bool(np.allclose(codedla.matvec(np.eye(8), np.ones(8), pool=pool), 1))


def large(pool):
    """Iterates and replies that travel as messages of their own arrive whole, every time."""
    shares = [np.full(2, float(w)) for w in range(pool.n_workers)]
    worst = 0.0
    with AsyncMap(lambda share, x: x + share[0], shares, pool=pool) as asynchronous:
        for number in range(60):
            x = np.full((50, 200), float(number))
            epoch = asynchronous(x, 2)
            for worker, reply in enumerate(epoch.replies):
                if reply is not None:
                    due = worker + epoch.epochs[worker] - 1.0
                    worst = max(worst, float(np.abs(reply - due).max()))
            x[:] = np.nan  # the copy travels
    result["worst"] = worst


def usage(pool):
    """Thousands of epochs: nothing grows."""
    import psutil

    shares, _ = problem(pool.n_workers)
    me, most = psutil.Process(), 0
    with AsyncMap(gradient, shares, pool=pool) as asynchronous:
        x, _ = descend(asynchronous, 300, pool.n_workers - 1, np.zeros(6))
        before = me.memory_info().rss
        for _ in range(10):
            x, _ = descend(asynchronous, 200, pool.n_workers - 1, x)
            links = pool._master.links
            most = max(most, *(len(link.sends) + len(link.orders) for link in links))
        result["growth"] = me.memory_info().rss - before
    result["most"] = most


def refuses(call):
    try:
        call()
    except codedla.UsageError:
        return True
    return False


scenarios = (delayed, killed, frozen, leave, cancelled, raising, interrupted, large, usage)
signal.signal(signal.SIGALRM, signal.default_int_handler)
with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        {function.__name__: function for function in scenarios}[scenario](pool)
        write("result", result)
