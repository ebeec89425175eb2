"""A round under way, as the master sees it."""

from __future__ import annotations

import time
from collections.abc import Collection

from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.mpi.signals import Postponed
from codedla.mpi.tracing import Tracer

__all__ = ["Running"]


class Running:
    """A round under way.

    Parameters
    ----------
    job : Round
    key : int
        Its id on the wire.
    index : int
        Which of the rounds it is that were asked for together.
    trace : bool
        Whether to note what takes how long.

    Attributes
    ----------
    decided : float or None
        When the replies first sufficed.
    untold : list of int
        Numbers of replies that the progress function is still to be told.
    deserted : float or None
        Since when no living worker is left that gives a sign of life.
    """

    def __init__(self, job: Round, key: int, index: int, *, trace: bool) -> None:
        self.job, self.key, self.index = job, key, index
        self.start = time.perf_counter()
        self.outcome = Outcome(began=self.start)
        self.instruction = Instruction.WAIT
        self.decided: float | None = None
        self.untold: list[int] = []
        self.deserted: float | None = None
        self.tracer = Tracer(self.outcome) if trace else None

    @property
    def open(self) -> bool:
        """Whether replies are still wanted."""
        return self.instruction not in (Instruction.FINISH, Instruction.FAIL)

    @property
    def failed(self) -> bool:
        """Whether the round cannot be completed."""
        return self.instruction is Instruction.FAIL

    def elapsed(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self.start

    def note(self, worker: int, kind: str, text: str = "") -> None:
        """Note an event."""
        self.outcome.events.append(Event(self.elapsed(), kind, worker, text))

    def instruct(self, instruction: Instruction) -> bool:
        """Take the collector's answer to an event; return whether the replies now suffice."""
        if not self.open or instruction is Instruction.DROP:
            return False
        self.instruction = instruction
        if instruction is Instruction.FINISH:
            self.decided = time.perf_counter()
        return instruction is Instruction.FINISH

    def tell(self, postponed: Postponed) -> None:
        """Tell the caller's progress function of every reply; it may do, and raise, anything."""
        job = self.job
        while self.untold and job.progress is not None:
            with postponed.lifted():
                job.progress(self.untold.pop(0), job.collector.needed, len(job.shares))

    def overtime(self) -> bool:
        """Tell whether the caller's time for the round is over."""
        return self.job.timeout is not None and self.elapsed() > self.job.timeout

    def abandoned(self, silent: Collection[int], living: bool, patience: float) -> bool:
        """Tell whether only silent workers have been left for longer than ``patience``."""
        if living or not silent:
            self.deserted = None
            return False
        if self.deserted is None:
            self.deserted = time.perf_counter()
        return time.perf_counter() - self.deserted > patience

    def measure(self, decided: float, began: float, end: float) -> None:
        """Note how long what took, when the round is over.

        Parameters
        ----------
        decided, began, end : float
            When the replies sufficed, when the last of the decoding began and ended.
        """
        outcome = self.outcome
        outcome.decode = end - began
        outcome.after_threshold = end - decided
        outcome.total = end - self.start
        outcome.wait = max(decided - self.start - outcome.encode - outcome.send, 0.0)
