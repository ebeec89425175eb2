"""What the in-process pools share: resident operands, one task's computation, faults."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from codedla.engine.arguments import whole_number
from codedla.engine.collector import Instruction
from codedla.engine.recipe import evaluate
from codedla.engine.round import Event, Operand, Outcome, Round, Span
from codedla.engine.stragglers import Fault, FaultPlan, check_ranks
from codedla.errors import PoolClosed, UsageError, WorkerError
from codedla.pools.talking import Clock, LocalTalk

__all__ = ["LocalPool"]


class LocalPool:
    """Base of the pools that compute in this process.

    Parameters
    ----------
    n_workers : int
        Number of workers, at least 1.
    faults : iterable of Fault
        Faults on purpose; see :mod:`codedla.engine.stragglers`.

    Attributes
    ----------
    trace : bool
        Whether rounds note what takes how long on which rank.
    overhead : float
        Seconds that the job takes besides its products; ``verify="auto"`` sees checks against it.
    threads : int
        Threads that encode and decode; results are the same to the last bit.
    """

    trace = False
    overhead = 0.0
    streams = False
    threads = 1

    def __init__(self, n_workers: int, faults: Iterable[Fault] = ()) -> None:
        self.n_workers = n_workers = whole_number(n_workers, "a pool's number of workers", least=1)
        self.faults = tuple(faults)
        check_ranks(self.faults, n_workers)
        self.plans = [FaultPlan(self.faults, worker) for worker in range(n_workers)]
        self._resident: dict[tuple[int, int], Any] = {}
        self._last_key = 0
        self._mourned: set[int] = set()
        self._talk: LocalTalk | None = None
        self._closed = False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget all resident operands; idempotent."""
        if self._talk is not None:
            self._talk.close()
        self._closed = True
        self._resident.clear()

    def meanwhile(self) -> None:
        """Do nothing: no message is ever under way."""

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        raise NotImplementedError(f"{type(self).__name__} must say how it runs a round")

    def run_all(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None = None,
    ) -> None:
        """Run rounds one after the other; see :class:`codedla.engine.round.Pool`."""
        for index, job in enumerate(jobs):
            done(index, self.run(job))

    def new_key(self) -> int:
        """Return an unused positive id."""
        self._last_key += 1
        return self._last_key

    def drop(self, keys: Sequence[int]) -> None:
        """Forget resident operands."""
        gone = set(keys)
        self._resident = {k: v for k, v in self._resident.items() if k[1] not in gone}

    def converse(self, function: Callable[..., Any]) -> LocalTalk:
        """Begin a talk; see :class:`codedla.engine.converse.ConversingPool`."""
        self.check_open()
        self._talk = LocalTalk(self, function, self.talk_clock())
        return self._talk

    def talk_clock(self) -> Clock:
        """Return the clock that a talk's replies come by."""
        raise NotImplementedError(f"{type(self).__name__} must say how its time passes")

    def talk_over(self, talk: LocalTalk) -> None:
        """Take note that a talk has ended."""
        self._talk = None

    def pass_time(self, virtual: float) -> None:
        """Let a pool with a virtual clock know how late it is in a talk."""

    def check_open(self) -> None:
        """Raise PoolClosed after close, and UsageError in the middle of a talk."""
        if self._closed:
            raise PoolClosed("this pool is closed; use it inside its with block")
        if self._talk is not None:
            raise UsageError(
                "a pool does one thing at a time; got another in the middle of an asynchronous "
                "iteration; end that first (leave its with block)"
            )

    def holds(self, worker: int, operand: Operand) -> bool:
        """Tell whether a worker has a resident operand."""
        return operand.key > 0 and (worker, operand.key) in self._resident

    def fetch(self, worker: int, operand: Operand) -> Any:
        """Return a worker's operand, supplying it first if the worker does not hold it."""
        if operand.key == 0:
            return evaluate(operand.supply())
        place = (worker, operand.key)
        if place not in self._resident:
            self._resident[place] = evaluate(operand.supply())
        return self._resident[place]

    def compute(self, job: Round, share: int, worker: int, matrices: tuple[Any, ...]) -> None:
        """Compute one reply into its target.

        Raises
        ------
        WorkerError
            The task raised.
        """
        target = job.decoder.target(share)
        try:
            job.perform(matrices, target)
        except Exception as error:
            self.fail(job, worker, error)
        self.plans[worker].corrupt(target)

    def hand_over(
        self, job: Round, share: int, worker: int, outcome: Outcome, seconds: float
    ) -> Instruction:
        """Feed a computed reply to the collector and the decoder; note that it came then."""
        collector = job.collector
        if not collector.wants(share):
            return collector.reply(share, worker)
        reply = job.decoder.target(share)
        outcome.received += reply.nbytes
        if job.check is not None and not job.check(share, reply):
            outcome.events.append(Event(seconds, "wrong", worker))
            job.decoder.release(share)
            return collector.refuse(share, worker, "answered wrongly")
        instruction = collector.reply(share, worker)
        job.decoder.add(share)
        outcome.events.append(Event(seconds, "reply", worker))
        if job.progress is not None:
            job.progress(len(collector.responders), collector.needed, len(job.shares))
        return instruction

    def note_helper(
        self, job: Round, share: int, worker: int, outcome: Outcome, seconds: float
    ) -> None:
        """Note that a worker was given the share of another; a silent one's own is its own."""
        home = job.collector.code.home(share)
        if home != worker:
            late = share in job.collector.speculated
            kind, how = ("speculated", "as well as") if late else ("redispatched", "instead of")
            outcome.events.append(Event(seconds, kind, worker, f"{how} rank {home + 1}"))

    def mourn(self, job: Round, outcome: Outcome) -> None:
        """Note whom this round lost and earlier ones had not."""
        away = {*job.collector.lost_workers, *job.collector.silent_workers}
        outcome.lost = sorted(away - self._mourned)
        self._mourned |= away

    def note_span(
        self, outcome: Outcome, worker: int, kind: str, start: float, end: float, share: int = -1
    ) -> None:
        """Note for the time line what took from ``start`` to ``end`` (seconds of the round)."""
        if self.trace:
            outcome.spans.append(Span(worker, kind, start, end, share))

    def fail(self, job: Round, worker: int, error: Exception) -> NoReturn:
        """End the round because of an exception that a task raised."""
        job.collector.error(worker, self.remote_error(worker, error))
        raise job.collector.failure() from error

    @staticmethod
    def remote_error(worker: int, error: Exception) -> WorkerError:
        """Dress a task's exception as the master will see it."""
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        return WorkerError(message, rank=worker + 1, host=socket.gethostname(), traceback=text)
