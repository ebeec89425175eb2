"""The master's side of the transport: a single-threaded event loop over all workers.

What the loop does while rounds are under way is in :mod:`codedla.mpi.session`, the messages are in
:mod:`codedla.mpi.lines`, signs of life in :mod:`codedla.mpi.watch` and the end in
:mod:`codedla.mpi.farewell`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from codedla.engine.quick import Quick
from codedla.engine.round import Outcome, Round
from codedla.errors import PoolClosed, UsageError
from codedla.mpi.beats import Beats
from codedla.mpi.epochs import MPITalk
from codedla.mpi.farewell import GRACE, dismiss
from codedla.mpi.lines import Lines
from codedla.mpi.link import Link
from codedla.mpi.session import Session
from codedla.mpi.signals import Postponed
from codedla.mpi.swift import run_quick
from codedla.mpi.watch import align_clocks
from codedla.mpi.wire import Kind, Message

__all__ = ["Master"]


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
        self.lines = Lines(control, data)
        self.fault_tolerant, self.deadline = fault_tolerant, deadline
        self.trace = False
        self.n_workers = len(self.lines.links)
        self._last_round = 0
        self._last_key = 0
        self._closed = False
        self._session: Session | None = None
        self._talk: MPITalk | None = None
        self._turn = threading.RLock()
        self._postponed: Postponed | None = None
        self._beats: Beats | None = None
        if MPI.Query_thread() >= MPI.THREAD_SERIALIZED:
            self.lines.beating = True
            self._beats = Beats(self._turn, self._beat)

    @property
    def links(self) -> list[Link]:
        """What is known of each worker."""
        return self.lines.links

    @property
    def clean(self) -> bool:
        """Whether nobody was lost."""
        return self.lines.clean

    # -- the pool's protocol -----------------------------------------------------------------

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        outcomes: list[Outcome] = []
        self._run([job], lambda index, outcome: outcomes.append(outcome), None, foreign=False)
        return outcomes[0]

    def run_all(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None = None,
    ) -> None:
        """Run several rounds at a time; see :class:`codedla.engine.round.Pool`."""
        self._run(jobs, done, window, foreign=True)

    def _run(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None,
        *,
        foreign: bool,
    ) -> None:
        with self._consistent() as postponed:
            if self._closed:
                raise PoolClosed("this pool is closed; use it inside its with block")
            if self._beats is not None:
                self._beats.check()
            if self._session is not None:
                raise UsageError(
                    "a pool runs one product at a time; got another one from inside progress=; "
                    "start it when the first is done"
                )
            self._check_silent()
            if self.trace:
                align_clocks(self.lines)
            session = self._session = Session(
                self.lines,
                jobs,
                done,
                new_key=self._new_round,
                postponed=postponed,
                deadline=self.deadline,
                trace=self.trace,
                window=window,
                foreign=foreign,
            )
            self.lines.listener = session
            for link in self.links:  # of quick rounds, which leave the late alone
                self.lines.cancel(link)
            try:
                session.run()
            finally:
                self._session = self.lines.listener = None
                session.end()

    def meanwhile(self) -> None:
        """Let MPI move messages; nobody is told of any."""
        # A large message moves only within calls of MPI, of which this is the smallest.
        MPI.COMM_SELF.Iprobe()

    def quick(self, job: Quick) -> bool:
        """Run a quick round if everything is as usual; see :mod:`codedla.engine.quick`."""
        with self._consistent():
            unusual = self._closed or self.trace or self.lines.listener is not None
            if unusual or self.deadline is not None:
                return False
            return run_quick(self.lines, job, self._new_round())

    def converse(self, function: Callable[..., Any]) -> MPITalk:
        """Begin a talk; see :class:`codedla.engine.converse.ConversingPool`."""
        talk: MPITalk | None = None
        try:
            with self._consistent():
                talk = self._begin_talk(function)
        except BaseException:
            if talk is not None:  # a signal handler has raised: nobody will know of this talk
                talk.close()
            raise
        return talk

    def _begin_talk(self, function: Callable[..., Any]) -> MPITalk:
        if self._closed:
            raise PoolClosed("this pool is closed; use it inside its with block")
        if self._session is not None:
            raise UsageError(
                "a pool runs one product at a time; got an asynchronous iteration from inside "
                "progress=; start it when the product is done"
            )
        self._check_silent()
        for link in self.links:
            self.lines.cancel(link)
        talk = self._talk = self.lines.listener = MPITalk(
            self.lines,
            function,
            new_key=self._new_round,
            function_key=self.new_key(),
            turn=self._consistent,
            deadline=self.deadline,
            over=self._talk_over,
        )
        return talk

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
                    self.lines.order(link, Message(Kind.DROP, payload=payload))

    def close(self) -> bool:
        """Stop all workers, bounded in time; return whether everybody left cleanly."""
        with self._consistent():
            if self._session is not None:
                raise UsageError("a pool closes between products; got close() inside progress=")
            if not self._closed:
                if self._talk is not None:
                    self._talk.close()
                self._closed = True
                if self._beats is not None:
                    self._beats.end()
                self._dismiss()
        if self._beats is not None:
            self._beats.join(GRACE)
            self._beats.check()
        return self.clean

    # -- inside --------------------------------------------------------------------------------

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

    def _check_silent(self) -> None:
        if self._talk is not None:
            raise UsageError(
                "a pool does one thing at a time; got another in the middle of an asynchronous "
                "iteration; end that first (leave its with block)"
            )

    def _talk_over(self, function_key: int) -> None:
        self._talk = self.lines.listener = None
        self.drop([function_key])

    def _new_round(self) -> int:
        self._last_round += 1
        return self._last_round

    def _dismiss(self) -> None:
        dismiss(self.lines, fault_tolerant=self.fault_tolerant)

    def _beat(self) -> None:
        """Tell the workers that the master lives; hear what they say."""
        if self._session is None and not self._closed:
            for link in self.links:
                if link.gone is None and not link.pinged:
                    self.lines.ping(link)
            self.lines.poll()
