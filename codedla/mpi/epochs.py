"""A talk over MPI: one order at a time for each worker, nobody waited for.

It listens to the lines in the place of a session (:mod:`codedla.mpi.session`), and has neither
rounds nor a schedule: what is to be done next is decided by whoever holds the talk. Between two
waits nobody looks at the lines but the beats' thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from codedla.engine.converse import Heard
from codedla.engine.round import Operand, Outcome
from codedla.engine.schedule import Task
from codedla.engine.work import Work, by_name, pack_function
from codedla.errors import PoolClosed, UsageError
from codedla.mpi.backoff import Backoff
from codedla.mpi.dispatch import dispatch
from codedla.mpi.lines import Lines
from codedla.mpi.link import Given, Link, Receipt
from codedla.mpi.signals import Postponed
from codedla.mpi.watch import Watch, frozen_for
from codedla.mpi.wire import Answer

__all__ = ["PATIENCE", "MPITalk"]

logger = logging.getLogger("codedla")

PATIENCE = 30.0
"""Seconds after which a talk is deserted in which only silent workers owe an answer."""


class _Errand:
    """An order, as :func:`codedla.mpi.dispatch.dispatch` looks at the round of one."""

    tracer = None

    def __init__(self, operands: Sequence[Operand], operation: Work, outcome: Outcome) -> None:
        self.job, self.outcome = self, outcome
        self.operation, self._operands = operation, operands

    def parcel(self, share: int) -> Sequence[Operand]:
        """Return what travels."""
        return self._operands


class MPITalk:
    """A talk with the workers of a communicator; see :class:`codedla.engine.converse.Talk`.

    Parameters
    ----------
    lines : Lines
    function : callable
    new_key : callable
        Gives each order its id on the wire; they ascend.
    function_key : int
        Under which the workers keep the function.
    turn : callable
        Context in which the lines may be used, with signal handlers held back.
    deadline : float or None
        Seconds within which a worker must answer its order, else it is silent.
    over : callable
        ``over(function_key)`` is called when the talk ends.

    Attributes
    ----------
    n_workers : int
    """

    def __init__(
        self,
        lines: Lines,
        function: Callable[..., Any],
        *,
        new_key: Callable[[], int],
        function_key: int,
        turn: Callable[[], AbstractContextManager[Postponed]],
        deadline: float | None,
        over: Callable[[int], None],
    ) -> None:
        packed = pack_function(function)
        self.n_workers = len(lines.links)
        self._function = Operand(function_key, lambda: packed)
        self._lines, self._links = lines, lines.links
        self._new_key, self._turn, self._over = new_key, turn, over
        self._operation = by_name("call")
        self._outcome = Outcome()
        self._watch = Watch(lines, deadline)
        self._heard: deque[Heard] = deque()
        self._error: Exception | None = None
        self._closed = False
        self._deserted_since: float | None = None
        # Orders of this talk that are wanted, by their ids on the wire.
        self._wanted: dict[int, tuple[Link, Sequence[Operand]]] = {}
        self._silent: set[int] = set()
        self._introduce()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bytes_sent(self) -> int:
        """Bytes of payload that were sent to workers."""
        return self._outcome.sent

    @property
    def bytes_received(self) -> int:
        """Bytes of payload of the replies."""
        return self._outcome.received

    def now(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()

    def order(self, worker: int, operands: Sequence[Operand]) -> int:
        """Let a worker call the function; see :meth:`codedla.engine.converse.Talk.order`."""
        with self._turn():
            self._check_open()
            link = self._links[worker]
            key = self._new_key()
            if link.gone is not None:
                return key  # which is heard of, or was
            if link.orders:
                raise UsageError(
                    "a worker is given an order when it has answered the last one; got one for "
                    f"worker {worker}, which has not; wait until it is heard of as free or by a "
                    "reply"
                )
            self._wanted[key] = link, operands
            errand: Any = _Errand([*operands, self._function], self._operation, self._outcome)
            dispatch(self._lines, link, errand, Task(key, worker), trace=False)
            return key

    def cancel(self, worker: int) -> None:
        """Void a worker's order; see :meth:`codedla.engine.converse.Talk.cancel`."""
        with self._turn():
            self._check_open()
            self._void(self._links[worker])
            self._lines.cancel(self._links[worker])

    def wait(self, until: float | None = None) -> Heard | None:
        """Return what is heard next; see :meth:`codedla.engine.converse.Talk.wait`."""
        with self._turn() as postponed:
            self._check_open()
            backoff = Backoff()
            while not self._heard:
                postponed.deliver()
                happened = self._lines.poll()
                self._raise()
                if self._heard:
                    break
                if until is not None and time.perf_counter() >= until:
                    return None
                if not happened:
                    self._look_around()
                    if not self._heard and (why := self._deserted()):
                        return Heard("deserted", -1, seconds=self.now(), reason=why)
                if happened:
                    backoff.reset()
                else:
                    backoff.wait(moving=self._lines.moving)
            return self._heard.popleft()

    def restart(self) -> None:
        """Begin again; see :meth:`codedla.engine.converse.Talk.restart`."""
        with self._turn():
            self._check_open()
            self._wanted.clear()
            self._heard.clear()
            self._silent.clear()
            self._error = None
            for link in self._links:
                link.overdue = False
                self._lines.cancel(link)
            self._introduce()

    def close(self) -> None:
        """End the talk without waiting for anybody; idempotent."""
        with self._turn():
            if self._closed:
                return
            self._closed = True
            self._wanted.clear()
            for link in self._links:
                self._lines.cancel(link)
            self._over(self._function.key)

    # -- what comes in (see codedla.mpi.lines.Listener) ------------------------------------------

    def place(self, link: Link, given: Given, answer: Answer) -> NDArray[Any] | None:
        """Return memory of a reply's own, where it is wanted."""
        return np.empty(answer.shape, answer.dtype) if given.task.key in self._wanted else None

    def replied(self, link: Link, given: Given, answer: Answer, reply: NDArray[Any]) -> None:
        """Take a complete reply; whose order was cancelled meanwhile is free."""
        self._heard_of(link)
        if self._wanted.pop(given.task.key, None) is None:
            self._free(link)
            return
        self._outcome.received += reply.nbytes
        own = reply.copy() if answer.inline else reply
        self._say("reply", link, number=given.task.key, reply=own)

    def received(self, link: Link, receipt: Receipt) -> None:
        """Take no note: :meth:`replied` follows."""

    def sent(self, link: Link, given: Given) -> None:
        """Take no note: when an order has left changes nothing here."""

    def abandoned(self, link: Link, given: Given) -> None:
        """Take note that a worker has given up a cancelled order."""
        self._heard_of(link)
        self._wanted.pop(given.task.key, None)
        self._free(link)

    def error(self, link: Link, given: Given, details: dict[str, Any]) -> None:
        """Go on without a rank that lacks memory or a file; else remember what a task raised."""
        self._heard_of(link)
        wanted = self._wanted.pop(given.task.key, None)
        if wanted is None:
            self._free(link)
            return
        mine = "out of memory" if details["memory"] else details["unreadable"]
        if mine:
            # It may hold none of what it was sent.
            link.holds.difference_update(operand.key for operand in wanted[1])
            self._say("lost", link, reason=link.located(mine))
        else:
            self._error = self._error or link.task_error(details)
            self._free(link)

    def lost(self, link: Link) -> None:
        """Take note that a worker will not be heard of again."""
        self._void(link)
        self._silent.discard(link.worker)
        self._say("lost", link, reason=link.gone or "")

    def back(self, link: Link) -> None:
        """Take note of a sign of life of a worker that was believed to be frozen."""
        if not link.overdue and link.worker in self._silent:
            self._silent.discard(link.worker)
            self._say("back", link)

    # -- inside --------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Say of every worker how things are with it."""
        for link in self._links:
            if link.gone is not None:
                self._say("lost", link, reason=link.gone)
                continue
            if link.frozen:
                self._fall_silent(link, frozen_for())
            self._free(link)

    def _say(
        self,
        kind: Literal["free", "reply", "lost", "silent", "back"],
        link: Link,
        *,
        number: int = 0,
        reply: NDArray[Any] | None = None,
        reason: str = "",
    ) -> None:
        self._heard.append(Heard(kind, link.worker, number, reply, self.now(), reason))

    def _free(self, link: Link) -> None:
        if not link.orders:
            self._say("free", link)

    def _heard_of(self, link: Link) -> None:
        """Take an overdue worker back that has answered something."""
        if link.overdue:
            link.overdue = False
            self.back(link)

    def _fall_silent(self, link: Link, reason: str) -> None:
        if link.worker not in self._silent:
            self._silent.add(link.worker)
            self._say("silent", link, reason=link.located(reason))

    def _void(self, link: Link) -> None:
        self._wanted = {k: wanted for k, wanted in self._wanted.items() if wanted[0] is not link}

    def _look_around(self) -> None:
        """Look now and then at workers that owe an answer."""
        if self._watch.due():
            for link, reason in self._watch.look():
                logger.warning("%s is not waited for: %s", link, reason)
                self._fall_silent(link, reason)

    def _deserted(self) -> str:
        """Return why nothing will be heard, when that is so; silent workers may come back."""
        owing = [k for k in self._links if k.gone is None and k.orders]
        if any(link.worker not in self._silent for link in owing):
            self._deserted_since = None
            return ""
        if not owing:
            return "nobody owes an answer"
        if self._deserted_since is None:
            self._deserted_since = time.perf_counter()
        if time.perf_counter() - self._deserted_since < PATIENCE:
            return ""
        return f"only silent workers have owed an answer for {PATIENCE:g} s"

    def _raise(self) -> None:
        """Raise what a task raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("this talk is over; use it inside its with block")
