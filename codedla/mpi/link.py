"""What the master remembers of a worker: its orders, its replies on their way in, signs of life."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.schedule import Task
from codedla.errors import WorkerError
from codedla.mpi.clock import Clock
from codedla.mpi.wire import ORDER_AT, Answer, Inbox, Received, Transfer

__all__ = ["RECEIPTS", "Given", "Link", "Receipt"]

RECEIPTS = 2
"""Replies of one worker on their way in, beyond which it is given no more to compute."""


class Given:
    """An order that a worker has been given and that is not completely answered.

    Attributes
    ----------
    task : Task
        Which share of which round.
    number : int
        The worker's answer repeats it.
    encoded, asked : float
        When sending it began, and when the call that began it had returned.
    sending : Transfer or None
        Until everything has left.
    answered : bool
        The answer's header has come; its payload may still be on its way.
    cancelled : bool
        The worker was told that nobody waits for it.
    """

    __slots__ = ("answered", "asked", "cancelled", "encoded", "number", "sending", "task")

    def __init__(self, task: Task, number: int, encoded: float, sending: Transfer | None) -> None:
        self.task, self.number = task, number
        self.encoded, self.asked = encoded, time.perf_counter()
        self.sending = sending
        self.answered = self.cancelled = False


class Link:
    """What the master knows of one worker.

    Attributes
    ----------
    orders : deque of Given
        What it was given and has not completely answered, in that order; it is at the first one.
    given : int
        Orders so far.
    receipts : list of Receipt
        Replies on their way in, in the order in which they arrive.
    strays : list of Transfer
        Payloads of answers that nobody asked for.
    heard, pinged : float
        When the worker last gave a sign of life, since when a PING is unanswered (0.0: none is).
    freed, computed : float
        When it last answered an order; until when it computed for that, by its traced answer.
    doubts : int
        How often in a row the worker has been found too long without a sign of life.
    frozen, overdue, mourned : bool
        No sign of life for too long; no answer to an order within the deadline; a round has
        reported one of these, or the worker's loss, already.
    """

    def __init__(self, worker: int, data: MPI.Comm) -> None:
        self.worker, self.rank = worker, worker + 1
        self.inbox = Inbox(data, self.rank)
        self.holds: set[int] = set()
        self.orders: deque[Given] = deque()
        self.given = 0
        self.receipts: list[Receipt] = []
        self.sends: list[Transfer] = []
        self.strays: list[Transfer] = []
        self.gone: str | None = None
        self.said_bye = False
        self.host, self.pid = "", 0
        self.clock = Clock()
        self.heard = self.freed = self.computed = time.perf_counter()
        self.pinged = 0.0
        self.doubts = 0
        self.frozen = self.overdue = False
        self.mourned = False

    def __str__(self) -> str:
        # The host is known from the greeting, which may still be on its way.
        return f"rank {self.rank} on {self.host}" if self.host else f"rank {self.rank}"

    @property
    def idle(self) -> bool:
        """Whether the worker is alive and owes nothing."""
        return self.gone is None and not self.orders

    def busy(self, ahead: int) -> bool:
        """Tell whether it has more than `ahead` orders to compute.

        One whose reply is arriving does not count, lest the worker be idle meanwhile; but a worker
        with `RECEIPTS` of these waits for the master.
        """
        if len(self.receipts) >= RECEIPTS:
            return True
        return sum(not given.answered for given in self.orders) > ahead

    def awaited(self, answer: Received) -> Given | None:
        """Return the order that this is the answer to, if it has none yet."""
        number = int(answer.words[ORDER_AT])
        for given in self.orders:
            if given.number == number and not given.answered:
                return given
        return None

    def current(self) -> Given | None:
        """Return the order that the worker is at: the first that it has not answered."""
        return next((given for given in self.orders if not given.answered), None)

    def done_with(self, given: Given) -> None:
        """Forget an order that is completely answered."""
        self.orders.remove(given)
        self.freed = time.perf_counter()

    def located(self, what: str) -> str:
        """Return a reason for a loss with the host in front, where it is known."""
        return f"on {self.host}: {what}" if self.host else what

    def task_error(self, details: dict[str, Any]) -> WorkerError:
        """Return what a task raised on this worker, as the master raises it."""
        return WorkerError(
            details["message"],
            rank=self.rank,
            host=self.host or "unknown host",
            traceback=details["traceback"],
        )

    def sign_of_life(self) -> bool:
        """Note one; return whether the worker was believed to be frozen."""
        was = self.frozen
        self.heard = time.perf_counter()
        self.pinged, self.doubts, self.frozen = 0.0, 0, False
        return was


class Receipt:
    """A reply's payload on its way in."""

    def __init__(
        self,
        transfer: Transfer,
        answer: Answer,
        given: Given,
        buffer: NDArray[Any],
        *,
        placed: bool,
    ) -> None:
        self.transfer, self.answer, self.given = transfer, answer, given
        self.buffer = buffer
        self.placed = placed
        """Whether the buffer is the decoder's target, not scratch memory."""
        self.began = time.perf_counter()
