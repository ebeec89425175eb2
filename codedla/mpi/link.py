"""What the master remembers: of every worker, of a reply on its way in, of the round under way."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.collector import Instruction
from codedla.engine.round import Event, Outcome, Round
from codedla.mpi.clock import Clock
from codedla.mpi.signals import Postponed
from codedla.mpi.wire import ORDER_AT, Answer, Inbox, Received, Transfer

__all__ = ["Link", "Receipt", "Running"]


class Link:
    """What the master knows of one worker.

    Attributes
    ----------
    busy_round, share : int
        The unanswered order; round 0: none.
    order : int
        The number of the last order; answers repeat it.
    strays : list of Transfer
        Payloads of answers that nobody asked for.
    asked, heard, pinged : float
        When the order was given, when the worker last gave a sign of life, since when a PING is
        unanswered (0.0: none is).
    doubts : int
        How often in a row the worker has been found too long without a sign of life.
    frozen, overdue, mourned : bool
        No sign of life for too long; no answer to the order within the deadline; a round has
        reported one of these, or the worker's loss, already.
    """

    def __init__(self, worker: int, data: MPI.Comm) -> None:
        self.worker, self.rank = worker, worker + 1
        self.inbox = Inbox(data, self.rank)
        self.holds: set[int] = set()
        self.busy_round = 0
        self.share = -1
        self.order = 0
        self.cancelled = False
        self.receipt: Receipt | None = None
        self.sends: list[Transfer] = []
        self.strays: list[Transfer] = []
        self.gone: str | None = None
        self.said_bye = False
        self.host, self.pid = "", 0
        self.clock = Clock()
        self.asked = self.heard = time.perf_counter()
        self.pinged = 0.0
        self.doubts = 0
        self.frozen = self.overdue = False
        self.mourned = False

    def __str__(self) -> str:
        # The host is known from the greeting, which may still be on its way.
        return f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"

    @property
    def idle(self) -> bool:
        """Whether a new order may be sent: alive, nothing unanswered, no reply being received."""
        return self.gone is None and self.busy_round == 0 and self.receipt is None

    def awaits(self, answer: Received) -> bool:
        """Tell whether this is the answer to the unanswered order."""
        return self.busy_round != 0 and int(answer.words[ORDER_AT]) == self.order

    def located(self, what: str) -> str:
        """Return a reason for a loss with the host in front, where it is known."""
        return f"on {self.host}: {what}" if self.host else what

    def sign_of_life(self) -> bool:
        """Note one; return whether the worker was believed to be frozen."""
        was = self.frozen
        self.heard = time.perf_counter()
        self.pinged, self.doubts, self.frozen = 0.0, 0, False
        return was


class Receipt:
    """A reply's payload on its way in."""

    def __init__(
        self, transfer: Transfer, answer: Answer, share: int, buffer: NDArray[Any], *, placed: bool
    ) -> None:
        self.transfer, self.answer = transfer, answer
        self.share, self.buffer = share, buffer
        self.placed = placed
        """Whether the buffer is the decoder's target, not scratch memory."""
        self.began = time.perf_counter()


class Running:
    """A round under way."""

    def __init__(self, job: Round, round_id: int) -> None:
        self.job, self.round_id = job, round_id
        self.start = time.perf_counter()
        self.outcome = Outcome(began=self.start)
        self.instruction = Instruction.WAIT
        self.untold: list[int] = []
        self.watched = self.start
        self.deserted: float | None = None
        """Since when no living worker is left that gives a sign of life."""

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
        if self.open and instruction is not Instruction.DROP:
            self.instruction = instruction

    def tell(self, postponed: Postponed) -> None:
        """Tell the caller's progress function of every reply; it may do, and raise, anything."""
        job = self.job
        while self.untold and job.progress is not None:
            with postponed.lifted():
                job.progress(self.untold.pop(0), job.collector.needed, len(job.shares))

    def abandoned(self, silent: Collection[int], living: bool, patience: float) -> bool:
        """Tell whether only silent workers have been left for longer than ``patience``."""
        if living or not silent:
            self.deserted = None
            return False
        if self.deserted is None:
            self.deserted = time.perf_counter()
        return time.perf_counter() - self.deserted > patience
