"""What the master remembers: of every worker, of a reply on its way in, of the round under way."""

from __future__ import annotations

import time
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.mpi.signals import Postponed
from codedla.mpi.wire import Answer, Inbox, Transfer

__all__ = ["Link", "Receipt", "Running"]


class Link:
    """What the master knows of one worker."""

    def __init__(self, worker: int, control: MPI.Comm, data: MPI.Comm) -> None:
        self.worker, self.rank = worker, worker + 1
        self.inbox = Inbox(data, self.rank)
        self.holds: set[int] = set()
        self.busy_round = 0
        self.cancelled = False
        self.receipt: Receipt | None = None
        self.sends: list[Transfer] = []
        self.gone: str | None = None
        self.said_bye = False
        self.host, self.pid = "", 0

    def __str__(self) -> str:
        # The host is known from the greeting, which may still be on its way.
        return f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"

    @property
    def idle(self) -> bool:
        """Whether a new order may be sent: alive, nothing unanswered, no reply being received."""
        return self.gone is None and self.busy_round == 0 and self.receipt is None


class Receipt:
    """A reply's payload on its way in."""

    def __init__(
        self, transfer: Transfer, answer: Answer, target: NDArray[Any] | None, buffer: NDArray[Any]
    ) -> None:
        self.transfer, self.answer = transfer, answer
        self.target, self.buffer = target, buffer

    @property
    def in_place(self) -> bool:
        """Whether the payload lands where it belongs."""
        return self.target is self.buffer


class Running:
    """A round under way."""

    def __init__(self, job: Round, round_id: int) -> None:
        self.job, self.round_id = job, round_id
        self.outcome = Outcome()
        self.start = time.perf_counter()
        self.instruction = Instruction.WAIT
        self.untold: list[int] = []

    @property
    def open(self) -> bool:
        """Whether replies are still wanted."""
        return self.instruction not in (Instruction.FINISH, Instruction.FAIL)

    def elapsed(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self.start

    def instruct(self, instruction: Instruction, worker: int, kind: str, note: str = "") -> None:
        """Note an event and the collector's answer to it."""
        self.outcome.events.append(Event(self.elapsed(), kind, worker, note))
        if self.open:
            self.instruction = instruction

    def tell(self, postponed: Postponed) -> None:
        """Tell the caller's progress function of every reply; it may do, and raise, anything."""
        job = self.job
        while self.untold and job.progress is not None:
            with postponed.lifted():
                job.progress(self.untold.pop(0), job.collector.needed, len(job.workers))
