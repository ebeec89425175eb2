"""Faults on purpose: how they are written, and what they do."""

from __future__ import annotations

import numpy as np
import pytest

from codedla.engine.stragglers import (
    CORRUPTIONS,
    DISTRIBUTIONS,
    FAULTS,
    Delays,
    Fault,
    FaultPlan,
    parse_fault,
)
from codedla.errors import UsageError


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("slow:1:10", Fault("slow", 0, 10.0)),
        ("slow:2:1", Fault("slow", 1, 1.0)),
        ("delay:3:30", Fault("delay", 2, 30.0)),
        ("delay:3:0", Fault("delay", 2, 0.0)),
        ("delay:12:1e-3", Fault("delay", 11, 1e-3)),
        ("kill:1:0.5", Fault("kill", 0, 0.5)),
        ("hang:4:2", Fault("hang", 3, 2.0)),
        ("corrupt:1:1", Fault("corrupt", 0, 1.0)),
        ("corrupt:1:0.25", Fault("corrupt", 0, 0.25)),
        ("corrupt:1:1:entry", Fault("corrupt", 0, 1.0)),
        ("corrupt:1:0.5:stale", Fault("corrupt", 0, 0.5, corruption="stale")),
        ("raise:2:3", Fault("raise", 1, 3.0)),
        ("random:exp:0.1", Fault("random", -1, 0.0, "exp", (0.1,), 20177)),
        ("random:exp:0.1:7", Fault("random", -1, 0.0, "exp", (0.1,), 7)),
        ("random:shifted-exp:1:2", Fault("random", -1, 0.0, "shifted-exp", (1.0, 2.0))),
        ("random:pareto:1.5:0.1:3", Fault("random", -1, 0.0, "pareto", (1.5, 0.1), 3)),
        ("random:bimodal:0.2:5", Fault("random", -1, 0.0, "bimodal", (0.2, 5.0))),
    ],
)
def test_good_specifications(spec, fault):
    assert parse_fault(spec) == fault


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "unknown fault ''"),
        ("explode:1:2", "unknown fault 'explode'; known: corrupt, delay, hang, kill"),
        ("delay", "delay:RANK:SECONDS"),
        ("delay:1", "got 'delay:1'"),
        ("delay:1:2:3", "got 'delay:1:2:3'"),
        ("delay::2", "RANK 1, 2, ..."),
        ("delay:0:2", "RANK 1, 2, ..."),
        ("delay:-1:2", "RANK 1, 2, ..."),
        ("delay:1.5:2", "RANK 1, 2, ..."),
        ("delay:one:2", "RANK 1, 2, ..."),
        ("delay:1:soon", "a value >= 0"),
        ("delay:1:-2", "a value >= 0"),
        ("delay:1:nan", "a value >= 0"),
        ("delay:1:inf", "a value >= 0"),
        ("corrupt:1:1.5", "a probability is at most 1; got 'corrupt:1:1.5'"),
        ("corrupt:1:1:flop", "unknown kind of corruption 'flop'; known: entry, flip, nan, scale"),
        ("corrupt:1:1:", "unknown kind of corruption ''"),
        ("corrupt:1:1:nan:2", "corrupt:RANK:PROB[:KIND]"),
        ("corrupt:1:nan", "corrupt:RANK:PROB[:KIND]"),
        ("delay:1:1:nan", "got 'delay:1:1:nan'"),
        ("slow:1:0.5", "at least 1; got 'slow:1:0.5'"),
        ("kill:1", "kill:RANK:SECONDS"),
        ("raise:1:x", "raise:RANK:ROUND"),
        ("random", "unknown distribution ''"),
        ("random:normal:1", "known: bimodal, exp, fritchman, gilbert"),
        ("random:exp", "random:exp:MEAN[:SEED]"),
        ("random:exp:x", "random:exp:MEAN[:SEED]"),
        ("random:exp:-1", "random:exp:MEAN[:SEED]"),
        ("random:exp:nan", "random:exp:MEAN[:SEED]"),
        ("random:exp:1:2:3", "random:exp:MEAN[:SEED]"),
        ("random:exp:1:x", "random:exp:MEAN[:SEED]"),
        ("random:exp:1:-4", "random:exp:MEAN[:SEED]"),
        ("random:pareto:1", "random:pareto:SHAPE:SCALE[:SEED]"),
        ("random:pareto:0:1", "random:pareto:SHAPE:SCALE[:SEED]"),
        ("random:bimodal:0.5:inf", "random:bimodal:PROBABILITY:SECONDS[:SEED]"),
        ("random:bimodal:1.5:1", "random:bimodal:PROBABILITY:SECONDS[:SEED]"),
        ("random:weibull:0:1", "random:weibull:SHAPE:SCALE[:SEED]"),
        ("random:gilbert:0.1:0:1", "random:gilbert:P_SLOW:P_RECOVER:SECONDS[:SEED]"),
        ("random:gilbert:0.1:0.5", "random:gilbert:P_SLOW:P_RECOVER:SECONDS[:SEED]"),
        ("random:fritchman:2:1:1", "random:fritchman:P_SLOW:P_RECOVER:SECONDS[:SEED]"),
        ("random:trace", "random:trace:FILE"),
        ("random:trace:no/such.csv", "No such file or directory; give a CSV file"),
        ("raise:1:0", "raise:RANK:ROUND"),
        ("raise:1:1.5", "raise:RANK:ROUND"),
    ],
)
def test_bad_specifications(spec, words):
    with pytest.raises(UsageError) as caught:
        parse_fault(spec)
    assert words in str(caught.value)


def test_every_fault_and_distribution_is_described():
    assert all(text.startswith(f"{kind}:") for kind, text in FAULTS.items())
    named = ("weibull", "gilbert", "fritchman", "trace", "exp", "shifted-exp", "pareto", "bimodal")
    assert set(DISTRIBUTIONS) == set(named)


@pytest.mark.parametrize(
    ("delays", "mean", "least"),
    [
        (Delays("exp", (0.5,)), 0.5, 0.0),
        (Delays("shifted-exp", (1.0, 0.5)), 1.5, 1.0),
        (Delays("pareto", (3.0, 0.4)), 0.2, 0.0),
        (Delays("bimodal", (0.25, 8.0)), 2.0, 0.0),
    ],
)
def test_distributions(delays, mean, least):
    drawn = delays.sample(np.random.default_rng(80021), 40000)
    assert drawn.shape == (40000,)
    assert drawn.min() >= least
    assert drawn.mean() == pytest.approx(mean, rel=0.1)


def test_an_unknown_distribution_is_refused():
    with pytest.raises(UsageError, match="unknown distribution 'normal'"):
        Delays("normal", (1.0,)).sample(np.random.default_rng(3), 1)


class TestFaultPlan:
    """The faults of one worker."""

    def test_only_its_own(self):
        faults = [parse_fault(s) for s in ("delay:1:1", "delay:2:5", "delay:2:2", "kill:3:1")]
        plan = FaultPlan(faults, 1)
        assert plan.start_task() == 7.0
        assert (plan.kill_after, plan.hang_after, plan.factor) == (None, None, 1.0)

    def test_the_earliest_death_and_the_product_of_factors(self):
        faults = [
            parse_fault(s) for s in ("kill:1:9", "kill:1:4", "hang:1:3", "slow:1:2", "slow:1:3")
        ]
        plan = FaultPlan(faults, 0)
        assert (plan.kill_after, plan.hang_after, plan.factor) == (4.0, 3.0, 6.0)

    def test_raise_in_its_round_only(self):
        plan = FaultPlan([parse_fault("raise:1:2")], 0)
        assert plan.start_task() == 0.0
        with pytest.raises(RuntimeError, match="injected exception in task 2"):
            plan.start_task()
        assert plan.start_task() == 0.0

    def test_random_delays_repeat_by_seed_and_differ_by_worker(self):
        fault = [parse_fault("random:exp:1:31")]

        def draw(worker):
            plan = FaultPlan(fault, worker)
            return [plan.start_task() for _ in range(5)]

        assert draw(0) == draw(0)
        assert draw(0) != draw(1)
        assert draw(0) != [FaultPlan([parse_fault("random:exp:1:32")], 0).start_task()] * 5

    def test_corruption_changes_exactly_one_entry(self):
        plan = FaultPlan([parse_fault("corrupt:1:1")], 0)
        for dtype in ("f8", "i8", "c16"):
            reply = np.zeros((4, 5), dtype)
            plan.corrupt(reply)
            assert np.count_nonzero(reply) == 1
            reply[...] = 3
            plan.corrupt(reply)
            assert np.count_nonzero(reply != 3) == 1
        plan.corrupt(np.empty((0, 5)))

    def test_corruption_has_a_probability(self):
        plan = FaultPlan([parse_fault("corrupt:1:0.3")], 0)
        hit = 0
        for _ in range(1000):
            reply = np.zeros((1, 1))
            plan.corrupt(reply)
            hit += bool(reply[0, 0])
        assert 240 < hit < 360
        honest = FaultPlan([parse_fault("corrupt:1:0.3")], 1)
        reply = np.zeros((1, 1))
        for _ in range(50):
            honest.corrupt(reply)
        assert not reply.any()


REPLIES = {
    "f8": np.arange(1.0, 301.0).reshape(3, 100),
    "f4": np.arange(1, 301, dtype="f4").reshape(3, 100),
    "c16": np.arange(1, 301).reshape(3, 100) * (1 + 2j),
    "i8": np.arange(1, 301).reshape(3, 100) << 40,
}


def corrupted(kind, reply, times=1, worker=0):
    """What a plan makes of copies of a reply."""
    plan = FaultPlan([parse_fault(f"corrupt:{worker + 1}:1:{kind}")], worker)
    found = []
    for _ in range(times):
        copy = reply.copy()
        found.append((plan.corrupt(copy), copy))
    return found


@pytest.mark.parametrize("dtype", REPLIES)
class TestKindsOfCorruption:
    """How a reply may be wrong, and that it is said."""

    def test_entry(self, dtype):
        for said, wrong in corrupted("entry", REPLIES[dtype], 20):
            assert said == "entry"
            assert np.count_nonzero(wrong != REPLIES[dtype]) == 1

    def test_flip_changes_one_bit(self, dtype):
        places = set()
        for said, wrong in corrupted("flip", REPLIES[dtype], 200):
            assert said == "flip"
            before, after = (np.unpackbits(a.view(np.uint8)) for a in (REPLIES[dtype], wrong))
            assert np.count_nonzero(before != after) == 1
            places.add(int(np.argmax(before != after)) % (8 * wrong.itemsize))
        assert len(places) > 4 * wrong.itemsize

    def test_nan_spoils_part_of_one_row(self, dtype):
        for said, wrong in corrupted("nan", REPLIES[dtype], 50):
            changed = wrong != REPLIES[dtype]
            assert said == "nan"
            assert np.count_nonzero(changed.any(axis=1)) == 1
            touched = np.flatnonzero(changed.any(axis=0))
            assert touched[-1] - touched[0] + 1 == touched.size <= 64
            if wrong.dtype.kind != "i":
                assert np.isnan(wrong[changed]).all()

    def test_scale_changes_everything_by_one_factor(self, dtype):
        for said, wrong in corrupted("scale", REPLIES[dtype], 5):
            factor = wrong / REPLIES[dtype]
            assert said == "scale"
            assert np.allclose(factor, factor[0, 0], rtol=1e-6)
            assert 1.4 < abs(factor[0, 0]) < 4.1

    def test_stale_is_the_reply_before_it(self, dtype):
        plan = FaultPlan([parse_fault("corrupt:1:1:stale")], 0)
        first, second, other = REPLIES[dtype].copy(), REPLIES[dtype] * 5, REPLIES[dtype][:2] * 7
        assert plan.corrupt(first) == "stale"
        assert not first.any()
        assert plan.corrupt(other) == "stale"
        assert not other.any()
        assert plan.corrupt(second) == "stale"
        assert np.array_equal(second, REPLIES[dtype])
        third = REPLIES[dtype] * 5
        assert plan.corrupt(third) == ""
        assert np.array_equal(third, REPLIES[dtype] * 5)

    def test_every_kind_repeats_by_worker(self, dtype):
        for kind in CORRUPTIONS:
            one, two = (corrupted(kind, REPLIES[dtype], 5) for _ in range(2))
            for (_, a), (_, b) in zip(one, two, strict=True):
                np.testing.assert_array_equal(a, b)
        here, there = (corrupted("flip", REPLIES[dtype], 5, worker=w) for w in (0, 1))
        assert any((a != b).any() for (_, a), (_, b) in zip(here, there, strict=True))

    def test_views_are_changed_in_place(self, dtype):
        for kind in CORRUPTIONS:
            whole = np.ones((6, 200), REPLIES[dtype].dtype)
            plan = FaultPlan([parse_fault(f"corrupt:1:1:{kind}")], 0)
            assert plan.corrupt(whole[2:5, 10:90]) == kind
            assert (whole != 1).any()
            whole[2:5, 10:90] = 1
            assert (whole == 1).all()


def test_corruption_says_when_it_changed_nothing():
    assert corrupted("scale", np.zeros((2, 2)))[0][0] == ""
    assert corrupted("stale", np.zeros((2, 2)))[0][0] == ""
    assert corrupted("entry", np.zeros((0, 2)))[0][0] == ""
    assert FaultPlan([], 0).corrupt(np.ones((2, 2))) == ""
    assert FaultPlan([parse_fault("corrupt:1:0")], 0).corrupt(np.ones((2, 2))) == ""


def test_several_kinds_take_turns():
    faults = [parse_fault(f"corrupt:1:0.5:{kind}") for kind in ("entry", "scale")]
    plan = FaultPlan([*faults, parse_fault("corrupt:1:0.1:entry")], 0)
    said = [plan.corrupt(np.ones((2, 2))) for _ in range(400)]
    counts = {kind: said.count(kind) for kind in ("entry", "scale", "")}
    assert sum(counts.values()) == 400
    assert 160 < counts["entry"] < 240
    assert 60 < counts["scale"] < 140
