"""The serial pool: every task in this process, in order. Try a code without MPI."""

from __future__ import annotations

import time

from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.pools.local import LocalPool

__all__ = ["SerialPool"]


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
        outcome = Outcome()
        start = time.perf_counter()
        instruction = Instruction.WAIT
        punctual: list[int] = []
        late: list[tuple[float, int]] = []
        for worker in job.workers:
            plan = self.plans[worker]
            if plan.kill_after is not None or plan.hang_after is not None:
                outcome.events.append(Event(0.0, "lost", worker, "injected"))
                instruction = job.collector.lost(worker, "injected fault")
                if instruction is Instruction.FAIL:
                    raise job.collector.failure()
                continue
            try:
                delay = plan.start_task() + (plan.factor - 1.0)
            except RuntimeError as error:
                self.fail(job, worker, error)
            if delay > 0:
                late.append((delay, worker))
            else:
                punctual.append(worker)
        for worker in punctual + [worker for _, worker in sorted(late)]:
            if instruction in (Instruction.FINISH, Instruction.FAIL):
                break
            if job.timeout is not None and time.perf_counter() - start > job.timeout:
                instruction = job.collector.deadline()
                break
            instruction = self._serve(job, worker, outcome, start)
        if instruction is not Instruction.FINISH:
            raise job.collector.failure()
        decided = time.perf_counter()
        job.decoder.finish(job.collector.responders)
        end = time.perf_counter()
        outcome.decode = outcome.after_threshold = end - decided
        outcome.total = end - start
        return outcome

    def _serve(self, job: Round, worker: int, outcome: Outcome, start: float) -> Instruction:
        """Encode, compute and hand over one worker's reply."""
        began = time.perf_counter()
        a, b = (self.fetch(worker, operand) for operand in job.operands(worker))
        encoded = time.perf_counter()
        outcome.encode += encoded - began
        self.compute(job, worker, (a, b))
        computed = time.perf_counter()
        outcome.wait += computed - encoded
        return self.hand_over(job, worker, outcome, computed - start)
