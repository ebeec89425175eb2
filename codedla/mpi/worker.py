"""The worker: obey orders, look for newer ones between panels, never wait for the master.

One order is under way at a time; the master sends the next only after the answer. While operands
arrive, and between the panels of a task, the worker looks for CANCEL, DROP, STOP and PING. Answers
are sent without blocking, so that a CANCEL is never missed behind a large reply.

A worker leaves by itself when its launcher is gone, and, on another host than the master, when
nothing has been heard of the master for :func:`~codedla.mpi.limits.orphan_limit` seconds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from codedla.engine.stragglers import Fault, FaultPlan
from codedla.engine.work import Work, by_number
from codedla.mpi import world
from codedla.mpi.leftovers import is_alive
from codedla.mpi.limits import orphan_limit
from codedla.mpi.wire import (
    ORDER_AT,
    WORK_AT,
    Answer,
    Backoff,
    Inbox,
    Incoming,
    Kind,
    Message,
    Received,
    Transfer,
    Types,
    restore,
    unpack,
)

__all__ = ["Worker", "worker_serve"]

_TICK = 0.5
_TRACEBACK_CHARACTERS = 6000


def worker_serve(
    control: MPI.Comm, data: MPI.Comm, *, faults: Iterable[Fault] = (), threads: int = 1
) -> bool:
    """Serve until the master says leave.

    Parameters
    ----------
    control, data : MPI.Comm
        Orders come on the first, with their payload; answers go on the second.
    faults : iterable of Fault
    threads : int
        BLAS threads of this rank.

    Returns
    -------
    bool
        Whether the job ended cleanly, so that ``MPI_Finalize`` is safe.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=threads):
        return Worker(control, data, faults).serve()


class Worker:
    """State of one worker rank."""

    def __init__(self, control: MPI.Comm, data: MPI.Comm, faults: Iterable[Fault]) -> None:
        self.control, self.data = control, data
        self.plan = FaultPlan(faults, control.Get_rank() - 1)
        self.inbox = Inbox(control, 0)
        self.types = Types()
        self.resident: dict[int, Any] = {}
        self.sends: list[Transfer] = []
        self.cancelled = False
        self.stopping = False
        self.clean: bool | None = None
        self._current = 0
        self._marks: list[int] | None = None
        self._vigil = Vigil()
        # A longer pause after long idleness: an idle rank should cost nothing.
        self._backoff = Backoff(longest=1e-3)

    def serve(self) -> bool:
        """Greet, obey, say goodbye; see :func:`worker_serve`."""
        self._arm()
        self.inbox.post()
        greeting = pickle.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        self._send(Message(Kind.HELLO, payload=greeting))
        while not self.stopping:
            order = self._next_order()
            if order.kind is Kind.RUN:
                self._run(order)
            else:
                self._obey(order)
        self.resident.clear()
        while self.sends:
            self._progress(self._flush_sends())
        self._send(Message(Kind.BYE))
        while self.clean is None or self.sends:
            message = self.inbox.poll()
            if message is not None:
                self._obey(message)
            self._progress(self._flush_sends() or message is not None)
        self.types.free()
        return self.clean

    # -- orders ------------------------------------------------------------------------------

    def _next_order(self) -> Received:
        while (order := self.inbox.poll()) is None:
            self._progress(self._flush_sends())
        self._backoff.reset()
        self._vigil.heard()
        return order

    def _obey(self, order: Received) -> None:
        """Obey anything but RUN, then listen again."""
        match order.kind:
            case Kind.CANCEL:
                self.cancelled = self.cancelled or order.round_id == self._current
            case Kind.DROP:
                for key in order.payload.view(np.int64).tolist():
                    self.resident.pop(key, None)
            case Kind.STOP:
                self.stopping = True
            case Kind.LEAVE:
                self.clean = bool(order.words[4])
                return
            case Kind.PING:
                self._vigil.watch(order)
                pong = Message(Kind.PONG, order.round_id)
                pong.words[4:6] = time.perf_counter_ns(), order.words[5]
                self._send(pong)
            case _:
                raise RuntimeError(f"unexpected order {order.kind.name} while busy")
        self.inbox.post()

    def _run(self, order: Received) -> None:
        self._current, self.cancelled = order.round_id, False
        number, traced, inline = order.words[7], bool(order.words[6]), bool(order.words[5])
        work_number = int(order.words[WORK_AT])
        if not inline:
            # While the operands arrive the master must be heard.
            order = order.copy()
            self.inbox.post()
        try:
            try:
                operands = self._receive(order, inline=inline)
            finally:
                if inline:
                    self.inbox.post()
            work = by_number(work_number)
            answer = self._answer(work, operands, traced=traced)
        except MPI.Exception:
            raise
        except BaseException as error:
            # Also a sys.exit in a user's function: the master says how the job goes on.
            answer = (Message(Kind.ERROR, self._current, _describe_error(error)), [])
        answer[0].words[ORDER_AT] = number
        self._send(*answer)

    def _receive(self, order: Received, *, inline: bool) -> list[Any]:
        """Take the operands out of the order, the messages after it, or the resident ones.

        Raises
        ------
        MemoryError
            There is no room for them; the messages have been thrown away.
        """
        described = [Incoming.read(order.words, k) for k in range(int(order.words[4]))]
        try:
            arrays = [incoming.arrays() for incoming in described]
        except MemoryError:
            if not inline:
                self._await(Transfer.discard(self.data, 0, described))
            raise
        flat = [array for group in arrays for array in group]
        if inline:
            unpack(order.payload, flat)
        else:
            self._await(Transfer.receive(self.data, 0, flat, self.types))
        operands = []
        for incoming, group in zip(described, arrays, strict=True):
            if group:
                matrix = restore(incoming, group)
                if incoming.key:
                    self.resident[incoming.key] = matrix
            else:
                matrix = self.resident[incoming.key]
            operands.append(matrix)
        return operands

    def _await(self, transfer: Transfer) -> None:
        """Wait for a transfer, and answer the master meanwhile."""
        while not transfer.done():
            self._progress(self._look())
        self._backoff.reset()

    def _answer(
        self, work: Work, operands: list[Any], *, traced: bool
    ) -> tuple[Message, list[Any]]:
        """Compute the task; return the answer and the arrays that follow it."""
        self._marks = [time.perf_counter_ns()] if traced else None
        self._sleep(self.plan.start_task())
        started = self._panel_began = time.perf_counter()
        reply = work.perform(operands, None, self._carry_on)
        if reply is None:
            return Message(Kind.ABANDONED, self._current), []
        self._drag()
        self.plan.corrupt(reply)
        message = Answer.message(self._current, reply, time.perf_counter() - started)
        if self._marks is not None:
            message.mark([*self._marks, time.perf_counter_ns()])
        return message, [] if message.words[7] else [reply]

    def _carry_on(self, between: bool = True, /) -> bool:
        """Between panels: be slow if told to, look for orders, keep replies moving."""
        if not between:
            self._look()
            return not (self.cancelled or self.stopping)
        self._drag()
        self._look()
        self._panel_began = time.perf_counter()
        if self._marks is not None:
            self._marks.append(time.perf_counter_ns())
        return not (self.cancelled or self.stopping)

    def _look(self) -> bool:
        """Obey an order that has come meanwhile; return whether anything happened."""
        order = self.inbox.poll()
        if order is not None:
            self._vigil.heard()
            self._obey(order)
        return self._flush_sends() or order is not None

    # -- faults on purpose ---------------------------------------------------------------------

    def _arm(self) -> None:
        for after, number in (
            (self.plan.kill_after, signal.SIGKILL),
            (self.plan.hang_after, signal.SIGSTOP),
        ):
            if after is not None:
                timer = threading.Timer(after, os.kill, (os.getpid(), number))
                timer.daemon = True
                timer.start()

    def _drag(self) -> None:
        if self.plan.factor > 1.0:
            self._sleep((self.plan.factor - 1.0) * (time.perf_counter() - self._panel_began))

    def _sleep(self, seconds: float) -> None:
        """Sleep as a slow rank would, but hear a cancellation."""
        end = time.perf_counter() + seconds
        while not (self.cancelled or self.stopping):
            left = end - time.perf_counter()
            if left <= 0:
                return
            time.sleep(min(left, 2e-3))
            self._look()

    # -- sends -----------------------------------------------------------------------------------

    def _send(self, message: Message, arrays: list[Any] | None = None) -> None:
        channels = (self.data, self.data)
        self.sends.append(Transfer.send(channels, 0, message, arrays or [], self.types))
        self._backoff.reset()

    def _flush_sends(self) -> bool:
        """Forget completed sends; return whether any completed."""
        before = len(self.sends)
        self.sends = [transfer for transfer in self.sends if not transfer.done()]
        return len(self.sends) < before

    def _progress(self, happened: bool) -> None:
        if happened:
            self._backoff.reset()
        else:
            if self._backoff.wait():
                self._vigil.keep()


class Vigil:
    """Notice that nobody is left to serve, and leave then.

    The launcher's end is seen from the process tree, and so is the master's on this host: not every
    MPI reports it. A master on another host is believed to be gone when the signs of life that it
    had promised have not come for long; time in which this process was itself stopped does not
    count.
    """

    def __init__(self) -> None:
        self.patience = orphan_limit()
        self._remote = False
        self._master = 0
        self._unheard = 0.0
        self._looked = time.perf_counter()
        self._host = socket.gethostname().encode()

    def watch(self, ping: Received) -> None:
        """Learn from a PING where the master is, and whether it goes on sending them."""
        here = ping.payload.tobytes() == self._host
        self._remote = bool(ping.words[4]) and not here
        # In a container the number may belong to nobody that is seen from here.
        master = int(ping.words[6])
        self._master = master if here and is_alive(master) else 0

    def heard(self) -> None:
        """Note a word from the master."""
        self._unheard = 0.0

    def keep(self) -> None:
        """Look now and then whether it is time to leave; does not return then."""
        now = time.perf_counter()
        passed = now - self._looked
        if passed < _TICK:
            return
        self._looked = now
        self._unheard += min(passed, 2 * _TICK)
        if world.launcher_gone():
            self._leave("its launcher is gone")
        if self._master and not is_alive(self._master):
            self._leave("rank 0 is gone")
        if self._remote and self._unheard > self.patience:
            self._leave(f"nothing was heard of rank 0 for {self.patience:g} s")

    def _leave(self, why: str) -> NoReturn:
        host = socket.gethostname()
        with contextlib.suppress(OSError):  # the launcher was the reader
            sys.stderr.write(f"codedla: a worker on {host} ends: {why}\n")
        world.hard_exit(1)


def _describe_error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    # ASCII, so that characters are bytes and the answer fits into an inbox.
    text = text.encode("ascii", "backslashreplace").decode()
    if len(text) > _TRACEBACK_CHARACTERS:
        text = "[...]\n" + text[-_TRACEBACK_CHARACTERS:]
    try:
        said = str(error)[:500]
    except Exception:
        said = "<its text could not be made>"
    message = f"{type(error).__name__}: {said}"
    return pickle.dumps(
        {"message": message, "traceback": text, "memory": isinstance(error, MemoryError)}
    )
