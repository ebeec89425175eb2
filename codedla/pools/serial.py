"""The serial pool: every task in this process, in order. Try a code without MPI."""

from __future__ import annotations

import time

from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.pools.local import LocalPool
from codedla.pools.talking import Clock

__all__ = ["SerialPool"]

_TASK_SECONDS = 1e-3
_OVER = (Instruction.FINISH, Instruction.FAIL)


class SerialPool(LocalPool):
    """Compute the tasks one after the other; stop as soon as the replies suffice.

    A worker with a ``kill`` or ``hang`` fault is lost; ``delay``, ``slow`` and ``random`` make it
    come last (nobody sleeps here). The time-out is looked at between tasks.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> A, B = np.eye(4), np.arange(8.0).reshape(4, 2)
    >>> with codedla.SerialPool(6) as pool:
    ...     C = codedla.matmul(A, B, pool=pool, tolerate=2)
    >>> bool(np.allclose(C, B))
    True
    """

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        self.check_open()
        start = time.perf_counter()
        outcome = Outcome(began=start)
        workers = self._muster(job, outcome)
        instruction = self._collect(job, workers, outcome)
        if instruction is not Instruction.FINISH:
            raise job.collector.failure()
        decided = time.perf_counter()
        job.decoder.finish(job.collector.responders)
        end = time.perf_counter()
        self.mourn(job, outcome)
        self.note_span(outcome, -1, "decode", decided - start, end - start)
        outcome.decode = outcome.after_threshold = end - decided
        outcome.total = end - start
        return outcome

    def talk_clock(self) -> Clock:
        """Return a clock by which each task takes a while, and late ones as long as they sleep."""
        return Clock(_TASK_SECONDS, lambda worker: 0.0, real=True)

    def _muster(self, job: Round, outcome: Outcome) -> list[int]:
        """Return the workers in the order in which they will be ready; report the lost ones."""
        ready: list[tuple[float, int]] = []
        for worker, plan in enumerate(self.plans):
            if plan.kill_after is not None or plan.hang_after is not None:
                outcome.events.append(Event(0.0, "lost", worker, "injected"))
                job.collector.lost(worker, "injected fault")
            elif job.collector.has_more(worker):
                try:
                    ready.append((plan.start_task() + (plan.factor - 1.0), worker))
                except RuntimeError as error:
                    self.fail(job, worker, error)
            else:
                ready.append((0.0, worker))
        return [worker for _, worker in sorted(ready)]

    def _collect(self, job: Round, workers: list[int], outcome: Outcome) -> Instruction:
        """Let the workers compute in turns until the replies suffice."""
        collector = job.collector
        busy = True
        while busy and not collector.finished:
            busy = False
            for worker in workers:
                share = collector.next(worker)
                if share is None:
                    continue
                busy = True
                waited = time.perf_counter() - outcome.began
                if job.timeout is not None and waited > job.timeout:
                    return collector.deadline()
                instruction = self._serve(job, share, worker, outcome)
                if instruction in _OVER:
                    return instruction
        return Instruction.FAIL

    def _serve(self, job: Round, share: int, worker: int, outcome: Outcome) -> Instruction:
        """Encode, compute and hand over one reply."""
        began = time.perf_counter()
        matrices = tuple(self.fetch(worker, operand) for operand in job.operands(share))
        encoded = time.perf_counter()
        self.compute(job, share, worker, matrices)
        computed = time.perf_counter()
        outcome.encode += encoded - began
        outcome.wait += computed - encoded
        start = outcome.began
        self.note_span(outcome, -1, "encode", began - start, encoded - start, share)
        self.note_span(outcome, worker, "compute", encoded - start, computed - start, share)
        return self.hand_over(job, share, worker, outcome, computed - start)
