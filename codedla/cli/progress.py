"""A progress bar on the terminal: master only, on stderr, gone when the work is done.

Under ``--ranks`` the master is a process of the MPI job and has no terminal; it notes its progress
in the small file named by ``CODEDLA_PROGRESS``, and the program that started the job draws the bar.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["NOTE", "follow", "progress"]

NOTE = "CODEDLA_PROGRESS"

Progress = Callable[[int, int, int], None]


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Progress | None]:
    """Lend the function that the library calls with (replies, needed, workers)."""
    note = os.environ.get(NOTE)
    if note:
        yield _Note(Path(note))
    elif quiet or not sys.stderr.isatty():
        yield None
    else:
        with _bar() as draw:
            yield draw


@contextlib.contextmanager
def follow(quiet: bool, folder: Path) -> Iterator[dict[str, str]]:
    """Draw the bar of a job started in the block; lend the environment that the job needs."""
    if quiet or not sys.stderr.isatty():
        yield {}
        return
    note = folder / "progress"
    stop = threading.Event()

    def watch(draw: Progress) -> None:
        seen = ""
        while not stop.wait(0.1):
            text = note.read_text() if note.exists() else ""
            if text != seen:
                seen = text
                draw(*(int(part) for part in text.split()))

    with _bar() as draw:
        thread = threading.Thread(target=watch, args=(draw,), name="codedla-progress", daemon=True)
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
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the drawer went away: the product goes on
            fresh.write_text(f"{done} {needed} {total}")
            fresh.replace(self._path)


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("replies"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} needed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replies", total=1)

        def draw(done: int, needed: int, total: int) -> None:
            bar.update(task, completed=min(done, needed), total=max(needed, 1))

        yield draw
