"""Talking with workers one at a time: an order to one of them, then whatever is heard of any.

A round (:mod:`codedla.engine.round`) ends when its replies suffice, and nobody is to go on for it.
Iterations that do not wait need something smaller: each worker gets its next task when it has
answered the last one, whatever the others do. That is a *talk*::

    with pool.converse(function) as talk:
        while ...:
            heard = talk.wait()
            if heard.kind in ("free", "reply"):
                ...
                talk.order(heard.worker, operands)

Leaving the block ends the talk at once: tasks under way are cancelled, and nobody is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from numpy.typing import NDArray

from codedla.engine.arguments import check_pool
from codedla.engine.round import Operand
from codedla.errors import UsageError

__all__ = ["ConversingPool", "Heard", "Talk", "check_converses"]


@dataclass(frozen=True)
class Heard:
    """One thing that is heard of a worker.

    Parameters
    ----------
    kind : str
        "free": it can be given an order, and none of this talk is to be answered by it: that is
        how each worker reports in the beginning, and after a cancelled order. "reply": it has
        answered its order, and can be given the next. "lost": it will not be heard of again.
        "silent", "back": it is not to be waited for; it was heard of again, which ends that.
        "deserted": nobody who could answer an order owes an answer, so that nothing will be heard.
    worker : int
        -1 when ``kind`` is "deserted".
    number : int
        Of the order that a reply answers, as :meth:`Talk.order` returned it; else 0.
    reply : ndarray or None
        A matrix that belongs to whoever gets it.
    seconds : float
        When, on the clock of :meth:`Talk.now`.
    reason : str
        Why, for "lost", "silent" and "deserted".
    """

    kind: Literal["free", "reply", "lost", "silent", "back", "deserted"]
    worker: int
    number: int = 0
    reply: NDArray[Any] | None = None
    seconds: float = 0.0
    reason: str = ""


class Talk(Protocol):
    """What a pool's ``converse`` returns.

    Attributes
    ----------
    n_workers : int
    bytes_sent, bytes_received : int
        Bytes of payload so far.
    """

    n_workers: int

    @property
    def bytes_sent(self) -> int:
        """Bytes of payload that were sent to workers."""
        ...

    @property
    def bytes_received(self) -> int:
        """Bytes of payload of the replies."""
        ...

    def now(self) -> float:
        """Return the time in seconds, on the pool's clock."""
        ...

    def order(self, worker: int, operands: Sequence[Operand]) -> int:
        """Let a worker that owes nothing call the function with these operands.

        Parameters
        ----------
        worker : int
        operands : sequence of Operand
            At least one. Their arrays must not be written to before the worker has answered: they
            may still be on their way.

        Returns
        -------
        int
            The order's number, a positive one.

        Raises
        ------
        UsageError
            The worker has an unanswered order.
        PoolClosed
            The talk is over.
        """
        ...

    def cancel(self, worker: int) -> None:
        """Tell a worker that its order is void; it is heard of as "free", its answer is not."""
        ...

    def wait(self, until: float | None = None) -> Heard | None:
        """Return what is heard next; None when nothing is by then.

        Parameters
        ----------
        until : float, optional
            On the clock of :meth:`now`. When it is now, nothing is waited for.

        Raises
        ------
        WorkerError
            A task raised.
        PoolClosed
            The talk is over.
        """
        ...

    def restart(self) -> None:
        """Void all orders, and let every worker report as in the beginning.

        For whoever was interrupted, between two calls or in one, and may have missed something.
        """
        ...

    def close(self) -> None:
        """End the talk without waiting for anybody; idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class ConversingPool(Protocol):
    """A pool that can talk with its workers one at a time; all of codedla's can."""

    n_workers: int

    def converse(self, function: Callable[..., Any]) -> Talk:
        """Begin a talk in which workers call this function.

        Parameters
        ----------
        function : callable
            ``reply = function(*operands)`` with read-only matrices. It returns a matrix of float32,
            float64, complex64, complex128, int32 or int64. It is sent to each worker once.

        Raises
        ------
        UsageError
            The pool is in the middle of another talk or of a product, or the function cannot be
            sent.
        PoolClosed
        """
        ...

    def new_key(self) -> int:
        """Return an unused positive id for a resident operand."""
        ...

    def drop(self, keys: Sequence[int]) -> None:
        """Make every worker forget these resident operands."""
        ...


def check_converses(pool: Any) -> None:
    """Refuse what is no pool that can converse.

    Raises
    ------
    UsageError
    """
    check_pool(pool)
    if not isinstance(pool, ConversingPool):
        raise UsageError(
            f"workers are talked with one at a time by a pool's converse(); {pool!r} has none; "
            "use codedla's pools"
        )
