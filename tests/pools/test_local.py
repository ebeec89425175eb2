"""The serial and the simulated pool: who answers, who does not, and what the clock says."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import Delays, Fault, parse_fault
from codedla.errors import NotDecodable, PoolClosed, UsageError, WorkerError

RNG = np.random.default_rng(31477)
A, B = RNG.standard_normal((12, 7)), RNG.standard_normal((7, 10))
BOTH = pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])


def faults(*specs):
    return [parse_fault(spec) for spec in specs]


@BOTH
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_lost_workers_within_the_redundancy(kind, how):
    with kind(6, faults=faults(f"{how}:1:0", f"{how}:4:0")) as pool:
        product, report = codedla.matmul(A, B, pool=pool, tolerate=2, return_report=True)
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert set(report.responders) <= {2, 3, 5, 6}
    assert report.redispatched == []
    # On a clock a frozen worker is a straggler until it has been silent for long.
    silent = how == "hang" and kind is codedla.SimulatedPool
    assert set(report.stragglers if silent else report.lost) == {1, 4}
    assert silent or [text for text in report.warnings if "rank 4 was lost" in text]


@BOTH
@pytest.mark.parametrize("how", ["kill", "hang"])
@pytest.mark.parametrize(("code", "blocks"), [("mds", (3, 1)), ("uncoded", (5, 1))])
def test_more_losses_than_tolerated_are_computed_again(kind, how, code, blocks):
    lost = faults(*(f"{how}:{rank}:0" for rank in (1, 3, 4, 5)))
    with kind(5, faults=lost) as pool:
        product, report = codedla.matmul(
            A, B, pool=pool, code=code, blocks=blocks, return_report=True
        )
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert set(report.responders) == {2}
    assert set(report.lost) == {1, 3, 4, 5}
    assert report.redispatched
    assert set(report.redispatched) <= {1, 3, 4, 5}


@BOTH
def test_no_worker_left_names_the_ranks_and_the_threshold(kind):
    how = ["kill", "hang", "kill", "kill", "hang"]
    with (
        kind(5, faults=faults(*(f"{h}:{rank}:0" for rank, h in enumerate(how, 1)))) as pool,
        pytest.raises(NotDecodable) as caught,
    ):
        codedla.matmul(A, B, pool=pool, code="mds", blocks=(3, 1))
    assert "needs any 3 of 5 workers (threshold 3), 0 arrived and no worker is left" in str(
        caught.value
    )
    for rank in range(1, 6):
        assert f"rank {rank} (" in str(caught.value)
    assert (caught.value.need, caught.value.have) == (3, ())


@BOTH
def test_a_lost_worker_is_warned_of_once(kind):
    with (
        kind(6, faults=faults("kill:4:0")) as pool,
        pytest.warns(codedla.CodedlaWarning, match=r"rank 4 was lost \(inj") as caught,
    ):
        codedla.matmul(A, B, pool=pool)
        _, report = codedla.matmul(A, B, pool=pool, return_report=True)
    assert len(caught) == 1
    assert len(report.warnings) == 1


@BOTH
def test_wrong_replies_are_refused_and_their_workers_named(kind):
    lies = [f"corrupt:{rank}:1:{how}" for rank, how in ((2, "nan"), (3, "scale"), (5, "entry"))]
    with (
        kind(5, faults=faults(*lies)) as pool,
        pytest.warns(codedla.CodedlaWarning, match="was not used .*answered wrongly"),
    ):
        product, report = codedla.matmul(
            A, B, pool=pool, code="mds", blocks=(3, 1), verify="locate", return_report=True
        )
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert set(report.wrong) == set(report.lost) == {2, 3, 5}
    assert set(report.responders) == {1, 4}
    assert len(report.redispatched) == 1
    assert report.verified == "locate"


@BOTH
def test_nobody_is_left_when_everybody_lies(kind):
    lies = faults(*(f"corrupt:{rank}:1" for rank in range(1, 4)))
    with kind(3, faults=lies) as pool, pytest.raises(NotDecodable, match="answered wrongly"):
        codedla.matmul(A, B, pool=pool, verify="locate")


@pytest.mark.parametrize(
    ("deadline", "total", "redispatched"),
    [(1.0, 1.001, [4]), (None, 7.001, []), (6.9995, 7.0005, [4]), (8.0, 7.001, [])],
)
def test_a_late_worker_is_replaced_after_the_deadline(deadline, total, redispatched):
    """Four of five replies are needed; the fourth comes after 7 s, unless another computes it."""
    delays = np.array([0.0, 0.0, 0.0, 7.0, 9.0])
    with codedla.SimulatedPool(5, deadline=deadline) as pool:
        pool.drawn = iter([delays, *np.zeros((9, 5))]).__next__
        product, report = codedla.matmul(
            A, B, pool=pool, code="mds", blocks=(4, 1), return_report=True
        )
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert report.times["total"] == pytest.approx(total, abs=2e-4)
    assert report.redispatched == redispatched
    assert set(report.lost) == ({4, 5} if redispatched else set())


@BOTH
def test_the_pool_lives_on_after_a_failure(kind):
    with kind(5, faults=faults("raise:2:1")) as pool:
        with pytest.raises(WorkerError, match="injected exception in task 1") as caught:
            codedla.matmul(A, B, pool=pool)
        assert caught.value.rank == 2
        assert "Traceback" in caught.value.traceback
        np.testing.assert_allclose(codedla.matmul(A, B, pool=pool), A @ B, atol=1e-12)


@BOTH
def test_an_exception_inside_a_task_names_the_rank(kind, monkeypatch):
    def broken(*arguments, **options):
        raise ArithmeticError("no such number")

    monkeypatch.setattr("codedla.engine.work.multiply", broken)
    with kind(3) as pool, pytest.raises(WorkerError, match="ArithmeticError: no such") as caught:
        codedla.matmul(A, B, pool=pool)
    assert caught.value.rank in (1, 2, 3)
    assert "in broken" in caught.value.traceback


def test_the_serial_pool_gives_up_after_the_timeout(monkeypatch):
    def slow(a, b, out, carry_on):
        time.sleep(0.05)
        out[...] = a @ b

    monkeypatch.setattr("codedla.engine.work.multiply", slow)
    with (
        codedla.SerialPool(6) as pool,
        pytest.raises(NotDecodable, match="the time-out passed") as caught,
    ):
        codedla.matmul(A, B, pool=pool, timeout=0.08)
    assert 1 <= len(caught.value.have) <= 2


@BOTH
def test_use_after_close(kind):
    pool = kind(3)
    with pool:
        stored = codedla.store(A, pool=pool)
    pool.close()
    pool.close()
    with pytest.raises(PoolClosed, match="this pool is closed; use it inside its with block"):
        codedla.matmul(A, B, pool=pool)
    with pytest.raises(PoolClosed):
        stored @ np.ones(7)
    stored.close()


@BOTH
@pytest.mark.parametrize("workers", [0, -3])
def test_a_pool_has_workers(kind, workers):
    with pytest.raises(UsageError, match="number of workers must be >= 1; got"):
        kind(workers)


@BOTH
def test_faults_of_ranks_that_do_not_exist(kind):
    with pytest.raises(UsageError, match="ranks 1 to 3; got rank 4"):
        kind(3, faults=faults("kill:4:1"))


@BOTH
def test_progress(kind):
    seen = []
    with kind(6) as pool:
        codedla.matmul(
            A, B, pool=pool, code="khatri-rao", blocks=(2, 2), progress=lambda *x: seen.append(x)
        )
    assert seen == [(1, 4, 6), (2, 4, 6), (3, 4, 6), (4, 4, 6)]


def test_a_hopeless_serial_round_computes_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr("codedla.engine.work.multiply", lambda *call: calls.append(call))
    lost = faults(*(f"kill:{rank}:0" for rank in range(1, 6)))
    with codedla.SerialPool(5, faults=lost) as pool, pytest.raises(NotDecodable):
        codedla.matmul(A, B, pool=pool, code="mds", blocks=(3, 1))
    assert calls == []


def test_serial_stragglers_come_last():
    late = faults("delay:1:5", "slow:2:3", "delay:3:1")
    with codedla.SerialPool(5, faults=late) as pool:
        _, report = codedla.matmul(
            A, B, pool=pool, code="mds", blocks=(3, 1), tolerate=2, return_report=True
        )
    assert report.responders == [4, 5, 3]
    assert report.stragglers == [1, 2]


def test_a_round_ends_when_nobody_who_is_free_may_help():
    """The share of the liar is on the queue while all others are late; then they compute it."""
    spoiled = faults("corrupt:1:1", "delay:2:1", "delay:3:1")
    with (
        simulated(3, faults=spoiled) as pool,
        pytest.warns(codedla.CodedlaWarning, match="rank 1 was not used"),
    ):
        product, report = codedla.matmul(
            A, B, pool=pool, code="uncoded", verify="locate", return_report=True
        )
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert (report.wrong, report.redispatched) == ([1], [1])


# -- the virtual clock -------------------------------------------------------------------------


def simulated(n_workers=6, **options):
    return codedla.SimulatedPool(n_workers, **options)


def run(pool, **options):
    return codedla.matmul(
        A, B, pool=pool, code="mds", blocks=(4, 1), tolerate=2, return_report=True, **options
    )


def test_the_round_ends_with_the_last_needed_reply():
    with simulated(delays=lambda rng, n: np.array([5.0, 1.0, 3.0, 0.5, 9.0, 2.0])) as pool:
        product, report = run(pool)
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    assert report.responders == [4, 2, 6, 3]
    assert report.stragglers == [1, 5]
    assert report.times["total"] == pytest.approx(3.001)
    assert [event.seconds for event in report.events] == pytest.approx([0.501, 1.001, 2.001, 3.001])


def test_a_thousand_workers_take_no_time():
    with simulated(1000, delays=Delays("pareto", (1.5, 0.1)), seed=5003) as pool:
        y, report = codedla.matvec(
            np.ones((950, 3)),
            np.ones(3),
            pool=pool,
            code="mds",
            blocks=(900, 1),
            return_report=True,
        )
    np.testing.assert_allclose(y, 3.0, rtol=1e-6)
    assert len(report.responders) >= 900
    assert len(report.stragglers) <= 100


@pytest.mark.parametrize("timeout", [0.4, 1.5, 2.9])
def test_a_timeout_on_the_virtual_clock(timeout):
    with simulated(delays=lambda rng, n: np.array([5.0, 1.0, 3.0, 0.5, 9.0, 2.0])) as pool:
        with pytest.raises(NotDecodable, match="the time-out passed") as caught:
            run(pool, timeout=timeout)
        assert len(caught.value.have) == {0.4: 0, 1.5: 2, 2.9: 3}[timeout]
        assert "no reply yet: rank 1" in str(caught.value)
        assert pool.clock == timeout
        _, report = run(pool, timeout=3.1)
        assert report.times["total"] == pytest.approx(3.001)


def test_infinite_delays_are_losses():
    delays = np.array([math.inf, 1.0, 1.0, 1.0, 1.0, math.inf])
    with simulated(delays=lambda rng, n: delays) as pool:
        _, report = run(pool)
        assert set(report.stragglers) == {1, 6}
        delays[1] = math.inf
        pool.drawn = iter([delays.copy(), *np.zeros((9, 6))]).__next__
        product, report = run(pool)
        np.testing.assert_allclose(product, A @ B, atol=1e-12)
        assert set(report.lost) == {1, 2, 6}
        assert len(report.redispatched) == 1
        delays[:] = math.inf
        pool.drawn = delays.copy
        with pytest.raises(NotDecodable, match="no worker is left; lost: rank 1"):
            run(pool)


def test_deaths_count_from_the_start_of_the_pool():
    dying = faults("kill:1:2.5", "delay:2:0.7")
    with simulated(faults=dying, delays=lambda rng, n: np.full(n, 1.0)) as pool:
        lost = [set(run(pool)[1].lost) for _ in range(4)]
    assert lost == [set(), set(), {1}, {1}]


def test_slow_ranks_take_longer_by_their_factor():
    with simulated(3, faults=faults("slow:2:10"), task_seconds=1.0) as pool:
        _, report = codedla.matmul(A, B, pool=pool, tolerate=0, return_report=True)
    assert report.times["total"] == pytest.approx(10.0)


def outcome(seed):
    with simulated(7, delays=Delays("exp", (1.0,)), seed=seed, faults=faults("kill:3:2")) as pool:
        runs = [codedla.matmul(A, B, pool=pool, tolerate=2, return_report=True) for _ in range(5)]
    return [(p.tobytes(), r.responders, r.times, [e.to_dict() for e in r.events]) for p, r in runs]


def test_the_same_seed_gives_the_same_run():
    assert outcome(6007) == outcome(6007)
    assert [r[1] for r in outcome(6007)] != [r[1] for r in outcome(6011)]


@pytest.mark.parametrize("seed", range(10))
def test_random_faults_end_in_the_product_or_in_a_clear_word(seed):
    """Hundreds of rounds on dying, slow and lying clusters."""
    rng = np.random.default_rng([31481, seed])
    for _ in range(30):
        n_workers = int(rng.integers(2, 12))
        spoiled = [
            Fault(str(rng.choice(["kill", "hang", "delay"])), int(w), float(rng.exponential(3.0)))
            for w in rng.choice(n_workers, size=rng.integers(0, n_workers + 1), replace=False)
        ]
        with simulated(
            n_workers, delays=Delays("exp", (1.0,)), faults=spoiled, seed=int(rng.integers(2**31))
        ) as pool:
            for _ in range(4):
                try:
                    product, report = codedla.matmul(A, B, pool=pool, return_report=True)
                except NotDecodable:
                    # At least one worker is not going to be lost.
                    assert len([f for f in spoiled if f.kind != "delay"]) == n_workers
                    break
                np.testing.assert_allclose(product, A @ B, atol=1e-10)
                gone = set(report.lost)
                assert gone <= {f.worker + 1 for f in spoiled if f.kind != "delay"}
                assert set(report.redispatched) <= gone


def test_delays_are_one_number_per_worker():
    with (
        codedla.SimulatedPool(8, delays=lambda rng, n: np.zeros(3)) as pool,
        pytest.raises(codedla.UsageError, match=r"must return n numbers; got shape \(3,\)"),
    ):
        codedla.matmul(np.eye(4), np.eye(4), pool=pool)
