"""The model of one product: against cases computed by hand, and its two ways against each other."""

import math

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes.families.mds import MDS
from codedla.codes.families.partial import Partial
from codedla.codes.families.replication import Replication
from codedla.codes.families.uncoded import Uncoded
from codedla.engine.arrivals import decoding_times
from codedla.engine.speculation import LEAST, Speculation
from codedla.errors import UsageError
from codedla.planning import Machine, simulate, workload_of
from codedla.planning.panels import counted
from codedla.planning.rounds import master_seconds
from codedla.planning.speculation import copies

FLOAT = np.dtype(float)
SLOW_LINK = Machine(
    flops=1e9,
    copy=1e8,
    encode=1e9,
    scan=1e9,
    overhead=0.001,
    latency=0.01,
    bandwidth=1e7,
    setup=0.5,
)
ONE_HOST = Machine(
    flops=1e9,
    copy=1e8,
    encode=1e9,
    scan=1e9,
    overhead=0.0,
    latency=0.0,
    bandwidth=math.inf,
    setup=0.0,
    cores=2.0,
    ranks_per_host=9,
)


def uncoded(workers):
    return workload_of(Uncoded(workers, Grid(workers, 1, 1)), (1000, 1000, 100), FLOAT)


def test_bytes_and_flops_are_counted():
    work = uncoded(4)
    # 250 rows of A and all of B go out, 250 x 100 entries come back.
    assert work.sent.tolist() == [8 * (250 * 1000 + 1000 * 100)] * 4
    assert work.encoded.tolist() == [0.0] * 4
    assert (work.flops, work.reply) == (2 * 250 * 1000 * 100, 8 * 250 * 100)
    assert (work.before, work.after) == (8 * 1000 * 1100, 8 * 1000 * 100)
    assert (work.fold, work.finish) == (0.0, 0.0)


def test_shares_of_an_mds_code():
    code = MDS(6, Grid(4, 1, 1))
    work = workload_of(code, (1000, 1000, 100), FLOAT)
    block = 8 * 250 * 1000
    # Four blocks are read, and one is written for each of two spare shares; B is sent as it is.
    assert work.encoded.tolist() == [0.0] * 4 + [6.0 * block, 0.0]
    # Of four replies at a time, all are read and the two sums read and written once.
    assert work.fold == (4 + 2 * 2) / 4 * work.reply
    assert work.spare.tolist() == [False] * 4 + [True] * 2
    resident = workload_of(code, (1000, 1000, 1), FLOAT, operation="round")
    assert resident.sent.tolist() == [8.0 * 1000] * 6
    assert resident.encoded.tolist() == [0.0] * 6
    by_workers = workload_of(code, (1000, 1000, 100), FLOAT, encoding="workers")
    assert by_workers.before == 0.0  # the master never has the operands
    assert by_workers.sent.tolist() == by_workers.encoded.tolist() == [0.0] * 6
    assert by_workers.combined.tolist() == [0.0] * 4 + [5.0 * block] * 2
    assert by_workers.stored.tolist() == [block + 8e5] * 4 + [4 * block + 8e5] * 2


def test_a_round_by_hand():
    work = uncoded(2)
    sent, reply = 8 * (500 * 1000 + 1000 * 100), 8 * 500 * 100
    # The second order leaves the link after the first.
    arrives = 0.001 + 2 * sent / 1e7 + 0.01
    ends = arrives + 0.001 + sent / 1e8 + work.flops / 1e9
    # The link takes longer for a reply than the master.
    there = ends + 0.01 + reply / 1e7
    expected = there + 0.5 + (work.before + work.after) / 1e9
    assert simulate(work, SLOW_LINK).seconds[0] == pytest.approx(expected)


def test_random_delays_and_slow_workers_lengthen_their_tasks():
    work = uncoded(3)
    healthy = simulate(work, SLOW_LINK).seconds[0]
    late = simulate(work, SLOW_LINK, np.array([[0, 0, 7.0], [0, 0, 0]])).seconds
    assert late == pytest.approx([healthy + 7.0, healthy])
    slow = simulate(work, SLOW_LINK, slow=np.array([1, 1, 3.0])).seconds[0]
    assert slow == pytest.approx(healthy + 2 * work.flops / 1e9)
    never = simulate(work, SLOW_LINK, np.array([[0, math.inf, 0]]))
    assert never.seconds[0] == math.inf


def test_a_code_waits_for_the_kth_reply():
    code = MDS(5, Grid(3, 1, 1))
    work = workload_of(code, (900, 10, 1), FLOAT)
    machine = Machine(overhead=0.0, latency=0.0, setup=0.0, copy=1e30, encode=1e30, scan=1e30)
    delays = np.array([[5.0, 1.0, 4.0, 2.0, 3.0], [0.0, 9.0, 9.0, 9.0, 9.0]])
    timed = simulate(work, machine, delays)
    assert timed.seconds == pytest.approx([3.0, 9.0], rel=1e-4)
    # Those that are late are held until the end.
    assert timed.worker_seconds == pytest.approx([3 + 1 + 3 + 2 + 3, 4 * 9.0], rel=1e-4)


def test_replies_queue_up_before_the_master():
    work = workload_of(Uncoded(100, Grid(100, 1, 1)), (100, 1, 1), FLOAT)
    machine = Machine(overhead=0.01, latency=0.0, setup=0.0)
    # A hundred orders, and their replies one after the other; the first is there while the
    # second order is made.
    expected = 100 * 0.01 + 2 * 0.01
    assert simulate(work, machine).seconds[0] == pytest.approx(expected, rel=1e-3)
    assert master_seconds(work, machine) == pytest.approx(2.0, rel=1e-3)


def test_ranks_of_one_host_share_its_cores():
    work = uncoded(8)
    # All work there is, on two cores.
    moved = float(work.sent.sum()) / 1e8
    computed = 8 * work.flops / 1e9
    expected = (moved + computed) / 2
    timed = simulate(work, ONE_HOST)
    around = (work.before + work.after) / 1e9
    # All end at the same time, and then the master receives.
    received = 8 * work.reply / 1e8
    assert timed.seconds[0] == pytest.approx(expected + around + received)
    # A rank that sleeps leaves its part of the cores to the others.
    delays = np.array([[100.0, 0, 0, 0, 0, 0, 0, 0]])
    served = simulate(work, ONE_HOST, delays).seconds[0]
    task = (work.sent[0] / 1e8) + work.flops / 1e9
    # It received on a quarter of a core, slept, and computed on a whole one.
    assert 100 + task < served < 100 + 5 * task


def test_with_enough_cores_both_ways_agree():
    rng = np.random.default_rng(70001)
    work = workload_of(MDS(8, Grid(6, 1, 1)), (600, 400, 300), FLOAT)
    machine = Machine(
        flops=1e9, copy=1e9, encode=1e9, overhead=1e-4, latency=1e-4, bandwidth=math.inf
    )
    apart = simulate(work, machine, rng.exponential(1.0, (50, 8)))
    # Sleeping workers leave at most 8.5 ranks busy at a time.
    together = Machine(**{**vars(machine), "cores": 8.5, "ranks_per_host": 9})
    rng = np.random.default_rng(70001)
    shared = simulate(work, together, rng.exponential(1.0, (50, 8)))
    assert shared.seconds == pytest.approx(apart.seconds, rel=0.02)
    assert shared.worker_seconds == pytest.approx(apart.worker_seconds, rel=0.02)


def test_codes_of_several_shares_count_what_slow_workers_did():
    code = Partial(4, Grid(4, 1, 1))
    work = workload_of(code, (4000, 100, 1), FLOAT)
    machine = Machine(overhead=0.0, latency=0.0, setup=0.0)
    delays = np.array([[1.0, 1.0, 1.0, 4.0]])
    seconds = simulate(work, machine, delays).seconds[0]
    times = sorted(d * turn for d in delays[0] for turn in range(1, code.load + 1))
    assert seconds == pytest.approx(times[code.threshold - 1], rel=0.01)


def test_tasks_in_panels_are_counted():
    starts, each = np.zeros((2, 3)), np.array([[1.0, 2.0, 10.0], [1.0, math.inf, math.inf]])
    # After 6 s: 4 (no more are there) + 3 tasks; after 8 s: 4 + 4.
    assert counted(starts, each, 4, 7)[0] == pytest.approx(6.0)
    assert counted(starts, each, 4, 8)[0] == pytest.approx(8.0)
    assert counted(starts, each, 4, 5)[1] == math.inf
    assert counted(starts, each, 4, 4)[1] == pytest.approx(4.0)


def test_panels_hold_up_no_longer_than_one_of_them():
    code = MDS(5, Grid(4, 1, 1))
    whole = workload_of(code, (4000, 1000, 1000), FLOAT)
    cut = workload_of(code, (4000, 1000, 1000), FLOAT, panels=10)
    machine = Machine(bandwidth=math.inf)
    panels = simulate(cut, machine).seconds[0]
    assert 0.5 < panels / simulate(whole, machine).seconds[0] < 0.9
    # Five workers share the work of four, or four do it alone.
    dead = np.array([[0, 0, 0, 0, math.inf]])
    around = machine.setup + (cut.before + cut.after) / machine.scan
    lost = simulate(cut, machine, dead).seconds[0]
    assert (lost - around) / (panels - around) == pytest.approx(1.25, rel=0.1)


def test_late_tasks_are_executed_again():
    ordered, plain = np.zeros((1, 8)), np.full(8, 2.0)
    done = plain + np.array([[0, 0, 0, 0, 0, 0, math.inf, 3.0]])
    again = np.full((1, 8), 1.0)
    served, ended = copies(
        done + 0.5, ordered, done, plain=plain, again=again, sending=0.25, travel=0.5
    )
    # Three quarters are there after 2.5 s, one and a half medians have passed after 3.75 s: then
    # the copy is sent, takes its 2 s and its own delay. The last task is done before its own.
    assert served[0].tolist() == [2.5] * 6 + [7.5, 5.5]
    assert ended[0].tolist() == [2.0] * 6 + [7.0, 5.0]


def test_nobody_is_late_at_once_or_while_many_are_missing():
    def served_by(*seconds):
        times = np.array([seconds])
        zero = np.zeros_like(times)
        return copies(times, zero, times, plain=zero[0], again=zero, sending=0.0, travel=0.0)[
            0
        ].tolist()[0]

    # A tenth of a second is too short to send a share again, whatever the others took.
    assert served_by(0.01, 0.01, 0.01, 0.5) == [0.01, 0.01, 0.01, LEAST]
    assert served_by(0.01, 0.01, math.inf, math.inf) == [0.01, 0.01, math.inf, math.inf]


@pytest.mark.parametrize("late", [2.2, 9.0])
def test_copies_are_made_when_the_collector_would(late):
    times = np.array([[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, late, 9.5]])
    now = 0.0
    policy = Speculation(lambda: now, times.shape[1], range(times.shape[1]))
    for worker in range(6):
        now = times[0, worker]
        policy.ended(worker)
    zero = np.zeros_like(times)
    served, _ = copies(times, zero, times, plain=zero[0], again=zero, sending=0.0, travel=0.0)
    assert served[0, 6:] == pytest.approx([policy.due()] * 2)


def test_speculation_in_a_whole_round():
    work = uncoded(8)
    delays = np.zeros((1, 8))
    delays[0, 3] = 50.0
    healthy = simulate(work, Machine()).seconds[0]
    again = simulate(work, Machine(), delays, again=np.zeros((1, 8))).seconds[0]
    # Nobody is called late within a tenth of a second.
    assert LEAST < again < LEAST + 3 * healthy
    assert simulate(work, Machine(), delays).seconds[0] > 50.0


def test_decoding_times_of_codes_that_do_not_count():
    code = Replication(6, Grid(3, 1, 1))
    arrivals = np.array([[1, 2, 9, 3, 4, 5.0], [1, 2, math.inf, 3, 4, math.inf]])
    assert decoding_times(code, arrivals).tolist() == [5.0, math.inf]


def test_wrong_shapes_are_refused():
    with pytest.raises(UsageError, match=r"shape \(rounds, 3\)"):
        simulate(uncoded(3), SLOW_LINK, np.zeros((5, 4)))


def test_the_same_delays_give_the_same_times():
    work = uncoded(50)
    draws = [np.random.default_rng(11).exponential(0.1, (20, 50)) for _ in range(2)]
    first, second = (simulate(work, SLOW_LINK, draw).seconds for draw in draws)
    assert (first == second).all()


def test_a_million_worker_rounds_are_a_few_passes_over_arrays(monkeypatch):
    """10,000 workers x 100 rounds: one sort of the arrivals, one order statistic, no loop."""
    calls = []

    def noted(name):
        original = getattr(np, name)

        def call(*args, **kwargs):
            calls.append((name, np.size(args[0])))
            return original(*args, **kwargs)

        return call

    for name in ("argsort", "partition"):
        monkeypatch.setattr(np, name, noted(name))
    work = workload_of(MDS(10_000, Grid(9_000, 1, 1)), (90_000, 100, 1), FLOAT)
    delays = np.random.default_rng(3).exponential(1.0, (100, 10_000))
    seconds = simulate(work, Machine(), delays).seconds
    assert np.isfinite(seconds).all()
    sizes = {name: [size for n, size in calls if n == name] for name in ("argsort", "partition")}
    assert sizes == {"argsort": [1_000_000], "partition": [1_000_000]}
