"""Several rounds of the simulated pool at once, on its virtual clock, as its schedule says."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codedla.engine.collector import Collector, Instruction
from codedla.engine.round import SILENCE, Event, Outcome, Round
from codedla.engine.schedule import Schedule, Task

if TYPE_CHECKING:
    from codedla.pools.simulated import SimulatedPool

__all__ = ["Streaming"]


class _Kind(IntEnum):
    """What happens; at one moment losses come first."""

    LOST = 0
    SILENT = 1
    REPLY = 2
    TIMEOUT = 3
    LOOK = 4
    """Somebody may be late by now."""


@dataclass
class _Open:
    """A round under way; ``start`` in seconds of the stream."""

    index: int
    job: Round
    start: float
    delays: NDArray[np.float64]
    outcome: Outcome
    asked: set[int] = field(default_factory=set)
    """Workers that have had a task of the round: only the first one starts late."""


class Streaming:
    """Rounds under way at once.

    Parameters
    ----------
    pool : SimulatedPool
        Gives the models of delay and fault, and computes.
    jobs, done, window
        See :meth:`codedla.engine.round.Pool.run_all`.

    Attributes
    ----------
    now : float
        Virtual seconds since the beginning.
    """

    def __init__(
        self,
        pool: SimulatedPool,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None,
    ) -> None:
        self.pool, self.now = pool, 0.0
        self._jobs, self._done = iter(jobs), done
        self._schedule = Schedule(pool.n_workers, self._draw, window=window)
        self._rounds: dict[int, _Open] = {}
        self._drawn = 0
        self._events: list[tuple[float, _Kind, int, int]] = []
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._asleep: set[int] = set()
        """Workers whose task will never be answered."""
        self._orders: dict[int, Task] = {}
        """By number: an event of an order that was cancelled means nothing."""
        self._silent: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self._wrong: dict[int, str] = {}

    def run(self) -> None:
        """Let things happen until all rounds are decoded.

        Raises
        ------
        NotDecodable, WorkerError
            One of them cannot be.
        """
        while self._schedule.ensure():
            for worker in range(self.pool.n_workers):
                if worker not in self._tasks and worker not in self._lost:
                    self._offer(worker)
            if not self._schedule.ensure():
                return
            if not self._events:
                self._give_up()
                continue
            when, kind, worker, number = heapq.heappop(self._events)
            # A worker that never answers is noticed when nobody else is left to wait for.
            self.now = when if math.isfinite(when) else self.now
            self._happen(kind, worker, number)
            self._speculate()

    # -- rounds --------------------------------------------------------------------------------

    def _draw(self) -> tuple[int, Collector] | None:
        job = next(self._jobs, None)
        if job is None:
            return None
        key, collector = self._drawn, job.collector
        self._drawn += 1
        outcome = Outcome(began=self.pool.clock + self.now)
        self._rounds[key] = _Open(key, job, self.now, self.pool.drawn(), outcome)
        collector.lend(lambda: self.now)
        if job.timeout is not None:
            self._expect(self.now + job.timeout, _Kind.TIMEOUT, -1, key)
        for away, tell in (
            (self._lost, collector.lost),
            (self._silent, collector.silent),
            (self._wrong, lambda worker, why: collector.refuse(-1, worker, why)),
        ):
            for worker, reason in away.items():
                self._instruct(key, tell(worker, reason))
        return key, collector

    def _instruct(self, key: int, instruction: Instruction) -> None:
        """Do what a collector says."""
        if instruction is Instruction.FAIL:
            raise self._rounds[key].job.collector.failure()
        if instruction is not Instruction.FINISH:
            return
        entry = self._rounds.pop(key)
        for worker in self._schedule.close(key):
            if worker not in self._asleep:
                self._free(worker)
        entry.job.decoder.finish(entry.job.collector.responders)
        self.pool.mourn(entry.job, entry.outcome)
        entry.outcome.wait = entry.outcome.total = self.now - entry.start
        self._done(entry.index, entry.outcome)

    def _everywhere(self, worker: int, kind: str, tell: Callable[[Collector], Instruction]) -> None:
        """Tell all open rounds of something that befell a worker."""
        for position, key in enumerate(list(self._rounds)):
            if position == 0 and kind:
                self._note(self._rounds[key], kind, worker)
            self._instruct(key, tell(self._rounds[key].job.collector))
        self._schedule.changed()

    def _speculate(self) -> None:
        for entry in list(self._rounds.values()):
            collector = entry.job.collector
            if collector.speculate() is Instruction.REDISPATCH:
                self._schedule.changed()
            due = collector.due()
            if self.now < due < math.inf:
                self._expect(due, _Kind.LOOK, -1, -1)

    def _give_up(self) -> None:
        """Nothing will happen any more: who is silent now stays so."""
        for key, entry in list(self._rounds.items()):
            collector = entry.job.collector
            for worker in sorted(collector.silent_workers):
                self._instruct(key, collector.lost(worker, "never answered"))
            self._instruct(key, collector.deadline())
        self._schedule.changed()

    # -- orders --------------------------------------------------------------------------------

    def _offer(self, worker: int) -> None:
        """Give a free worker a task, if there is one, and foresee what becomes of it."""
        pool, plan = self.pool, self.pool.plans[worker]
        killed = math.inf if plan.kill_after is None else plan.kill_after - pool.clock
        frozen = math.inf if plan.hang_after is None else plan.hang_after - pool.clock
        if killed <= self.now:
            self._die(worker)
            return
        task = self._schedule.next(worker)
        if task is None:
            return
        entry = self._rounds[task.key]
        delay = 0.0 if worker in entry.asked else float(entry.delays[worker])
        entry.asked.add(worker)
        pool.note_helper(entry.job, task.share, worker, entry.outcome, self.now - entry.start)
        try:
            own = plan.start_task() if pool.faults else 0.0
        except RuntimeError as error:
            pool.fail(entry.job, worker, error)
        self._tasks[worker] = task, self.now
        number = len(self._orders)
        self._orders[number] = task
        finish = self.now + pool.task_seconds * plan.factor + own + delay
        if min(killed, frozen) <= finish or not math.isfinite(finish):
            self._asleep.add(worker)
            if killed <= frozen and math.isfinite(killed):
                self._expect(killed, _Kind.LOST, worker, number)
            else:
                self._expect(max(frozen + SILENCE, self.now), _Kind.SILENT, worker, number)
            finish = math.inf
        else:
            self._expect(finish, _Kind.REPLY, worker, number)
        if pool.deadline is not None and finish > self.now + pool.deadline:
            self._expect(self.now + pool.deadline, _Kind.SILENT, worker, number)

    def _free(self, worker: int) -> None:
        task, began = self._tasks.pop(worker)
        entry = self._rounds.get(task.key)
        if entry is not None:
            start, end = began - entry.start, self.now - entry.start
            self.pool.note_span(entry.outcome, worker, "compute", start, end, task.share)
        self._schedule.answered(worker, task)

    def _expect(self, when: float, kind: _Kind, worker: int, number: int) -> None:
        heapq.heappush(self._events, (when, kind, worker, number))

    # -- what happens --------------------------------------------------------------------------

    def _happen(self, kind: _Kind, worker: int, number: int) -> None:
        if kind is _Kind.TIMEOUT:
            if number in self._rounds:
                self._instruct(number, self._rounds[number].job.collector.deadline())
            return
        if kind is _Kind.LOOK or worker in self._lost:
            return
        if kind is _Kind.LOST:
            self._die(worker)
            return
        held = self._tasks.get(worker)
        if held is None or held[0] is not self._orders[number]:
            return  # cancelled
        if kind is _Kind.REPLY:
            self._reply(worker, held[0])
        elif worker not in self._silent:
            self._silent[worker] = "never answered"
            self._everywhere(worker, "silent", lambda c: c.silent(worker, "never answered"))

    def _die(self, worker: int) -> None:
        self._lost[worker] = "injected fault"
        self._silent.pop(worker, None)
        self._tasks.pop(worker, None)
        self._schedule.lost(worker)
        self._everywhere(worker, "lost", lambda c: c.lost(worker, "injected fault"))

    def _reply(self, worker: int, task: Task) -> None:
        pool, entry = self.pool, self._rounds.get(task.key)
        instruction = Instruction.DROP
        if entry is not None:
            job, collector = entry.job, entry.job.collector
            if collector.wants(task.share):
                matrices = tuple(pool.fetch(worker, each) for each in job.operands(task.share))
                pool.compute(job, task.share, worker, matrices)
            seconds = self.now - entry.start
            instruction = pool.hand_over(job, task.share, worker, entry.outcome, seconds)
            for other in self._rivals(worker, task) if task.share in collector.redispatched else ():
                self._free(other)
        self._free(worker)
        if self._silent.pop(worker, None) is not None:
            self._everywhere(worker, "back", lambda c: c.back(worker))
        if entry is None:
            return
        if worker in entry.job.collector.wrong and worker not in self._wrong:
            self._wrong[worker] = "answered wrongly"
            self._everywhere(worker, "", lambda c: c.refuse(-1, worker, "answered wrongly"))
        if task.key in self._rounds:
            self._instruct(task.key, instruction)

    def _rivals(self, worker: int, task: Task) -> list[int]:
        """Return the others that compute the same share and would answer it."""
        return [
            other
            for other, (theirs, _) in self._tasks.items()
            if theirs == task and other != worker and other not in self._asleep
        ]

    def _note(self, entry: _Open, kind: str, worker: int, note: str = "") -> None:
        entry.outcome.events.append(Event(self.now - entry.start, kind, worker, note))
