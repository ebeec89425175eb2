"""What commands that compute on MPI ranks share: counting ranks, starting a job, taking part in it.

Three kinds of process come here: the one a user starts with ``--ranks`` (checks, starts the job,
hands on its exit code), rank 0 of a job (checks, then works), and its other ranks (serve).
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from codedla.cli.messages import fail, farewell, say
from codedla.cli.output import Output
from codedla.errors import UsageError
from codedla.mpi.launch import (
    JobResult,
    run_job,
    scratch_folder,
    thread_environment,
    world_from_env,
)

if TYPE_CHECKING:
    from codedla.engine.stragglers import Fault

__all__ = ["carry_out", "count_ranks", "enter_mpi", "faults_of", "serve", "start_job"]


class _Faulty(Protocol):
    """A checked command."""

    @property
    def faults(self) -> Sequence[Fault]:
        """What is to go wrong on purpose."""
        ...


_Task = TypeVar("_Task", bound=_Faulty)

#: Seconds that a job may take beyond --timeout, which bounds the work itself, before it is ended
#: from outside: for starting, reading and writing.
_MARGIN = 60.0

#: How often a job is started again of which a rank is lost before all have met.
_RESTARTS = 2


def count_ranks(
    args: argparse.Namespace,
    world: tuple[int, int] | None,
    command: str,
    what: str = "a product",
) -> int:
    """Return how many ranks there are or will be.

    Parameters
    ----------
    args : Namespace
        With ``ranks``.
    world : (int, int) or None
        Rank and size under a launcher.
    command : str
        Name of the command, for messages.
    what : str
        What it computes, for messages.

    Raises
    ------
    UsageError
        Fewer than two, or a number given twice.
    """
    if world is not None and args.ranks not in (None, world[1]):
        raise UsageError(
            f"--ranks is not needed under a launcher; got --ranks {args.ranks} in a job of "
            f"{world[1]} ranks; leave it out"
        )
    n_ranks: int = args.ranks if world is None else world[1]
    if n_ranks is None or n_ranks < 2:
        raise UsageError(
            f"{what} needs a master and at least one worker; got {n_ranks or 1} rank; "
            f"add --ranks 5, or start it with: mpirun -n 5 codedla {command} ..."
        )
    return n_ranks


def faults_of(args: argparse.Namespace, n_ranks: int | None) -> list[Fault]:
    """Return the faults of ``--inject``, seeded by ``--seed``.

    Parameters
    ----------
    args : Namespace
    n_ranks : int or None
        Refuse faults of other ranks than these; None: of none.

    Raises
    ------
    UsageError
        One is not written as it must be, or names no worker.
    """
    from codedla.engine.stragglers import parse_fault

    faults = [parse_fault(spec) for spec in args.inject]
    for fault, spec in zip(faults, args.inject, strict=True):
        if n_ranks is not None and fault.worker >= n_ranks - 1:
            raise UsageError(
                f"--inject must name a worker rank, 1 to {n_ranks - 1}; got {spec!r}; "
                "choose another rank or start more"
            )
    if args.seed is None:
        return faults
    return [replace(f, seed=args.seed) if f.kind == "random" else f for f in faults]


def carry_out(
    args: argparse.Namespace,
    check: Callable[[argparse.Namespace, tuple[int, int] | None], _Task],
    work: Callable[[argparse.Namespace, _Task, Any], None],
    *,
    saved: str,
) -> int:
    """Check a command, then carry it out on the master, or start the job that does.

    Parameters
    ----------
    args : Namespace
    check : callable
        ``check(args, world)`` finds every error that can be found before a worker computes, and
        returns the task. ``world`` is rank and size under a launcher, or None.
    work : callable
        ``work(args, task, pool)``, on the master.
    saved : str
        As of :func:`start_job`.

    Returns
    -------
    int
        The exit code.
    """
    world = world_from_env()
    try:
        task = check(args, world)
    except BaseException as error:
        if world is None or world[1] == 1:
            raise
        # The other ranks are on their way into MPI: meet them there and send them home.
        return enter_mpi(args, failure=fail(error))
    if world is None:
        return start_job(args, status=True, saved=saved)
    return enter_mpi(args, task.faults, lambda pool: work(args, task, pool))


# ---------------------------------------------------------------- outside MPI


def start_job(args: argparse.Namespace, *, status: bool = False, saved: str = "") -> int:
    """Start the same command on MPI ranks; return the exit code that the master leaves.

    Parameters
    ----------
    args : Namespace
        With ``argv``, ``ranks``, ``threads``, ``timeout``, ``quiet``, ``verbose`` and ``output``.
    status : bool
        The master tells how it gets on in words (:func:`codedla.cli.progress.status`), not in
        numbers.
    saved : str
        What is in the file of ``--checkpoint``, of commands that have one: said when they fail.
    """
    from codedla.cli.progress import follow

    part = uuid.uuid4().hex
    threads = thread_environment(args.threads)
    with scratch_folder() as folder:
        with follow(args.quiet, folder, status=status) as env:
            result = run_job(
                [sys.executable, "-m", "codedla", *args.argv],
                args.ranks,
                timeout=None if args.timeout is None else args.timeout + _MARGIN,
                env={"CODEDLA_PART": part, **threads, **env},
                begins=True,
                restarts=_RESTARTS,
            )
        # A master that was killed could not remove its half-written output.
        Output(args.output).with_mark(part).discard()
    return _job_code(result, args, _kept(result, args, saved) if saved else "")


def _kept(result: JobResult, args: argparse.Namespace, saved: str) -> str:
    """Return what to say of a checkpoint after a failure."""
    # Bad usage is found before anything is saved.
    if result.code in (0, UsageError.exit_code) or args.checkpoint is None:
        return ""
    if not Path(args.checkpoint).exists():
        return ""
    return f"{saved} in {args.checkpoint} is safe: the same command with --resume goes on"


def _job_code(result: JobResult, args: argparse.Namespace, kept: str) -> int:
    """Exit code for how a job ended, with a line where the master had no time for one."""
    if result.killed and args.verbose:
        say(f"ended by force: {', '.join(result.killed)}")
    if result.signal is not None:
        if result.code:
            say(farewell(result.signal) + (f"; {kept}" if kept else ""))
        return result.code
    code = result.code if result.reported else _unreported(result, args)
    if kept:
        say(kept)
    return code


def _unreported(result: JobResult, args: argparse.Namespace) -> int:
    """Say how a job ended of which rank 0 said nothing."""
    if result.deserter is not None:
        say(f"error: {result.reason}; take fewer ranks, and try codedla doctor")
        return 1
    if result.reason:
        say(f"error: {result.reason}; codedla doctor tells what this MPI tolerates")
        return 1
    if result.hung:
        say(f"error: the job did not end within {args.timeout + _MARGIN:.0f} s and was stopped")
        return 1
    say(
        "error: the job ended before rank 0 had a result "
        f"(the launcher returned {result.launcher_code}); "
        "see its messages above, and try codedla doctor"
    )
    return 1


# ---------------------------------------------------------------- inside MPI


def enter_mpi(
    args: argparse.Namespace,
    faults: Sequence[Fault] = (),
    work: Callable[[Any], None] | None = None,
    *,
    failure: int = 1,
) -> int:
    """Join the job; on the master call ``work(pool)``, or without it end all with `failure`.

    Returns
    -------
    int
        The exit code of this process.
    """
    from codedla.mpi.program import run

    def master(pool: Any) -> int:
        if work is None:
            return failure
        try:
            work(pool)
        except Exception as error:
            return fail(error)
        return 0

    return int(run(master, faults=tuple(faults), threads=args.threads, deadline=args.deadline))


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank; nothing else is read or checked here."""
    try:
        faults = faults_of(args, None)
    except UsageError:
        faults = []  # the master says so, and orders nothing
    return enter_mpi(args, faults)
