"""What the program says on stderr, and the exit code of every way to fail."""

from __future__ import annotations

import sys
import traceback

from codedla.errors import INTERRUPTED, CodedlaError, WorkerError

__all__ = ["fail", "one_line", "say", "warn"]


def one_line(text: object) -> str:
    """Return `text` without line breaks."""
    return " ".join(str(text).split())


def say(text: str) -> None:
    """Write a line of chatter."""
    print(f"codedla: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Write a warning."""
    say(f"warning: {one_line(text)}")


def fail(error: BaseException) -> int:
    """Say what went wrong and return the exit code for it.

    Expected errors are one line (a worker's own error keeps its traceback); anything else is a
    defect of the program and shows where it happened.
    """
    if isinstance(error, WorkerError):
        say(f"error: {error}")
        return error.exit_code
    if isinstance(error, CodedlaError):
        say(f"error: {one_line(error)}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, (OSError, MemoryError)):
        say(f"error: {one_line(error) or type(error).__name__}")
        return 1
    traceback.print_exception(error)
    say(f"error: {type(error).__name__}: {one_line(error)}; this is a defect: please report it")
    return 1
