"""End a job whose starting process is gone without a word, by ``kill -9`` for instance.

The process that starts a job cannot clear up after its own sudden end. So it keeps a small child
that waits for it at the other end of a pipe: a pipe closes with its owner, however that ended. The
child costs a few milliseconds (it imports nothing before it is needed).

Standard library only; MPI is never imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from codedla.mpi.leftovers import Leftovers, open_folders

__all__ = ["Guard", "end_launcher", "reap"]

#: Read until the pipe closes; the last byte tells whether the job has come to its end.
_CHILD = """\
import os
data = b""
while more := os.read(0, 65536):
    data += more
if data and not data.endswith(b"!"):
    import json, sys
    told = json.loads(data)
    sys.path[:] = told["path"]
    from codedla.mpi.guard import reap
    reap(told["job"], told["since"], told["folders"])
"""

#: Seconds that a job has to end in order when its starting process is gone.
_ORDERLY = 4.0


class Guard:
    """A child process that ends the job when this process is gone.

    Parameters
    ----------
    leftovers : Leftovers
        What marks the job. The temporary folders that are open now are removed together with it.
    """

    def __init__(self, leftovers: Leftovers) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        # An editable installation is found by a hook that the child does not have.
        root = str(Path(__file__).parents[2])
        told = {
            "path": [*sys.path, root],
            "job": leftovers.job,
            "since": leftovers.since,
            "folders": [str(folder) for folder in open_folders()],
        }
        # Without one (no memory, say) the job runs just as well.
        with suppress(OSError):
            self._child = subprocess.Popen(
                # -I and -S: nothing of the user's is run, and the start is quick.
                [sys.executable, "-I", "-S", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A signal to this process's group must not end it.
                start_new_session=True,
            )
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(told).encode())
            self._child.stdin.flush()

    def release(self) -> None:
        """Say that the job has ended."""
        if self._child is None or self._child.stdin is None:
            return
        with suppress(OSError):  # somebody killed it
            self._child.stdin.write(b"!")
        with suppress(OSError):
            self._child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5.0)


def reap(job: str, since: float, folders: Sequence[str]) -> None:
    """End a job from outside: let its master do so, then by force; clear up.

    Parameters
    ----------
    job : str
        The job's mark.
    since : float
        When it began.
    folders : sequence of str
        Temporary folders to remove.
    """
    leftovers = Leftovers(job, since)
    # The launcher may have been starting at that very moment.
    time.sleep(0.3)
    for process in leftovers.look():
        if process.rank == 0:
            # The master stops its workers, and keeps or removes what it has half written.
            _send([process.pid], signal.SIGTERM)
    if not _until(lambda: not leftovers.look(), _ORDERLY):
        end_launcher(
            leftovers,
            send=lambda number: _send((p.pid for p in leftovers.processes()), number),
            ended=lambda seconds: _until(lambda: not leftovers.processes(), seconds),
        )
    leftovers.sweep()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end_launcher(
    leftovers: Leftovers,
    *,
    send: Callable[[int], object],
    ended: Callable[[float], bool],
) -> None:
    """End a launcher: its ranks first, so that it can clean up after itself; in bounded time.

    Parameters
    ----------
    leftovers : Leftovers
    send : callable
        Sends the launcher a signal.
    ended : callable
        Waits for the launcher's end for so many seconds; tells whether it came.
    """
    leftovers.kill_ranks()
    if ended(1.0):
        return
    # Open MPI's mpirun sometimes answers only the second SIGTERM; a frozen one answers none.
    for number, seconds in (
        (signal.SIGTERM, 1.5),
        (signal.SIGTERM, 1.5),
        (signal.SIGKILL, 5.0),
    ):
        send(number)
        leftovers.killed.append(f"launcher {number.name}")
        if ended(seconds):
            return


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
