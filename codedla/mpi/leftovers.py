"""What a job leaves on this host: processes, shared memory, folders. Find it and clear it away.

Every process of a job carries ``CODEDLA_JOB=<id>`` in its environment, ranks and launchers alike,
whoever their parent is by now.

Standard library only, and Linux's ``/proc``; MPI is never imported here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Leftovers", "Process", "is_alive", "is_stopped", "open_folders", "scratch_folder"]

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_HERE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|codedla)\S+")
#: Open MPI numbers the segments of one job after a common name.
_NUMBERED = re.compile(r"(/dev/shm/(?:sm|vader)_segment\..+\.)\d+$")
_SESSION = re.compile(r"(?:ompi|prted?|prterun|openmpi-sessions)[.-][\w.@-]+")

_PREFIX = "codedla-job-"
_open_folders: list[Path] = []
#: A folder may be younger than its lock: leave it alone for so many seconds.
_NEW = 60.0


@dataclass(frozen=True)
class Process:
    """A living process of a job.

    Parameters
    ----------
    pid : int
    rank : int or None
        None for launchers and their daemons.
    host : str
        What the launcher calls this host, ``""`` when it does not say: with virtual hosts, one
        machine has several.
    ranks_here : int or None
        Ranks that the launcher starts on that host.
    session : str
        The launcher's own folder for this job, ``""`` when it has none.
    """

    pid: int
    rank: int | None = None
    host: str = ""
    ranks_here: int | None = None
    session: str = ""


class Leftovers:
    """What one job has on this host: its living processes, and what they leave behind.

    Parameters
    ----------
    job : str
        The job's mark.
    since : float, optional
        When it began, in seconds since the epoch; now by default.

    Attributes
    ----------
    killed : list of str
        What was ended by force, for the record: ``"rank 1234"``.
    """

    def __init__(self, job: str, since: float | None = None) -> None:
        self.job = job
        self.since = time.time() if since is None else since
        self.killed: list[str] = []
        self._segments: set[str] = set()
        self._sessions: set[str] = set()

    def processes(self) -> list[Process]:
        """Processes of this job, zombies excepted."""
        mark = f"CODEDLA_JOB={self.job}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                entries = _environ(int(name))
                if mark in entries:
                    found.append(_process(int(name), entries))
        return found

    def look(self) -> list[Process]:
        """:meth:`processes`; also note the files that they map, known only while they live."""
        found = self.processes()
        for process in found:
            with suppress(OSError):  # it ended meanwhile, or is another user's
                maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
                self._segments.update(_SEGMENT.findall(maps))
            if process.session != os.environ.get("PMIX_SERVER_TMPDIR", ""):
                self._sessions.add(process.session)
        return found

    def kill(self, pids: Iterable[int], what: str) -> None:
        """Kill processes and keep a record."""
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                entry = f"{what} {pid}"
                if entry not in self.killed:
                    self.killed.append(entry)

    def kill_ranks(self) -> None:
        """Kill the ranks of this host, so that the launcher finds its job ended."""
        ranks = [process.pid for process in self.processes() if process.rank is not None]
        for pid in ranks:
            # Halted first: none creates another file between the look and its end.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        self.look()
        self.kill(ranks, "rank")

    def sweep(self) -> None:
        """Kill what still carries the mark and remove the files that the job leaves."""
        # A killed process may linger for a moment, and one that was just forking shows up late.
        for _ in range(40):
            left = self.look()
            if not left:
                break
            self.kill((process.pid for process in left), "orphan")
            time.sleep(0.05)
        self._clear_files()

    def _clear_files(self) -> None:
        names = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        paths = {f"/dev/shm/{name}" for name in names}
        stems = tuple(m.group(1) for m in map(_NUMBERED.match, self._segments) if m)
        left = {
            path
            for path in paths
            if path in self._segments
            or self.job in path
            or any(path.startswith(stem) for stem in stems)
        }
        # A rank that ended before it was looked at: its file is nobody's.
        left |= self._abandoned(paths - left)
        for path in left:
            with suppress(OSError):  # the library has removed it itself
                os.unlink(path)
        for session in self._sessions:
            # A killed launcher leaves its folder; nothing but a launcher's folder is removed.
            if _SESSION.fullmatch(os.path.basename(session)) and _is_mine(session):
                shutil.rmtree(session, ignore_errors=True)

    def _abandoned(self, paths: Iterable[str]) -> set[str]:
        """Segments made since this job began, by this user on this host, that no process maps."""
        host = socket.gethostname().partition(".")[0]
        prefixes = (f"/dev/shm/sm_segment.{host}", "/dev/shm/mpich_shm_")
        found = {path for path in paths if path.startswith(prefixes) and self._is_young(path)}
        for _ in range(2):
            if not found:
                break
            # A file is mapped a moment after it was made: look twice.
            time.sleep(0.1)
            found -= _mapped()
        return found

    def _is_young(self, path: str) -> bool:
        with suppress(OSError):
            status = os.stat(path)
            # The clock of files ticks a few hundred times per second only.
            return status.st_uid == os.geteuid() and status.st_ctime > self.since - 0.1
        return False


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary folder, and remove those of owners that had no time to do so.

    The folder is locked for as long as its owner lives: what is not locked is nobody's.
    """
    base = Path(tempfile.gettempdir())
    for path in base.glob(f"{_PREFIX}*"):
        _reclaim(path)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _open_folders.append(folder)
        yield folder
    finally:
        if folder in _open_folders:
            _open_folders.remove(folder)
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def open_folders() -> list[Path]:
    """Temporary folders of this process that are in use."""
    return list(_open_folders)


def _reclaim(path: Path) -> None:
    """Remove a folder whose owner is gone."""
    try:
        if path.is_symlink() or not _is_mine(path) or time.time() - path.stat().st_ctime < _NEW:
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # removed meanwhile
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its owner lives
        return
    else:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def is_stopped(pid: int) -> bool:
    """Tell whether a process is frozen (by SIGSTOP, or by a debugger)."""
    return _state(pid) in ("T", "t")


def is_alive(pid: int) -> bool:
    """Tell whether a process is there, and more than a zombie that nobody has taken note of."""
    return _state(pid) not in ("", "Z", "X")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # ended meanwhile
        return ""


def _process(pid: int, entries: list[bytes]) -> Process:
    env = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
    ranks = [env[name] for name in _RANK_VARIABLES if env.get(name, "").isdigit()]
    here = [env[name] for name in _HERE_VARIABLES if env.get(name, "").isdigit()]
    if not ranks:  # what a launcher has in its environment is about somebody else's job
        return Process(pid)
    return Process(
        pid,
        int(ranks[0]),
        env.get("PMIX_HOSTNAME", ""),
        int(here[0]) if here else None,
        env.get("PMIX_SERVER_TMPDIR", ""),
    )


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []


def _mapped() -> set[str]:
    """Shared-memory files that some process maps."""
    found: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                maps = Path(f"/proc/{name}/maps").read_text(errors="replace")
                found.update(_SEGMENT.findall(maps))
    return found


def _is_mine(path: str | Path) -> bool:
    with suppress(OSError):
        return os.lstat(path).st_uid == os.geteuid()
    return False
