"""What the program says on stderr, and the exit code of every way to fail."""

from __future__ import annotations

import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable

from codedla.errors import INTERRUPTED, CodedlaError, UsageError, WorkerError

__all__ = [
    "as_options",
    "counted",
    "fail",
    "farewell",
    "one_line",
    "overflow_is_said",
    "say",
    "warn",
]


def one_line(text: object) -> str:
    """Return `text` without line breaks."""
    return " ".join(str(text).split())


def say(text: str) -> None:
    """Write a line of chatter."""
    print(f"codedla: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Write a warning."""
    say(f"warning: {one_line(text)}")


def farewell(number: int) -> str:
    """Return what is said of a job that was ended by this signal."""
    return "interrupted" if number == signal.SIGINT else "terminated"


def counted(number: int, noun: str) -> str:
    """Return ``1 round`` or ``2 rounds``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def as_options(error: UsageError, names: Iterable[str]) -> UsageError:
    """Return a library's error in the words of the command line.

    ``robust='locate'`` and ``scheme 'cyclic'`` become ``--robust locate`` and ``--scheme cyclic``,
    and a rule that begins with a name gets its dashes.

    Parameters
    ----------
    error : UsageError
    names : iterable of str
        Arguments of the library that are options of the same name.
    """
    either = "|".join(names)
    text = re.sub(rf"\b({either})(?:=| (?='))'?([\w.-]*\w)'?", r"--\1 \2", str(error))
    text = re.sub(rf"^({either})\b", r"--\1", text)
    text = text.replace(", or None", "")
    return UsageError(re.sub(r"'([\w-]+)'", r"\1", text))


def overflow_is_said() -> None:
    """Keep quiet NumPy's remarks on numbers that leave the range: what comes of them is said."""
    for what in ("overflow", "invalid value", "divide by zero"):
        warnings.filterwarnings("ignore", f"{what} encountered", RuntimeWarning)


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
