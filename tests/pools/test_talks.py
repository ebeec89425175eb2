"""Talks of the pools in this process, and asynchronous maps on them, in many seeded cases."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import codedla
from codedla import AsyncMap
from codedla.engine import epochs
from codedla.engine.round import Operand
from codedla.engine.stragglers import Delays, parse_fault
from codedla.iterative import asynchronous
from codedla.pools import talking

FILES = {module.__file__ for module in (asynchronous, epochs, talking)}


def one(value=1.0):
    matrix = np.full((1, 1), value)
    return [Operand(0, lambda: matrix)]


def random_pool(rng, n):
    """A simulated pool with delays, and with some workers that die, freeze or never answer."""
    specs = []
    for rank in range(1, n + 1):
        draw = rng.random()
        if draw < 0.12:
            specs.append(f"kill:{rank}:{rng.uniform(0, 0.2):.4f}")
        elif draw < 0.2:
            specs.append(f"hang:{rank}:{rng.uniform(0, 0.2):.4f}")
        elif draw < 0.3:
            specs.append(f"slow:{rank}:{rng.uniform(1, 30):.2f}")
    never = rng.random() < 0.1

    def delays(rng, n):
        drawn = rng.exponential(0.01, n)
        return np.where((rng.random(n) < 0.01) & never, math.inf, drawn)

    deadline = 0.02 if rng.random() < 0.3 else None
    return codedla.SimulatedPool(
        n, delays, [parse_fault(s) for s in specs], int(rng.integers(1 << 30)), deadline=deadline
    )


@pytest.mark.parametrize("block", range(20))
def test_thousands_of_iterations_never_hang_and_never_mix_up_iterates(block):
    """Each reply says which iterate it answers: what is kept must be what the books say."""
    ended = 0
    for seed in range(100):
        rng = np.random.default_rng([block, seed, 90263])
        n = int(rng.integers(1, 8))
        late = ("offer", "drop", "cancel")[seed % 3]
        oldest = None if rng.random() < 0.6 else int(rng.integers(0, 3))
        nwait = int(rng.integers(0, n + 1))
        shares = [np.array([float(w)]) for w in range(n)]
        replied = np.zeros(n, int)
        with (
            random_pool(rng, n) as pool,
            AsyncMap(
                lambda w, x: np.array([w[0], x[0]]), shares, pool=pool, late=late, oldest=oldest
            ) as asynchronous,
        ):
            try:
                for number in range(1, 9):
                    clock = pool.clock
                    epoch = asynchronous(np.array([float(number)]), nwait)
                    assert pool.clock >= clock
                    assert epoch.number == number
                    assert len(epoch.fresh) >= nwait
                    assert len(set(epoch.fresh)) == len(epoch.fresh)
                    for worker in range(n):
                        reply, answered = epoch.replies[worker], epoch.epochs[worker]
                        assert (reply is None) == (answered == 0)
                        if reply is not None:
                            assert reply.tolist() == [worker, answered]
                        assert (answered == number) == (worker in epoch.fresh)
                    for stale in epoch.stale:
                        assert late == "offer"
                        assert stale.age == number - stale.epoch > 0
                        assert stale.value.tolist() == [stale.worker, stale.epoch]
                        assert oldest is None or stale.age <= oldest
                    for worker in [*epoch.fresh, *(s.worker for s in epoch.stale)]:
                        replied[worker] += 1
                ended += 1
            except codedla.NotDecodable as error:
                report = asynchronous.report
                assert nwait > n - len(report.lost) - len(report.silent) or "never" in str(error)
                continue
            report = asynchronous.report
            for worker in range(n):
                total = sum(report.staleness[worker + 1].values())
                assert total - report.dropped.get(worker + 1, 0) == replied[worker]
    assert ended > 50


def test_a_late_worker_gets_the_newest_iterate_at_once():
    pool = codedla.SimulatedPool(3, faults=[parse_fault("delay:3:0.0035")])
    shares = [np.zeros(1)] * 3
    with pool, AsyncMap(lambda s, x: x + s, shares, pool=pool) as asynchronous:
        seen = [asynchronous(np.array([float(k)]), 2) for k in range(1, 16)]
        assert pool.clock == pytest.approx(0.015), "nobody waited for it"
    # It takes 4.5 tasks of the others, and each time goes on with what is newest then.
    late = [(e.number, reply.worker, reply.epoch) for e in seen for reply in e.stale]
    assert late == [(5, 2, 1), (10, 2, 5), (14, 2, 10)]
    assert asynchronous.report.staleness[3] == {4: 2, 5: 1}


def test_cancelled_work_is_not_waited_for_and_not_used():
    pool = codedla.SimulatedPool(3, faults=[parse_fault("slow:3:50")])
    shares = [np.zeros(1)] * 3
    with pool, AsyncMap(lambda s, x: x, shares, pool=pool, late="cancel") as asynchronous:
        for k in range(10):
            epoch = asynchronous(np.array([float(k)]), 2)
            assert sorted(epoch.fresh) == [0, 1]
        assert asynchronous.report.staleness[3] == {}
        assert pool.clock == pytest.approx(0.01)


def test_a_timeout_and_then_on():
    pool = codedla.SimulatedPool(2, faults=[parse_fault("slow:2:50")])
    with pool, AsyncMap(lambda s, x: x, [np.zeros(1)] * 2, pool=pool) as asynchronous:
        with pytest.raises(codedla.NotDecodable, match=r"got 1: the time-out of 0.01 s"):
            asynchronous(np.zeros(1), 2, timeout=0.01)
        assert pool.clock == pytest.approx(0.01)
        assert asynchronous(np.zeros(1), 1).number == 2


@pytest.mark.parametrize("pool", [codedla.SerialPool, codedla.SimulatedPool])
def test_vectors_matrices_and_what_comes_back(pool):
    a, b = np.arange(6.0).reshape(2, 3), np.ones(2)
    shares = [(a, b), (2 * a, b)]
    with (
        pool(2) as workers,
        AsyncMap(lambda a, b, x: a @ x + b, shares, pool=workers) as asynchronous,
    ):
        np.testing.assert_array_equal(asynchronous(np.ones(3)).replies[1], 2 * a.sum(1) + 1)
        with pytest.raises(codedla.UsageError, match="as many dimensions"):
            asynchronous(np.ones((3, 1)))
    with pool(2) as workers, AsyncMap(lambda s, x: x.T @ s, [a, a], pool=workers) as asynchronous:
        assert asynchronous(np.ones((2, 1))).replies[0].shape == (1, 3)


@pytest.mark.parametrize("pool", [codedla.SerialPool, codedla.SimulatedPool])
def test_what_a_task_raises_comes_out(pool):
    def bad(share, x):
        raise ZeroDivisionError("on purpose")

    with pool(2) as workers:
        with (
            AsyncMap(bad, [np.ones(1)] * 2, pool=workers) as asynchronous,
            pytest.raises(
                codedla.WorkerError, match=r"rank 1 on .* raised ZeroDivisionError: on purpose"
            ),
        ):
            asynchronous(np.ones(1))
        assert codedla.matvec(np.eye(2), np.ones(2), pool=workers).tolist() == [1, 1]


@pytest.mark.parametrize("pool", [codedla.SerialPool, codedla.SimulatedPool])
def test_a_worker_whose_task_raised_goes_on_with_the_next_iterate(pool):
    def root(share, x):
        if x[0] < 0 and share[0] == 2:
            raise ValueError("no root")
        return share * np.sqrt(np.abs(x))

    shares = [np.full(1, float(w)) for w in range(4)]
    with pool(4) as four, codedla.AsyncMap(root, shares, pool=four) as roots:
        for _ in range(3):
            with pytest.raises(codedla.WorkerError, match="no root"):
                roots(np.array([-4.0]))
        epoch = roots(np.array([9.0]))
    assert sorted(epoch.fresh) == [0, 1, 2, 3]
    assert [reply.tolist() for reply in epoch.replies] == [[0.0], [3.0], [6.0], [9.0]]


def interrupted_after(lines, call):
    """Call, and raise KeyboardInterrupt after so many lines; return whether that came to pass."""
    left = lines

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("late", ["offer", "cancel"])
def test_an_interruption_anywhere_leaves_a_map_that_goes_on(late):
    def twice(share, x):
        return share * x

    shares = [np.full(1, float(w)) for w in range(3)]
    lines = happened = 0
    while lines == happened:
        lines += 1
        with (
            codedla.SimulatedPool(3, delays=Delays("exp", (0.5,)), seed=lines) as pool,
            codedla.AsyncMap(twice, shares, pool=pool, late=late) as products,
        ):
            products(np.ones(1), 1)
            happened += interrupted_after(lines, lambda m=products: m(np.full(1, 2.0), 2))
            for x in (3.0, 4.0):
                epoch = products(np.full(1, x))
                assert sorted(epoch.fresh) == [0, 1, 2]
                assert [reply.item() for reply in epoch.replies] == [0.0, x, 2 * x]
                assert epoch.epochs.tolist() == [epoch.number] * 3
    assert happened > 100


def test_an_injected_exception_comes_out():
    pool = codedla.SimulatedPool(2, faults=[parse_fault("raise:2:2")])
    with pool, AsyncMap(lambda s, x: x, [np.ones(1)] * 2, pool=pool) as asynchronous:
        asynchronous(np.ones(1))
        with pytest.raises(codedla.WorkerError, match="injected exception in task 2"):
            asynchronous(np.ones(1))


def test_a_serial_pool_loses_who_would_die_and_lets_the_late_come_last():
    faults = [parse_fault("kill:1:5"), parse_fault("delay:2:0.0045")]
    with (
        codedla.SerialPool(4, faults) as pool,
        AsyncMap(lambda s, x: x, [np.ones(1)] * 4, pool=pool) as asynchronous,
    ):
        assert asynchronous(np.ones(1), 2).fresh == [2, 3]
        assert asynchronous(np.ones(1), 3).fresh == [2, 3, 1]
        assert asynchronous.report.lost == {1: "injected fault"}
        with pytest.raises(codedla.NotDecodable, match="too many workers are lost"):
            asynchronous(np.ones(1))


@pytest.mark.parametrize("make", [codedla.SerialPool, codedla.SimulatedPool])
def test_a_pool_does_one_thing_at_a_time(make):
    with make(2) as pool:
        talk = pool.converse(lambda x: x)
        for other in (
            lambda: pool.converse(lambda x: x),
            lambda: codedla.matvec(np.eye(2), np.ones(2), pool=pool),
        ):
            with pytest.raises(codedla.UsageError, match="one thing at a time"):
                other()
        assert [talk.wait().kind for _ in range(2)] == ["free", "free"]
        talk.order(0, one())
        with pytest.raises(codedla.UsageError, match="has answered the last one"):
            talk.order(0, one())
        talk.close()
        with pytest.raises(codedla.PoolClosed):
            talk.wait()
        assert codedla.matvec(np.eye(2), np.ones(2), pool=pool).tolist() == [1, 1]
        talk = pool.converse(lambda x: x)
    with pytest.raises(codedla.PoolClosed):
        talk.order(0, one())


def test_who_waits_for_nobody_is_told():
    with codedla.SimulatedPool(1) as pool, pool.converse(lambda x: x) as talk:
        assert talk.wait().kind == "free"
        assert talk.wait(until=1.0) is None
        assert talk.now() == 1.0
        assert talk.wait().kind == "deserted"


def test_a_silent_worker_that_answers_is_back_first():
    pool = codedla.SimulatedPool(1, faults=[parse_fault("slow:1:30")], deadline=0.01)
    with pool, pool.converse(lambda x: x) as talk:
        talk.wait()
        number = talk.order(0, one(7.0))
        heard = [talk.wait() for _ in range(3)]
        assert [h.kind for h in heard] == ["silent", "back", "reply"]
        assert heard[0].seconds == pytest.approx(0.01)
        assert heard[2].seconds == pytest.approx(0.03)
        assert (heard[2].number, heard[2].reply.item()) == (number, 7.0)


def test_resident_shares_are_sent_once_and_freed():
    with codedla.SimulatedPool(2, Delays("exp", (0.01,))) as pool:
        with AsyncMap(lambda s, x: x, [np.ones((4, 4))] * 2, pool=pool) as asynchronous:
            for _ in range(5):
                asynchronous(np.ones(2))
            assert asynchronous.report.bytes == {"sent": 2 * 128 + 10 * 16, "received": 160}
        assert pool._resident == {}


@pytest.mark.parametrize(
    ("shares", "match"),
    [
        ([np.ones(2)], "one entry for each of the 2"),
        ([np.ones(2), np.ones((2, 2))], "in the same order"),
        ([np.ones(2, "f2")] * 2, "dtype float16"),
        ([[1.0, 2.0]] * 2, "vector or matrix"),
    ],
)
def test_bad_shares(shares, match):
    with codedla.SerialPool(2) as pool, pytest.raises(codedla.UsageError, match=match):
        AsyncMap(lambda s, x: x, shares, pool=pool)


def test_bad_pools():
    with pytest.raises(codedla.UsageError, match="pool must be"):
        AsyncMap(lambda s, x: x, [], pool=None)


def test_every_reply_makes_an_iterate_that_its_worker_gets_at_once():
    pool = codedla.SimulatedPool(3, faults=[parse_fault("delay:3:0.0035")])
    seen = []

    def take(reply):
        seen.append(reply)
        return np.array([len(seen) + 1.0]) if len(seen) < 12 else None

    with pool, AsyncMap(lambda s, x: x, [np.zeros(1)] * 3, pool=pool) as asynchronous:
        asynchronous.stream(np.ones(1), take)
        assert [r.worker for r in seen] == [0, 1] * 4 + [2] + [0, 1, 0]
        assert pool.clock == pytest.approx(0.006)
        report = asynchronous.report
    for k, reply in enumerate(seen):
        assert reply.value.item() == reply.epoch
        assert reply.age == k + 1 - reply.epoch
    assert report.epochs == 12
    assert report.staleness[3] == {8: 1}


@pytest.mark.parametrize("seed", range(30))
def test_streams_outlive_their_workers(seed):
    """Whoever dies is not heard of any more; when nobody is left, that is said."""
    rng = np.random.default_rng([seed, 90271])
    n, seen = int(rng.integers(1, 6)), []

    def take(reply):
        seen.append(reply)
        assert reply.value.item() == reply.epoch
        return np.array([len(seen) + 1.0]) if len(seen) < 60 else None

    shares = [np.zeros(1)] * n
    with random_pool(rng, n) as pool, AsyncMap(lambda s, x: x, shares, pool=pool) as asynchronous:
        try:
            asynchronous.stream(np.ones(1), take)
            assert len(seen) == 60
        except codedla.NotDecodable:
            assert len(asynchronous.away) == n or len(seen) < 60
        ages = [r.age for r in seen]
        total = asynchronous.report.staleness.values()
        assert sorted(ages) == sorted(a for own in total for a, c in own.items() for _ in range(c))
