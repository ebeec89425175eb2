"""The master's side of the transport: a single-threaded event loop over all workers.

Per worker there is one standing receive, never cancelled, and at most one unanswered order. A
worker that is late with round ``r`` is sent a small CANCEL and gets an order for a later round only
once it has answered or abandoned the old one, so nothing ever queues up before a slow rank. A
reply that comes too late is received into scratch memory and dropped.

A worker that owes an answer is sent a PING when nothing was heard of it for a while; workers answer
between panels, so that silence tells a frozen rank from a slow one. A silent worker's share may be
given to another; it is taken back as soon as it is heard.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from codedla.engine.collector import Instruction
from codedla.engine.round import SILENCE, Operand, Outcome, Round
from codedla.errors import PoolClosed, UsageError, WorkerError
from codedla.mpi import wire, world
from codedla.mpi.clock import Clock
from codedla.mpi.link import Link, Receipt, Running
from codedla.mpi.reception import Reception, check_reply
from codedla.mpi.signals import Postponed
from codedla.mpi.tracing import Tracer
from codedla.mpi.wire import Answer, Backoff, Kind, Message, Received, Transfer, Types

__all__ = ["Master"]

logger = logging.getLogger("codedla")

GRACE = 2.0
"""Seconds that the shutdown waits for workers to say goodbye."""
DRAIN = 1.0
"""Seconds that a finished round waits for replies that are already arriving in the output."""
WATCH = 0.05
"""Seconds between two looks at who has been silent for long."""
PING_AFTER = 0.5
"""Seconds without a word from a busy worker after which it is asked for a sign of life."""
PATIENCE = 30.0
"""Seconds after which a round ends in which all workers that are left are silent."""
BEAT = 5.0
"""Seconds between signs of life of the master's own while there is no round."""


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
    deadline : float, optional
        Seconds within which a worker must answer an order, else its share is given to another.
    """

    def __init__(
        self,
        control: MPI.Comm,
        data: MPI.Comm,
        *,
        fault_tolerant: bool,
        deadline: float | None = None,
    ) -> None:
        self.control, self.data = control, data
        self.fault_tolerant, self.deadline = fault_tolerant, deadline
        self.trace = False
        self.types = Types()
        self.links = [Link(w, data) for w in range(control.Get_size() - 1)]
        self.n_workers = len(self.links)
        self.clean = True
        self._round_id = 0
        self._last_key = 0
        self._closed = False
        self._reception = Reception(self.links)
        self._job: Running | None = None
        self._tracer: Tracer | None = None
        self._turn = threading.RLock()
        self._postponed: Postponed | None = None
        only_host = world.only_host()
        for link in self.links:
            link.host = only_host
            link.inbox.post()
        self._host = socket.gethostname().encode()
        self._ended = threading.Event()
        self._beats: threading.Thread | None = None
        self._beats_error: Exception | None = None
        if MPI.Query_thread() >= MPI.THREAD_SERIALIZED:
            self._beats = threading.Thread(target=self._beat, name="codedla-beats", daemon=True)
            self._beats.start()

    # -- the pool's protocol -----------------------------------------------------------------

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        with self._consistent() as postponed:
            if self._closed:
                raise PoolClosed("this pool is closed; use it inside its with block")
            self._raise_from_beats()
            if self._job is not None:
                raise UsageError(
                    "a pool runs one product at a time; got another one from inside progress=; "
                    "start it when the first is done"
                )
            self._round_id += 1
            if self.trace:
                self._align_clocks()
            running = self._job = Running(job, self._round_id)
            self._tracer = Tracer(running) if self.trace else None
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

    def run_all(self, jobs: Iterable[Round], done: Callable[[int, Outcome], None]) -> None:
        """Run rounds one after the other; see :class:`codedla.engine.round.Pool`."""
        for index, job in enumerate(jobs):
            done(index, self.run(job))

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
        job.collector.lend(time.perf_counter)
        for link in self.links:
            if link.gone is not None:
                running.instruct(job.collector.lost(link.worker, link.gone), link.worker, "lost")
            elif link.frozen:
                self._fall_silent(running, link, f"no sign of life for {SILENCE:g} s")
            link.overdue = False
        waiting = [link for link in self.links if link.gone is None]
        several = job.collector.code.load > 1
        backoff = Backoff()
        while running.open:
            postponed.deliver()
            if several:
                # Whoever has answered one share goes on to its next.
                more = (k for k in self.links if k.idle and job.collector.has_more(k.worker))
                waiting += [k for k in more if k.gone is None and k not in waiting]
            # Late workers are handed this round's task as soon as they are free again.
            for link in [k for k in waiting if k.idle]:
                waiting.remove(link)
                self._offer(running, link)
                self._poll()
                running.tell(postponed)
                if not running.open:
                    break
            # One that was free in between may have been given a lost share of this round.
            waiting = [k for k in waiting if k.gone is None and k.busy_round != running.round_id]
            for link in waiting:
                self._cancel(link)
            job.collector.speculate()
            if job.collector.queue:
                self._redispatch(running)
            happened = self._poll()
            running.tell(postponed)
            if happened:
                backoff.reset()
            elif not running.open:
                break
            elif job.timeout is not None and running.elapsed() > job.timeout:
                running.instruct(job.collector.deadline(), -1, "deadline")
            elif not self._watch(running) and not self._idle(running):
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
        for worker in sorted({*job.collector.lost_workers, *job.collector.silent_workers}):
            if not self.links[worker].mourned:
                self.links[worker].mourned = True
                outcome.lost.append(worker)
        if self._tracer is not None:
            self._tracer.span(-1, "decode", began, end)
            self._tracer.end(self.links, decided)
        outcome.decode = end - began
        outcome.after_threshold = end - decided
        outcome.total = end - running.start
        outcome.wait = max(decided - running.start - outcome.encode - outcome.send, 0.0)

    def _idle(self, running: Running) -> bool:
        """Decode ahead; return whether there was anything to do."""
        began = time.perf_counter()
        busy = running.job.idle()
        if busy and self._tracer is not None:
            self._tracer.span(-1, "fold", began)
        return busy

    def _offer(self, running: Running, link: Link) -> bool:
        """Give a free worker what it is to compute; return whether there was anything."""
        job = running.job

        def held(share: int) -> bool:
            return any(operand.key in link.holds for operand in job.operands(share))

        share = job.collector.next(link.worker, held if job.collector.queue else None)
        if share is not None:
            self._dispatch(running, link, share)
        return share is not None

    def _redispatch(self, running: Running) -> None:
        """Give shares that were lost to workers that are free."""
        collector = running.job.collector
        for link in self.links:
            if not collector.queue or not running.open:
                return
            if link.idle and self._offer(running, link):
                home = self.links[collector.code.home(link.share)]
                if home is not link:  # a worker's own shares come first
                    late = link.share in collector.speculated
                    kind = "speculated" if late else "redispatched"
                    how = "as well as" if late else "instead of"
                    running.instruct(Instruction.WAIT, link.worker, kind, f"{how} {home}")

    def _dispatch(self, running: Running, link: Link, share: int) -> None:
        """Encode (if the worker does not hold the share yet) and send one worker's order."""
        began = time.perf_counter()
        message = Message(Kind.RUN, running.round_id)
        arrays: list[NDArray[Any]] = []
        operands = running.job.parcel(share)
        for position, operand in enumerate(operands):
            arrays += self._describe(message, position, operand, link)
        encoded = time.perf_counter()
        size = sum(array.nbytes for array in arrays)
        inline = size <= wire.INLINE
        if inline:
            words = message.words
            message = Message(Kind.RUN, running.round_id, wire.pack(arrays))
            message.words[16:] = words[16:]
        link.order += 1
        message.words[4:8] = len(operands), inline, self.trace, link.order
        message.words[wire.WORK_AT] = running.job.operation.number
        self._order(link, message, [] if inline else arrays)
        # Only now: had a later operand failed to be encoded, nothing would have been sent.
        link.holds.update(operand.key for operand in operands if operand.key)
        link.busy_round, link.share, link.cancelled = running.round_id, share, False
        link.asked, link.overdue = time.perf_counter(), False
        running.outcome.encode += encoded - began
        running.outcome.send += link.asked - encoded
        running.outcome.sent += size
        if self._tracer is not None:
            self._tracer.ordered(link, began, encoded)

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
            ranks = ", ".join(f"rank {link.rank}" for link in self._reception.arriving(output))
            raise UsageError(
                f"out must be memory that nobody else writes to; {ranks} stopped in the middle of "
                "an earlier reply to it; pass another array"
            )

    def _settle(self, output: NDArray[Any]) -> bool:
        """Give replies that are arriving in this memory a moment; return whether all arrived."""
        return self._until(lambda: not self._reception.arriving(output), DRAIN)

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
            if not link.sends and self._tracer is not None:
                self._tracer.sent(link)
        if link.receipt is not None and link.receipt.transfer.done():
            receipt, link.receipt = link.receipt, None
            self._hear(link)
            if self._tracer is not None:
                self._tracer.span(link.worker, "reply", receipt.began, share=receipt.share)
            self._received(link, receipt)
            happened = True
        link.strays = [transfer for transfer in link.strays if not transfer.done()]
        # Also while a reply arrives: a sign of life may come before the end of it.
        if (message := link.inbox.poll()) is not None:
            self._hear(link)
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
            case Kind.REPLY | Kind.ABANDONED | Kind.ERROR if not link.awaits(message):
                self._stray(link, message)
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
            case Kind.PONG:
                link.clock.compare(int(message.words[5]), int(message.words[4]))
            case _:
                raise RuntimeError(f"unexpected answer {message.kind.name}")

    def _stray(self, link: Link, message: Received) -> None:
        """Throw away an answer that nobody asked for, a second one for instance."""
        if message.kind is Kind.REPLY and not (answer := Answer.read(message)).inline:
            waste = np.empty(answer.shape, answer.dtype)
            link.strays.append(Transfer.receive(self.data, link.rank, [waste], self.types))

    def _reply(self, link: Link, answer: Answer, message: Received) -> None:
        """Take an inline reply, or start receiving the payload where it belongs."""
        link.busy_round = 0
        running = self._current(answer)
        if answer.inline:
            if running is not None:
                reply = message.payload.view(answer.dtype).reshape(answer.shape)
                self._take(running, link, answer, link.share, reply)
            return
        place = None if running is None else self._reception.place(running.job, link, answer)
        buffer = self._reception.scratch(link, answer) if place is None else place
        transfer = Transfer.receive(self.data, link.rank, [buffer], self.types)
        placed = place is not None
        link.receipt = Receipt(transfer, answer, link.share, buffer, placed=placed)

    def _current(self, answer: Answer) -> Running | None:
        """Return the round that an answer is for, or None when it is too late."""
        running = self._job
        if running is None or answer.round_id != running.round_id or not running.open:
            return None
        return running

    def _received(self, link: Link, receipt: Receipt) -> None:
        running, answer = self._job, receipt.answer
        if running is None or answer.round_id != running.round_id:
            return
        if running.open or running.instruction is Instruction.FINISH:
            self._take(running, link, answer, receipt.share, receipt.buffer)

    def _take(
        self, running: Running, link: Link, answer: Answer, share: int, reply: NDArray[Any]
    ) -> None:
        """Check a complete reply and hand it to the collector and the decoder."""
        job, worker = running.job, link.worker
        collector, decoder = job.collector, job.decoder
        if self._tracer is not None:
            self._tracer.replied(link, answer, share)
        if not collector.lacks(share) or worker in collector.wrong:
            instruction = collector.reply(share, worker)
            if instruction is not Instruction.DROP:
                running.instruct(instruction, worker, "back")
            return
        # Only a share that was given to somebody else has two replies.
        if share in collector.redispatched and self._reception.rival(link, share) is not None:
            decoder.release(share, arriving=True)
        target = decoder.target(share)
        if reply is not target:
            check_reply(job, link, answer, target)
            target[...] = reply
        if not self._checked(running, share, target):
            self._refuse(running, link, share)
            return
        note = f"computed {answer.seconds:.6f} s"
        if not running.open:
            # It was on its way when the others sufficed: used, as it may stand in the output.
            if collector.extra(share, worker):
                decoder.add(share)
            return
        instruction = collector.reply(share, worker)
        if instruction in (Instruction.FOLD, Instruction.FINISH):
            decoder.add(share)
            running.outcome.received += target.nbytes
        running.instruct(instruction, worker, "reply", note)
        if share in collector.redispatched:
            for other in self.links:
                if other.busy_round == running.round_id and other.share == share:
                    self._cancel(other)
        if job.progress is not None:
            running.untold.append(len(collector.responders))

    def _checked(self, running: Running, share: int, reply: NDArray[Any]) -> bool:
        """Tell whether a reply passes the round's check."""
        check = running.job.check
        if check is None:
            return True
        began = time.perf_counter()
        passed = check(share, reply)
        if self._tracer is not None:
            self._tracer.span(-1, "check", began, share=share)
        return passed

    def _refuse(self, running: Running, link: Link, share: int) -> None:
        """Go on without a worker that answered wrongly."""
        running.job.decoder.release(share)
        reason = link.located("answered wrongly")
        logger.warning("%s answered wrongly; its reply is not used", link)
        running.instruct(
            running.job.collector.refuse(share, link.worker, reason), link.worker, "wrong"
        )

    def _error(self, link: Link, message: Received) -> None:
        link.busy_round = 0
        running = self._job
        if running is None or message.round_id != running.round_id or not running.open:
            return
        details = pickle.loads(message.payload.tobytes())
        if details["memory"]:
            # A matter of the rank's memory, not of the program: another may do better.
            note = link.located("out of memory")
            link.holds.difference_update(o.key for o in running.job.operands(link.share))
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
        link.gone = link.located(reason)
        self.clean = False
        logger.warning("%s is lost: %s", link, reason)
        running = self._job
        if running is not None and running.open:
            instruction = running.job.collector.lost(link.worker, link.gone)
            running.instruct(instruction, link.worker, "lost", link.gone)

    # -- signs of life -------------------------------------------------------------------------

    def _hear(self, link: Link) -> None:
        """Note that a worker is alive."""
        if not link.sign_of_life():
            return
        link.mourned = False
        logger.warning("%s is back", link)
        running = self._job
        if running is not None and running.open and not link.overdue:
            running.instruct(running.job.collector.back(link.worker), link.worker, "back")

    def _watch(self, running: Running) -> bool:
        """Look now and then at workers that owe an answer; return whether anything changed."""
        now = time.perf_counter()
        if now - running.watched < WATCH:
            return False
        running.watched = now
        events = len(running.outcome.events)
        for link in self.links:
            if link.gone is not None:
                continue
            if link.busy_round or link.receipt is not None:
                self._judge(running, link, now)
            elif not link.pinged and now - link.heard > BEAT:
                # It has done its part, and must not believe that nobody is left.
                self._ping(link)
        collector = running.job.collector
        if running.abandoned(collector.silent_workers, not collector.stuck, PATIENCE):
            for worker, reason in sorted(collector.silent_workers.items()):
                running.instruct(collector.lost(worker, reason), worker, "lost", reason)
        return len(running.outcome.events) > events

    def _judge(self, running: Running, link: Link, now: float) -> None:
        """Ask a busy worker for a sign of life, and take it for frozen when none comes."""
        if not link.pinged and now - max(link.heard, link.asked) > PING_AFTER:
            self._ping(link)
        # Several looks, because this process may itself have been away for a while.
        link.doubts = link.doubts + 1 if link.pinged and now - link.pinged > SILENCE else 0
        if link.doubts > 2 and not link.frozen:
            link.frozen = True
            self._fall_silent(running, link, f"no sign of life for {SILENCE:g} s")
        asked = max(link.asked, running.start)
        if self.deadline is not None and not link.overdue and now - asked > self.deadline:
            link.overdue = True
            self._fall_silent(running, link, f"no answer within {self.deadline:g} s")

    def _fall_silent(self, running: Running, link: Link, reason: str) -> None:
        reason = link.located(reason)
        instruction = running.job.collector.silent(link.worker, reason)
        if instruction is not Instruction.DROP:
            logger.warning("%s is not waited for: %s", link, reason)
            running.instruct(instruction, link.worker, "silent", reason)

    def _align_clocks(self) -> None:
        """Compare clocks with the free workers, a few times, for the time line."""
        for _ in range(Clock.COMPARISONS):
            asked = [k for k in self.links if k.idle and not k.frozen and not k.clock.known]
            for link in asked:
                self._ping(link)
            if not self._until(lambda: not any(k.pinged for k in asked if k.gone is None), 0.5):  # noqa: B023 - called at once
                return

    def _ping(self, link: Link) -> None:
        link.pinged = time.perf_counter()
        message = Message(Kind.PING, link.busy_round, self._host)
        message.words[4:7] = self._beats is not None, time.perf_counter_ns(), os.getpid()
        self._order(link, message)

    def _beat(self) -> None:
        """Tell the workers now and then that the master lives, also while there is no round."""
        pause = BEAT / 50  # soon at first: a worker that was never told cannot miss it
        while not self._ended.wait(pause):
            if not self._turn.acquire(blocking=False):
                continue  # a round is under way, which has pings of its own
            pause = BEAT
            try:
                if self._job is None and not self._closed:
                    for link in self.links:
                        if link.gone is None and not link.pinged:
                            self._ping(link)
                    self._poll()
            except Exception as error:
                self._beats_error = error
                return
            finally:
                self._turn.release()

    def _raise_from_beats(self) -> None:
        """Raise here what went wrong between two rounds, where nobody would hear of it."""
        error, self._beats_error = self._beats_error, None
        if error is not None:
            raise error

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
                self._ended.set()
                self._dismiss()
        if self._beats is not None:
            self._beats.join(GRACE)
        self._raise_from_beats()
        return self.clean

    def _dismiss(self) -> None:
        for link in self.links:
            if link.gone is None:
                self._order(link, Message(Kind.STOP))
        # Who is known to be frozen need not be waited for. What was not taken from an order's
        # payload by now never will be, and would keep MPI_Finalize waiting.
        self._until(
            lambda: all(
                (k.said_bye and not k.sends) or k.frozen or k.gone is not None for k in self.links
            ),
            GRACE,
        )
        silent = [k for k in self.links if not k.said_bye and k.gone is None]
        stuck = any(k.sends for k in self.links if k.gone is None)
        self.clean = self.clean and not silent and not stuck
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
