"""The lines to all workers: orders go out, answers come in, and it is noticed when one breaks.

Per worker there is one standing receive, never cancelled. This knows no rounds: what an answer
means is the business of the *listener*, the session that is under way, if any. An answer to an
older order is received and dropped.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.mpi import world
from codedla.mpi.backoff import Backoff
from codedla.mpi.link import Given, Link, Receipt
from codedla.mpi.outbox import Outboxes
from codedla.mpi.reception import Reception
from codedla.mpi.wire import Answer, Kind, Message, Received, Transfer, Types

__all__ = ["DRAIN", "Lines", "Listener"]

logger = logging.getLogger("codedla")

DRAIN = 1.0
"""Seconds that replies are given that are already arriving in memory which somebody waits for."""


class Listener(Protocol):
    """Who is told what comes in."""

    def place(self, link: Link, given: Given, answer: Answer) -> NDArray[Any] | None:
        """Return where a reply's payload is to be received; None: anywhere."""
        ...

    def replied(self, link: Link, given: Given, answer: Answer, reply: NDArray[Any]) -> None:
        """Take a complete reply; the array is valid during the call only."""
        ...

    def received(self, link: Link, receipt: Receipt) -> None:
        """Take note that a payload has been received; :meth:`replied` follows."""
        ...

    def sent(self, link: Link, given: Given) -> None:
        """Take note that everything of an order has left."""
        ...

    def abandoned(self, link: Link, given: Given) -> None:
        """Take note that a worker does not answer a cancelled order."""
        ...

    def error(self, link: Link, given: Given, details: dict[str, Any]) -> None:
        """Take note that a worker's task raised."""
        ...

    def lost(self, link: Link) -> None:
        """Take note that a worker will not be heard of again (``link.gone``)."""
        ...

    def back(self, link: Link) -> None:
        """Take note of a sign of life of a worker that was believed to be frozen."""
        ...


class Lines:
    """Messages between the master and all workers.

    Parameters
    ----------
    control, data : MPI.Comm
        Orders go on the first, with their payload on the second; answers come on the second.

    Attributes
    ----------
    links : list of Link
    listener : Listener or None
    clean : bool
        No worker was lost.
    beating : bool
        Whether workers are promised signs of life while there is no round.
    """

    def __init__(self, control: MPI.Comm, data: MPI.Comm) -> None:
        self._control, self._data = control, data
        self.types = Types()
        self.links = [Link(worker, data) for worker in range(control.Get_size() - 1)]
        self.outboxes = Outboxes(control, self.links)
        self.reception = Reception(self.links)
        self.listener: Listener | None = None
        self.clean = True
        self.beating = False
        self._host = socket.gethostname().encode()
        only_host = world.only_host()
        for link in self.links:
            link.host = only_host
            link.inbox.post()

    # -- out -----------------------------------------------------------------------------------

    def order(
        self, link: Link, message: Message, arrays: Sequence[NDArray[Any]] = ()
    ) -> Transfer | None:
        """Start sending an order; return its messages, or None when the worker is lost by that."""
        try:
            channels = (self._control, self._data)
            transfer = Transfer.send(channels, link.rank, message, arrays, self.types)
        except MPI.Exception as error:
            self.lose(link, f"sending to it failed: {_reason(error)}")
            return None
        link.sends.append(transfer)
        return transfer

    def leaving(self, link: Link) -> bool:
        """Tell whether something that was sent to a worker has not left yet."""
        return bool(link.sends) or self.outboxes.leaving(link)

    @property
    def moving(self) -> bool:
        """Whether a payload is on its way to or from a worker that is alive."""
        return any(
            link.receipts or any(given.sending is not None for given in link.orders)
            for link in self.links
            if link.gone is None and not link.frozen
        )

    def cancel(self, link: Link, key: int | None = None) -> None:
        """Tell a worker, once, that its orders for a round, or all, are void."""
        for given in list(link.orders):
            void = not (given.answered or given.cancelled)
            if void and link.gone is None and key in (None, given.task.key):
                given.cancelled = True
                self.order(link, Message(Kind.CANCEL, given.task.key))

    def ping(self, link: Link) -> None:
        """Ask a worker for a sign of life, and for its clock."""
        link.pinged = time.perf_counter()
        current = link.current()
        message = Message(Kind.PING, 0 if current is None else current.task.key, self._host)
        message.words[4:7] = self.beating, time.perf_counter_ns(), os.getpid()
        self.order(link, message)

    # -- in ------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Look once at everything that may have happened; return whether anything did."""
        happened = False
        for link in self.links:
            if link.gone is not None:
                continue
            try:
                happened |= self._poll_link(link)
            except MPI.Exception as error:
                self.lose(link, f"its connection failed: {_reason(error)}")
                happened = True
        return happened

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Keep polling until the condition holds or time is over; return whether it holds."""
        backoff, end = Backoff(), time.perf_counter() + seconds
        while not condition():
            if time.perf_counter() > end:
                return False
            if self.poll():
                backoff.reset()
            else:
                backoff.wait()
        return True

    def settle(self, output: NDArray[Any], *, before: int | None = None) -> list[Link]:
        """Give replies that are arriving in this memory a moment; return whose did not arrive.

        Parameters
        ----------
        output : ndarray
        before : int, optional
            Look only at the rounds with smaller keys.
        """
        self.until(lambda: not self.reception.arriving(output, before=before), DRAIN)
        return self.reception.arriving(output, before=before)

    def claim(self, output: NDArray[Any], key: int) -> None:
        """Refuse to decode into memory that a reply to a round before this key may still write to.

        Raises
        ------
        UsageError
            A rank stopped in the middle of sending its reply into the same ``out``.
        """
        if late := self.settle(output, before=key):
            ranks = ", ".join(f"rank {link.rank}" for link in late)
            raise UsageError(
                f"out must be memory that nobody else writes to; {ranks} stopped in the middle of "
                "an earlier reply to it; pass another array"
            )

    def _poll_link(self, link: Link) -> bool:
        happened = False
        if link.sends:
            link.sends = [transfer for transfer in link.sends if not transfer.done()]
            for given in link.orders:
                self._note_sent(link, given)
        while link.receipts and link.receipts[0].transfer.done():
            receipt = link.receipts.pop(0)
            self.reception.note(receipt)
            self._hear(link)
            link.done_with(receipt.given)
            if self.listener is not None:
                self.listener.received(link, receipt)
                self.listener.replied(link, receipt.given, receipt.answer, receipt.buffer)
            happened = True
        if link.strays:
            link.strays = [transfer for transfer in link.strays if not transfer.done()]
        # Also while a reply arrives: a sign of life may come before the end of it.
        if (message := link.inbox.poll()) is not None:
            self._hear(link)
            self.accept(link, message)
            happened = True
        return happened

    def accept(self, link: Link, message: Received) -> None:
        """Take a message for what it is, then listen again."""
        try:
            self._message(link, message)
        finally:
            # Also after a broken message: the goodbye must still be heard.
            if not link.said_bye:
                link.inbox.post()

    def _note_sent(self, link: Link, given: Given) -> None:
        if given.sending is not None and given.sending.done():
            given.sending = None
            if self.listener is not None:
                self.listener.sent(link, given)

    def _message(self, link: Link, message: Received) -> None:
        match message.kind:
            case Kind.REPLY | Kind.ABANDONED | Kind.ERROR:
                given = link.awaited(message)
                if given is None:
                    self._stray(link, message)
                    return
                given.answered = True
                self._note_sent(link, given)
                self._answer(link, given, message)
            case Kind.HELLO:
                greeting = pickle.loads(message.payload.tobytes())
                link.host, link.pid = greeting["host"], greeting["pid"]
            case Kind.BYE:
                link.said_bye = True
            case Kind.PONG:
                link.clock.compare(int(message.words[5]), int(message.words[4]))
            case _:
                raise RuntimeError(f"unexpected answer {message.kind.name}")

    def _answer(self, link: Link, given: Given, message: Received) -> None:
        listener = self.listener
        if message.kind is Kind.REPLY:
            self._reply(link, given, message)
            return
        link.done_with(given)
        if listener is None:
            return
        if message.kind is Kind.ABANDONED:
            listener.abandoned(link, given)
        else:
            listener.error(link, given, pickle.loads(message.payload.tobytes()))

    def _reply(self, link: Link, given: Given, message: Received) -> None:
        """Take an inline reply, or start receiving the payload where it belongs."""
        listener, answer = self.listener, Answer.read(message)
        if answer.inline:
            link.done_with(given)
            if listener is not None:
                reply = message.payload.view(answer.dtype).reshape(answer.shape)
                listener.replied(link, given, answer, reply)
            return
        place = None if listener is None else listener.place(link, given, answer)
        buffer = self.reception.scratch(link, answer) if place is None else place
        transfer = Transfer.receive(self._data, link.rank, [buffer], self.types)
        link.receipts.append(Receipt(transfer, answer, given, buffer, placed=place is not None))

    def _stray(self, link: Link, message: Received) -> None:
        """Throw away an answer that nobody asked for, a second one for instance."""
        if message.kind is Kind.REPLY and not (answer := Answer.read(message)).inline:
            waste = np.empty(answer.shape, answer.dtype)
            link.strays.append(Transfer.receive(self._data, link.rank, [waste], self.types))

    # -- life ----------------------------------------------------------------------------------

    def lose(self, link: Link, reason: str) -> None:
        """Note that a worker will not be heard of again."""
        if link.gone is not None:
            return
        link.gone = link.located(reason)
        self.clean = False
        logger.warning("%s is lost: %s", link, reason)
        if self.listener is not None:
            self.listener.lost(link)

    def _hear(self, link: Link) -> None:
        """Note that a worker is alive."""
        if not link.sign_of_life():
            return
        link.mourned = False
        logger.warning("%s is back", link)
        if self.listener is not None:
            self.listener.back(link)


def _reason(error: MPI.Exception) -> str:
    lines = error.Get_error_string().splitlines()
    return lines[0] if lines else f"MPI error {error.Get_error_class()}"
