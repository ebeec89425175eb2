"""Talks of the pools that compute in this process: replies come in the order of a virtual clock."""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from codedla.engine.attend import always
from codedla.engine.converse import Heard
from codedla.engine.round import SILENCE, Operand
from codedla.engine.work import by_name, pack_function
from codedla.errors import PoolClosed, UsageError, WorkerError

if TYPE_CHECKING:
    from codedla.pools.local import LocalPool

__all__ = ["Clock", "LocalTalk"]


class _Kind(IntEnum):
    """What happens; at one moment losses come first."""

    LOST = 0
    SILENT = 1
    OVERDUE = 2
    REPLY = 3


@dataclass
class _Order:
    number: int
    matrices: tuple[Any, ...]
    error: WorkerError | None = None


class Clock:
    """The virtual clock of a talk.

    Parameters
    ----------
    task_seconds : float
        Of one task without delay.
    drawn : callable
        ``drawn(worker)`` returns the random delay of its next task; ``inf``: it never answers.
    deadline : float or None
        Seconds after which a worker with an unanswered order is silent.
    start : float
    real : bool
        Only the order of replies follows the virtual clock; the time of day is told.
    """

    def __init__(
        self,
        task_seconds: float,
        drawn: Callable[[int], float],
        *,
        deadline: float | None = None,
        start: float = 0.0,
        real: bool = False,
    ) -> None:
        self.task_seconds, self.drawn, self.deadline = task_seconds, drawn, deadline
        self.virtual, self.real = start, real

    def now(self) -> float:
        """Return the time that users are told."""
        return time.perf_counter() if self.real else self.virtual


class LocalTalk:
    """A talk in this process; see :class:`codedla.engine.converse.Talk`.

    A reply is computed when its time has come, from operands as they were when the order was given.

    Parameters
    ----------
    pool : LocalPool
        Keeps the resident operands and the plans of faults.
    function : callable
    clock : Clock
    """

    def __init__(self, pool: LocalPool, function: Callable[..., Any], clock: Clock) -> None:
        pack_function(function)  # what other ranks could not be sent is refused here, too
        self.n_workers = pool.n_workers
        self.bytes_sent = self.bytes_received = 0
        self.clock = clock
        self._pool, self._function = pool, function
        self._numbers = 0
        self._orders: dict[int, _Order] = {}
        self._gone: set[int] = set()
        self._silent: set[int] = set()
        self._events: list[tuple[float, _Kind, int, int]] = []
        self._heard: deque[Heard] = deque()
        self._closed = False
        for worker, plan in enumerate(pool.plans):
            ends = [t for t in (plan.kill_after, plan.hang_after) if t is not None]
            # Nobody sleeps, and nobody is waited for, in a serial pool.
            dead = plan.kill_after is not None and plan.kill_after <= clock.virtual
            if dead or (clock.real and ends):
                self._lose(worker)
            else:
                if plan.kill_after is not None:
                    self._expect(plan.kill_after, _Kind.LOST, worker, 0)
                self._say("free", worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def now(self) -> float:
        """Return the time in seconds: virtual in a simulated pool, of day in a serial one."""
        return self.clock.now()

    def order(self, worker: int, operands: Sequence[Operand]) -> int:
        """Let a worker call the function; see :meth:`codedla.engine.converse.Talk.order`."""
        self._check_open()
        if worker in self._orders:
            raise UsageError(
                f"a worker is given an order when it has answered the last one; got one for worker "
                f"{worker}, which has not; wait until it is heard of as free or by a reply"
            )
        self._numbers += 1
        pool, plan = self._pool, self._pool.plans[worker]
        order = _Order(self._numbers, tuple(self._supply(worker, o) for o in operands))
        if worker in self._gone:
            return order.number
        self._orders[worker] = order
        own = 0.0
        try:
            own = plan.start_task()
        except RuntimeError as error:
            order.error = pool.remote_error(worker, error)
        clock, now = self.clock, self.clock.virtual
        finish = now + clock.task_seconds * plan.factor + own + clock.drawn(worker)
        frozen = math.inf if plan.hang_after is None else plan.hang_after
        if frozen <= finish:
            self._expect(max(frozen, now) + SILENCE, _Kind.SILENT, worker, order.number)
            finish = math.inf
        if math.isfinite(finish):
            self._expect(finish, _Kind.REPLY, worker, order.number)
        if clock.deadline is not None and finish > now + clock.deadline:
            self._expect(now + clock.deadline, _Kind.OVERDUE, worker, order.number)
        return order.number

    def cancel(self, worker: int) -> None:
        """Void a worker's order; see :meth:`codedla.engine.converse.Talk.cancel`."""
        if self._orders.pop(worker, None) is not None:
            self._back(worker)
            self._say("free", worker)

    def wait(self, until: float | None = None) -> Heard | None:
        """Return what is heard next; see :meth:`codedla.engine.converse.Talk.wait`."""
        self._check_open()
        while not self._heard:
            if self.clock.real and until is not None and self.now() >= until:
                return None
            if not self._pending():
                # Time passes for whoever waits in vain, up to the moment it has named.
                if until is not None:
                    self._advance(until)
                    return None
                return self._deserted()
            when = self._events[0][0]
            if until is not None and not self.clock.real and when > until:
                self._advance(until)
                return None
            _, kind, worker, number = heapq.heappop(self._events)
            self._advance(when)
            self._happen(kind, worker, number)
        return self._heard.popleft()

    def restart(self) -> None:
        """Begin again; see :meth:`codedla.engine.converse.Talk.restart`."""
        self._check_open()
        self._orders.clear()
        self._heard.clear()
        self._silent.clear()
        for worker in range(self.n_workers):
            if worker in self._gone:
                self._say("lost", worker, reason="injected fault")
            else:
                self._say("free", worker)

    def close(self) -> None:
        """End the talk; idempotent."""
        if not self._closed:
            self._closed = True
            self._orders.clear()
            self._pool.talk_over(self)

    # -- what happens --------------------------------------------------------------------------

    def _happen(self, kind: _Kind, worker: int, number: int) -> None:
        if kind is _Kind.LOST:
            self._lose(worker)
            return
        order = self._orders.get(worker)
        if order is None or order.number != number:
            return  # void by now
        if kind is _Kind.REPLY:
            self._reply(worker, order)
        elif worker not in self._silent:
            self._silent.add(worker)
            why = f"no sign of life for {SILENCE:g} s"
            if kind is _Kind.OVERDUE:
                why = f"no answer within {self.clock.deadline:g} s"
            self._say("silent", worker, reason=why)

    def _reply(self, worker: int, order: _Order) -> None:
        del self._orders[worker]
        try:
            if order.error is not None:
                raise order.error
            reply = by_name("call").perform((*order.matrices, self._function), None, always)
        except Exception as error:
            # Whoever goes on all the same can give the worker something else to do.
            self._back(worker)
            self._say("free", worker)
            if error is order.error:
                raise
            raise self._pool.remote_error(worker, error) from error
        if reply is None:
            raise RuntimeError("a task that nobody cancelled must return its reply")
        self._pool.plans[worker].corrupt(reply)
        self.bytes_received += reply.nbytes
        self._back(worker)
        self._say("reply", worker, order.number, reply)

    def _lose(self, worker: int) -> None:
        self._gone.add(worker)
        self._orders.pop(worker, None)
        self._silent.discard(worker)
        self._say("lost", worker, reason="injected fault")

    def _back(self, worker: int) -> None:
        if worker in self._silent:
            self._silent.discard(worker)
            self._say("back", worker)

    def _say(
        self,
        kind: Any,
        worker: int,
        number: int = 0,
        reply: NDArray[Any] | None = None,
        reason: str = "",
    ) -> None:
        self._heard.append(Heard(kind, worker, number, reply, self.now(), reason))

    def _deserted(self) -> Heard:
        why = "nobody owes an answer"
        if self._orders:
            why = "those who owe an answer never give it"
        return Heard("deserted", -1, seconds=self.now(), reason=why)

    # -- inside --------------------------------------------------------------------------------

    def _pending(self) -> bool:
        """Tell whether an order that is still wanted will be heard of; forget void ones."""
        while self._events:
            _, kind, worker, number = self._events[0]
            order = self._orders.get(worker)
            if kind is _Kind.LOST or (order is not None and order.number == number):
                # Losses alone bring nobody's answer, but they end who owes one.
                return bool(self._orders)
            heapq.heappop(self._events)
        return False

    def _expect(self, when: float, kind: _Kind, worker: int, number: int) -> None:
        heapq.heappush(self._events, (when, kind, worker, number))

    def _advance(self, when: float) -> None:
        self.clock.virtual = max(self.clock.virtual, when)
        self._pool.pass_time(self.clock.virtual)

    def _supply(self, worker: int, operand: Operand) -> Any:
        fresh = not self._pool.holds(worker, operand)
        matrix = self._pool.fetch(worker, operand)
        self.bytes_sent += int(getattr(matrix, "nbytes", 0)) if fresh else 0
        return matrix

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("this talk is over; use it inside its with block")
