"""The simulated pool: real arithmetic on a virtual clock, for thousands of workers.

Every worker's finishing time is drawn from a model; the replies are handed over in that order and
only those that are needed are computed. Losses, silence and the work that is given to others then
happen on the same clock. Times in the report are virtual seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.engine.arguments import positive
from codedla.engine.arrivals import decoding_times
from codedla.engine.collector import Instruction
from codedla.engine.delays import SEED
from codedla.engine.round import Outcome, Round
from codedla.engine.stragglers import Delays, Fault
from codedla.errors import UsageError
from codedla.pools.local import LocalPool
from codedla.pools.simulation import Simulation
from codedla.pools.streaming import Streaming
from codedla.pools.talking import Clock

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
    deadline : float, optional
        Virtual seconds within which a worker must reply, else its share is given to another.

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
        seed: int = SEED,
        task_seconds: float = 1e-3,
        deadline: float | None = None,
    ) -> None:
        super().__init__(n_workers, faults)
        self.rng = np.random.default_rng(seed)
        self.task_seconds = task_seconds
        self.clock = 0.0
        self.deadline = None if deadline is None else positive(deadline, "deadline")
        self._delays = delays.stream(range(n_workers)) if isinstance(delays, Delays) else delays

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        self.check_open()
        simulation = Simulation(self, job)
        instruction = simulation.run()
        self.clock += simulation.now
        if instruction is not Instruction.FINISH:
            raise job.collector.failure()
        self.mourn(job, simulation.outcome)
        job.decoder.finish(job.collector.responders)
        return simulation.outcome

    def run_all(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None = None,
    ) -> None:
        """Run several rounds at a time; see :class:`codedla.engine.round.Pool`."""
        self.check_open()
        streaming = Streaming(self, jobs, done, window)
        try:
            streaming.run()
        finally:
            self.clock += streaming.now

    def talk_clock(self) -> Clock:
        """Return the pool's virtual clock, by which every task has a delay of its own."""
        return Clock(
            self.task_seconds,
            lambda worker: float(self.drawn()[worker]),
            deadline=self.deadline,
            start=self.clock,
        )

    def pass_time(self, virtual: float) -> None:
        """Let the pool's clock go with that of a talk."""
        self.clock = virtual

    def round_times(self, code: Code, rounds: int) -> NDArray[np.float64]:
        """Draw when each of many rounds would finish, without computing anything.

        Of codes alone: shares are not computed twice, nor again when they are lost.

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
        shares = np.array(code.shares)
        homes = shares % code.n_workers
        # Workers compute one share after the other.
        tasks = 1 + shares // code.n_workers
        factors = np.array([plan.factor for plan in self.plans])[homes]
        drawn = np.array([self.drawn()[homes] for _ in range(rounds)])
        arrivals = tasks * self.task_seconds * factors + drawn.reshape(rounds, len(shares))
        return decoding_times(code, arrivals)

    def drawn(self) -> NDArray[np.float64]:
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
