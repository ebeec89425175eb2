"""A small round that only repeats: all workers hold their shares, and get the same other operand.

What iterations over a stored matrix feel is the cost of a round in which nothing happens. Such a
round needs no encoding and no choice of who does what: one message goes to all workers alike, and
their short replies come back. A pool that can do that has a method ``quick``. Whatever is out of
the ordinary (a lost, frozen or very late worker, an exception, a wrong reply) is not its business:
it gives up, and the caller runs an ordinary round (:mod:`codedla.engine.round`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

__all__ = ["Quick", "QuickPool"]


@dataclass
class Quick:
    """One such round: worker ``w`` replies the product of its share and ``x``.

    Parameters
    ----------
    first_key : int
        Worker ``w`` holds its share under the key ``first_key + w``.
    x : ndarray (L, c)
        C-ordered, short enough to travel inside an order.
    take : callable
        ``take(worker, reply)`` returns whether the replies suffice, or None: give up. The array is
        valid during the call only.
    patience : float
        Seconds after which to give up.

    Attributes
    ----------
    began, sent, decided : float
        On the pool's clock: the start, when all orders were on their way, the last needed reply.
    replies : list of (float, int, float)
        When a reply came, of which worker, and the seconds that computing it took.
    """

    first_key: int
    x: NDArray[Any]
    take: Callable[[int, NDArray[Any]], bool | None]
    patience: float
    began: float = 0.0
    sent: float = 0.0
    decided: float = 0.0
    replies: list[tuple[float, int, float]] = field(default_factory=list)


@runtime_checkable
class QuickPool(Protocol):
    """A pool that can do quick rounds."""

    n_workers: int

    def quick(self, job: Quick) -> bool:
        """Run one; return whether the replies sufficed."""
        ...
