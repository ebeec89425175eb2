"""One round of the simulated pool: replies, losses and silence as events on a virtual clock."""

from __future__ import annotations

import heapq
import math
from enum import IntEnum
from typing import TYPE_CHECKING

from codedla.engine.collector import Instruction
from codedla.engine.round import SILENCE, Event, Outcome, Round

if TYPE_CHECKING:
    from codedla.pools.simulated import SimulatedPool

__all__ = ["Simulation"]


class _Kind(IntEnum):
    """What happens; at one moment losses come first."""

    LOST = 0
    SILENT = 1
    REPLY = 2
    LOOK = 3
    """Somebody may be late by now."""


class Simulation:
    """A round under way.

    Parameters
    ----------
    pool : SimulatedPool
        Gives the models of delay and fault, and computes.
    job : Round

    Attributes
    ----------
    outcome : Outcome
        Virtual times.
    """

    def __init__(self, pool: SimulatedPool, job: Round) -> None:
        self.pool, self.job, self.collector = pool, job, job.collector
        self.outcome = Outcome(began=pool.clock)
        self.now = 0.0
        self._events: list[tuple[float, _Kind, int, int]] = []
        self._free: list[int] = []
        self._began: dict[int, tuple[float, int]] = {}
        self._awake: set[int] = set()
        self._cancelled: set[tuple[int, int]] = set()
        self._looks: set[float] = set()
        self._instruction = Instruction.WAIT

    @property
    def _open(self) -> bool:
        return self._instruction not in (Instruction.FINISH, Instruction.FAIL)

    def run(self) -> Instruction:
        """Let things happen until the collector says finish or fail."""
        self.collector.lend(lambda: self.now)
        drawn = self.pool.drawn()
        for worker in range(self.pool.n_workers):
            self._offer(worker, float(drawn[worker]))
        limit = math.inf if self.job.timeout is None else self.job.timeout
        while self._open:
            if not self._events:
                self._give_up()
                break
            when, kind, worker, share = heapq.heappop(self._events)
            if when > limit:
                self.now = limit
                self._instruction = self.collector.deadline()
                break
            # A worker that never answers is noticed when nobody else is left to wait for.
            self.now = when if math.isfinite(when) else self.now
            self._happen(kind, worker, share)
            self._speculate()
            if self._open and self.collector.queue:
                free, self._free = self._free, []
                for worker in free:
                    self._offer(worker, None)
        self._note_unfinished()
        self.outcome.wait = self.outcome.total = self.now
        return self._instruction

    def _offer(self, worker: int, delay: float | None) -> None:
        """Give a free worker a share, if there is one, and foresee what becomes of it."""
        pool, plan = self.pool, self.pool.plans[worker]
        clock = pool.clock + self.now
        if plan.kill_after is not None and plan.kill_after <= clock:
            self._note("lost", worker)
            self._instruct(self.collector.lost(worker, "injected fault"))
            return
        share = self.collector.next(worker) if self._open else None
        if share is None:
            self._free.append(worker)
            return
        self._began[worker] = (self.now, share)
        if delay is None:
            delay = float(pool.drawn()[worker])
            pool.note_helper(self.job, share, worker, self.outcome, self.now)
        try:
            own = plan.start_task() if pool.faults else 0.0
        except RuntimeError as error:
            pool.fail(self.job, worker, error)
        finish = self.now + pool.task_seconds * plan.factor + own + delay
        killed = math.inf if plan.kill_after is None else plan.kill_after - pool.clock
        frozen = math.inf if plan.hang_after is None else plan.hang_after - pool.clock
        if min(killed, frozen) <= finish or not math.isfinite(finish):
            if killed <= frozen and math.isfinite(killed):
                self._expect(killed, _Kind.LOST, worker, share)
            else:
                self._expect(max(frozen + SILENCE, self.now), _Kind.SILENT, worker, share)
            finish = math.inf
        else:
            self._awake.add(worker)
            self._expect(finish, _Kind.REPLY, worker, share)
        if pool.deadline is not None and finish > self.now + pool.deadline:
            self._expect(self.now + pool.deadline, _Kind.SILENT, worker, share)

    def _expect(self, when: float, kind: _Kind, worker: int, share: int) -> None:
        heapq.heappush(self._events, (when, kind, worker, share))

    def _speculate(self) -> None:
        """Let the collector look for late workers now, and when the next one will be late."""
        self._instruct(self.collector.speculate())
        due = self.collector.due()
        if math.isfinite(due) and due not in self._looks:
            self._looks.add(due)
            self._expect(due, _Kind.LOOK, -1, -1)

    def _cancel(self, share: int) -> None:
        """Free whoever still computes a share that another has answered, and would answer it."""
        for worker in [w for w in self._awake if self._began[w][1] == share]:
            began, _ = self._began.pop(worker)
            self._awake.discard(worker)
            self._cancelled.add((worker, share))
            self.pool.note_span(self.outcome, worker, "compute", began, self.now, share)
            self._free.append(worker)
            # Who gives an order up is heard of.
            self._instruct(self.collector.back(worker))

    def _happen(self, kind: _Kind, worker: int, share: int) -> None:
        if (worker, share) in self._cancelled and kind is not _Kind.LOST:
            return
        match kind:
            case _Kind.REPLY:
                self._reply(worker, share)
            case _Kind.LOST:
                self._note("lost", worker)
                self._instruct(self.collector.lost(worker, "never answered"))
            case _Kind.SILENT:
                instruction = self.collector.silent(worker, "never answered")
                if instruction is not Instruction.DROP:
                    self._note("silent", worker)
                self._instruct(instruction)

    def _reply(self, worker: int, share: int) -> None:
        pool, job = self.pool, self.job
        if self.collector.wants(share):
            matrices = tuple(pool.fetch(worker, operand) for operand in job.operands(share))
            pool.compute(job, share, worker, matrices)
        began, _ = self._began.pop(worker)
        self._awake.discard(worker)
        pool.note_span(self.outcome, worker, "compute", began, self.now, share)
        self._instruct(pool.hand_over(job, share, worker, self.outcome, self.now))
        if self._open and self.collector.has_more(worker):
            self._offer(worker, 0.0)  # it is awake: only the first share starts late
        else:
            self._free.append(worker)
        # A wrong answer is none: whoever else computes the share goes on.
        if share in self.collector.redispatched and not self.collector.lacks(share):
            self._cancel(share)

    def _give_up(self) -> None:
        """Nothing will happen any more: who is silent now stays so."""
        for worker in sorted(self.collector.silent_workers):
            self._instruct(self.collector.lost(worker, "never answered"))
        if self._open:
            self._instruct(self.collector.deadline())

    def _instruct(self, instruction: Instruction) -> None:
        if self._open and instruction is not Instruction.DROP:
            self._instruction = instruction

    def _note_unfinished(self) -> None:
        """Note, for the time line, who was computing or lost at the end of the round."""
        gone = {e.worker: e.seconds for e in self.outcome.events if e.kind in ("lost", "silent")}
        for worker, (began, share) in self._began.items():
            end = max(gone.get(worker, self.now), began)
            self.pool.note_span(self.outcome, worker, "compute", began, end, share)
        for worker, since in gone.items():
            self.pool.note_span(self.outcome, worker, "lost", since, self.now)

    def _note(self, kind: str, worker: int, note: str = "") -> None:
        self.outcome.events.append(Event(self.now, kind, worker, note))
