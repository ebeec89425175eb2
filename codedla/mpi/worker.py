"""The worker: obey orders, look for newer ones between panels, never wait for the master.

One order is under way at a time. The master may send the next one ahead: its operands arrive while
the worker computes, and it waits for its turn. While operands arrive, and between the panels of a
task, the worker looks for orders, and obeys all but RUN at once, in the order of arrival: what a
DROP removes is still there for a RUN that came before it. A CANCEL concerns the order under way as
well as one ahead, which is answered without being computed when its turn comes and its operands
have been received, because the master counts on the worker to keep those with a key. Answers repeat
the number of their order, and are sent without blocking, so that a CANCEL is never missed behind a
large reply.

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
from collections import deque
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from codedla.engine.stragglers import Fault, FaultPlan
from codedla.engine.work import by_number
from codedla.mpi import world
from codedla.mpi.backoff import Backoff
from codedla.mpi.leftovers import is_alive
from codedla.mpi.limits import orphan_limit
from codedla.mpi.orders import Held, Order
from codedla.mpi.shortcut import Shortcut
from codedla.mpi.thread_limit import ThreadLimit
from codedla.mpi.wire import (
    ORDER_AT,
    VOIDS_AT,
    WORK_AT,
    Answer,
    Inbox,
    Incoming,
    Kind,
    Message,
    Received,
    Transfer,
    Types,
    unpack,
)
from codedla.views import Unreadable

__all__ = ["Worker", "worker_serve"]

_TICK = 0.5
_SELDOM = 8
"""Looks for messages from one that also asks what has been sent to the next."""
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
    with ThreadLimit(threads) as limit:
        return Worker(control, data, faults, limit).serve()


class Worker:
    """State of one worker rank."""

    def __init__(
        self, control: MPI.Comm, data: MPI.Comm, faults: Iterable[Fault], limit: ThreadLimit
    ) -> None:
        self.control, self.data, self.limit = control, data, limit
        self.number = control.Get_rank() - 1
        faults = list(faults)
        self.plan = FaultPlan(faults, self.number)
        self.inbox = Inbox(control, 0)
        self.types = Types()
        self.resident: dict[int, Held] = {}
        self.sends: list[Transfer] = []
        self._looks = 0
        self.stopping = False
        self.clean: bool | None = None
        self._current: Order | None = None
        self._ahead: deque[Order] = deque()
        # Keys of operands to be kept for which there was no room.
        self._refused: set[int] = set()
        self._marks: list[int] | None = None
        self._vigil = Vigil()
        # Whoever is to be late or wrong on purpose goes the ordinary way.
        mine = [fault for fault in faults if fault.worker in (self.number, -1)]
        # What failed in taking in an order, which no task is to blame for.
        self._broken: Exception | None = None
        self._shortcut = Shortcut(self.inbox, data, self.resident, self.number)
        self._direct = all(fault.kind in ("kill", "hang") for fault in mine)
        # A longer pause after long idleness: an idle rank should cost nothing.
        self._backoff = Backoff(longest=1e-3)

    def serve(self) -> bool:
        """Greet, obey, say goodbye; see :func:`worker_serve`."""
        self._arm()
        self.inbox.post()
        greeting = pickle.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        self._send(Message(Kind.HELLO, payload=greeting))
        while self._ahead or not self.stopping:
            if self._ahead:
                self._run(self._ahead.popleft())
            else:
                self._progress(self._look(), moving=any(sent.large for sent in self.sends))
        self.resident.clear()
        self._shortcut.close()
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

    def _look(self) -> bool:
        """Take in or obey what has come; return whether anything happened."""
        message = self.inbox.poll()
        # Every look makes MPI go on with what is being sent. Asking whether it has left gives up
        # the core each time when it has not, and is no hurry.
        self._looks += 1
        left = (message is not None or self._looks % _SELDOM == 0) and self._flush_sends()
        if message is not None:
            self._vigil.heard()
            try:
                if message.kind is Kind.RUN:
                    self._accept(message)
                else:
                    self._obey(message)
            except Exception as error:
                self._broken = error
                raise
        for order in self._ahead:
            order.arrived()
        return left or message is not None

    def _obey(self, order: Received) -> None:
        """Obey anything but RUN, then listen again."""
        match order.kind:
            case Kind.CANCEL:
                self._cancel(order.round_id, int(order.words[ORDER_AT]))
            case Kind.DROP:
                for key in order.payload.view(np.int64).tolist():
                    self.resident.pop(key, None)
                    self._refused.discard(key)
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
                raise RuntimeError(f"unexpected order {order.kind.name}")
        self.inbox.post()

    def _cancel(self, round_id: int, number: int) -> None:
        """Void one order of a round, or all of them when ``number`` is 0."""
        for order in self._unanswered():
            if order.round_id == round_id and number in (0, order.number):
                order.cancelled = True

    def _unanswered(self) -> list[Order]:
        return [*([] if self._current is None else [self._current]), *self._ahead]

    def _accept(self, message: Received) -> None:
        """Take in a RUN order and begin to receive its operands, then listen again."""
        words = message.words
        if words[VOIDS_AT]:
            for earlier in self._unanswered():
                earlier.cancelled = True
            free = self._direct and self._current is None and not self._ahead
            if free and self._shortcut.obey(message):
                self._backoff.reset()
                return
        order = Order(message.round_id, int(words[7]), int(words[WORK_AT]), bool(words[6]))
        try:
            self._receive(order, message)
        except MPI.Exception:
            raise
        except Exception as error:
            # Told when its turn comes: answers go out in the order of the orders.
            order.error = error
        self._ahead.append(order)
        self.inbox.post()

    def _receive(self, order: Order, message: Received) -> None:
        """Take operands out of the message, the ones after it, or those that are resident.

        Raises
        ------
        MemoryError
            There is no room for them; the messages are being thrown away.
        """
        words, inline = message.words, bool(message.words[5])
        described = [Incoming.read(words, k) for k in range(int(words[4]))]
        try:
            arrays = [incoming.arrays() for incoming in described]
        except MemoryError:
            self._refused.update(k.key for k in described if k.key and k.messages())
            if not inline:
                order.transfer = Transfer.discard(self.data, 0, described)
            raise
        flat = [array for group in arrays for array in group]
        if inline:
            unpack(message.payload, flat)
        else:
            order.transfer = Transfer.receive(self.data, 0, flat, self.types)
        order.operands = [self._held(i, group) for i, group in zip(described, arrays, strict=True)]

    def _held(self, incoming: Incoming, arrays: list[Any]) -> Held:
        """Return an operand that arrives, and keep it if it has a key; or one that was kept."""
        if arrays:
            held = Held(incoming, arrays)
            if incoming.key:
                self.resident[incoming.key] = held
                self._refused.discard(incoming.key)
            return held
        key = incoming.key_on(self.number)
        if key in self._refused:
            raise MemoryError("there was no room for an operand when it came")
        return self.resident[key]

    def _run(self, order: Order) -> None:
        self._current = order
        try:
            answer = self._answer(order)
        except MPI.Exception:
            raise
        except BaseException as error:
            if error is self._broken:
                raise  # looked for in the middle of the task: nobody listens any more
            # Also a sys.exit in a user's function: the master says how the job goes on.
            answer = (Message(Kind.ERROR, order.round_id, _describe_error(error)), [])
        self._current = None
        answer[0].words[ORDER_AT] = order.number
        self._send(*answer)

    def _answer(self, order: Order) -> tuple[Message, list[Any]]:
        """Compute the task; return the answer and the arrays that follow it."""
        while not order.arrived():
            self._progress(self._look(), moving=True)
        self._backoff.reset()
        if order.error is not None:
            raise order.error
        if not self._wanted:
            return Message(Kind.ABANDONED, order.round_id), []
        operands = [held.matrix for held in order.operands]
        self.limit.renew()
        self._marks = [time.perf_counter_ns()] if order.traced else None
        self._sleep(self.plan.start_task())
        started = self._panel_began = time.perf_counter()
        reply = by_number(order.work).perform(operands, None, self._carry_on)
        if reply is None:
            return Message(Kind.ABANDONED, order.round_id), []
        self._drag()
        self.plan.corrupt(reply)
        message = Answer.message(order.round_id, reply, time.perf_counter() - started)
        if self._marks is not None:
            message.mark([*self._marks, time.perf_counter_ns()])
        return message, [] if message.words[7] else [reply]

    @property
    def _wanted(self) -> bool:
        """Whether to go on with the order under way."""
        return not (self.stopping or (self._current is not None and self._current.cancelled))

    def _carry_on(self, between: bool = True, /) -> bool:
        """Between panels: be slow if told to, look for orders, keep messages moving."""
        if not between:
            self._look()
            return self._wanted
        self._drag()
        self._look()
        self._panel_began = time.perf_counter()
        if self._marks is not None:
            self._marks.append(time.perf_counter_ns())
        return self._wanted

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
        while self._wanted:
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

    def _progress(self, happened: bool, *, moving: bool = False) -> None:
        if happened:
            self._backoff.reset()
        else:
            if self._backoff.wait(moving=moving):
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
        {
            "message": message,
            "traceback": text,
            "memory": isinstance(error, MemoryError),
            "unreadable": said if isinstance(error, Unreadable) else "",
        }
    )
