"""The master's side of the transport: a single-threaded event loop over all workers.

Per worker there is one standing receive, never cancelled, and at most one unanswered order. A
worker that is late with round ``r`` is sent a small CANCEL and gets an order for a later round only
once it has answered or abandoned the old one, so nothing ever queues up before a slow rank. A
reply that comes too late is received into scratch memory and dropped.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.collector import Instruction
from codedla.engine.round import Operand, Outcome, Round
from codedla.errors import PoolClosed, UsageError, WorkerError
from codedla.mpi import wire
from codedla.mpi.link import Link, Receipt, Running
from codedla.mpi.signals import Postponed
from codedla.mpi.wire import Answer, Backoff, Kind, Message, Received, Transfer, Types

__all__ = ["Master"]

logger = logging.getLogger("codedla")

GRACE = 2.0
"""Seconds that the shutdown waits for workers to say goodbye."""
DRAIN = 1.0
"""Seconds that a finished round waits for replies that are already arriving in the output."""


class Master:
    """Drive the workers of one communicator.

    Threads take turns. Signal handlers, Ctrl-C's among them, wait until orders and books agree, so
    that the pool stays usable after an interrupt.

    Parameters
    ----------
    control, data : MPI.Comm
        Orders go on the first, with their payload on the second; answers come on the second.
    fault_tolerant : bool
        Whether killing a silent worker leaves the rest of the job alive.
    """

    def __init__(self, control: MPI.Comm, data: MPI.Comm, *, fault_tolerant: bool) -> None:
        self.control, self.data = control, data
        self.fault_tolerant = fault_tolerant
        self.types = Types()
        self.links = [Link(w, control, data) for w in range(control.Get_size() - 1)]
        self.n_workers = len(self.links)
        self.clean = True
        self._round_id = 0
        self._last_key = 0
        self._closed = False
        self._scratch: dict[int, NDArray[np.uint8]] = {}
        self._job: Running | None = None
        self._turn = threading.RLock()
        self._postponed: Postponed | None = None
        for link in self.links:
            link.inbox.post()

    # -- the pool's protocol -----------------------------------------------------------------

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        with self._consistent() as postponed:
            if self._closed:
                raise PoolClosed("this pool is closed; use it inside its with block")
            if self._job is not None:
                raise UsageError(
                    "a pool runs one product at a time; got another one from inside progress=; "
                    "start it when the first is done"
                )
            self._round_id += 1
            running = self._job = Running(job, self._round_id)
            try:
                self._claim(job.decoder.output)
                self._collect(running, postponed)
            finally:
                self._job = None
                # Whatever happened, nobody goes on computing for this round.
                for link in self.links:
                    self._cancel(link)
                self._settle(job.decoder.output)
            return running.outcome

    @contextmanager
    def _consistent(self) -> Iterator[Postponed]:
        """Take this thread's turn, with signal handlers held back."""
        with self._turn:
            if self._postponed is not None:  # called from inside a round
                yield self._postponed
                return
            with Postponed() as postponed:
                self._postponed = postponed
                try:
                    yield postponed
                finally:
                    self._postponed = None

    def new_key(self) -> int:
        """Return an unused positive id for a resident operand."""
        self._last_key += 1
        return self._last_key

    def drop(self, keys: Sequence[int]) -> None:
        """Make every worker forget these resident operands."""
        with self._consistent():
            if self._closed:
                return
            payload = np.array(keys, np.int64).tobytes()
            for link in self.links:
                held = link.holds.intersection(keys)
                if held and link.gone is None:
                    link.holds -= held
                    self._order(link, Message(Kind.DROP, payload=payload))

    # -- one round -----------------------------------------------------------------------------

    def _collect(self, running: Running, postponed: Postponed) -> None:
        job, outcome = running.job, running.outcome
        for worker in job.workers:
            reason = self.links[worker].gone
            if reason is not None:
                running.instruct(job.collector.lost(worker, reason), worker, "lost")
        waiting = [w for w in job.workers if self.links[w].gone is None]
        backoff = Backoff()
        while running.open:
            postponed.deliver()
            # Late workers are handed this round's task as soon as they are free again.
            for worker in [w for w in waiting if self.links[w].idle]:
                waiting.remove(worker)
                self._dispatch(running, self.links[worker])
                self._poll()
                running.tell(postponed)
                if not running.open:
                    break
            for worker in waiting:
                self._cancel(self.links[worker])
            waiting = [w for w in waiting if self.links[w].gone is None]
            happened = self._poll()
            running.tell(postponed)
            if happened:
                backoff.reset()
            elif not running.open:
                break
            elif job.timeout is not None and running.elapsed() > job.timeout:
                running.instruct(job.collector.deadline(), -1, "deadline")
            elif not job.decoder.idle():
                backoff.wait()
        if running.instruction is Instruction.FAIL:
            raise job.collector.failure()
        decided = time.perf_counter()
        for link in self.links:
            self._cancel(link)
        self._drain(running)
        began = time.perf_counter()
        job.decoder.finish(job.collector.responders)
        end = time.perf_counter()
        outcome.decode = end - began
        outcome.after_threshold = end - decided
        outcome.total = end - running.start
        outcome.wait = max(decided - running.start - outcome.encode - outcome.send, 0.0)

    def _dispatch(self, running: Running, link: Link) -> None:
        """Encode (if the worker does not hold its share yet) and send one worker's order."""
        began = time.perf_counter()
        message = Message(Kind.RUN, running.round_id)
        arrays: list[NDArray[Any]] = []
        operands = running.job.operands(link.worker)
        for position, operand in enumerate(operands):
            arrays += self._describe(message, position, operand, link)
        encoded = time.perf_counter()
        size = sum(array.nbytes for array in arrays)
        inline = size <= wire.INLINE
        if inline:
            words = message.words
            message = Message(Kind.RUN, running.round_id, wire.pack(arrays))
            message.words[16:] = words[16:]
        message.words[4:6] = len(operands), inline
        self._order(link, message, [] if inline else arrays)
        # Only now: had a later operand failed to be encoded, nothing would have been sent.
        link.holds.update(operand.key for operand in operands if operand.key)
        link.busy_round, link.cancelled = running.round_id, False
        running.outcome.encode += encoded - began
        running.outcome.send += time.perf_counter() - encoded
        running.outcome.sent += size

    def _describe(
        self, message: Message, position: int, operand: Operand, link: Link
    ) -> list[NDArray[Any]]:
        matrix = None if operand.key in link.holds else operand.supply()
        return wire.describe(message.words, position, operand.key, matrix)

    def _drain(self, running: Running) -> None:
        """Let replies that are arriving in the output's own memory arrive, before it is used."""
        if not self._settle(running.job.decoder.output):
            running.job.decoder.detach()

    def _claim(self, output: NDArray[Any]) -> None:
        """Refuse to decode into memory that a reply to an earlier round may still write to.

        Raises
        ------
        UsageError
            A rank stopped in the middle of sending its reply into the same ``out``.
        """
        if not self._settle(output):
            ranks = ", ".join(f"rank {link.rank}" for link in self._arriving(output))
            raise UsageError(
                f"out must be memory that nobody else writes to; {ranks} stopped in the middle of "
                "an earlier reply to it; pass another array"
            )

    def _settle(self, output: NDArray[Any]) -> bool:
        """Give replies that are arriving in this memory a moment; return whether all arrived."""
        return self._until(lambda: not self._arriving(output), DRAIN)

    def _arriving(self, output: NDArray[Any]) -> list[Link]:
        """Return the workers whose replies are being received into this memory."""
        return [
            link
            for link in self.links
            if link.receipt is not None
            and link.gone is None
            and np.may_share_memory(link.receipt.buffer, output)
        ]

    # -- messages --------------------------------------------------------------------------------

    def _order(self, link: Link, message: Message, arrays: Sequence[NDArray[Any]] = ()) -> None:
        try:
            channels = (self.control, self.data)
            link.sends.append(Transfer.send(channels, link.rank, message, arrays, self.types))
        except MPI.Exception as error:
            self._lose(link, f"sending to it failed: {_reason(error)}")

    def _cancel(self, link: Link) -> None:
        """Tell a worker, once, that its unanswered order is void."""
        if link.busy_round and not link.cancelled and link.gone is None:
            link.cancelled = True
            self._order(link, Message(Kind.CANCEL, link.busy_round))

    def _poll(self) -> bool:
        """Look once at everything that may have happened; return whether anything did."""
        happened = False
        for link in self.links:
            if link.gone is not None:
                continue
            try:
                happened |= self._poll_link(link)
            except MPI.Exception as error:
                self._lose(link, f"its connection failed: {_reason(error)}")
                happened = True
        return happened

    def _poll_link(self, link: Link) -> bool:
        happened = False
        if link.sends:
            link.sends = [transfer for transfer in link.sends if not transfer.done()]
        if link.receipt is not None and link.receipt.transfer.done():
            receipt, link.receipt = link.receipt, None
            self._received(link, receipt)
            happened = True
        if link.receipt is None and (message := link.inbox.poll()) is not None:
            try:
                self._message(link, message)
            finally:
                # Also after a broken message: the goodbye must still be heard.
                if not link.said_bye:
                    link.inbox.post()
            happened = True
        return happened

    def _message(self, link: Link, message: Received) -> None:
        match message.kind:
            case Kind.REPLY:
                self._reply(link, Answer.read(message), message)
            case Kind.ABANDONED:
                link.busy_round = 0
            case Kind.ERROR:
                self._error(link, message)
            case Kind.HELLO:
                greeting = pickle.loads(message.payload.tobytes())
                link.host, link.pid = greeting["host"], greeting["pid"]
            case Kind.BYE:
                link.said_bye = True
            case _:
                raise RuntimeError(f"unexpected answer {message.kind.name}")

    def _reply(self, link: Link, answer: Answer, message: Received) -> None:
        """Take an inline reply, or start receiving the payload where it belongs."""
        link.busy_round = 0
        running, target = self._job, self._target(link, answer)
        if answer.inline:
            if running is not None and target is not None:
                target[...] = message.payload.view(answer.dtype).reshape(answer.shape)
                self._hand_over(running, link, answer)
            return
        buffer = target
        if buffer is None or self._lent(buffer) or not wire.runs_of_rows(buffer):
            buffer = self._scratch_for(link, answer)
        transfer = Transfer.receive(self.data, link.rank, [buffer], self.types)
        link.receipt = Receipt(transfer, answer, target, buffer)

    def _target(self, link: Link, answer: Answer) -> NDArray[Any] | None:
        """Return where the reply belongs, or None when it is too late."""
        running = self._job
        if running is None or answer.round_id != running.round_id or not running.open:
            return None
        target = running.job.decoder.target(link.worker)
        if target.shape != answer.shape or target.dtype != answer.dtype:
            raise RuntimeError(
                f"rank {link.rank} replied {answer.dtype} {answer.shape}, "
                f"{target.dtype} {target.shape} was due"
            )
        return target

    def _lent(self, target: NDArray[Any]) -> bool:
        """Tell whether this is memory of the caller's, which goes back when the round is over."""
        job = self._job.job if self._job is not None else None
        return job is not None and job.borrowed and np.may_share_memory(target, job.decoder.output)

    def _scratch_for(self, link: Link, answer: Answer) -> NDArray[Any]:
        """Return scratch memory for a late reply; kept per worker and reused."""
        size = int(np.prod(answer.shape)) * answer.dtype.itemsize
        held = self._scratch.get(link.worker)
        if held is None or held.size < size:
            held = self._scratch[link.worker] = np.empty(size, np.uint8)
        return held[:size].view(answer.dtype).reshape(answer.shape)

    def _received(self, link: Link, receipt: Receipt) -> None:
        running = self._job
        current = running is not None and receipt.answer.round_id == running.round_id
        if running is None or not current or receipt.target is None:
            return
        if not receipt.in_place:
            receipt.target[...] = receipt.buffer
        if running.open:
            self._hand_over(running, link, receipt.answer)
        elif running.instruction is Instruction.FINISH:
            running.job.collector.extra(link.worker)
            running.job.decoder.add(link.worker)

    def _hand_over(self, running: Running, link: Link, answer: Answer) -> None:
        """Feed a complete reply to the collector and the decoder."""
        job = running.job
        instruction = job.collector.reply(link.worker)
        if instruction in (Instruction.FOLD, Instruction.FINISH):
            job.decoder.add(link.worker)
            target = job.decoder.target(link.worker)
            running.outcome.received += target.nbytes
        running.instruct(instruction, link.worker, "reply", f"computed {answer.seconds:.6f} s")
        if job.progress is not None:
            running.untold.append(len(job.collector.responders))

    def _error(self, link: Link, message: Received) -> None:
        link.busy_round = 0
        running = self._job
        if running is None or message.round_id != running.round_id or not running.open:
            return
        details = pickle.loads(message.payload.tobytes())
        if details["memory"]:
            # A matter of the rank's memory, not of the program: another may do better.
            note = "out of memory"
            instruction = running.job.collector.lost(link.worker, note)
            running.instruct(instruction, link.worker, "lost", note)
            return
        error = WorkerError(
            details["message"],
            rank=link.rank,
            host=link.host or "unknown host",
            traceback=details["traceback"],
        )
        running.instruct(running.job.collector.error(link.worker, error), link.worker, "error")

    def _lose(self, link: Link, reason: str) -> None:
        if link.gone is not None:
            return
        link.gone = reason
        self.clean = False
        logger.warning("%s is lost: %s", link, reason)
        running = self._job
        if running is not None and running.open:
            instruction = running.job.collector.lost(link.worker, reason)
            running.instruct(instruction, link.worker, "lost", reason)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> bool:
        """Stop all workers, bounded in time; return whether everybody left cleanly.

        A worker in the middle of a panel hears of it within milliseconds. One that is frozen or
        swapped out is not waited for beyond :data:`GRACE`.
        """
        with self._consistent():
            if self._job is not None:
                raise UsageError("a pool closes between products; got close() inside progress=")
            if not self._closed:
                self._closed = True
                self._dismiss()
            return self.clean

    def _dismiss(self) -> None:
        for link in self.links:
            if link.gone is None:
                self._order(link, Message(Kind.STOP))
        self._until(lambda: all(k.said_bye or k.gone is not None for k in self.links), GRACE)
        silent = [k for k in self.links if not k.said_bye and k.gone is None]
        self.clean = self.clean and not silent
        for link in self.links:
            if link.gone is None:
                farewell = Message(Kind.LEAVE)
                farewell.words[4] = self.clean
                self._order(link, farewell)
        flushed = self._until(
            lambda: not any(k.sends for k in self.links if k.said_bye and k.gone is None), GRACE
        )
        self.clean = self.clean and flushed
        if self.clean:
            self.types.free()
        elif self.fault_tolerant:
            self._kill(silent)

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Keep polling until the condition holds or time is over."""
        backoff, end = Backoff(), time.perf_counter() + seconds
        while not condition():
            if time.perf_counter() > end:
                return False
            if self._poll():
                backoff.reset()
            else:
                backoff.wait()
        return True

    def _kill(self, silent: Sequence[Link]) -> None:
        """Kill silent workers on this host: a frozen one would keep the launcher waiting."""
        here = socket.gethostname()
        for link in silent:
            logger.warning("%s did not stop", link)
            if link.host == here and link.pid:
                try:
                    os.kill(link.pid, signal.SIGKILL)
                except ProcessLookupError:
                    logger.debug("rank %d had ended already", link.rank)


def _reason(error: MPI.Exception) -> str:
    lines = error.Get_error_string().splitlines()
    return lines[0] if lines else f"MPI error {error.Get_error_class()}"
