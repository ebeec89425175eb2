"""Speculation on a virtual clock: what it costs is what its rule says, and codes cost less."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import Delays, parse_fault

RNG = np.random.default_rng(60_223)
A, B = RNG.standard_normal((36, 5)), RNG.standard_normal((5, 24))


def run(n_workers, *specs, trace=False, **options):
    """One product of tasks of a second; return its report."""
    faults = [parse_fault(spec) for spec in specs]
    with codedla.SimulatedPool(n_workers, faults=faults, task_seconds=1.0) as pool:
        pool.trace = trace
        product, report = codedla.matmul(A, B, pool=pool, return_report=True, **options)
    np.testing.assert_allclose(product, A @ B, atol=1e-12)
    return report


def kinds(report):
    return [event.kind for event in report.events if event.kind != "reply"]


@pytest.mark.parametrize("fault", ["slow:3:10", "delay:3:9", "hang:3:0.2"])
def test_one_of_nine_is_late(fault):
    """1.5 tasks until it is noticed, then one more; a code that tolerates it does not wait."""
    report = run(9, fault, code="speculative")
    assert report.times["total"] == 2.5
    assert report.redispatched == [3] and kinds(report)[0] == "speculated"
    assert report.events[8].note == "as well as rank 3"
    assert 3 not in report.responders
    assert run(9, fault, code="mds", tolerate=1).times["total"] == 1.0
    uncoded = run(9, fault, code="uncoded").times["total"]
    assert uncoded == (3.2 if fault.startswith("hang") else 10.0)


def test_nobody_is_late():
    report = run(9, code="speculative")
    assert report.times["total"] == 1.0 and report.redispatched == [] and kinds(report) == []


def test_whoever_is_first_counts_and_the_other_is_cancelled():
    report = run(4, "slow:2:2", code="speculative", blocks=(4, 1), trace=True)
    assert report.times["total"] == 2.0
    assert kinds(report) == ["speculated"] and sorted(report.responders) == [1, 2, 3, 4]
    assert report.stragglers == []
    twice = [span for span in report.spans if span.kind == "compute" and span.share == 1]
    assert sorted((span.worker, span.start, span.end) for span in twice) == [
        (0, 1.5, 2.0),
        (1, 0.0, 2.0),
    ]


@pytest.mark.parametrize(("speculate", "total"), [(False, 10.0), (True, 2.5)])
def test_more_are_late_than_the_code_tolerates(speculate, total):
    late = ("slow:3:10", "slow:5:10", "slow:7:10")
    report = run(10, *late, code="mds", blocks=(9, 1), speculate=speculate)
    assert report.times["total"] == total
    assert report.redispatched == ([3, 5] if speculate else [])


def test_spare_ranks_compute_late_shares():
    report = run(7, "slow:2:10", code="uncoded", blocks=(2, 1), speculate=True)
    assert report.times["total"] == 2.5 and report.redispatched == [2]
    assert report.events[1].worker >= 2


def test_after_a_late_round_the_next_one_is_as_quick():
    faults = [parse_fault("slow:3:10")]
    with (
        codedla.SimulatedPool(6, faults=faults, task_seconds=1.0) as pool,
        codedla.store(A, pool=pool, code="speculative") as stored,
    ):
        for _ in range(3):
            x = RNG.standard_normal(5)
            np.testing.assert_allclose(stored @ x, A @ x, atol=1e-12)
            assert stored.last_report.redispatched == [3]
            assert stored.last_report.times["total"] == 2.5


@pytest.mark.parametrize("seed", range(5))
def test_random_delays_are_cut_short(seed):
    times = {}
    for code in ("uncoded", "speculative"):
        totals = []
        delays = Delays("pareto", (1.1, 1.0))
        with codedla.SimulatedPool(20, delays=delays, seed=seed, task_seconds=1.0) as pool:
            for _ in range(15):
                product, report = codedla.matmul(A, B, pool=pool, code=code, return_report=True)
                np.testing.assert_allclose(product, A @ B, atol=1e-12)
                totals.append(report.times["total"])
        times[code] = np.quantile(totals, 0.9)
    assert times["speculative"] < 0.7 * times["uncoded"]
