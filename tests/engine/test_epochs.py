"""Epochs: thousands of seeded stories about who answers what when, against a plain ledger."""

from __future__ import annotations

import json

import numpy as np
import pytest

from codedla.engine.converse import Heard
from codedla.engine.epochs import AsyncReport, Epochs
from codedla.errors import NotDecodable, UsageError


def started(n, **options):
    epochs = Epochs(n, **options)
    for worker in range(n):
        epochs.hear(Heard("free", worker))
    return epochs


def hand_out(epochs, numbers):
    """Give what is due; return the new orders as number -> (worker, epoch)."""
    orders = {}
    for worker in epochs.due():
        number = next(numbers)
        epochs.ordered(worker, number)
        orders[number] = worker, epochs.epoch
    return orders


@pytest.mark.parametrize("seed", range(400))
def test_what_is_offered_is_what_was_answered(seed):
    """Replies, losses and silence in random order, in all policies; nothing is offered twice."""
    rng = np.random.default_rng([seed, 90247])
    n = int(rng.integers(1, 9))
    late = ("offer", "drop", "cancel")[seed % 3]
    oldest = None if rng.random() < 0.5 else int(rng.integers(0, 4))
    epochs, numbers = started(n, late=late, oldest=oldest), iter(range(1, 10**6))
    orders: dict[int, tuple[int, int]] = {}
    lost: set[int] = set()
    ages = [{} for _ in range(n)]
    newest = np.zeros(n, int)
    for _ in range(12):
        wanted = int(rng.integers(0, n + 1))
        epochs.begin(wanted)
        answered: set[int] = set()
        while True:
            fresh_orders = hand_out(epochs, numbers)
            assert not {w for w, _ in fresh_orders.values()} & (answered | lost)
            busy = {w for w, _ in orders.values()}
            assert not {w for w, _ in fresh_orders.values()} & busy, "one order at a time"
            orders |= fresh_orders
            possible = len(answered | (set(range(n)) - lost))
            if len(answered) < wanted and possible < wanted:
                with pytest.raises(NotDecodable, match="too many workers are lost"):
                    epochs.enough()
                return
            assert epochs.enough() == (len(answered) >= wanted)
            assert epochs.answered == answered
            if epochs.enough():
                break
            if not orders:
                with pytest.raises(NotDecodable, match="nobody"):
                    epochs.hear(Heard("deserted", -1, reason="nobody is left"))
                return
            number = int(rng.choice(list(orders)))
            worker, epoch = orders.pop(number)
            if rng.random() < 0.03:
                lost.add(worker)
                assert epochs.hear(Heard("lost", worker, reason="gone")) is None
                continue
            age = epochs.epoch - epoch
            use = age == 0 or (late == "offer" and (oldest is None or age <= oldest))
            offered = epochs.hear(Heard("reply", worker, number, np.ones((1, 1))))
            assert offered == (epoch if use else None)
            ages[worker][age] = ages[worker].get(age, 0) + 1
            if use:
                newest[worker] = epoch
            if age == 0:
                answered.add(worker)
        for worker in epochs.overdue():
            assert late == "cancel"
            epochs.cancelled(worker)
            number = next(n for n, (w, _) in orders.items() if w == worker)
            del orders[number]
            if rng.random() < 0.5:  # the answer was on its way
                assert epochs.hear(Heard("reply", worker, number, np.ones((1, 1)))) is None
            else:
                epochs.hear(Heard("free", worker))
    np.testing.assert_array_equal(epochs.epochs, newest)
    report = epochs.report(1.0, 2, 3)
    assert [report.staleness[w + 1] for w in range(n)] == ages
    assert set(report.lost) == {w + 1 for w in lost}
    if late == "cancel":
        assert all(set(age) <= {0} for age in ages), "nobody computes for an earlier epoch"


def test_a_predicate_over_who_has_answered():
    epochs, asked = started(4), []

    def both_halves(workers):
        asked.append(set(workers))
        return bool(workers & {0, 1}) and bool(workers & {2, 3})

    epochs.begin(both_halves)
    for number, worker in enumerate((0, 1, 2), start=1):
        assert not epochs.enough()
        epochs.ordered(worker, number)
        epochs.hear(Heard("reply", worker, number, np.ones((1, 1))))
    assert epochs.enough()
    assert asked == [set(), {0}, {0, 1}, {0, 1, 2}]
    with pytest.raises(NotDecodable, match="the set of workers that nwait accepts"):
        epochs.hear(Heard("deserted", -1, reason="nobody owes an answer"))


def test_who_is_lost_after_answering_has_answered():
    epochs = started(2)
    epochs.begin(2)
    epochs.ordered(0, 1)
    epochs.ordered(1, 2)
    epochs.hear(Heard("reply", 0, 1, np.ones((1, 1))))
    epochs.hear(Heard("lost", 0, reason="killed"))
    assert not epochs.enough()
    epochs.hear(Heard("reply", 1, 2, np.ones((1, 1))))
    assert epochs.enough()
    epochs.begin(2)
    with pytest.raises(NotDecodable, match=r"got 0: .*rank 1 is lost \(killed\)") as caught:
        epochs.enough()
    assert caught.value.need == 2


def test_silence_is_said_until_it_ends():
    epochs = started(2)
    epochs.hear(Heard("silent", 1, reason="no sign of life"))
    assert epochs.report(0.0, 0, 0).silent == {2: "no sign of life"}
    epochs.hear(Heard("back", 1))
    assert epochs.report(0.0, 0, 0).silent == {}


@pytest.mark.parametrize(
    ("wanted", "match"), [(-1, ">= 0"), (5, "at most the number"), (1.5, "nwait")]
)
def test_bad_numbers(wanted, match):
    with pytest.raises(UsageError, match=match):
        started(4).begin(wanted)


@pytest.mark.parametrize("options", [{"late": "wait"}, {"oldest": -1}])
def test_bad_options(options):
    with pytest.raises(UsageError, match="must be"):
        Epochs(3, **options)


def test_the_report_in_both_forms():
    report = AsyncReport(3, 7, {1: {0: 5, 2: 1}, 2: {}, 3: {0: 6}}, {1: 1}, {2: "killed"}, {}, 0.5)
    data = json.loads(report.to_json())
    assert data["schema"] == "codedla.async-report/1"
    assert data["staleness"][0] == {"rank": 1, "replies": {"0": 5, "2": 1}}
    assert data["lost"] == [{"rank": 2, "reason": "killed"}]
    assert "12 replies, 92% of them to the newest iterate, the oldest 2" in report.summary()
