"""Named errors: each message states the rule, the value that broke it, and the cure.

Exit codes of the command line follow from the class (``exit_code``): 2 bad usage or input, 3 not
decodable, 4 verification failed, 1 anything else; signals have the shell's 128 and their number.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "INTERRUPTED",
    "TERMINATED",
    "CodedlaError",
    "CodedlaWarning",
    "MPIUnavailable",
    "NotDecodable",
    "PoolClosed",
    "UsageError",
    "VerificationFailed",
    "WorkerError",
]


INTERRUPTED = 130
"""Exit code after Ctrl-C."""
TERMINATED = 143
"""Exit code after SIGTERM."""


class CodedlaError(Exception):
    """Base class of every error that codedla raises on purpose."""

    exit_code = 1


class CodedlaWarning(UserWarning):
    """Something a user should know that does not stop the work (weak code, lost worker)."""


class UsageError(CodedlaError, ValueError):
    """A caller's argument or input file breaks a rule; found before any worker computes."""

    exit_code = 2


class MPIUnavailable(CodedlaError, ImportError):
    """No usable MPI was found; the message says how to get one."""

    exit_code = 2


class NotDecodable(CodedlaError):
    """Too few replies can still arrive.

    Parameters
    ----------
    message : str
        What is missing, in words.
    have : iterable of int, optional
        Workers that answered.
    need : int, optional
        Recovery threshold.
    """

    exit_code = 3

    def __init__(self, message: str, *, have: Iterable[int] = (), need: int | None = None) -> None:
        super().__init__(message)
        self.have = tuple(have)
        self.need = need


class VerificationFailed(CodedlaError):
    """The decoded product did not pass the requested check; it is not handed out."""

    exit_code = 4


class WorkerError(CodedlaError):
    """An exception raised on a worker, re-raised on the master.

    Parameters
    ----------
    message : str
        ``TypeName: text`` of the remote exception.
    rank : int
        MPI rank of the worker (worker index + 1).
    host : str
        Host name of the worker.
    traceback : str
        The remote traceback as text.
    """

    def __init__(self, message: str, *, rank: int, host: str, traceback: str) -> None:
        super().__init__(f"rank {rank} on {host} raised {message}\n{traceback}".rstrip())
        self.rank = rank
        self.host = host
        self.traceback = traceback


class PoolClosed(CodedlaError, RuntimeError):
    """A closed pool or a closed coded matrix was used."""
