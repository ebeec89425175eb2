"""Start an MPI job, always come back, and say what the *master* said.

An MPI launcher's exit code is not the job's result: Open MPI returns 0 after it lost a node and
137 after a loss that the job tolerated.  So the master writes its exit code to the file named by
``CODEDLA_DONE`` as its last act, and this module hands that on.  A job that does not end by itself
is ended: every process of it carries ``CODEDLA_JOB=<id>`` in its environment, which finds the
orphans that a killed launcher leaves behind.

Standard library only, and Linux's ``/proc``; MPI is never imported here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from codedla.errors import MPIUnavailable
from codedla.mpi.launcher import INSTALL, Launcher, command, find_launcher, with_home
from codedla.mpi.output import NoiseFilter, Pump, write_stderr

__all__ = [
    "JobResult",
    "Launcher",
    "command",
    "find_launcher",
    "job_environment",
    "run_job",
    "world_from_env",
]

#: One BLAS thread in each rank unless the user says otherwise: with more ranks than cores this is
#: two to six times faster than the libraries' own choice.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)

#: Environment that must reach ranks on other hosts; Open MPI forwards only what it is told to.
_EXPORTED = ("CODEDLA_JOB", "CODEDLA_DONE", *THREAD_VARIABLES)

#: Seconds that a job has to end by itself after a rank was gone that it cannot do without, and
#: that rank 0 has to appear after the first rank.
_DESERTED = 2.0

_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"PMIX_RANK=")

#: Slurm numbers the batch shell, the interactive shell and the like from here upwards.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass
class JobResult:
    """How a job ended.

    Parameters
    ----------
    code : int
        The master's exit code.  Without word from the master: 130 or 143 when this process was
        told to stop, else the launcher's code or 1, never 0.
    launcher_code : int or None
        What the launcher returned (negative: the signal that ended it), None if it never ended.
    stdout, stderr : str
        The job's output with ``capture=True``, else empty.
    hung : bool
        The job had to be ended: time-out, or no end within ``grace`` of the master's.
    killed : list of str
        What was ended by force, for the record: ``"rank 1234"``, ``"launcher SIGTERM"``.
    seconds : float
        From the start until everything was gone.
    reported : bool
        Whether the master wrote its exit code.
    signal : int or None
        SIGINT, SIGTERM or SIGHUP when this process was told to stop while the job ran.
    deserter : int or None
        The rank that ended too early for the job to have a result, when that is why the job was
        ended: rank 0 without a report, or any rank before all had met.
    """

    code: int
    launcher_code: int | None
    stdout: str
    stderr: str
    hung: bool
    killed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    reported: bool = False
    signal: int | None = None
    deserter: int | None = None


def world_from_env(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Rank and size of this process according to whoever started it, without touching MPI.

    Parameters
    ----------
    environ : mapping, optional
        Environment to read; this process's own by default.

    Returns
    -------
    (rank, size) or None
        None when no MPI launcher started this process.  A Slurm batch script, ``salloc`` shell or
        step of one task is no launcher.
    """
    env = os.environ if environ is None else environ
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        if rank in env and size in env:
            return int(env[rank]), int(env[size])
    step = env.get("SLURM_STEP_ID", "")
    if step.isdigit() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_PROCID" in env:
        tasks = int(env.get("SLURM_STEP_NUM_TASKS", "1"))
        if tasks > 1:
            return int(env["SLURM_PROCID"]), tasks
    return None


def begun_file(done: Path) -> Path:
    """Where the master says that all ranks have met, given where it says how the job ended."""
    return done.with_name(done.name + ".begun")


def job_environment(job: str, done: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a job: `base` plus its marks, and one BLAS thread unless `base` says more."""
    env = with_home(os.environ if base is None else base)
    if not any(name in env for name in THREAD_VARIABLES):
        env.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    env["CODEDLA_JOB"] = job
    env["CODEDLA_DONE"] = done
    return env


def run_job(
    argv: Sequence[str],
    n_ranks: int,
    *,
    timeout: float | None = None,
    grace: float = 5.0,
    env: Mapping[str, str] | None = None,
    capture: bool = False,
    begins: bool = False,
) -> JobResult:
    """Run `argv` on `n_ranks` MPI ranks and return when nothing of the job is left.

    The job's output passes through as it comes (the launcher's own remarks on how processes ended
    are held back, and dropped once the master has reported).  SIGINT, SIGTERM and SIGHUP that reach
    this process are handed to the launcher; what has not ended `grace` seconds later is ended by
    force.

    Parameters
    ----------
    argv : sequence of str
        Program and arguments of every rank, e.g. ``[sys.executable, "-m", "codedla", ...]``.
    n_ranks : int
        Ranks to start, master included.
    timeout : float, optional
        Seconds after which the job is ended.
    grace : float
        Seconds that the launcher has to end after the master's report, or after a signal.
    env : mapping, optional
        Added to the environment.
    capture : bool
        Return the output instead of passing it through.
    begins : bool
        The master says when all ranks have met, as :func:`codedla.mpi.program.run` does: a rank
        that ends before has left the others waiting for it, for ever.

    Returns
    -------
    JobResult

    Raises
    ------
    MPIUnavailable
        No launcher was found.

    Notes
    -----
    The report is read on the host of this process: rank 0 must run here, as launchers do by
    default.
    """
    launcher = find_launcher()
    if launcher is None:
        raise MPIUnavailable(
            f"starting {n_ranks} ranks needs mpirun or mpiexec; "
            f"found neither beside {sys.executable} nor on PATH; {INSTALL}"
        )
    # From here on a signal is noted, so that whatever was begun is also cleared away.
    with _signals() as caught:
        job = _Job(grace=grace, capture=capture, begins=begins)
        try:
            environment = job_environment(job.id, str(job.done_file), {**os.environ, **(env or {})})
            export = [*(name for name in _EXPORTED if name in environment), *(env or {})]
            line = command(launcher, n_ranks, argv, export=list(dict.fromkeys(export)))
            return job.run(line, environment, timeout, caught)
        finally:
            shutil.rmtree(job.folder, ignore_errors=True)


class _Job:
    """One job from its start until nothing of it is left."""

    def __init__(self, *, grace: float, capture: bool, begins: bool = False) -> None:
        self.id = uuid.uuid4().hex
        self.grace = grace
        self.capture = capture
        self.folder = Path(tempfile.mkdtemp(prefix="codedla-"))
        self.done_file = self.folder / "done"
        self.killed: list[str] = []
        self.segments: set[str] = set()
        self.hung = False
        self.begun = not begins
        self.ranks: set[int] = set()
        self.first_look = 0.0
        self.deserter: int | None = None

    def run(
        self, line: list[str], env: dict[str, str], timeout: float | None, caught: list[int]
    ) -> JobResult:
        start = time.monotonic()
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.capture else None,
            stderr=subprocess.PIPE,
            env=env,
            # Its own session: a Ctrl-C at the terminal comes here first and is handed on once.
            start_new_session=True,
        )
        out = Pump(process.stdout, None) if process.stdout is not None else None
        assert process.stderr is not None
        err = Pump(process.stderr, None if self.capture else write_stderr, NoiseFilter())
        try:
            self._wait(process, caught, start, timeout)
        finally:
            code = self._master_code()
            if code is not None:
                self.deserter = None
            self._end(process)
            self._sweep()
        code = self._master_code() if code is None else code
        seconds = time.monotonic() - start
        stdout = out.text() if out else ""
        stderr = err.text(drop_remarks=code is not None or bool(caught))
        return JobResult(
            code=_exit_code(code, caught, process.returncode, self.hung),
            launcher_code=process.returncode,
            stdout=stdout,
            stderr=stderr,
            hung=self.hung,
            killed=self.killed,
            seconds=seconds,
            reported=code is not None,
            signal=caught[0] if caught else None,
            deserter=self.deserter,
        )

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        caught: list[int],
        start: float,
        timeout: float | None,
    ) -> None:
        """Return when the launcher has ended, or has had its time."""
        passed_on = 0
        limit = None if timeout is None else start + timeout
        deadline: float | None = None
        # Often at first: a rank that fails at once must have been seen to be missed.
        look, step = start + 0.03, 0.03
        while process.poll() is None:
            now = time.monotonic()
            while passed_on < len(caught):
                # Launchers know how to end a job by SIGTERM; not all do by SIGHUP.
                number = caught[passed_on]
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
                passed_on += 1
                deadline = deadline or now + self.grace
            if deadline is None and self.done_file.exists():
                deadline, look, step = now + self.grace, now + 0.3, 0.3
            if (deadline is not None and now > deadline) or (limit is not None and now > limit):
                self.hung = True
                return
            if now >= look:
                pids = self._pids()
                # Names of shared-memory files are known only while their owners live.
                self._note_segments(pids)
                if deadline is None and self._deserted(pids):
                    deadline = now + _DESERTED
                if self.done_file.exists():
                    # The result is safe, and a frozen rank can never leave by itself.
                    for pid in filter(_is_stopped, pids):
                        self._kill(pid, "frozen process")
                step = min(1.2 * step, 5.0)
                look = now + step
            time.sleep(0.02)

    def _deserted(self, pids: Sequence[int]) -> bool:
        """Note which ranks of this host there are; tell whether one is gone that is needed.

        A fault-tolerant launcher goes on without it, but the others may wait for it for ever.
        """
        here = {rank for rank in map(_rank_of, pids) if rank is not None}
        if here and not self.ranks:
            self.first_look = time.monotonic()
        gone = self.ranks - here
        self.ranks |= here
        # Rank 0 starts on this host together with the others; it may end before it is ever seen.
        if self.ranks and 0 not in self.ranks and time.monotonic() > self.first_look + _DESERTED:
            gone = {0}
        self.begun = self.begun or begun_file(self.done_file).exists()
        needed = gone & {0} if self.begun else gone
        if not needed or self.done_file.exists():
            return False
        self.deserter = min(needed)
        return True

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the launcher: its ranks first, so that it can clean up after itself."""
        if process.poll() is not None:
            return
        pids = self._pids()
        self._note_segments(pids)
        for pid in pids:
            if pid != process.pid and _rank_of(pid) is not None:
                self._kill(pid, "rank")
        if _ended(process, 1.0):
            return
        # Open MPI's mpirun sometimes answers only the second SIGTERM.
        for signum, seconds in (
            (signal.SIGTERM, 1.5),
            (signal.SIGTERM, 1.5),
            (signal.SIGKILL, 5.0),
        ):
            process.send_signal(signum)
            self.killed.append(f"launcher {signum.name}")
            if _ended(process, seconds):
                return

    def _sweep(self) -> None:
        """Kill what still carries the job's mark and unlink the shared memory it leaves."""
        # A killed process may linger for a moment, and one that was just forking shows up late.
        for _ in range(40):
            left = self._pids()
            if not left:
                break
            self._note_segments(left)
            for pid in left:
                self._kill(pid, "orphan")
            time.sleep(0.05)
        for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []:
            if self.id in name:
                self.segments.add(f"/dev/shm/{name}")
        for path in self.segments:
            with suppress(OSError):  # the library has removed it itself
                os.unlink(path)

    def _kill(self, pid: int, what: str) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            entry = f"{what} {pid}"
            if entry not in self.killed:
                self.killed.append(entry)

    def _pids(self) -> list[int]:
        """Processes of this job on this host, zombies excepted."""
        mark = f"CODEDLA_JOB={self.id}".encode()
        return [
            pid
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit())
            if pid != os.getpid() and mark in _environ(pid)
        ]

    def _note_segments(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(OSError):  # it ended meanwhile, or is another user's
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                self.segments.update(_SEGMENT.findall(maps))

    def _master_code(self) -> int | None:
        try:
            return int(self.done_file.read_text())
        except (OSError, ValueError):
            return None


_SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.|codedla)\S+")


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):  # ended meanwhile
        return False


def _rank_of(pid: int) -> int | None:
    for entry in _environ(pid):
        if entry.startswith(_RANK_VARIABLES) and (number := entry.partition(b"=")[2]).isdigit():
            return int(number)
    return None


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _exit_code(master: int | None, caught: list[int], launcher: int | None, hung: bool) -> int:
    """Exit code of a job, from the most to the least trustworthy source."""
    if master is not None and not (caught and master):
        return master
    if caught:
        return 128 + caught[0]
    if hung or not launcher:
        return 1
    return 128 - launcher if launcher < 0 else launcher


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals to stop in a list for as long as the block runs (main thread only).

    What is ignored stays ignored: SIGHUP under nohup, SIGINT in a script's background.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(signum: int, _frame: FrameType | None) -> None:
        caught.append(signum)

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
