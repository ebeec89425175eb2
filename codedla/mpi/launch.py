"""Start an MPI job, always come back, and say what the *master* said.

An MPI launcher's exit code is not the job's result: Open MPI returns 0 after it lost a node and
137 after a loss that the job tolerated.  So the master writes its exit code to the file named by
``CODEDLA_DONE`` as its last act, and this module hands that on.  A job that does not end by itself
is ended: every process of it carries ``CODEDLA_JOB=<id>`` in its environment, which finds the
orphans that a killed launcher leaves behind. When this process itself is killed, a small child of
it ends the job (:mod:`codedla.mpi.guard`).

Standard library only, and Linux's ``/proc``; MPI is never imported here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from codedla.errors import MPIUnavailable
from codedla.mpi.guard import Guard, end_launcher
from codedla.mpi.launcher import (
    INSTALL,
    Launcher,
    command,
    find_launcher,
    with_home,
    with_own_sessions,
)
from codedla.mpi.leftovers import Leftovers, is_stopped, scratch_folder
from codedla.mpi.limits import orphan_limit, start_limit
from codedla.mpi.output import NoiseFilter, Pump, write_stderr, write_stdout
from codedla.mpi.ranks import DESERTED, Ranks

__all__ = [
    "JobResult",
    "Launcher",
    "command",
    "find_launcher",
    "job_environment",
    "run_job",
    "scratch_folder",
    "thread_environment",
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

#: How often a launcher is started that fails before it has started a rank, and the seconds in
#: which it must fail: what takes longer is a host out of reach, and will be that again.
_LAUNCHES = 3
_FAILS_WITHIN = 20.0

#: Seconds that a launcher's words are held back while it has started no rank.
_HELD_BACK = 1.0

#: What a launcher returns when it fails itself: Open MPI's error numbers are small, and negative.
_LAUNCHER_CODES = range(190, 256)

#: Signals of a program that crashes, and is not told to end.
_CRASHES = frozenset((signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV))

#: Seconds that a job has to end by itself after a rank was gone before all had met.
_LAST_WORDS = 0.5

#: Environment that must reach ranks on other hosts; Open MPI forwards only what it is told to.
_EXPORTED = ("CODEDLA_JOB", "CODEDLA_DONE", *THREAD_VARIABLES)

#: Signals that end a rank all of a sudden (none whose number is one of codedla's exit codes).
_FATAL = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGTERM,
    )
)

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
        ended: rank 0 without a report, or any rank before all had met; -1 when it is not known
        which.
    tolerant : bool
        Whether this launcher's jobs go on when a worker is killed.
    reason : str
        Why there is no report, as a clause for a message; ``""`` with one, or when unknown.
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
    tolerant: bool = True
    reason: str = ""


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


def raised_file(done: Path) -> Path:
    """Where a rank says that it ends the job because of an exception."""
    return done.with_name(done.name + ".raised")


def job_environment(job: str, done: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a job: `base` plus its marks, and one BLAS thread unless `base` says more."""
    env = with_home(os.environ if base is None else base)
    if not any(name in env for name in THREAD_VARIABLES):
        env.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    env["CODEDLA_JOB"] = job
    env["CODEDLA_DONE"] = done
    return env


def thread_environment(threads: int | str) -> dict[str, str]:
    """Return what a job's environment needs for so many BLAS threads in each rank.

    Nothing for one, which is usual, nor for ``"auto"``, which every rank settles for itself.
    """
    if threads in (1, "auto"):
        return {}
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def run_job(
    argv: Sequence[str],
    n_ranks: int,
    *,
    timeout: float | None = None,
    grace: float = 5.0,
    env: Mapping[str, str] | None = None,
    capture: bool = False,
    begins: bool = False,
    restarts: int = 0,
) -> JobResult:
    """Run `argv` on `n_ranks` MPI ranks and return when nothing of the job is left.

    The job's output passes through as it comes (the launcher's own remarks on how processes ended
    are held back, and dropped once the master has reported).  SIGINT, SIGTERM and SIGHUP that reach
    this process are handed to the launcher; what has not ended `grace` seconds later is ended by
    force. What the ranks say of it is dropped: whoever called says it.

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
    restarts : int
        How often to start the job again, with a warning, when a rank is killed or freezes before
        all have met.  Nothing has been computed then.  Not after an exception, which would only
        be raised again.

    Returns
    -------
    JobResult

    Raises
    ------
    MPIUnavailable
        No launcher was found.
    UsageError
        ``CODEDLA_ORPHAN`` or ``CODEDLA_START`` is no positive number.

    Notes
    -----
    A launcher that fails before it has started any rank is started again, without a word about it
    when that helps.

    The report is read on the host of this process: rank 0 must run here, as launchers do by
    default.
    """
    orphan_limit(), start_limit()  # before the ranks stumble over them
    launcher = find_launcher()
    if launcher is None:
        raise MPIUnavailable(
            f"starting {n_ranks} ranks needs mpirun or mpiexec; "
            f"found neither beside {sys.executable} nor on PATH; {INSTALL}"
        )
    # From here on a signal is noted, so that whatever was begun is also cleared away.
    end = None if timeout is None else time.monotonic() + timeout
    base = {**os.environ, **(env or {})}
    launches = _LAUNCHES
    with _signals() as caught:
        while True:
            launches -= 1
            with scratch_folder() as folder:
                job = _Job(folder, launcher, capture=capture, begins=begins, last=not launches)
                environment = job_environment(job.leftovers.job, str(job.done_file), base)
                if launches == _LAUNCHES - 1:
                    environment = with_own_sessions(launcher, environment, folder)
                export = [*(name for name in _EXPORTED if name in environment), *(env or {})]
                line = command(launcher, n_ranks, argv, export=list(dict.fromkeys(export)))
                left = None if end is None else end - time.monotonic()
                result = job.run(line, environment, timeout=left, grace=grace, caught=caught)
                again = restarts > 0 and job.failed_to_begin(result) and not caught
            if caught or (end is not None and time.monotonic() > end):
                return result
            if job.failed_to_launch and launches:
                time.sleep(0.2)
                continue
            if not again:
                return result
            launches = _LAUNCHES
            restarts -= 1
            who = "a rank"
            if result.deserter is not None and result.deserter >= 0:
                who = f"rank {result.deserter}"
            write_stderr(
                f"codedla: warning: {who} ended or froze while the ranks were starting; "
                "they are started again\n".encode()
            )


class _Job:
    """One job from its start until nothing of it is left."""

    def __init__(
        self, folder: Path, launcher: Launcher, *, capture: bool, begins: bool, last: bool
    ) -> None:
        self.leftovers = Leftovers(uuid.uuid4().hex)
        self.launcher = launcher
        self.capture = capture
        self.done_file = folder / "done"
        self.hung = False
        self.ranks = Ranks(met=not begins)
        self.last = last
        self.failed_to_launch = False

    def run(
        self,
        line: list[str],
        env: dict[str, str],
        *,
        timeout: float | None,
        grace: float,
        caught: list[int],
    ) -> JobResult:
        start = time.monotonic()
        guard = Guard(self.leftovers)
        # MPICH's launcher tells on stdout how ranks ended: among the results, if it is not held.
        talkative = self.launcher.kind in ("mpich", "intelmpi")
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.capture or talkative else None,
                stderr=subprocess.PIPE,
                env=env,
                # Its own session: a Ctrl-C at the terminal comes here first and is handed on once.
                start_new_session=True,
            )
            out = None
            if process.stdout is not None:
                sink = None if self.capture else write_stdout
                out = Pump(process.stdout, sink, NoiseFilter() if talkative else None)
            assert process.stderr is not None
            sink = None if self.capture else write_stderr
            err = Pump(process.stderr, sink, NoiseFilter(), waits=not self.last)
            code = None
            try:
                limit = None if timeout is None else start + timeout
                self._wait(process, grace, limit, caught, err)
            finally:
                # What the master says from now on, it says because it is being ended.
                code = self._master_code()
                self._end(process)
                self.leftovers.sweep()
        finally:
            guard.release()
        if code is None:
            code = self._master_code()
        else:
            self.ranks.deserter = None
        seconds = time.monotonic() - start
        self.failed_to_launch = (
            not self.hung
            and not caught
            and code is None
            and seconds < _FAILS_WITHIN
            and self._nothing_was_started(process.returncode)
        )
        if self.failed_to_launch and not self.last:
            err.forget()
        stdout = out.text(drop_remarks=True) if out else ""
        stderr = err.text(
            drop_remarks=code is not None or bool(caught),
            # Whoever started the job says so: what rank 0 says may be lost on its way.
            drop_farewells=bool(caught),
        )
        return JobResult(
            code=_exit_code(code, caught, process.returncode, self.hung),
            launcher_code=process.returncode,
            stdout=stdout,
            stderr=stderr,
            hung=self.hung,
            killed=self.leftovers.killed,
            seconds=seconds,
            reported=code is not None,
            signal=caught[0] if caught else None,
            deserter=self.ranks.deserter,
            tolerant=self.launcher.tolerant,
            reason="" if code is not None else self._reason(process.returncode),
        )

    def failed_to_begin(self, result: JobResult) -> bool:
        """Tell whether a rank was killed or froze before all had met."""
        # Where a rank was missed, what counts is whether they had met by then.
        met = self.ranks.met or (result.deserter is None and begun_file(self.done_file).exists())
        if met or result.reported or raised_file(self.done_file).exists():
            return False
        if self.ranks.late:  # they have had all their time, and a host may be out of reach
            return False
        if not result.hung and result.launcher_code in (0, 1):
            # It ended by itself, but not because of a rank that was killed: told to, for instance.
            return False
        # The launcher may have ended the job itself, for want of fault tolerance, or because other
        # ranks stumbled over the loss. Where no rank was ever started there is nothing to repeat;
        # but one that was killed at once may not have been seen.
        killed = result.launcher_code in _FATAL
        return result.deserter is not None or self.ranks.started or killed

    def _nothing_was_started(self, launcher_code: int | None) -> bool:
        """Tell whether the launcher failed, and not something that it had started.

        It meets what another job has left under the number of its process, or a network that
        changes while it looks at it: the next one does not.
        """
        if self.ranks.started or begun_file(self.done_file).exists():
            return False
        if raised_file(self.done_file).exists() or launcher_code is None:
            return False
        return launcher_code in _LAUNCHER_CODES or -launcher_code in _CRASHES

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        grace: float,
        limit: float | None,
        caught: list[int],
        err: Pump,
    ) -> None:
        """Return when the launcher has ended, or has had its time."""
        release = time.monotonic() + _HELD_BACK
        passed_on = 0
        deadline: float | None = None
        last_words: float | None = None
        # Often at first: what a rank that fails at once leaves is known only if it was seen.
        look, step = time.monotonic() + 0.03, 0.03
        while process.poll() is None:
            now = time.monotonic()
            if self.ranks.started or now > release:
                err.begin()
            while passed_on < len(caught):
                # Launchers know how to end a job by SIGTERM; not all do by SIGHUP.
                number = caught[passed_on]
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
                passed_on += 1
                deadline = deadline or now + grace
            if deadline is None and self.done_file.exists():
                deadline, look, step = now + grace, now + 0.3, 0.3
            if any(end is not None and now > end for end in (deadline, limit)):
                self.hung = True
                return
            forsaken = last_words is not None and now > last_words
            if now >= look or forsaken:
                processes = self.leftovers.look()
                done = self.done_file.exists()
                if done:
                    # The result is safe, and a frozen rank can never leave by itself.
                    frozen = (p.pid for p in processes if is_stopped(p.pid))
                    self.leftovers.kill(frozen, "frozen process")
                elif not self.ranks.deserted(processes, begun_file(self.done_file)):
                    # A rank that ended as soon as all had met may have been faster than the news.
                    last_words = None
                elif forsaken:
                    self.hung = True
                    return
                elif last_words is None and deadline is None:
                    # Before all have met nothing can be saved; what the rank had to say, it said.
                    last_words = now + (DESERTED if self.ranks.met else _LAST_WORDS)
                step = min(1.2 * step, 5.0 if self.ranks.met else 0.5)
                look = now + step
            time.sleep(0.02)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            end_launcher(
                self.leftovers,
                send=process.send_signal,
                ended=lambda seconds: _ended(process, seconds),
            )

    def _reason(self, launcher_code: int | None) -> str:
        """Why there is no result, in words, as far as it is known."""
        if not self.launcher.tolerant and launcher_code in (*_FATAL, 255):
            # Such launchers do not say whom it hit; 255 is that of a helper that saw it too late.
            number = "" if launcher_code == 255 else f" by {signal.Signals(launcher_code).name}"
            return (
                f"a rank was ended{number}, and this MPI ({self.launcher.kind} "
                f"{self.launcher.version}) then ends the whole job"
            )
        if self.ranks.late:
            since = "the first of them started" if self.ranks.started else "the launcher started"
            return (
                f"the ranks had not met {start_limit():.0f} s after {since}; "
                "CODEDLA_START sets how long they may take"
            )
        if self.ranks.deserter is not None:
            who = f"rank {self.ranks.deserter}" if self.ranks.deserter >= 0 else "a rank"
            return (
                f"{who} ended before the job had a result (a rank out of memory ends so, for "
                "instance)"
            )
        if self.launcher.kind == "openmpi" and launcher_code == 0:
            # So it ends when it loses the connection to a daemon or, now and then, rank 0.
            return (
                "the job ended before rank 0 had a result, as it does when a host is lost "
                "or rank 0 dies"
            )
        if launcher_code is not None and launcher_code < 0:
            return f"the launcher {self.launcher.path} was ended by signal {-launcher_code}"
        return ""

    def _master_code(self) -> int | None:
        try:
            return int(self.done_file.read_text())
        except (OSError, ValueError):
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
