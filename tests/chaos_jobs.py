"""Run the program as a real MPI job, strike its processes from outside, and look at what is left.

Every process of a job carries a mark of ours in its environment, and only marked processes are
ever signalled. The job has a temporary directory of its own, so that whatever stays behind in it
is the job's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MARK = "CODEDLA_CHAOS"
COMMAND = -1
"""The "rank" of the command that starts the job."""
LIMIT = 60.0
"""Seconds after which a job is ended for good and counts as hung."""

_SEGMENT = re.compile(r"/dev/shm/(?:sm_segment\.|vader_segment\.|mpich_shm_|codedla)\S+")
_NUMBERED = re.compile(r"(/dev/shm/(?:sm|vader)_segment\..+\.)\d+$")
_RANKS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")
_TICK = 0.01

LONGEST_END = 12.0
"""Seconds that a killed command's processes have to be gone."""


@dataclass(frozen=True)
class Strike:
    """A signal to one process of a job.

    Parameters
    ----------
    rank : int
        Or :data:`COMMAND`.
    number : int
        The signal.
    after : float
        Seconds, counted from ``origin``. A process that does not exist yet is struck as soon as it
        does.
    origin : str
        "start" of the command, or "met": the moment when all ranks have met.
    wake : float or None
        Seconds after which a frozen process is woken up.
    """

    rank: int
    number: int
    after: float
    origin: str = "start"
    wake: float | None = None

    def __str__(self) -> str:
        who = "command" if self.rank == COMMAND else f"rank {self.rank}"
        text = f"{signal.Signals(self.number).name} to {who} {self.after:.3f} s after {self.origin}"
        return text if self.wake is None else f"{text}, SIGCONT {self.wake:.2f} s later"


@dataclass
class Struck:
    """What a strike met: the job's phase ("start-up", "running", "shutdown") or "absent"."""

    strike: Strike
    phase: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.strike} ({self.phase}, at {self.seconds:.2f} s)"


@dataclass
class Ended:
    """How a job ended.

    Parameters
    ----------
    code : int
        Of the command; negative: the signal that ended it.
    seconds : float
    out, err : str
    struck : list of Struck
    left : list of str
        Processes, shared-memory files and temporary files that stayed behind.
    hung : bool
        It had to be ended.
    met : float or None
        Seconds from the start until all ranks had met; None if they never did, or too briefly to
        be seen.
    """

    code: int
    seconds: float
    out: str
    err: str
    struck: list[Struck] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    hung: bool = False
    met: float | None = None

    @property
    def working(self) -> float:
        """Seconds from the first strike or from when all had met, whichever came first.

        How long Python takes to start on a busy machine is no matter of the job's.
        """
        since = [s.seconds for s in self.struck if s.phase != "absent"]
        since += [] if self.met is None else [self.met]
        return self.seconds - min(since, default=0.0)

    def phases(self, ranks: range | None = None) -> set[str]:
        """Phases in which processes of these ranks (all by default) were struck."""
        return {s.phase for s in self.struck if ranks is None or s.strike.rank in ranks}


def run_command(
    words: Sequence[object],
    folder: Path,
    strikes: Sequence[Strike] = (),
    *,
    kept: Sequence[str] = (),
    limit: float = LIMIT,
    program: Sequence[str] = (sys.executable, "-m", "codedla"),
) -> Ended:
    """Run ``codedla words...`` in ``folder`` and strike.

    Parameters
    ----------
    words : sequence
        Arguments of the program.
    folder : Path
        Working directory; what appears there besides ``kept`` is noted as left.
    strikes : sequence of Strike
    kept : sequence of str
        Names that may appear in the folder.
    limit : float
        Seconds until the job is ended by force.
    program : sequence of str
        What is run.

    Returns
    -------
    Ended
    """
    mark = uuid.uuid4().hex
    temporary = folder / "tmp"
    temporary.mkdir()
    before = set(os.listdir(folder))
    shared = _shared_memory()
    env = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        MARK: mark,
    }
    # Files, not pipes: what outlives the command must not keep this process waiting.
    with (
        open(temporary.with_name("tmp.out"), "w+b") as out,
        open(temporary.with_name("tmp.err"), "w+b") as err,
    ):
        began = time.monotonic()
        process = subprocess.Popen(
            [*program, *map(str, words)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        watch = _Watch(mark, process.pid, temporary, strikes, began)
        hung = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            seconds = time.monotonic() - began
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LONGEST_END)
                watch.kill()
            code = process.wait()
            watch.stop()
        for stream in (out, err):
            stream.seek(0)
        text = [stream.read().decode(errors="replace") for stream in (out, err)]
    left = watch.left(code < 0)
    left += _left_in_memory(watch.segments, shared)
    left += sorted(str(path.relative_to(folder)) for path in temporary.rglob("*"))
    new = set(os.listdir(folder)) - before - {"tmp.out", "tmp.err", *kept}
    left += sorted(new)
    shutil.rmtree(temporary, ignore_errors=True)
    return Ended(code, seconds, *text, watch.struck, left, hung, watch.met)


class _Watch:
    """A thread that knows the processes of one job and strikes them in time."""

    def __init__(
        self, mark: str, command: int, temporary: Path, strikes: Sequence[Strike], began: float
    ) -> None:
        self.mark = f"{MARK}={mark}".encode()
        self.command = command
        self.temporary = temporary
        self.waiting = list(strikes)
        self.waking: list[tuple[float, int]] = []
        self.struck: list[Struck] = []
        self.segments: set[str] = set()
        self._began = began
        self._met: float | None = None
        self._foreign: set[int] = set()
        self._looked = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def met(self) -> float | None:
        """Seconds from the start until all ranks had met."""
        return None if self._met is None else self._met - self._began

    def stop(self) -> None:
        """End the thread; strikes whose time had not come met nobody."""
        self._over.set()
        self._thread.join()
        for strike in self.waiting:
            self.struck.append(Struck(strike, "absent", time.monotonic() - self._began))

    def processes(self) -> Iterator[tuple[int, int | None]]:
        """Process ids of the job, with the ranks of those that have one; zombies excepted."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._foreign &= pids
        for pid in sorted(pids - self._foreign):
            try:
                entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.mark in entries:
                yield pid, _rank(entries)
            elif entries != [b""]:
                # An empty one belongs to a zombie, or to a process that is being made.
                self._foreign.add(pid)

    def kill(self) -> list[str]:
        """Kill what is left of the job; return what that was."""
        found = []
        for pid, rank in self.processes():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                found.append(f"process {pid} (rank {rank}, state {state}): {line[:100]}")
                os.kill(pid, signal.SIGKILL)
        return found

    def left(self, sudden: bool) -> list[str]:
        """Give the job's processes a moment; kill and name those that are still there."""
        end = time.monotonic() + (LONGEST_END if sudden else 1.0)
        while any(True for _ in self.processes()):
            if time.monotonic() > end:
                return self.kill()
            time.sleep(0.02)
        return []

    def _run(self) -> None:
        while not self._over.wait(_TICK):
            now = time.monotonic()
            for when, pid in [w for w in self.waking if w[0] <= now]:
                self.waking.remove((when, pid))
                self._send(pid, signal.SIGCONT)
            if self._met is None and self._exists("done.begun"):
                self._met = now
            due = [s for s in self.waiting if self._due(s, now)]
            look = now - self._looked > 0.1
            if not due and not look:
                continue
            ranks = {rank: pid for pid, rank in self.processes()}
            ranks[COMMAND] = self.command
            if look:
                self._looked = now
                self._note_segments(pid for rank, pid in ranks.items() if rank is not None)
            for strike in due:
                pid = ranks.get(strike.rank)
                if pid is not None:
                    self._strike(strike, pid)

    def _due(self, strike: Strike, now: float) -> bool:
        origin = self._began if strike.origin == "start" else self._met
        return origin is not None and now >= origin + strike.after

    def _strike(self, strike: Strike, pid: int) -> None:
        phase = "start-up"
        if self._exists("done"):
            phase = "shutdown"
        elif self._exists("done.begun"):
            phase = "running"
        if not self._send(pid, strike.number):
            return
        now = time.monotonic()
        self.waiting.remove(strike)
        self.struck.append(Struck(strike, phase, now - self._began))
        if strike.wake is not None:
            self.waking.append((now + strike.wake, pid))

    def _send(self, pid: int, number: int) -> bool:
        """Signal a process of the job; never another one that has got its number meanwhile."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if self.mark not in entries:
                return False
            signal.pidfd_send_signal(handle, number)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)

    def _exists(self, name: str) -> bool:
        return any(self.temporary.glob(f"codedla-job-*/{name}"))

    def _note_segments(self, pids: Iterator[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                self.segments.update(_SEGMENT.findall(maps))


def _rank(entries: list[bytes]) -> int | None:
    for entry in entries:
        for name in _RANKS:
            if entry.startswith(name) and entry[len(name) :].isdigit():
                return int(entry[len(name) :])
    return None


def _shared_memory() -> set[str]:
    folder = "/dev/shm"
    return {f"{folder}/{name}" for name in os.listdir(folder)} if os.path.isdir(folder) else set()


def _left_in_memory(segments: set[str], before: set[str]) -> list[str]:
    """Remove shared-memory files of a job that are still there; return their names."""
    stems = tuple(m.group(1) for m in map(_NUMBERED.match, segments) if m)
    new = _shared_memory() - before
    left = sorted(path for path in new if path in segments or path.startswith(stems or ("\0",)))
    for path in left:
        Path(path).unlink(missing_ok=True)
    return left


def compare(path: Path, expected: np.ndarray) -> bool | None:
    """Tell whether a file holds the product; None when there is no file."""
    if not path.exists():
        return None
    try:
        found = np.load(path)
    except ValueError:
        return False
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "iub":
        return bool(np.array_equal(found, expected))
    error = np.linalg.norm(found - expected)
    loose = 1e-3 if np.finfo(expected.dtype).eps > 1e-10 else 1e-8
    return bool(error <= loose * np.linalg.norm(expected))
