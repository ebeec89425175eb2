"""Several rounds under way at once: orders out, replies in, each round decoded when it can be.

The schedule says which round a worker computes for, the rounds' collectors what their replies mean.
A worker may have one order ahead of the one it is at. A late worker is sent a small CANCEL and gets
an order of a later session only once it has answered or abandoned the old ones, so nothing ever
queues up before a slow rank. A reply that comes too late is received into scratch memory and
dropped.

Orders go out before a round is decoded, so that nobody waits for the master's arithmetic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

from codedla.engine.collector import Collector, Instruction
from codedla.engine.round import Outcome, Round
from codedla.engine.schedule import Schedule
from codedla.mpi.backoff import Backoff
from codedla.mpi.dispatch import dispatch
from codedla.mpi.lines import DRAIN, Lines
from codedla.mpi.link import Given, Link, Receipt
from codedla.mpi.reception import check_reply
from codedla.mpi.running import Running
from codedla.mpi.signals import Postponed
from codedla.mpi.watch import Watch, frozen_for
from codedla.mpi.wire import Answer

__all__ = ["AHEAD", "Session"]

logger = logging.getLogger("codedla")

AHEAD = 1
"""Orders that a worker may have beyond the one it is at."""
PATIENCE = 30.0
"""Seconds after which a round ends in which all workers that are left are silent."""


class Session:
    """Rounds that were asked for together.

    Parameters
    ----------
    lines : Lines
    jobs : iterable of Round
    done : callable
        ``done(index, outcome)`` after each round.
    new_key : callable
        Gives each round its id on the wire; they ascend.
    postponed : Postponed
        Holds back signal handlers.
    deadline : float or None
        Seconds within which a worker must answer the order that it is at.
    trace : bool
        Whether rounds note what takes how long on which rank.
    window : int, optional
        Rounds that may be open at a time; see :class:`codedla.engine.schedule.Schedule`.
    foreign : bool
        ``jobs`` and ``done`` are the caller's: signal handlers may run in them.
    """

    def __init__(
        self,
        lines: Lines,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        *,
        new_key: Callable[[], int],
        postponed: Postponed,
        deadline: float | None,
        trace: bool,
        window: int | None = None,
        foreign: bool = True,
    ) -> None:
        self._callers: Callable[[], AbstractContextManager[None]]
        self._callers = postponed.lifted if foreign else nullcontext
        self._lines, self._links = lines, lines.links
        self._jobs, self._done = iter(jobs), done
        self._new_key, self._postponed, self._trace = new_key, postponed, trace
        self._watch = Watch(lines, deadline)
        self._schedule = Schedule(len(lines.links), self._draw, ahead=AHEAD, window=window)
        self._rounds: dict[int, Running] = {}
        self._first: int | None = None
        self._wrong: dict[int, str] = {}
        self._silent = {k.worker: k.located(frozen_for()) for k in self._links if k.frozen}

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all rounds; raises what :meth:`codedla.engine.round.Pool.run_all` does."""
        backoff, happened = Backoff(), True
        while self._schedule.ensure() or self._rounds:
            self._postponed.deliver()
            # Where nothing happened there is nothing new to be ordered.
            happened = happened and self._hand_out()
            happened |= self._lines.poll()
            self._tell()
            for running in list(self._rounds.values()):
                happened |= self._look_at(running)
            if not happened:
                happened = self._look_around()
            if happened:
                backoff.reset()
            elif not self._decode_ahead():
                backoff.wait(moving=self._lines.moving)

    def end(self) -> None:
        """Whatever happened, let nobody go on computing for these rounds.

        The lines do not listen to this session any more.
        """
        for link in self._links:
            self._lines.cancel(link)
        for running in self._rounds.values():
            self._lines.settle(running.job.decoder.output)

    def _draw(self) -> tuple[int, Collector] | None:
        """Begin one more round, and tell its collector what is known of the workers."""
        with self._callers():
            job = next(self._jobs, None)
        if job is None:
            return None
        key = self._new_key()
        first = self._first is None
        if self._first is None:
            self._first = key
        self._lines.claim(job.decoder.output, self._first)
        running = Running(job, key, key - self._first, trace=self._trace)
        self._rounds[key] = running
        collector = job.collector
        collector.lend(time.perf_counter)
        for worker, (kind, reason) in sorted(self._away().items()):
            tell = {"lost": collector.lost, "silent": collector.silent}.get(kind)
            if first:
                running.note(worker, kind, reason)
            running.instruct(
                collector.refuse(-1, worker, reason) if tell is None else tell(worker, reason)
            )
        return key, collector

    def _away(self) -> dict[int, tuple[str, str]]:
        """Return the workers that a new round cannot count on: what they are, and why."""
        away = {worker: ("wrong", reason) for worker, reason in self._wrong.items()}
        away |= {worker: ("silent", reason) for worker, reason in self._silent.items()}
        away |= {k.worker: ("lost", k.gone) for k in self._links if k.gone is not None}
        return away

    def _look_at(self, running: Running) -> bool:
        """Do what is due in one round; return whether anything was."""
        collector = running.job.collector
        if running.failed:
            raise collector.failure()
        if running.decided is not None:
            return self._conclude(running, running.decided)
        if running.overtime():
            running.note(-1, "deadline")
            self._instruct(running, collector.deadline())
            return True
        if collector.speculate() is Instruction.REDISPATCH:
            self._schedule.changed()
            return True
        return False

    def _look_around(self) -> bool:
        """Look now and then at workers that owe an answer; return whether anything changed."""
        if not self._watch.due():
            return False
        changed = False
        for link, reason in self._watch.look():
            self._fall_silent(link, link.located(reason))
            changed = True
        for running in self._open():
            collector = running.job.collector
            if running.abandoned(collector.silent_workers, not collector.stuck, PATIENCE):
                for worker, reason in sorted(collector.silent_workers.items()):
                    running.note(worker, "lost", reason)
                    self._instruct(running, collector.lost(worker, reason))
                self._schedule.changed()
                changed = True
        return changed

    def _decode_ahead(self) -> bool:
        """Decode ahead in the earliest round that has something to do; return whether one had."""
        for running in self._rounds.values():
            began = time.perf_counter()
            if running.job.idle():
                if running.tracer is not None:
                    running.tracer.span(-1, "fold", began)
                return True
        return False

    def _tell(self) -> None:
        for running in list(self._rounds.values()):
            running.tell(self._postponed)

    def _open(self) -> list[Running]:
        return [running for running in self._rounds.values() if running.open]

    # -- orders --------------------------------------------------------------------------------

    def _hand_out(self) -> bool:
        """Give orders to the workers that can take one; return whether there were any."""
        gave = False
        for depth in range(1 + AHEAD):
            for link in self._links:
                if link.gone is not None or link.busy(depth) or self._owes_older(link):
                    continue
                task = self._schedule.next(link.worker, self._is_held_by(link))
                if task is not None:
                    running = self._rounds[task.key]
                    dispatch(self._lines, link, running, task, trace=self._trace)
                    self._note_helper(link, running, task.share)
                    self._lines.poll()
                    self._tell()
                    gave = True
        return gave

    def _owes_older(self, link: Link) -> bool:
        """Tell whether a worker still has an order of an earlier session."""
        return bool(link.orders) and link.orders[0].task.key < (self._first or 0)

    def _is_held_by(self, link: Link) -> Callable[[int, int], bool]:
        def held(key: int, share: int) -> bool:
            operands = self._rounds[key].job.operands(share)
            return any(operand.key in link.holds for operand in operands)

        return held

    def _note_helper(self, link: Link, running: Running, share: int) -> None:
        """Note that a worker was given the share of another."""
        collector = running.job.collector
        home = self._links[collector.code.home(share)]
        if home is not link:
            late = share in collector.speculated
            how = "as well as" if late else "instead of"
            running.note(link.worker, "speculated" if late else "redispatched", f"{how} {home}")

    # -- what comes in (see Listener) ----------------------------------------------------------

    def place(self, link: Link, given: Given, answer: Answer) -> NDArray[Any] | None:
        """Return the decoder's own memory for a reply, where that is possible."""
        self._schedule.computed(link.worker, given.task)
        running = self._rounds.get(given.task.key)
        if running is None or not running.open:
            return None
        return self._lines.reception.place(running.job, link, given.task, answer)

    def sent(self, link: Link, given: Given) -> None:
        """Note for the time line that everything of an order has left."""
        running = self._rounds.get(given.task.key)
        if running is not None and running.tracer is not None:
            running.tracer.sent(given)

    def received(self, link: Link, receipt: Receipt) -> None:
        """Note for the time line that a payload has been received."""
        running, share = self._rounds.get(receipt.given.task.key), receipt.given.task.share
        if running is not None and running.tracer is not None:
            running.tracer.span(link.worker, "reply", receipt.began, share=share)

    def replied(self, link: Link, given: Given, answer: Answer, reply: NDArray[Any]) -> None:
        """Take a complete reply."""
        running = self._rounds.get(given.task.key)
        if running is not None and not running.failed:
            self._take(running, link, given, answer, reply)
        self._free(link, given)

    def abandoned(self, link: Link, given: Given) -> None:
        """Note that a worker does not answer a cancelled order."""
        self._free(link, given)

    def error(self, link: Link, given: Given, details: dict[str, Any]) -> None:
        """Go on without a rank that lacks memory or a file; end a round whose task raised."""
        running = self._rounds.get(given.task.key)
        if running is not None and running.open:
            collector = running.job.collector
            mine = "out of memory" if details["memory"] else details["unreadable"]
            if mine:
                # A matter of the rank, not of the program: another may do better.
                note = link.located(mine)
                operands = running.job.operands(given.task.share)
                link.holds.difference_update(operand.key for operand in operands)
                running.note(link.worker, "lost", note)
                self._instruct(running, collector.lost(link.worker, note))
            else:
                running.note(link.worker, "error")
                self._instruct(running, collector.error(link.worker, link.task_error(details)))
        self._free(link, given)

    def lost(self, link: Link) -> None:
        """Tell all rounds that a worker will not be heard of again."""
        reason = link.gone or ""
        for index, running in enumerate(self._open()):
            if index == 0:
                running.note(link.worker, "lost", reason)
            self._instruct(running, running.job.collector.lost(link.worker, reason))
        self._schedule.lost(link.worker)

    def back(self, link: Link) -> None:
        """Tell all rounds that a silent worker was heard of."""
        if link.overdue:
            return
        self._silent.pop(link.worker, None)
        for index, running in enumerate(self._open()):
            if index == 0:
                running.note(link.worker, "back")
            self._instruct(running, running.job.collector.back(link.worker))
        self._schedule.changed()

    def _free(self, link: Link, given: Given) -> None:
        """Let the schedule know that an order is answered; take an overdue worker back."""
        if link.overdue:
            link.overdue = False
            self.back(link)
        if self._first is not None and given.task.key >= self._first:
            self._schedule.answered(link.worker, given.task)

    # -- replies -------------------------------------------------------------------------------

    def _take(
        self, running: Running, link: Link, given: Given, answer: Answer, reply: NDArray[Any]
    ) -> None:
        """Check a complete reply and hand it to the collector and the decoder."""
        job, worker, share = running.job, link.worker, given.task.share
        collector, decoder = job.collector, job.decoder
        if running.tracer is not None:
            running.tracer.replied(link, given, answer)
        if not collector.lacks(share) or worker in collector.wrong:
            instruction = collector.reply(share, worker)
            if instruction is not Instruction.DROP:
                running.note(worker, "back")
                self._instruct(running, instruction)
            return
        # Only a share that was given to somebody else has two replies.
        redispatched = share in collector.redispatched
        if redispatched and self._lines.reception.rival(link, given.task) is not None:
            decoder.release(share, arriving=True)
        target = decoder.target(share)
        if reply is not target:
            check_reply(job, link, answer, target)
            target[...] = reply
        if not self._passes(running, share, target):
            self._refuse(running, link, share)
            return
        if not running.open:
            # It was on its way when the others sufficed: used, as it may stand in the output.
            if collector.extra(share, worker):
                decoder.add(share)
            return
        instruction = collector.reply(share, worker)
        if instruction in (Instruction.FOLD, Instruction.FINISH):
            decoder.add(share)
            running.outcome.received += target.nbytes
        running.note(worker, "reply", f"computed {answer.seconds:.6f} s")
        self._instruct(running, instruction)
        if redispatched:
            for other in self._links:
                if any(order.task == given.task for order in other.orders):
                    self._lines.cancel(other, running.key)
        if job.progress is not None:
            running.untold.append(len(collector.responders))

    def _passes(self, running: Running, share: int, reply: NDArray[Any]) -> bool:
        """Tell whether a reply passes the round's check."""
        check = running.job.check
        if check is None:
            return True
        began = time.perf_counter()
        passed = check(share, reply)
        if running.tracer is not None:
            running.tracer.span(-1, "check", began, share=share)
        return passed

    def _refuse(self, running: Running, link: Link, share: int) -> None:
        """Go on without a worker that answered wrongly, in all rounds."""
        running.job.decoder.release(share)
        reason = link.located("answered wrongly")
        logger.warning("%s answered wrongly; its reply is not used", link)
        running.note(link.worker, "wrong")
        self._instruct(running, running.job.collector.refuse(share, link.worker, reason))
        self._wrong[link.worker] = reason
        for other in self._open():
            if other is not running:
                self._instruct(other, other.job.collector.refuse(-1, link.worker, reason))
        self._schedule.changed()

    # -- how rounds end ------------------------------------------------------------------------

    def _instruct(self, running: Running, instruction: Instruction) -> None:
        """Take a collector's answer; when the replies suffice, nobody is to go on."""
        if running.instruct(instruction):
            for worker in self._schedule.close(running.key):
                self._lines.cancel(self._links[worker], running.key)

    def _fall_silent(self, link: Link, reason: str) -> None:
        """Tell all rounds that a worker is not to be waited for."""
        logger.warning("%s is not waited for: %s", link, reason)
        self._silent[link.worker] = reason
        for index, running in enumerate(self._open()):
            if index == 0:
                running.note(link.worker, "silent", reason)
            self._instruct(running, running.job.collector.silent(link.worker, reason))
        self._schedule.changed()

    def _conclude(self, running: Running, decided: float) -> bool:
        """Decode a round, unless a reply is just arriving in its output; tell of it."""
        job, outcome, began = running.job, running.outcome, time.perf_counter()
        reception = self._lines.reception
        if reception.arriving_for(running.key):
            if began - decided < DRAIN and not reception.stopped(running.key):
                return False
            job.decoder.detach()
        job.decoder.finish(job.collector.responders)
        end = time.perf_counter()
        del self._rounds[running.key]
        for worker in sorted({*job.collector.lost_workers, *job.collector.silent_workers}):
            if not self._links[worker].mourned:
                self._links[worker].mourned = True
                outcome.lost.append(worker)
        if running.tracer is not None:
            running.tracer.span(-1, "decode", began, end)
            running.tracer.end(self._links, job.collector, running.key, decided)
        running.measure(decided, began, end)
        with self._callers():
            self._done(running.index, outcome)
        return True
