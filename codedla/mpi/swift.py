"""The master's side of quick rounds: one message for all workers, short replies; see engine.quick.

The books are those of all other rounds: every worker has a list of its unanswered orders, and every
order is answered. An order of this kind voids those before it, which saves a CANCEL; a worker that
has not even answered the one before the last gets none, so that nothing queues up before a slow
rank. Whoever computes for long is told to stop all the same.

Looking for a message makes MPI look at everything, and give up the processor where there is
nothing, so that looking at each worker in turn would give it up as often as there are workers. A
message shows in its memory, though, and only then is it asked for.
"""

from __future__ import annotations

import pickle
import time

from mpi4py import MPI

from codedla.engine.quick import Quick
from codedla.engine.schedule import Task
from codedla.errors import WorkerError
from codedla.mpi import wire
from codedla.mpi.backoff import Backoff
from codedla.mpi.lines import Lines
from codedla.mpi.link import Given, Link
from codedla.mpi.wire import Kind, Received

__all__ = ["run_quick"]

OWED = 2
"""Answers that a worker may owe, this round's among them."""
_STALE = 0.25
"""Seconds after which an unanswered order is a matter for an ordinary round."""
_SENDS = 2
"""Messages to a worker that are not asked whether they have left: nearly always they have."""
_REPLY = int(Kind.REPLY)
_LONG = 2e-3
"""Seconds of computing that are worth a CANCEL."""


def run_quick(lines: Lines, job: Quick, key: int) -> bool:
    """Run a quick round; return whether the replies sufficed.

    Parameters
    ----------
    lines : Lines
    job : Quick
    key : int
        Id of the round.

    Raises
    ------
    WorkerError
        A worker's task raised.
    """
    began = job.began = time.perf_counter()
    if job.x.nbytes > wire.INLINE or not all(_ready(k, job, began) for k in lines.links):
        return False
    try:
        return _Run(lines, job, key).run()
    finally:
        if any(seconds > _LONG for *_, seconds in job.replies):
            for link in lines.links:
                lines.cancel(link)


def _ready(link: Link, job: Quick, now: float) -> bool:
    """Tell whether everything is as usual with a worker."""
    if len(link.sends) > _SENDS:
        link.sends = [transfer for transfer in link.sends if not transfer.done()]
    return (
        link.gone is None
        and job.first_key + link.worker in link.holds
        and not (link.frozen or link.overdue or link.receipts or link.strays)
        and not (link.orders and now - link.orders[0].asked > _STALE)
    )


class _Run:
    """One quick round under way."""

    def __init__(self, lines: Lines, job: Quick, key: int) -> None:
        self._lines, self._links, self._job, self._key = lines, lines.links, job, key
        # One number for all: it must be new to each of them.
        self._number = 1 + max(link.given for link in lines.links)
        self._turn = 0

    def run(self) -> bool:
        job = self._job
        self._send()
        job.sent = time.perf_counter()
        backoff = Backoff()
        while True:
            happened, outcome = self._look()
            if outcome is not False:
                job.decided = time.perf_counter()
                return outcome is True
            if happened:
                backoff.reset()
            elif time.perf_counter() - job.began > job.patience:
                return False
            else:
                backoff.wait()

    def _send(self) -> None:
        job, number, lines = self._job, self._number, self._lines
        box = lines.outboxes.get(job)
        box.fill(job, self._key, number)
        sent = []
        for link, request in zip(self._links, box.requests, strict=True):
            if len(link.orders) < OWED:
                try:
                    request.Start()
                except MPI.Exception as error:
                    lines.lose(link, f"sending to it failed: {error.Get_error_string()}")
                else:
                    sent.append(link)
        # The books wait until everybody has something to do.
        now = time.perf_counter()
        for link in sent:
            for given in link.orders:
                given.cancelled = True
            link.given = number
            link.orders.append(Given(Task(self._key, link.worker), number, now, None))

    def _look(self) -> tuple[bool, bool | None]:
        """Look for answers; return whether there were any, and what the last one led to."""
        shown = [link for link in self._links if link.inbox.shows]
        if not shown:
            # Any will do to make progress; in turn, so that whatever is wrong is found.
            self._turn = (self._turn + 1) % len(self._links)
            shown = [self._links[self._turn]]
        happened = False
        for link in shown:
            try:
                message = link.inbox.poll()
            except MPI.Exception as error:
                self._lines.lose(link, f"its connection failed: {error.Get_error_string()}")
                return True, None
            if message is not None:
                happened = True
                outcome = self._hear(link, message)
                if outcome is not False:
                    return True, outcome
        return happened, False

    def _hear(self, link: Link, message: Received) -> bool | None:
        """Take an answer; return whether the replies suffice, None to give up."""
        link.sign_of_life()
        words = message.words[:10].tolist()
        number = words[wire.ORDER_AT]
        due = link.orders and link.orders[0].number == number
        if not (due and words[1] == _REPLY and words[7]):
            kind = message.kind
            raised = _raised(link, message) if kind is Kind.ERROR else None
            self._lines.accept(link, message)
            if raised is not None and number == self._number:
                # An ordinary round would not tell of it if the task went well the second time.
                raise raised
            return None if number == self._number or kind is Kind.ERROR else False
        try:
            link.orders.popleft()
            link.freed = link.heard
            if number != self._number:
                return False  # too late
            self._job.replies.append((link.freed, link.worker, words[8] * 1e-9))
            reply = message.payload.view(wire.dtype_of(words[6])).reshape(words[4], words[5])
            return self._job.take(link.worker, reply)
        finally:
            link.inbox.post()


def _raised(link: Link, message: Received) -> WorkerError | None:
    """Return the exception of a task, unless it concerns that rank alone: its memory, its files."""
    details = pickle.loads(message.payload.tobytes())
    return None if details["memory"] or details["unreadable"] else link.task_error(details)
