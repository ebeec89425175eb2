"""The worker's side of quick rounds: a held share times a vector that came inside the order.

Such orders repeat, all but the vector, and take so little time that what an ordinary order needs
(descriptions of operands, a queue, looks for other orders between panels) would cost more than the
product. So what does not change is kept from one to the next. Anything else is left to the ordinary
way, which can do all of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.mpi.orders import Held
from codedla.mpi.wire import (
    HEADER,
    INLINE,
    ORDER_AT,
    Answer,
    Container,
    Incoming,
    Message,
    Received,
)

__all__ = ["Shortcut"]

_FLOPS = 1e7
"""Products up to this size are over within milliseconds, and need no looks in between."""
_DESCRIBED = slice(16, 32)
"""Where an order's header describes two operands."""


class Shortcut:
    """Answer orders that repeat.

    Parameters
    ----------
    resident : mapping of int to Held
        What the worker holds.
    worker : int
        Its number.
    """

    def __init__(self, resident: Mapping[int, Held], worker: int) -> None:
        self._resident, self._worker = resident, worker
        self._described = b""
        self._task: _Task | None = None

    def find(self, order: Received) -> _Task | None:
        """Return what an order is to do, with its vector taken out, or None: not of this kind."""
        described = order.words[_DESCRIBED].tobytes()
        if described != self._described:
            self._described, self._task = described, self._prepare(order)
        task = self._task
        if task is None or self._resident.get(task.key) is not task.held:
            # It was dropped, and the description may come to mean something else.
            self._described = b""
            return None
        task.take(order)
        return task

    def _prepare(self, order: Received) -> _Task | None:
        left, right = (Incoming.read(order.words, position) for position in range(2))
        key = left.key_on(self._worker)
        held = self._resident.get(key)
        if left.container is not Container.OWN or right.container is not Container.ROWS:
            return None
        if held is None or not held.made or not isinstance(held.matrix, np.ndarray):
            return None
        task = _Task(key, held, right)
        small = 2.0 * held.matrix.size * right.shape[1] <= _FLOPS
        return task if small and task.nbytes <= INLINE else None


class _Task:
    """The product of a held share and one vector, or a few, after another."""

    def __init__(self, key: int, held: Held, right: Incoming) -> None:
        self.key, self.held = key, held
        self._matrix: NDArray[Any] = held.matrix
        self._x = np.empty(right.shape, right.dtype)
        shape = (self._matrix.shape[0], right.shape[1])
        dtype = np.result_type(self._matrix.dtype, right.dtype)
        reply = np.zeros(shape, dtype)
        self._shape, self._dtype, self.nbytes = shape, dtype, reply.nbytes
        self._blank = Answer.message(0, reply, 0.0)
        self._round, self._number = 0, 0

    def take(self, order: Received) -> None:
        """Take out what is new in an order."""
        self._round, self._number = order.round_id, int(order.words[7])
        self._x.reshape(-1).view(np.uint8)[...] = order.payload

    def answer(self) -> Message:
        """Compute; return the answer, with the reply inside."""
        began = time.perf_counter_ns()
        message = self._blank.copy()
        reply = message.buffer[HEADER * 8 :].view(self._dtype).reshape(self._shape)
        # NaN and overflow are the caller's data, to be handed back as NumPy would.
        with np.errstate(all="ignore"):
            np.matmul(self._matrix, self._x, out=reply)
        words = message.words
        words[2] = self._round
        words[8 : ORDER_AT + 1] = time.perf_counter_ns() - began, self._number
        return message
