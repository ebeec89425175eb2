"""Random delays: moments, bursts, replayed traces, and how they are read from files."""

import json
import math

import numpy as np
import pytest

import codedla
from codedla.engine.delays import Delays, parse_delays
from codedla.engine.stragglers import FaultPlan, parse_fault
from codedla.errors import UsageError
from codedla.measured.traces import read_trace


def test_weibull_has_its_moments():
    drawn = Delays("weibull", (0.7, 0.2)).sample(np.random.default_rng(40009), 100_000)
    mean = 0.2 * math.gamma(1 + 1 / 0.7)
    square = 0.2**2 * math.gamma(1 + 2 / 0.7)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.var() == pytest.approx(square - mean**2, rel=0.1)


@pytest.mark.parametrize(
    ("name", "slow", "shortest", "burst"),
    # p / (p + r) of the time, geometric bursts; 2p / (2p + r), two geometric ones each.
    [("gilbert", 0.05 / 0.3, 1, 4.0), ("fritchman", 0.1 / 0.35, 2, 8.0)],
)
def test_bursts_have_the_right_share_and_length(name, slow, shortest, burst):
    delays = Delays(name, (0.05, 0.25, 3.0))
    table = delays.table(np.random.default_rng(50021), 400, 500)
    assert table.shape == (400, 500)
    assert set(np.unique(table)) == {0.0, 3.0}
    is_slow = table > 0
    # The first round is drawn from the same long-run state as all others.
    assert is_slow[0].mean() == pytest.approx(slow, rel=0.3)
    assert is_slow.mean() == pytest.approx(slow, rel=0.1)
    edges = np.diff(is_slow.astype(int), axis=0, prepend=0, append=0)
    starts, ends = np.nonzero(edges.T == 1)[1], np.nonzero(edges.T == -1)[1]
    whole = (starts > 0) & (ends < 400)
    lengths = (ends - starts)[whole]
    assert lengths.min() == shortest
    assert lengths.mean() == pytest.approx(burst, rel=0.1)


def test_a_worker_that_never_falls_ill_is_well():
    table = Delays("gilbert", (0.0, 0.5, 3.0)).table(np.random.default_rng(1), 20, 20)
    assert not table.any()
    always = Delays("gilbert", (1.0, 1.0, 3.0)).table(np.random.default_rng(1), 20, 20)
    assert (always[1:] == 3.0 - always[:-1]).all()


def test_a_table_is_what_the_stream_draws():
    for text in ("exp:0.1", "weibull:2:1", "fritchman:0.2:0.5:1"):
        delays, seed = parse_delays(text)
        draw, rng = delays.stream(range(6)), np.random.default_rng(seed)
        one_by_one = [draw(rng, 6) for _ in range(5)]
        table = delays.table(np.random.default_rng(seed), 5, 6)
        np.testing.assert_array_equal(table, one_by_one)


def test_the_pool_on_a_virtual_clock_knows_bursts():
    delays = Delays("gilbert", (0.1, 0.05, 7.0))
    with codedla.SimulatedPool(40, delays=delays, seed=5, task_seconds=0.0) as pool:
        before, after = pool.drawn() > 0, pool.drawn() > 0
    # Slow workers stay slow with probability 0.95; drawn afresh, two thirds of them would be.
    assert (before & after).sum() >= 0.8 * before.sum() > 0


REPORT = {
    "times": {"total": 4.0},
    "n_workers": 4,
    "stragglers": [],
    "lost": [{"rank": 2, "reason": "killed"}],
    "events": [
        {"t": 0.5, "kind": "reply", "rank": 1},
        {"t": 0.7, "kind": "lost", "rank": 2},
        {"t": 3.5, "kind": "reply", "rank": 3},
    ],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "# seconds\n0.5,4,3.5\n1,1,2\n"),
        ("heads.csv", "a,b,c\n0.5,4,3.5\n1,1,2\n"),
        (
            "long.csv",
            "worker,seconds,round\n1,0.5,9\n2,4,9\n10,3.5,9\n10,2,10\n2,1,10\n1,1,10\n",
        ),
        ("rows.json", "[[0.5, 4, 3.5], [1, 1, 2]]"),
    ],
)
def test_traces_are_read_and_replayed(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    delays, _ = parse_delays(f"trace:{file}")
    table = delays.table(np.random.default_rng(0), 3, 4)
    # What a task took longer than the fastest of its round; again from the start when at the end.
    assert table.tolist() == [[0, 3.5, 3, 0], [0, 0, 1, 0], [0, 3.5, 3, 0]]


def test_a_report_is_a_trace_and_a_fault_replays_it(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(REPORT))
    assert read_trace(str(file)).seconds == ((0.5, 4.0, 3.5, 0.5),)
    plans = [FaultPlan([parse_fault(f"random:trace:{file}")], worker) for worker in range(4)]
    assert [plan.start_task() for plan in plans] == [0.0, 3.5, 3.0, 0.0]


def test_a_report_of_a_real_product_is_a_trace(tmp_path):
    faults = [parse_fault("delay:2:5")]
    with codedla.SimulatedPool(5, faults=faults, task_seconds=1.0) as pool:
        _, report = codedla.matmul(
            np.eye(10), np.eye(10), pool=pool, code="uncoded", return_report=True
        )
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report.to_dict()))
    (row,) = read_trace(str(file)).delays()
    assert row[1] == pytest.approx(5.0)
    assert row[[0, 2, 3, 4]].max() < 1e-6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "which is none of these"),
        ("{}", "which is none of these"),
        ("[1, 2]", "which is none of these"),
        ("[]", "rows of no entries"),
        ("1,2\n3\n", "rows of 1, 2 entries"),
        ("1,2\n3,slow\n", "which is none of these"),
        ("1,nan\n", "has nan"),
        ("1,-2\n", "has -2.0"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        parse_delays(f"trace:{file}", "random:")
    assert words in str(caught.value)
