"""The worker's side of quick rounds: a held share times a vector that came inside the order.

Such orders repeat, all but the vector, and take so little time that what an ordinary order needs
(descriptions of operands, a queue, looks for other orders between panels) would cost more than the
product. So what does not change is kept from one to the next: the vector is multiplied where it
arrived, and replies leave from memory and by requests that are made once. Anything else is left to
the ordinary way, which can do all of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from codedla.engine.work import by_name
from codedla.mpi.backoff import Backoff
from codedla.mpi.orders import Held
from codedla.mpi.wire import (
    HEADER,
    INLINE,
    ORDER_AT,
    TAG_CONTROL,
    WORK_AT,
    Answer,
    Container,
    Inbox,
    Incoming,
    Received,
)

__all__ = ["Shortcut"]

_FLOPS = 1e7
"""Products up to this size are over within milliseconds, and need no looks in between."""
_NAPS = 40
"""Sleeps in vain after which the next order is waited for in the ordinary way."""
_NEW = (slice(16, 24), slice(56, 64))
"""Bytes of an order's header that say its round and its number: all that may be new in it."""


class Shortcut:
    """Answer orders that repeat.

    Parameters
    ----------
    inbox : Inbox
        Where orders come in.
    data : MPI.Comm
        What answers go on, to rank 0.
    resident : mapping of int to Held
        What the worker holds.
    worker : int
        Its number.
    """

    def __init__(
        self, inbox: Inbox, data: MPI.Comm, resident: Mapping[int, Held], worker: int
    ) -> None:
        self._inbox, self._data = inbox, data
        self._resident, self._worker = resident, worker
        self._task: _Task | None = None
        # Requests of tasks that are no more, and the memory that they may still read.
        self._left: list[_Reply] = []

    def obey(self, order: Received) -> bool:
        """Obey an order, and those like it that follow, if it is of this kind.

        Returns
        -------
        bool
            Whether it was. A message that came later and is another stays in the inbox.
        """
        task = self._task
        if task is None or not task.fits(order) or self._resident.get(task.key) is not task.held:
            task = self._replace(order)
        if task is None or not task.free():
            return False
        backoff = Backoff()
        # NaN and overflow are the caller's data, to be handed back as NumPy would.
        with np.errstate(all="ignore"):
            while True:
                task.answer(order)
                self._inbox.post()
                if not self._arrives(backoff):
                    return True
                order = self._inbox.message()
                if not (task.fits(order) and task.free()):
                    self._inbox.put_back()
                    return True
                backoff.reset()

    def _arrives(self, backoff: Backoff) -> bool:
        """Wait a little for the next order; return whether it has come."""
        naps = 0
        while not self._inbox.arrived():
            naps += backoff.wait()
            if naps > _NAPS:
                return False
        return True

    def _replace(self, order: Received) -> _Task | None:
        """Prepare for orders like this one, where that is possible."""
        self.close()
        self._task = self._prepare(order)
        return self._task

    def _prepare(self, order: Received) -> _Task | None:
        if order.words[4] != 2 or order.words[WORK_AT] != by_name("matmul").number:
            return None
        left, right = (Incoming.read(order.words, position) for position in range(2))
        key = left.key_on(self._worker)
        held = self._resident.get(key)
        if left.container is not Container.OWN or right.container is not Container.ROWS:
            return None
        if held is None or not held.made or not isinstance(held.matrix, np.ndarray):
            return None
        small = 2.0 * held.matrix.size * right.shape[1] <= _FLOPS
        dtype = np.result_type(held.matrix.dtype, right.dtype)
        size = held.matrix.shape[0] * right.shape[1] * dtype.itemsize
        return _Task(key, held, right, order, self._data) if small and size <= INLINE else None

    def close(self) -> None:
        """Free what is kept for repetitions."""
        if self._task is not None:
            self._left += self._task.replies
            self._task = None
        self._left = [reply for reply in self._left if not reply.freed()]


class _Reply:
    """A reply's memory, and the request that sends it."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype, data: MPI.Comm) -> None:
        message = Answer.message(0, np.zeros(shape, dtype), 0.0)
        self.words = message.words
        self.matrix = message.buffer[HEADER * 8 :].view(dtype).reshape(shape)
        self._buffer = message.buffer
        self.request = data.Send_init([message.buffer, MPI.BYTE], 0, TAG_CONTROL)

    def freed(self) -> bool:
        """Free the request if what it sends has left; return whether it had."""
        if not self.request.Test():
            return False
        self.request.Free()
        return True


class _Task:
    """The product of a held share and one vector, or a few, after another."""

    def __init__(
        self, key: int, held: Held, right: Incoming, order: Received, data: MPI.Comm
    ) -> None:
        self.key, self.held = key, held
        self._matrix = held.matrix
        self._dtype, self._right = right.dtype, right.shape
        shape = (self._matrix.shape[0], right.shape[1])
        dtype = np.result_type(self._matrix.dtype, right.dtype)
        # One may still be on its way when the next is made.
        self.replies = [_Reply(shape, dtype, data) for _ in range(2)]
        self._known = _repeated(order)

    def fits(self, order: Received) -> bool:
        """Whether an order is like the first one, all but its round, its number and the vector."""
        return _repeated(order) == self._known

    def free(self) -> bool:
        """Whether the reply before the last has left."""
        return bool(self.replies[0].request.Test())

    def answer(self, order: Received) -> None:
        """Compute, and send the answer."""
        began = time.perf_counter_ns()
        reply = self.replies[0]
        self.replies.reverse()
        x = order.payload.view(self._dtype).reshape(self._right)
        np.matmul(self._matrix, x, out=reply.matrix)
        words, given = reply.words, order.words
        words[2] = given[2]
        words[8] = time.perf_counter_ns() - began
        words[ORDER_AT] = given[7]
        reply.request.Start()


def _repeated(order: Received) -> list[bytes]:
    """Return what two orders have in common that differ only in what is new."""
    header = memoryview(cast(Any, order.words)).cast("B")
    first, second = _NEW
    between = header[first.stop : second.start]
    return [bytes(header[: first.start]), bytes(between), bytes(header[second.stop :])]
