"""One run of one peer under one condition: start it, strike, wait, clear away, judge."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from _peers import catalogue
from _peers.faults import Fault, Moments
from codedla.mpi.guard import Guard
from codedla.mpi.leftovers import Leftovers

START_LIMIT = 120.0
"""Seconds that a peer may take until its operands are in memory and its workers ready."""
TOLERANCE = 1e-11
"""Largest relative error of a product; a wrong one is off by orders of magnitude."""


@dataclass(frozen=True)
class Problem:
    """Operands on disk and the product to compare with.

    Parameters
    ----------
    folder : Path
        Has ``A.npy`` and ``B.npy``; runs work in folders of their own in it.
    expected : ndarray
        NumPy's product.
    """

    folder: Path
    expected: np.ndarray

    @classmethod
    def draw(cls, folder: Path, size: int) -> Problem:
        """Random square operands, the same on every run."""
        rng = np.random.default_rng(20177)
        a, b = (rng.standard_normal((size, size)) for _ in "AB")
        np.save(folder / "A.npy", a)
        np.save(folder / "B.npy", b)
        return cls(folder, a @ b)


def run(
    start: catalogue.Start,
    problem: Problem,
    condition: str,
    moments: Moments,
    *,
    bound: float,
) -> dict[str, Any]:
    """Run a peer once.

    Parameters
    ----------
    start : Start
    problem : Problem
    condition : str
        ``"healthy"`` or a key of :data:`_peers.faults.FAULTS`.
    moments : Moments
    bound : float
        Seconds from the start of the product after which the run is given up.

    Returns
    -------
    dict
        ``outcome``: "ok"; "missed", when the product was there before the fault; "wrong"; "died",
        without a result; "hangs", without a result within the bound; "no start".
        ``seconds`` to the result, ``struck`` to the fault, and ``exit`` from the start of the
        command to its end (None: not within the bound); the command's ``code``, the relative
        ``error``, the processes ``left`` behind by a command that ended, and the last words of one
        that failed.
    """
    with _folder(problem) as folder, _process(start, folder) as job:
        started = job.wait_for("started", START_LIMIT)
        fault = None
        finished = None
        if started is not None:
            begun = arrived = time.monotonic()
            if condition != "healthy":
                fault = Fault(condition, moments, started["workers"][0])
            try:
                finished = job.wait_for("finished", bound)
                arrived = time.monotonic()
                job.wait_for_end(bound - (arrived - begun))
            finally:
                if fault is not None:
                    fault.end()
        row: dict[str, Any] = {
            "outcome": "ok",
            "seconds": finished["seconds"] if finished else None,
            "struck": fault.struck - begun if fault is not None and fault.struck else None,
            "exit": job.seconds,
            "code": job.process.poll(),
            "error": None,
            "left": job.count_left(),
        }
        if started is None:
            row["outcome"] = "no start"
        elif finished is None:
            row["outcome"] = "hangs" if job.seconds is None else "died"
        else:
            row["error"] = _error(folder / "C.npy", problem.expected)
            there = begun + finished["seconds"]
            late = fault is not None and (fault.struck is None or fault.struck > there)
            if not row["error"] <= TOLERANCE:
                row["outcome"] = "wrong"
            elif late:
                row["outcome"] = "missed"
        if row["outcome"] in ("died", "no start"):
            row["said"] = job.last_words()
        return row


class _Job:
    """A command under way, and what it says."""

    def __init__(self, process: subprocess.Popen[str], leftovers: Leftovers, log: Path) -> None:
        self.process = process
        self.leftovers = leftovers
        self.log = log
        self.seconds: float | None = None
        self._began = time.monotonic()
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        assert process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        self._listener.start()

    def wait_for(self, event: str, limit: float) -> dict[str, Any] | None:
        """The next event, if it is this one; None when the command ends or the limit is over."""
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0 and self.seconds is None:
            try:
                said = self._events.get(timeout=min(left, 0.05))
            except queue.Empty:
                # Daemons may keep the pipe open after the command has ended.
                self._look()
                continue
            return said if said is not None and said["event"] == event else None
        return None

    def wait_for_end(self, limit: float) -> None:
        """Note when the command ends, within the limit."""
        end = time.monotonic() + max(0.0, limit)
        while self.seconds is None and time.monotonic() < end:
            self._look()
            time.sleep(0.005)

    def count_left(self) -> int | None:
        """Processes that are there a second after the command's end."""
        if self.seconds is None:
            return None
        end = time.monotonic() + 1.0
        while (left := len(self.leftovers.processes())) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def last_words(self) -> str:
        """The last line on stderr that tells of an error, or else the last one."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        words = [line for line in lines if any(map(str.isalpha, line))]
        errors = [line for line in words if "error" in line.lower()]
        return (errors or words or [""])[-1]

    def join(self) -> None:
        """Wait until nobody is left who could say anything."""
        self._listener.join(10.0)

    def _look(self) -> None:
        if self.seconds is None and self.process.poll() is not None:
            self.seconds = time.monotonic() - self._began

    def _listen(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if line.startswith('{"event"'):
                    self._events.put(json.loads(line))
        self._events.put(None)


@contextmanager
def _folder(problem: Problem) -> Iterator[Path]:
    """A folder for one run, with the operands; short, as sockets are made in it."""
    folder = problem.folder / uuid.uuid4().hex[:4]
    folder.mkdir()
    try:
        for name in ("A.npy", "B.npy"):
            os.link(problem.folder / name, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _process(start: catalogue.Start, folder: Path) -> Iterator[_Job]:
    """Start the command; whatever happens, nothing that it started is there afterwards.

    Every process of the run carries a mark in its environment, daemons too, and a guard ends them
    when the harness itself is killed.
    """
    leftovers = Leftovers(uuid.uuid4().hex)
    environment = {
        **os.environ,
        **catalogue.threads(start),
        **start.environment,
        "PEERS_FOLDER": str(folder),
        "PEERS_WORKERS": str(start.workers),
        "TMPDIR": str(folder),
        "CODEDLA_JOB": leftovers.job,
        "PYTHONUNBUFFERED": "1",
    }
    log = folder / "stderr"
    guard = Guard(leftovers)
    try:
        with log.open("w") as stderr:
            process = subprocess.Popen(
                start.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        job = _Job(process, leftovers, log)
        try:
            yield job
        finally:
            if process.poll() is None:
                process.terminate()  # codedla's launcher ends its ranks itself
                try:
                    process.wait(20.0)
                except subprocess.TimeoutExpired:
                    process.kill()
            leftovers.sweep()
            process.wait()
            job.join()
    finally:
        guard.release()


def _error(path: Path, expected: np.ndarray) -> float:
    """Relative error of the product in a file; infinite when there is none."""
    try:
        got = np.load(path)
    except (OSError, ValueError):  # not written, or cut short by the end of its process
        return float("inf")
    if got.shape != expected.shape:
        return float("inf")
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
