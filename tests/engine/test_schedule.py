"""The schedule of several open rounds, driven by lists and by a clock of the test's own."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from codedla import codes
from codedla.blocks import Grid
from codedla.engine.collector import Collector, Instruction
from codedla.engine.schedule import SLACK, Schedule, Task

CODES = {
    "mds": codes.get("mds")(4, Grid(3, 1, 1)),
    "all": codes.get("uncoded")(3, Grid(3, 1, 1)),
    "pairs": codes.get("replication")(6, Grid(3, 1, 1)),
    "some idle": codes.get("uncoded")(5, Grid(3, 1, 1)),
    "lt": codes.get("lt")(4, Grid(9, 1, 1)),
    "batch": codes.get("batch")(5, Grid(3, 1, 1)),
    "secure": codes.get("secure-matdot")(6, Grid(1, 2, 1)),
    "galois": codes.get("galois")(5, Grid(2, 1, 2)).modulo(10007),
}


def collectors(code, count):
    return [
        Collector(code, eps=0.0, tolerance=1.0, workers=range(code.n_workers)) for _ in range(count)
    ]


def of(machines, n_workers, **options):
    """A schedule of these collectors, and the list of those that were drawn."""
    drawn = []

    def draw():
        if len(drawn) == len(machines):
            return None
        drawn.append(len(drawn))
        return drawn[-1], machines[drawn[-1]]

    return Schedule(n_workers, draw, **options), drawn


# -- the rules ---------------------------------------------------------------------------------


def test_a_round_gets_as_many_tasks_as_it_needs_before_the_next_begins():
    machines = collectors(codes.get("mds")(3, Grid(2, 1, 1)), 4)
    schedule, drawn = of(machines, 3)
    assert [schedule.next(w) for w in range(3)] == [Task(0, 0), Task(0, 1), Task(1, 2)]
    assert drawn == [0, 1]
    assert [schedule.next(w) for w in range(3)] == [None] * 3  # busy


def test_a_slow_worker_is_given_a_share_as_everybody_and_its_reply_counts():
    machines = collectors(codes.get("mds")(3, Grid(2, 1, 1)), 4)
    schedule, _ = of(machines, 3)
    for worker in (2, 0, 1):
        schedule.next(worker)
    # Round 0 has the shares of workers 2 and 0; round 1 begins with worker 1.
    assert schedule.next(0) is None
    machines[0].reply(0)
    schedule.answered(0, Task(0, 0))
    assert schedule.next(0) == Task(1, 0), "round 0 still counts on the slow worker"
    assert machines[0].reply(2) is Instruction.FINISH
    assert schedule.close(0) == [2]


def test_one_order_ahead_and_never_two_of_one_round():
    machines = collectors(codes.get("mds")(2, Grid(2, 1, 1)), 3)
    schedule, _ = of(machines, 2, ahead=1)
    assert [schedule.next(0) for _ in range(3)] == [Task(0, 0), Task(1, 0), None]
    assert [schedule.next(1) for _ in range(3)] == [Task(0, 1), Task(1, 1), None]
    machines = collectors(CODES["lt"], 1)
    schedule, _ = of(machines, 4, ahead=1)
    assert [schedule.next(0), schedule.next(0)] == [Task(0, 0), None]


def test_a_worker_whose_reply_is_arriving_is_given_the_next_order_already():
    machines = collectors(codes.get("mds")(2, Grid(2, 1, 1)), 4)
    schedule, _ = of(machines, 2, ahead=1)
    assert [schedule.next(0) for _ in range(3)] == [Task(0, 0), Task(1, 0), None]
    schedule.computed(0, Task(0, 0))
    assert [schedule.next(0) for _ in range(2)] == [Task(2, 0), None]
    # Counted on until the reply is here, like any other.
    assert schedule.next(1) == Task(0, 1)
    machines[0].reply(0)
    schedule.answered(0, Task(0, 0))
    assert schedule.next(0) is None, "as many orders as before, as nothing more was computed"
    schedule.computed(0, Task(0, 0))  # late news changes nothing
    assert schedule.next(0) is None


def test_a_lost_worker_takes_the_reply_that_was_arriving_with_it():
    machines = collectors(codes.get("replication")(2, Grid(1, 1, 1)), 1)
    schedule, _ = of(machines, 2)
    assert schedule.next(0) == Task(0, 0)
    schedule.computed(0, Task(0, 0))
    machines[0].lost(0, "killed")
    schedule.lost(0)
    assert schedule.next(1) == Task(0, 1)


def test_what_is_only_ahead_is_made_up_for_first():
    machines = collectors(codes.get("mds")(3, Grid(2, 1, 1)), 2)
    schedule, _ = of(machines, 3, ahead=1)
    assert schedule.next(2) == Task(0, 2)
    assert schedule.next(0) == Task(0, 0)
    assert schedule.next(2) == Task(1, 2)  # ahead, and covered with this:
    assert schedule.next(0) == Task(1, 0)
    # Both rounds are covered. Round 1 is not begun by anybody: it comes before round 0.
    assert schedule.next(1) == Task(1, 1)
    assert schedule.next(1) is None, "nothing superfluous is ordered ahead"
    machines[1].reply(1)
    schedule.answered(1, Task(1, 1))
    assert schedule.next(1) == Task(0, 1)


def test_a_full_window_is_made_room_in():
    machines = collectors(codes.get("mds")(3, Grid(2, 1, 1)), 9)
    schedule, drawn = of(machines, 3, window=2)
    assert schedule.next(2) == Task(0, 2)  # and it never answers
    assert [schedule.next(0), schedule.next(1)] == [Task(0, 0), Task(1, 1)]
    machines[0].reply(0)
    schedule.answered(0, Task(0, 0))
    assert schedule.next(0) == Task(1, 0)
    machines[1].reply(1)
    schedule.answered(1, Task(1, 1))
    assert schedule.next(1) == Task(0, 1), "not a third round"
    assert drawn == [0, 1]
    assert machines[0].reply(1) is Instruction.FINISH
    schedule.answered(1, Task(0, 1))
    assert schedule.close(0) == [2]
    assert schedule.next(1) == Task(2, 1)


@pytest.mark.parametrize("ahead", [0, 1])
def test_few_rounds_are_open_at_a_time(ahead):
    code = CODES["mds"]
    shop = Workshop(code, 60, random.Random(17), ahead=ahead, troubles=False)
    shop.speed[2] = 1e9
    most = 0
    shop.judge_all = shop.judge

    def judge(key, instruction):
        nonlocal most
        most = max(most, len(shop.schedule._open))
        shop.judge_all(key, instruction)

    shop.judge = judge
    shop.run()
    assert len(shop.finished) == 60
    assert most <= math.ceil((1 + ahead) * 4 / 3) + SLACK


def test_a_worker_without_a_share_opens_nothing():
    machines = collectors(CODES["some idle"], 9)
    schedule, drawn = of(machines, 5)
    assert [schedule.next(4) for _ in range(5)] == [None] * 5
    assert drawn == [0]


def test_a_lost_worker_is_made_up_for_by_whoever_is_free():
    machines = collectors(CODES["all"], 1)
    schedule, _ = of(machines, 3, ahead=1)
    for worker in range(3):
        assert schedule.next(worker) == Task(0, worker)
    schedule.answered(1, Task(0, 1))
    machines[0].reply(1)
    machines[0].lost(0, "gone")
    schedule.lost(0)
    assert schedule.next(0) is None
    assert schedule.next(1) == Task(0, 0)
    schedule.answered(1, Task(0, 0))
    machines[0].reply(0, 1)
    assert machines[0].reply(2) is Instruction.FINISH
    assert schedule.close(0) == [2]


def test_a_silent_worker_is_not_counted_on_until_it_is_back():
    machines = collectors(codes.get("mds")(3, Grid(2, 1, 1)), 2)
    schedule, drawn = of(machines, 3)
    assert [schedule.next(0), schedule.next(1)] == [Task(0, 0), Task(0, 1)]
    machines[0].silent(1, "not heard of")
    schedule.changed()
    assert schedule.next(2) == Task(0, 2)
    machines[0].back(1)
    schedule.changed()
    machines[0].reply(0)
    schedule.answered(0, Task(0, 0))
    assert schedule.next(0) == Task(1, 0)
    assert drawn == [0, 1]


def test_an_accurate_round_waits_for_one_more():
    """The guard of a code that is not exact asks for a third reply."""
    code = codes.get("mds")(4, Grid(2, 1, 1))
    machine = Collector(code, eps=1.0, tolerance=1e-9, workers=range(4))
    schedule, _ = of([machine, *collectors(code, 2)], 4)
    tasks = [schedule.next(worker) for worker in range(3)]
    assert [task.key for task in tasks] == [0, 0, 1]
    for worker in range(2):
        machine.reply(worker)
        schedule.answered(worker, tasks[worker])
    assert schedule.next(3) == Task(0, 3)


def test_lost_shares_go_where_they_are_preferred():
    machines = collectors(codes.get("uncoded")(4, Grid(4, 1, 1)), 1)
    schedule, _ = of(machines, 4)
    for worker in range(4):
        schedule.next(worker)
    for gone in (2, 3):
        machines[0].lost(gone, "gone")
        schedule.lost(gone)
    for done in (0, 1):
        machines[0].reply(done)
        schedule.answered(done, Task(0, done))
    assert schedule.next(0, lambda key, share: share == 3) == Task(0, 3)
    assert schedule.next(1, lambda key, share: share == 3) == Task(0, 2)


# -- random troubles ---------------------------------------------------------------------------


class Workshop:
    """Workers of random speed that die, fall silent and lie, on a clock.

    Worker ``hero`` does nothing of this.
    """

    def __init__(self, code, rounds, rng, *, ahead, troubles=True):
        self.code, self.rng, self.troubles = code, rng, troubles
        self.machines = collectors(code, rounds)
        self.schedule = Schedule(code.n_workers, self.draw, ahead=ahead)
        self.drawn = 0
        self.now = 0.0
        self.events = []
        self.hero = rng.randrange(code.n_workers)
        self.speed = [
            math.exp(rng.gauss(0, 1.5 if troubles else 0.0)) for _ in range(code.n_workers)
        ]
        self.orders = {worker: [] for worker in range(code.n_workers)}
        self.dead, self.quiet, self.cancelled = set(), set(), set()
        self.finished = []
        self.failed = False
        self.seen = {}

    def draw(self):
        if self.drawn == len(self.machines):
            return None
        machine = self.machines[self.drawn]
        for worker in self.dead:
            machine.lost(worker, "dead")
        for worker in self.quiet:
            machine.silent(worker, "silent")
        self.drawn += 1
        return self.drawn - 1, machine

    def run(self):
        for worker in range(self.code.n_workers):
            if self.troubles and worker != self.hero:
                for kind in ("die", "sleep", "lie"):
                    if self.rng.random() < 0.2:
                        heapq.heappush(self.events, (self.rng.expovariate(0.3), worker, kind, None))
        while self.schedule.ensure():
            self.hand_out()
            if not self.events:
                return
            self.now, worker, kind, task = heapq.heappop(self.events)
            getattr(self, kind)(worker, task)
            if self.failed:
                return

    def hand_out(self):
        for worker in self.orders:
            while (task := self.schedule.next(worker)) is not None:
                assert worker not in self.dead | self.quiet, "ordered of one that cannot"
                assert all(task.key != other.key for other in self.orders[worker])
                shares = self.seen.setdefault((task.key, worker), set())
                shares.add(task.share)
                if any(self.code.masks):
                    assert shares == {worker}, "nobody sees two shares"
                self.orders[worker].append(task)
                if len(self.orders[worker]) == 1:
                    self.start(worker)

    def start(self, worker):
        if self.orders[worker] and worker not in self.quiet:
            task = self.orders[worker][0]
            known = (worker, task) in self.cancelled
            seconds = (
                0.0
                if known
                else self.speed[worker] * (self.rng.expovariate(1.0) if self.troubles else 1.0)
            )
            heapq.heappush(self.events, (self.now + seconds, worker, "answer", task))

    def answer(self, worker, task):
        if worker in self.dead or worker in self.quiet or self.orders[worker][:1] != [task]:
            return
        self.orders[worker].pop(0)
        machine = self.machines[task.key]
        gone = (worker, task) in self.cancelled
        self.cancelled.discard((worker, task))
        instruction = Instruction.DROP if gone else machine.reply(task.share, worker)
        self.schedule.answered(worker, task)
        self.judge(task.key, instruction)
        self.start(worker)

    def judge(self, key, instruction):
        if instruction is Instruction.FAIL:
            self.failed = True
        if instruction is Instruction.FINISH and key not in self.finished:
            self.finished.append(key)
            for worker in self.schedule.close(key):
                for task in self.orders[worker]:
                    if task.key == key:
                        self.cancelled.add((worker, task))
                        if self.orders[worker][0] == task:
                            self.start(worker)

    def everybody(self, event):
        for key in [key for key in range(self.drawn) if key not in self.finished]:
            self.judge(key, event(self.machines[key]))
        self.schedule.changed()

    def die(self, worker, _):
        if worker not in self.dead:
            self.dead.add(worker)
            self.quiet.discard(worker)
            self.orders[worker] = []
            self.everybody(lambda machine: machine.lost(worker, "dead"))
            self.schedule.lost(worker)

    def sleep(self, worker, _):
        if worker not in self.dead:
            self.quiet.add(worker)
            self.everybody(lambda machine: machine.silent(worker, "silent"))
            if self.rng.random() < 0.5:
                when = self.now + self.rng.expovariate(0.5)
                heapq.heappush(self.events, (when, worker, "wake", None))

    def wake(self, worker, _):
        if worker in self.quiet:
            self.quiet.discard(worker)
            self.everybody(lambda machine: machine.back(worker))
            self.start(worker)

    def lie(self, worker, _):
        if worker not in self.dead:
            self.everybody(lambda machine: machine.refuse(-1, worker, "wrong"))


@pytest.mark.parametrize("name", CODES)
def test_every_round_is_finished_whatever_happens(name):
    code, rng = CODES[name], random.Random(f"schedule {name}")
    failures = 0
    for case in range(50 if code.load > 1 else 150):
        rounds = rng.choice([1, 2, 7, 30])
        shop = Workshop(code, rounds, rng, ahead=rng.randrange(2))
        shop.run()
        if shop.failed or len(shop.finished) < rounds:
            # Nobody may see the share of another: then losses can be too many.
            assert any(code.masks), f"case {case}: finished {shop.finished} of {rounds}"
            failures += 1
        else:
            assert sorted(shop.finished) == list(range(rounds))
    assert failures < 100


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_healthy_run_computes_little_more_than_is_needed(name, ahead):
    code, rounds = CODES[name], 40
    shop = Workshop(code, rounds, random.Random(7), ahead=ahead, troubles=False)
    shop.run()
    assert sorted(shop.finished) == list(range(rounds))
    least = code.needs(code.blocks)
    if code.counts:
        assert shop.schedule.given <= least * rounds + 3 * code.n_workers
    else:
        assert shop.schedule.given <= len(code.shares) * rounds


def test_many_workers():
    code = codes.get("mds")(300, Grid(270, 1, 1))
    shop = Workshop(code, 5, random.Random(11), ahead=1, troubles=False)
    shop.run()
    assert sorted(shop.finished) == list(range(5))


def test_a_slow_worker_costs_little():
    """Two of three workers decode; one is five times slower, and what it finishes counts."""
    code = codes.get("mds")(3, Grid(2, 1, 1))
    times = {}
    for slow in (1.0, 5.0, 1e6):
        shop = Workshop(code, 32, random.Random(3), ahead=1, troubles=False)
        shop.speed[1] = slow
        shop.run()
        assert len(shop.finished) == 32
        times[slow] = shop.now
    assert times[1.0] <= 32 * 2 / 3 + 2
    assert times[5.0] <= 32 * 2 / 2.2 + 3
    assert times[1e6] >= 32 - 1
