"""A progress bar on the terminal: master only, on stderr, gone when the work is done.

Under ``--ranks`` the master is a process of the MPI job and has no terminal; it notes its progress
in the small file named by ``CODEDLA_PROGRESS``, and the program that started the job draws the bar.
At the end the master asks for the bar's removal before it prints anything.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from codedla.cli.messages import say

__all__ = ["NOTE", "follow", "progress", "status"]

NOTE = "CODEDLA_PROGRESS"
_END = "end"
_PLAIN_EVERY = 10.0
"""Seconds between lines of a status that is not on a terminal."""

Progress = Callable[[int, int, int], None]


@contextlib.contextmanager
def progress(quiet: bool, what: str = "replies") -> Iterator[Progress | None]:
    """Lend the function that the library calls with (replies, needed, workers), or `what` else."""
    name = os.environ.get(NOTE)
    if name:
        note = _Note(Path(name))
        try:
            yield note
        finally:
            note.end()
    elif quiet or not sys.stderr.isatty():
        yield None
    else:
        with _bar(what) as draw:
            yield draw


@contextlib.contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Lend a function that shows one line of text in the place of the one before.

    Not on a terminal, every now and then one is printed.
    """
    name = os.environ.get(NOTE)
    if name:
        note = _Note(Path(name))
        try:
            yield note.say
        finally:
            note.end()
    elif quiet:
        yield lambda text: None
    elif sys.stderr.isatty():
        with _line() as draw:
            yield draw
    else:
        yield _Lines()


@contextlib.contextmanager
def follow(
    quiet: bool, folder: Path, what: str = "replies", *, status: bool = False
) -> Iterator[dict[str, str]]:
    """Draw the bar, or the status line, of a job started in the block.

    What is lent is the environment that the job needs.
    """
    if quiet or not sys.stderr.isatty():
        yield {}
        return
    note = folder / "progress"
    stop = threading.Event()

    def watch() -> None:
        with _line() if status else _bar_of_text(what) as draw:
            while not stop.wait(0.05):
                text = note.read_text() if note.exists() else ""
                if text == _END:
                    break
                if text:
                    draw(text)
        note.unlink(missing_ok=True)

    thread = threading.Thread(target=watch, name="codedla-progress", daemon=True)
    thread.start()
    try:
        yield {NOTE: str(note)}
    finally:
        stop.set()
        thread.join()


class _Note:
    """Progress written to a file, renamed so that a reader never sees half a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, done: int, needed: int, total: int) -> None:
        self.say(f"{done} {needed} {total}")

    def say(self, text: str) -> None:
        """Note a line of text."""
        self._write(text)

    def end(self) -> None:
        """Have the bar removed: wait, not for ever, until the drawer takes the note away."""
        self._write(_END)
        limit = time.monotonic() + 1.0
        while self._path.exists() and time.monotonic() < limit:
            time.sleep(0.01)

    def _write(self, text: str) -> None:
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the drawer went away: the product goes on
            fresh.write_text(text)
            fresh.replace(self._path)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}" + " needed" * (what == "replies")),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1)

        def draw(done: int, needed: int, total: int) -> None:
            bar.update(task, completed=min(done, needed), total=max(needed, 1))

        yield draw


@contextlib.contextmanager
def _bar_of_text(what: str) -> Iterator[Callable[[str], None]]:
    with _bar(what) as draw:
        yield lambda text: draw(*(int(part) for part in text.split()))


@contextlib.contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)


class _Lines:
    """A status that is printed, the first time after a while: short work prints nothing."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _PLAIN_EVERY:
            self._last = now
            say(text)
