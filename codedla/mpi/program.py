"""Run one job under MPI from start to end: open, serve or work, report the code, leave at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from codedla.engine.stragglers import Fault
from codedla.errors import INTERRUPTED, TERMINATED, CodedlaError, UsageError
from codedla.mpi import world
from codedla.mpi.launch import begun_file
from codedla.mpi.limits import orphan_limit
from codedla.mpi.pool import MPIPool

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["FINALIZE", "run", "run_stages"]

FINALIZE = 10
"""Seconds that ``MPI_Finalize`` may take at the end of a job in which nothing had failed."""

#: Seconds that a worker waits for rank 0 to end the job, where no rank may go by itself.
_TAKEN_ALONG = 5.0


class _Terminated(BaseException):
    """SIGTERM arrived."""


def run(
    job: Callable[[MPIPool], int],
    *,
    faults: Iterable[Fault] = (),
    threads: int | str = 1,
    deadline: float | None = None,
) -> int:
    """Run ``job(pool)`` on the master while the other ranks serve.

    The threads of BLAS are limited on all ranks meanwhile.

    Errors become exit codes: one line for codedla's own (their ``exit_code``), the traceback for
    anything else (1), 130 for an interrupt, 143 for SIGTERM. The code is also written, last and
    atomically, to the file named by ``CODEDLA_DONE``: a launcher's own code cannot be trusted.

    Parameters
    ----------
    job : callable
        Gets the pool, returns an exit code.
    faults : iterable of Fault
    threads : int or "auto"
        Threads per rank; see :class:`MPIPool`.
    deadline : float, optional
        Seconds within which a worker must answer an order.

    Returns
    -------
    int
        The exit code, when everything ended cleanly; otherwise the process has ended.
    """
    return run_stages(job, [tuple(faults)], threads=threads, deadline=deadline)


def run_stages(
    job: Callable[[MPIPool], int],
    stages: Sequence[Iterable[Fault]],
    *,
    threads: int | str = 1,
    deadline: float | None = None,
    before: Callable[[], None] | None = None,
) -> int:
    """Run ``job(pool)`` several times, each time in a new pool with other faults.

    Parameters
    ----------
    job : callable
        Gets the pool, returns an exit code; after one that is not 0 there are no further stages.
    stages : sequence of iterable of Fault
        The faults of each stage; the same number on every rank.
    threads, deadline
        As in :func:`run`.
    before : callable, optional
        Called on every rank before the first stage; may be collective.

    Returns
    -------
    int
        As of :func:`run`.
    """
    from threadpoolctl import threadpool_limits

    mpi = world.import_mpi(finalize=False)
    comm = mpi.COMM_WORLD
    world.install_abort_hook(comm)
    if comm.Get_rank() == 0 or not world.fault_tolerant():
        signal.signal(signal.SIGTERM, _terminate)
    else:
        # A worker that is told to go is a loss like any other.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    manager = None
    met = False
    clean, code, begun = True, 0, 0
    try:
        orphan_limit()  # every rank says no, before any waits for another
        if before is not None:
            before()
        for faults in stages:
            manager = MPIPool(comm, faults, threads, deadline)
            manager.forget_files = not begun
            begun += 1
            try:
                pool = manager.__enter__()
            except UsageError as error:
                if not met:
                    raise
                # Nobody used it wrongly: the ranks had met before.
                raise CodedlaError(_need_all("one was lost in between")) from error
            met = True
            if pool is None:
                clean = clean and manager.clean
                continue
            if begun == 1:
                _write_begun()
            with threadpool_limits(pool.threads):
                code = job(pool)
            manager.close()
            clean = clean and manager.clean
            if not (code or manager.clean) and begun < len(stages):
                raise CodedlaError(_need_all(manager.losses() or "one did not stop in time"))
            if code:
                break
        if comm.Get_rank() != 0:
            _leave(0, clean=clean)
            return 0
    except CodedlaError as error:
        code = _say(comm, f"error: {error}", error.exit_code)
    except KeyboardInterrupt:
        if not met:
            raise
        code = _say(comm, "interrupted", INTERRUPTED)
    except SystemExit as stop:
        if not met:
            raise
        code = world.note_exit(stop)
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)
    except _Terminated:
        code = _say(comm, "terminated", TERMINATED)
    except Exception:
        if not met:
            # The others wait for this rank, or it for them: the abort hook ends the job.
            raise
        code = 1
        world.report_exception(comm.Get_rank())
    if manager is not None:
        manager.close()
        clean = clean and manager.clean
    if comm.Get_rank() == 0:
        clean = _pass_over(comm, len(stages) - begun if met else 0) and clean
        world.flush()
        _write_done(code)
    elif code:
        # The master knows nothing of it: in MPI_Finalize this rank would wait for all others.
        clean = False
    _leave(code, clean=clean)
    return code


def _need_all(got: str) -> str:
    return (
        f"all stages need all ranks; {got}; have it looked at, "
        "and start again, if need be without it"
    )


def _pass_over(comm: MPI.Comm, stages: int) -> bool:
    """Open and close the pools of stages that are given up: the workers are in the next already.

    Returns
    -------
    bool
        Whether all ranks took part, in order.
    """
    clean = True
    try:
        for _ in range(stages):
            with MPIPool(comm) as pool:
                pass
            clean = clean and pool is not None and pool.clean
    except CodedlaError:  # a rank is lost, and they all know
        return False
    return clean


def _say(comm: MPI.Comm, text: str, code: int) -> int:
    """Say once, not on every rank, why the job ends; return its code."""
    if comm.Get_rank() == 0:
        print(f"codedla: {text}", file=sys.stderr)
    return code


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def _write_begun() -> None:
    """Tell the launcher that all ranks have met: from now on some may be lost."""
    name = os.environ.get("CODEDLA_DONE")
    if name:
        begun_file(Path(name)).touch()


def _write_done(code: int) -> None:
    """Leave the exit code for the launcher: written beside its place and renamed."""
    name = os.environ.get("CODEDLA_DONE")
    if name:
        path = Path(name)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(f"{code}\n")
        temporary.replace(path)


def _leave(code: int, *, clean: bool) -> None:
    """Finalize when that is safe, else end the process here."""
    from mpi4py import MPI

    if clean:
        # A rank that dies only now can keep the others in MPI_Finalize for ever. The signal ends
        # this process even there; its code and result are written.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FINALIZE)
        MPI.Finalize()
        signal.alarm(0)
    elif world.fault_tolerant():
        world.hard_exit(code)
    else:
        world.flush()
        if MPI.COMM_WORLD.Get_rank() and not code:
            # Rank 0 takes everybody along when it has reported. An Abort of another rank could
            # come first, and end it before that, with 0.
            time.sleep(_TAKEN_ALONG)
            world.hard_exit(code)
        # Without fault tolerance the launcher waits for frozen ranks; Abort takes them along.
        world.abort(MPI.COMM_WORLD, code)
