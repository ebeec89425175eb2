"""Several rounds at once on the pools of this process: results, order, laziness and errors."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import registry
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.round import Operand, Round
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable
from codedla.linalg import stream

POOLS = pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])
WORKERS, BLOCKS = 4, 2
A = np.random.default_rng(5113).standard_normal((40, 6))
B = np.random.default_rng(5119).standard_normal((6, 5))


def make_job(a, keys=(), *, name="mds", workers=WORKERS, blocks=BLOCKS, **options):
    """The product of some rows of A with B, which stays on the workers under ``keys``."""
    code = registry.get(name)(workers, Grid(blocks, 1, 1))
    height = len(a) // blocks
    parts = a.reshape(blocks, height, -1)

    def operands(share):
        encoded = Operand(0, lambda: np.tensordot(code.generator_a[share], parts, 1))
        return encoded, Operand(keys[code.home(share)] if keys else 0, lambda: B)

    return Round(
        shares=code.shares,
        operands=operands,
        collector=Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(workers)),
        decoder=make_decoder(code, np.empty((len(a), B.shape[1])), np.dtype(float)),
        **options,
    )


@POOLS
def test_every_round_is_done_once_and_right(kind):
    jobs, done = [], {}

    def draw():
        for top in range(0, 40, 4):
            jobs.append(make_job(A[top : top + 4], keys))
            yield jobs[-1]

    with kind(WORKERS, faults=[parse_fault("kill:2:0")]) as pool:
        keys = [pool.new_key() for _ in range(WORKERS)]
        pool.run_all(draw(), lambda index, outcome: done.setdefault(index, []).append(outcome))
    assert sorted(done) == list(range(10)) and all(len(list_) == 1 for list_ in done.values())
    product = np.concatenate([job.decoder.output for job in jobs])
    np.testing.assert_allclose(product, A @ B, atol=1e-12)


@pytest.mark.parametrize("name", ["speculative", "replication"])
def test_helpers_are_noted_for_what_they_are(name):
    outcomes = []
    faults = [parse_fault("slow:2:30" if name == "speculative" else "kill:2:0.5")]
    with codedla.SimulatedPool(2, faults=faults, task_seconds=1.0) as pool:
        job = make_job(A[:4], name=name, workers=2)
        pool.run_all([job], lambda index, outcome: outcomes.append(outcome))
    helped = [(event.kind, event.note) for event in outcomes[0].events if "rank 2" in event.note]
    late = name == "speculative"
    assert helped == [
        ("speculated", "as well as rank 2") if late else ("redispatched", "instead of rank 2")
    ]


@POOLS
def test_no_rounds_at_all(kind):
    with kind(2) as pool:
        pool.run_all([], lambda index, outcome: pytest.fail("there was no round"))


@POOLS
def test_a_round_that_cannot_be_decoded_ends_them_all(kind):
    done = []
    faults = [parse_fault(f"kill:{rank}:0") for rank in range(1, WORKERS + 1)]
    with kind(WORKERS, faults=faults) as pool, pytest.raises(NotDecodable, match="no worker"):
        pool.run_all([make_job(A[:4]), make_job(A[4:8])], lambda index, _: done.append(index))
    assert done == []


@POOLS
@pytest.mark.parametrize("where", ["jobs", "done"])
def test_what_the_caller_raises_comes_through_and_the_pool_stays_usable(kind, where):
    def draw():
        yield make_job(A[:4])
        if where == "jobs":
            raise KeyError("jobs")
        yield make_job(A[4:8])

    def done(index, outcome):
        if where == "done":
            raise KeyError("done")

    with kind(WORKERS) as pool:
        with pytest.raises(KeyError, match=where):
            pool.run_all(draw(), done)
        last = make_job(A[8:12])
        pool.run(last)
    np.testing.assert_allclose(last.decoder.output, A[8:12] @ B, atol=1e-12)


# -- several at once, on the virtual clock -----------------------------------------------------


def test_rounds_overlap_on_the_virtual_clock():
    """Any two of four workers: twenty rounds take ten tasks' time, where one by one take twenty."""
    jobs = [make_job(A[top : top + 2]) for top in range(0, 40, 2)]
    outcomes = {}
    with codedla.SimulatedPool(WORKERS, task_seconds=1.0) as pool:
        pool.run_all(iter(jobs), outcomes.__setitem__)
        assert pool.clock == pytest.approx(10.0)
    assert max(outcome.began for outcome in outcomes.values()) > 8.0
    product = np.concatenate([job.decoder.output for job in jobs])
    np.testing.assert_allclose(product, A @ B, atol=1e-12)


def test_a_slow_workers_replies_count_and_a_stopped_one_costs_a_round():
    seconds, used = {}, {}
    for fault in ("slow:1:1", "slow:1:5", "hang:1:2.5", "kill:1:2.5"):
        with codedla.SimulatedPool(3, task_seconds=1.0, faults=[parse_fault(fault)]) as pool:
            jobs = [make_job(A[top : top + 2], workers=3) for top in range(0, 40, 2)]
            pool.run_all(iter(jobs), lambda index, outcome: None)
            seconds[fault] = pool.clock
        used[fault] = sum(0 in job.collector.computed_by.values() for job in jobs)
    assert seconds["slow:1:1"] == pytest.approx(14.0)  # 40 replies of 3 workers
    assert seconds["slow:1:5"] < 20.0 and used["slow:1:5"] >= 3
    assert seconds["kill:1:2.5"] < 21.0 and used["kill:1:2.5"] == 2
    assert seconds["hang:1:2.5"] < 22.0


def test_a_liar_is_left_out_of_all_rounds_at_once():
    expected = A @ B
    jobs = []

    def check_of(index):
        def check(share, reply):
            rows = A[index * 4 : index * 4 + 4].reshape(BLOCKS, 2, -1)
            code = jobs[index].collector.code
            return np.allclose(reply, np.tensordot(code.generator_a[share], rows, 1) @ B)

        return check

    for index in range(10):
        jobs.append(make_job(A[index * 4 : index * 4 + 4], check=check_of(index)))
    wrong = []
    with codedla.SimulatedPool(WORKERS, faults=[parse_fault("corrupt:3:1")]) as pool:
        pool.run_all(
            iter(jobs), lambda i, o: wrong.extend(e for e in o.events if e.kind == "wrong")
        )
    assert len(wrong) == 1
    np.testing.assert_allclose(
        np.concatenate([job.decoder.output for job in jobs]), expected, atol=1e-12
    )


def test_no_more_rounds_are_drawn_than_the_window_holds():
    under_way, most = set(), 0

    def draw():
        nonlocal most
        for index in range(20):
            under_way.add(index)
            most = max(most, len(under_way))
            yield make_job(A[2 * index : 2 * index + 2])

    delays = np.random.default_rng(5147)
    with codedla.SimulatedPool(WORKERS, delays=lambda rng, n: delays.exponential(1.0, n)) as pool:
        pool.run_all(draw(), lambda index, outcome: under_way.remove(index), 3)
    assert most == 3


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_products_are_numpys(seed, monkeypatch):
    """Random codes, delays, deaths, freezes and deadlines; one worker stays healthy."""
    monkeypatch.setattr(stream, "PANEL_SECONDS", 1e-9)
    monkeypatch.setattr(stream, "LEAST_ROWS", 1)
    rng = np.random.default_rng([5153, seed])
    name, blocks = [("mds", 3), ("uncoded", 4), ("replication", 2), ("bivariate", (2, 2))][seed % 4]
    workers = 4 if name == "uncoded" else int(rng.integers(4, 8))
    hero = int(rng.integers(workers)) + 1
    faults = []
    for rank in range(1, workers + 1):
        kind = rng.choice(["none", "kill", "hang", "slow"])
        if rank != hero and kind != "none":
            faults.append(parse_fault(f"{kind}:{rank}:{1 + rng.exponential(4.0):.3f}"))
    late = rng.random(workers) < 0.3
    late[hero - 1] = False

    def delays(_, n):
        return np.where(late, np.where(rng.random(n) < 0.1, np.inf, rng.exponential(2.0, n)), 0.0)

    deadline = 5.0 if rng.random() < 0.3 else None
    with codedla.SimulatedPool(
        workers, delays=delays, faults=faults, task_seconds=0.5, deadline=deadline
    ) as pool:
        pool.streams = True
        product, report = codedla.matmul(
            A, B, pool=pool, code=name, blocks=blocks, return_report=True
        )
        assert np.isfinite(pool.clock) and pool.clock > 0.5
    np.testing.assert_allclose(product, A @ B, atol=1e-9)
    assert hero in report.responders
    assert report.times["total"] == pytest.approx(pool.clock)
