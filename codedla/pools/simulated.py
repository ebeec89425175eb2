"""The simulated pool: real arithmetic on a virtual clock, for thousands of workers.

Every worker's finishing time is drawn from a model; the replies are handed over in that order and
only those that are needed are computed. Times in the report are virtual seconds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.engine.stragglers import Delays, Fault
from codedla.errors import UsageError
from codedla.pools.local import LocalPool

__all__ = ["SimulatedPool"]

DelayModel = Delays | Callable[[np.random.Generator, int], NDArray[np.float64]]


class SimulatedPool(LocalPool):
    """Workers on a virtual clock.

    Parameters
    ----------
    n_workers : int
    delays : Delays or callable, optional
        ``delays(rng, n)`` or ``delays.sample(rng, n)`` returns ``n`` seconds of delay for one
        round; ``inf`` is a worker that never answers. None: no delay.
    faults : iterable of Fault
        As for the MPI pool; ``kill`` and ``hang`` count in virtual seconds since the pool began.
    seed : int
        Seed of the delays.
    task_seconds : float
        Virtual time of one task without delay.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> from codedla.engine.stragglers import Delays
    >>> A, x = np.ones((100, 5)), np.ones(5)
    >>> with codedla.SimulatedPool(50, delays=Delays("exp", (0.1,)), seed=3) as pool:
    ...     y, report = codedla.matvec(A, x, pool=pool, tolerate=5, return_report=True)
    >>> len(report.responders), bool(np.allclose(y, 5))
    (45, True)
    """

    def __init__(
        self,
        n_workers: int,
        delays: DelayModel | None = None,
        faults: Iterable[Fault] = (),
        seed: int = 20177,
        task_seconds: float = 1e-3,
    ) -> None:
        super().__init__(n_workers, faults)
        self.rng = np.random.default_rng(seed)
        self.task_seconds = task_seconds
        self.clock = 0.0
        self._delays = delays.sample if isinstance(delays, Delays) else delays

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        self.check_open()
        outcome = Outcome()
        arrivals, losses = self._timetable(job)
        deadline = math.inf if job.timeout is None else job.timeout
        replies = [(t, 1, w) for w, t in arrivals.items()]
        events = sorted(replies + [(t, 0, w) for w, t in losses.items()])
        instruction, now = Instruction.WAIT, 0.0
        for when, is_reply, worker in events:
            if when > deadline:
                now = deadline
                instruction = job.collector.deadline()
                break
            now = when
            instruction = self._event(job, outcome, when, worker, bool(is_reply))
            if instruction in (Instruction.FINISH, Instruction.FAIL):
                break
        else:
            if instruction is not Instruction.FINISH:
                instruction = job.collector.deadline()
        self.clock += now
        if instruction is not Instruction.FINISH:
            raise job.collector.failure()
        job.decoder.finish(job.collector.responders)
        outcome.wait = outcome.total = now
        return outcome

    def round_times(self, code: Code, rounds: int) -> NDArray[np.float64]:
        """Draw when each of many rounds would finish, without computing anything.

        Parameters
        ----------
        code : Code
            Decides how many, or which, replies suffice.
        rounds : int

        Returns
        -------
        ndarray (rounds,)
            Virtual seconds; ``inf`` where the replies that ever come do not suffice.
        """
        self.check_open()
        factors = np.array([plan.factor for plan in self.plans[: code.active]])
        times = np.empty(rounds)
        for index in range(rounds):
            arrivals = self.task_seconds * factors + self._drawn()[: code.active]
            if type(code).decodable is Code.decodable:
                # Any K replies suffice: the K-th arrival decides.
                times[index] = np.partition(arrivals, code.threshold - 1)[code.threshold - 1]
                continue
            times[index] = _first_decodable(code, arrivals)
        return times

    def _drawn(self) -> NDArray[np.float64]:
        """Draw one round's random delays."""
        if self._delays is None:
            return np.zeros(self.n_workers)
        drawn = np.asarray(self._delays(self.rng, self.n_workers), dtype=float)
        if drawn.shape != (self.n_workers,):
            raise UsageError(
                f"delays(rng, n) must return n numbers; got shape {drawn.shape} for "
                f"n = {self.n_workers}; give one per worker"
            )
        return drawn

    def _timetable(self, job: Round) -> tuple[dict[int, float], dict[int, float]]:
        """Draw when each worker answers, and when it is found lost instead."""
        workers = list(job.workers)
        drawn = self._drawn()
        arrivals: dict[int, float] = {}
        losses: dict[int, float] = {}
        for worker in workers:
            plan = self.plans[worker]
            try:
                own = plan.start_task() if self.faults else 0.0
            except RuntimeError as error:
                self.fail(job, worker, error)
            finish = self.task_seconds * plan.factor + own + float(drawn[worker])
            gone = min(
                (t for t in (plan.kill_after, plan.hang_after) if t is not None), default=math.inf
            )
            if self.clock + finish >= gone or not math.isfinite(finish):
                losses[worker] = max(gone - self.clock, 0.0) if math.isfinite(gone) else math.inf
            else:
                arrivals[worker] = finish
        # A worker that never answers is noticed when nobody else is left to wait for.
        last = max(arrivals.values(), default=0.0)
        return arrivals, {w: t if math.isfinite(t) else last for w, t in losses.items()}

    def _event(
        self, job: Round, outcome: Outcome, when: float, worker: int, is_reply: bool
    ) -> Instruction:
        if not is_reply:
            outcome.events.append(Event(when, "lost", worker))
            return job.collector.lost(worker, "never answered")
        matrices = job.operands(worker)
        a, b = self.fetch(worker, matrices[0]), self.fetch(worker, matrices[1])
        self.compute(job, worker, (a, b))
        return self.hand_over(job, worker, outcome, when)


def _first_decodable(code: Code, arrivals: NDArray[np.float64]) -> float:
    """Return when the replies first suffice: by bisection, as more replies never do less."""
    order = np.argsort(arrivals, kind="stable").tolist()
    if not code.decodable(order):
        return math.inf

    def decodes(count: int) -> bool:
        return code.decodable(order[:count])

    count = bisect.bisect_left(range(len(order) + 1), True, key=decodes)
    return float(arrivals[order[count - 1]])
