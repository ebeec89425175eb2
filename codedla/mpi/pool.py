"""The MPI pool: rank 0 is the master, all other ranks serve it."""

from __future__ import annotations

import atexit
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from codedla.engine.arguments import positive
from codedla.engine.quick import Quick
from codedla.engine.round import Outcome, Round
from codedla.engine.stragglers import Fault, check_ranks
from codedla.errors import UsageError
from codedla.mpi import world
from codedla.mpi.cores import check_threads, resolve_threads

if TYPE_CHECKING:
    from mpi4py import MPI

    from codedla.mpi.epochs import MPITalk
    from codedla.mpi.master import Master

__all__ = ["MPIPool"]

_open_pools: list[MPIPool] = []
"""Pools of which this rank is the master."""


class MPIPool:
    """Workers are the ranks 1, 2, ... of a communicator.

    Entering the context is collective. It gives the pool on rank 0; the other ranks serve inside
    it and get None when the master leaves its block::

        with codedla.MPIPool(MPI.COMM_WORLD) as pool:
            if pool is not None:
                C = codedla.matmul(A, B, pool=pool)

    An uncaught exception on any rank ends the whole job with its traceback on stderr.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator of at least 2 ranks; duplicated, never used itself.
    faults : iterable of Fault
        Faults on purpose; see :mod:`codedla.engine.stragglers`.
    threads : int or "auto"
        Threads of BLAS and of codedla's kernels in each worker while it serves, and of the kernels
        in the master; "auto": as many as the cores that the rank may use, divided by the ranks of
        its host that share them. The same on all ranks. The master's BLAS is left as it is.
    deadline : float, optional
        Seconds within which a worker must answer an order; after that its share is given to
        another worker if it is needed. Workers without a sign of life are replaced in any case.

    Attributes
    ----------
    n_workers : int
    threads : int
        Of this rank; for "auto" known once the pool is entered, and 1 before.
    trace : bool
        Whether rounds note what takes how long on which rank; set it on rank 0.
    overhead : float
        Seconds that the job takes besides its products; ``verify="auto"`` sees checks against it.
    streams : bool
        Whether large products are cut into panels of which several are under way at once; may be
        switched off.
    clean : bool
        After the end: whether every rank left in order, so that ``MPI_Finalize`` is safe.
    forget_files : bool
        Remove the names of MPI's files in /dev/shm once all ranks have met and have opened them,
        so that not even ``kill -9`` of everybody leaves any; for a communicator of all ranks only,
        and for programs that do not spawn others.

    Raises
    ------
    UsageError
        One rank only, or a fault for a rank that does not exist; when entered, a rank of the
        communicator that is lost.
    MPIUnavailable
        The launcher and the MPI library do not belong together.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        faults: Iterable[Fault] = (),
        threads: int | str = 1,
        deadline: float | None = None,
    ) -> None:
        world.check_comm(comm)
        world.install_abort_hook(comm)
        self.n_workers = comm.Get_size() - 1
        self.faults = tuple(faults)
        self._asked = check_threads(threads)
        self.threads = self._asked if isinstance(self._asked, int) else 1
        self.deadline = None if deadline is None else positive(deadline, "deadline")
        self.clean = True
        self.forget_files = False
        self.overhead = 0.0
        self.streams = True
        self._comm = comm
        self._workers = frozenset(world.ranks_in_world(comm)[1:])
        self._channels: tuple[Any, Any] | None = None
        self._master: Master | None = None
        check_ranks(self.faults, self.n_workers)

    def __enter__(self) -> MPIPool | None:
        from mpi4py import MPI

        if self._comm.Get_rank() == 0:
            self._check_free()
        # Orders and answers on communicators of their own: nothing of the caller's is ever matched.
        try:
            if world.fault_tolerant():
                # With a lost rank, Dup may fail on some ranks and never end on others; this fails
                # on all of them.
                self._comm.Agree(1)
            control, data = self._comm.Dup(), self._comm.Dup()
        except MPI.Exception as error:
            raise UsageError(
                "a pool begins with all ranks of its communicator alive; got one that failed "
                f"({error.Get_error_string().splitlines()[0]}); keep one pool open for all "
                "products, or give the next one a communicator without the lost ranks"
            ) from error
        for channel in (control, data):
            channel.Set_errhandler(MPI.ERRORS_RETURN)
        self._channels = (control, data)
        self.threads = resolve_threads(self._asked, control)
        if self.forget_files:
            world.unlink_shared_memory()
        if self._comm.Get_rank() != 0:
            self._serve(control, data)
            return None
        from codedla.mpi.master import Master

        self._master = Master(
            control, data, fault_tolerant=world.fault_tolerant(), deadline=self.deadline
        )
        _open_pools.append(self)
        # A pool that nobody closes would keep its workers, and the job, waiting for ever.
        atexit.register(self.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(value, SystemExit):
            world.note_exit(value)
        if self._master is not None:
            self.close()

    def meanwhile(self) -> None:
        """See :class:`codedla.engine.round.Pool`."""
        self._opened().meanwhile()

    def run(self, job: Round) -> Outcome:
        """Run one round; see :class:`codedla.engine.round.Pool`."""
        return self._opened().run(job)

    def run_all(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None = None,
    ) -> None:
        """Run several rounds at a time; see :class:`codedla.engine.round.Pool`."""
        self._opened().run_all(jobs, done, window)

    def quick(self, job: Quick) -> bool:
        """Run a quick round if everything is as usual; see :mod:`codedla.engine.quick`."""
        return self._opened().quick(job)

    def converse(self, function: Callable[..., Any]) -> MPITalk:
        """Begin a talk; see :class:`codedla.engine.converse.ConversingPool`."""
        return self._opened().converse(function)

    @property
    def trace(self) -> bool:
        """Whether rounds note what takes how long on which rank."""
        return self._opened().trace

    @trace.setter
    def trace(self, on: bool) -> None:
        self._opened().trace = bool(on)

    def new_key(self) -> int:
        """Return an unused positive id for a resident operand."""
        return self._opened().new_key()

    def drop(self, keys: Sequence[int]) -> None:
        """Make every worker forget these resident operands."""
        self._opened().drop(keys)

    def close(self) -> None:
        """Stop the workers without waiting for stragglers; idempotent."""
        if self._master is not None:
            self.clean = self._master.close()
            self._release()
        if self in _open_pools:
            _open_pools.remove(self)
            atexit.unregister(self.close)

    def losses(self) -> str:
        """Return which ranks were lost, and why, in words; nothing when none was."""
        links = [] if self._master is None else self._master.links
        gone = ((link.rank, link.gone) for link in links if link.gone is not None)
        return ", ".join(f"rank {rank} was lost ({reason})" for rank, reason in gone)

    def _check_free(self) -> None:
        """Refuse workers that serve another pool of this master: they would never come here."""
        serving = {rank for pool in _open_pools for rank in pool._workers}
        if busy := serving & self._workers:
            raise UsageError(
                "a rank serves one pool at a time; got ranks "
                f"{', '.join(map(str, sorted(busy)))} of MPI.COMM_WORLD, which serve another; "
                "close that pool first, or split the communicator"
            )

    def _serve(self, control: MPI.Comm, data: MPI.Comm) -> None:
        from mpi4py import MPI

        from codedla.mpi.worker import worker_serve

        try:
            self.clean = worker_serve(control, data, faults=self.faults, threads=self.threads)
        except MPI.Exception as error:
            # The master is gone; it has said, or nobody can say, why.
            reason = error.Get_error_string().splitlines()[0]
            rank, host = self._comm.Get_rank(), socket.gethostname()
            sys.stderr.write(f"codedla: rank {rank} on {host} lost rank 0: {reason}\n")
            world.abort(self._comm, 1)
            sys.exit(1)
        except Exception:
            # Nobody can be told in order: the master is gone or the protocol is broken.
            world.report_exception(self._comm.Get_rank())
            world.abort(self._comm, 1)
            sys.exit(1)
        self._release()

    def _release(self) -> None:
        if self._channels is None:
            return
        if self.clean:
            for channel in self._channels:
                channel.Free()
        else:
            world.skip_finalize(last=self._comm.Get_rank() != 0)
        self._channels = None

    def _opened(self) -> Master:
        if self._master is None:
            raise UsageError("use the pool inside its with block, on rank 0 only")
        return self._master
