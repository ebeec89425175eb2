"""Speculation: who is late, which shares are computed twice, and that whoever is first counts."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from codedla import codes
from codedla.blocks import Grid
from codedla.engine.collector import Collector, Instruction
from codedla.engine.speculation import LEAST, PATIENCE, QUANTILE, Speculation


class Clock:
    """Seconds that pass when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(name, n_workers, blocks, *, pool=None, speculate=False):
    """Return a collector with a clock, all of whose workers have begun their own share."""
    code = codes.get(name)(n_workers, Grid(blocks, 1, 1))
    machine = Collector(
        code, eps=2.0**-52, tolerance=1e-6, workers=range(pool or n_workers), speculate=speculate
    )
    clock = Clock()
    machine.lend(clock)
    for worker in sorted(machine.workers):
        machine.next(worker)
    return machine, clock


@pytest.mark.parametrize(("needed", "enough"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 6), (100, 75)])
def test_nobody_is_late_before_most_are_done(needed, enough):
    clock = Clock()
    policy = Speculation(clock, needed, range(needed))
    for worker in range(enough):
        assert math.isinf(policy.limit)
        clock.now += 1.0
        policy.ended(worker)
    assert math.isfinite(policy.limit)


def test_the_limit_is_the_median_with_patience():
    rng = random.Random(40_111)
    for _ in range(30):
        clock, count = Clock(), rng.randint(1, 12)
        policy = Speculation(clock, math.ceil(count / QUANTILE), ())
        times = sorted(rng.choice([rng.random(), rng.random() * 100]) for _ in range(count))
        for worker in range(count):
            policy.began(worker)
        for worker, seconds in enumerate(times):
            clock.now = seconds
            policy.ended(worker)
        assert policy.limit == pytest.approx(max(PATIENCE * statistics.median(times), LEAST))


def test_a_worker_is_late_from_its_own_start():
    clock = Clock()
    policy = Speculation(clock, 2, range(3))
    policy.began(0)
    clock.now = 1.0
    policy.ended(0)
    policy.began(1)
    # Worker 2 was given nothing, as it is busy with something older: the round's start counts.
    assert (policy.late(), policy.due()) == ([], 1.5)
    clock.now = 1.5
    assert (policy.late(), policy.due()) == ([2], 2.5)
    clock.now = 2.5
    assert (policy.late(), policy.due()) == ([2, 1], math.inf)


def test_a_late_share_is_queued_once_and_the_first_copy_counts():
    machine, clock = opened("speculative", 4, 4)
    clock.now = 1.0
    for share in (0, 1, 3):
        machine.reply(share)
        assert machine.speculate() is Instruction.WAIT
    assert machine.due() == 1.5
    clock.now = 1.5
    assert machine.speculate() is Instruction.REDISPATCH
    assert machine.queue == machine.speculated == machine.redispatched == [2]
    assert machine.speculate() is Instruction.WAIT
    assert machine.next(3) == 2
    assert machine.next(0) is None and machine.next(1) is None
    clock.now = 100.0
    assert machine.speculate() is Instruction.WAIT  # the copy is late as well: no second one
    assert machine.stragglers == {2}
    assert machine.reply(2, 3) is Instruction.FINISH
    assert machine.computed_by[2] == 3
    assert machine.reply(2, 2) is Instruction.DROP


def test_its_own_worker_may_still_be_first():
    machine, clock = opened("speculative", 3, 3)
    clock.now = 1.0
    machine.reply(0), machine.reply(1)
    clock.now = 2.0
    machine.speculate()
    assert machine.next(0) == 2
    assert machine.reply(2) is Instruction.FINISH
    assert machine.computed_by[2] == 2
    assert machine.stragglers == set()


def test_the_copy_survives_the_loss_of_either_worker():
    for lost in (0, 2):
        machine, clock = opened("speculative", 3, 3)
        clock.now = 1.0
        machine.reply(0), machine.reply(1)
        clock.now = 2.0
        machine.speculate()
        assert machine.next(0) == 2
        assert machine.lost(lost, "killed") is Instruction.WAIT
        assert machine.lost(2 - lost, "killed") is Instruction.REDISPATCH
        assert machine.next(1) == 2
        assert machine.reply(2, 1) is Instruction.FINISH


def test_without_idle_workers_nothing_is_queued():
    machine, clock = opened("speculative", 4, 4)
    clock.now = 1.0
    for share in (0, 1, 2):
        machine.reply(share)
    for share in (0, 1, 2):
        machine.lost(share, "killed")
    clock.now = 50.0
    assert machine.speculate() is Instruction.WAIT and machine.queue == []


def test_a_code_copies_no_more_than_it_lacks():
    """Ten workers, nine replies needed: of three late shares two are computed twice."""
    machine, clock = opened("mds", 10, 9, speculate=True)
    clock.now = 1.0
    for share in range(7):
        machine.reply(share)
    clock.now = 1.5
    assert machine.speculate() is Instruction.REDISPATCH
    assert machine.queue == [7, 8]
    assert (machine.next(0), machine.next(1), machine.next(2)) == (7, 8, None)
    machine.reply(9)
    assert machine.speculate() is Instruction.WAIT
    # One copy is late itself: there was one reply more in the meantime, so that is no matter.
    assert machine.reply(8, 1) is Instruction.FINISH


def test_spare_workers_take_copies_too():
    machine, clock = opened("speculative", 2, 2, pool=3)
    clock.now = 1.0
    machine.reply(0)
    machine.lost(0, "killed")
    clock.now = 2.0
    assert machine.speculate() is Instruction.REDISPATCH
    assert machine.next(2) == 1


@pytest.mark.parametrize(
    ("name", "workers", "grid", "speculate"),
    [
        ("uncoded", 4, Grid(4, 1, 1), False),
        ("mds", 6, Grid(4, 1, 1), False),
        ("secure-matdot", 7, Grid(1, 2, 1), True),
    ],
)
def test_only_on_request_and_never_with_secrets(name, workers, grid, speculate):
    code = codes.get(name)(workers, grid)
    machine = Collector(code, eps=2.0**-52, tolerance=1e-6, speculate=speculate)
    clock = Clock()
    machine.lend(clock)
    for worker in range(workers):
        machine.next(worker)
    clock.now = 1.0
    for share in range(code.threshold - 1):
        machine.reply(share)
    clock.now = 1e6
    assert machine.speculate() is Instruction.WAIT
    assert machine.queue == [] and math.isinf(machine.due())


def test_random_rounds_keep_the_promises():
    """Speeds, losses and codes at random: at most one copy a share, and never without an idler."""
    rng = random.Random(77_003)
    copies = 0
    for case in range(600):
        name = rng.choice(["speculative", "mds", "replication", "khatri-rao", "lt"])
        n_workers, blocks = rng.randint(3, 9), rng.randint(2, 6)
        if codes.get(name).survives(n_workers, Grid(blocks, 1, 1)) < 0:
            continue
        copies += _play(rng, name, n_workers, blocks, case)
    assert copies > 150


def _play(rng, name, n_workers, blocks, case) -> int:
    """Play one round on a clock; return how many shares were computed twice."""
    code = codes.get(name)(n_workers, Grid(blocks, 1, 1))
    pool = n_workers + rng.randint(0, 2)
    machine = Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(pool), speculate=True)
    clock = Clock()
    machine.lend(clock)
    speeds = [rng.choice([1.0, 1.0, 1.0, rng.uniform(1, 20)]) for _ in range(pool)]
    at: dict[int, tuple[float, int]] = {}
    given: list[tuple[int, int]] = []
    instruction = Instruction.WAIT

    def offer() -> None:
        for worker in range(pool):
            if worker in at or worker in machine.lost_workers:
                continue
            share = machine.next(worker)
            if share is not None:
                assert (worker, share) not in given, case
                given.append((worker, share))
                at[worker] = (clock.now + speeds[worker], share)

    offer()
    while instruction not in (Instruction.FINISH, Instruction.FAIL):
        ends = min((end for end, _ in at.values()), default=math.inf)
        clock.now = min(ends, machine.due())
        assert math.isfinite(clock.now), f"case {case} hangs"
        if clock.now == ends:
            worker = min(w for w, (end, _) in at.items() if end == ends)
            _, share = at.pop(worker)
            if rng.random() < 0.05:
                instruction = machine.lost(worker, "killed")
            else:
                instruction = machine.reply(share, worker)
                for other in [w for w, (_, its) in at.items() if its == share]:
                    del at[other]
        if not machine.finished:
            before = list(machine.queue)
            idle = [w for w in range(pool) if w not in at and w not in machine.lost_workers]
            machine.speculate()
            fresh = [share for share in machine.queue if share not in before]
            assert len(fresh) <= len(idle), case
            assert set(fresh) <= set(machine.redispatched), case
            offer()
    twice = {s for s in machine.speculated if sum(its == s for _, its in given) > 1}
    if not machine.lost_workers:
        assert all(sum(its == s for _, its in given) <= 2 for s in code.shares), case
    if instruction is Instruction.FINISH:
        assert code.decodable(machine.responders), case
    return len(twice)
