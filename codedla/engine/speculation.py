"""Speculation: who is late, judged by how long the others took.

What schedulers of independent tasks do: once most tasks are done, one that has been under way for
much longer than the typical task is given to an idle worker as well, and whichever copy is done
first counts. Nothing is redundant up front; in return nothing happens before the healthy workers
are done, and then a whole task is still to be computed.

Like the collector, which asks it, this does no I/O; the pool lends its clock.

References
----------
Dean, Ghemawat, "MapReduce: simplified data processing on large clusters", OSDI 2004 (backup tasks).
Zaharia, Konwinski, Joseph, Katz, Stoica, "Improving MapReduce performance in heterogeneous
environments", OSDI 2008. The rule and its numbers are those of Apache Spark (``spark.speculation``:
quantile 0.75, multiplier 1.5, at least 100 ms).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable

__all__ = ["LEAST", "PATIENCE", "QUANTILE", "Speculation", "enough"]

QUANTILE = 0.75
"""Part of the needed replies that must have come before anybody is called late."""
PATIENCE = 1.5
"""A worker is late after this many times the median time of a task."""
LEAST = 0.1
"""Seconds within which nobody is late: sending a share again takes its time, too."""


def enough(needed: int) -> int:
    """Return how many of the needed replies must have come before anybody is called late."""
    # At least one, so that of two tasks the second can be late.
    return max(1, math.floor(QUANTILE * needed))


class Speculation:
    """Tell who is late in one round.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    needed : int
        Replies that suffice.
    workers : iterable of int
        Workers that are to compute something. As long as one has been given nothing, because it is
        busy with something older, its time counts from now.

    Examples
    --------
    >>> now = 0.0
    >>> policy = Speculation(lambda: now, needed=4, workers=range(4))
    >>> now = 2.0
    >>> for worker in range(3):
    ...     policy.ended(worker)
    >>> policy.late(), policy.due()
    ([], 3.0)
    >>> now = 3.0
    >>> policy.late()
    [3]
    """

    def __init__(self, clock: Callable[[], float], needed: int, workers: Iterable[int]) -> None:
        self._clock = clock
        self._enough = enough(needed)
        # In the order of these times, as clocks do not go back: who is late comes first.
        self._since = dict.fromkeys(workers, clock())
        self._times: list[float] = []
        self._limit = math.inf

    @property
    def limit(self) -> float:
        """Seconds after which a worker is late; infinite while too few replies have come."""
        return self._limit

    def began(self, worker: int) -> None:
        """Record that a worker is given something to compute."""
        self._since.pop(worker, None)
        self._since[worker] = self._clock()

    def ended(self, worker: int, *, more: bool = False) -> None:
        """Record that a worker's reply is there and used, and whether it has more to do."""
        now = self._clock()
        began = self._since.pop(worker, None)
        if began is not None:
            bisect.insort(self._times, now - began)
        if more:
            self._since[worker] = now
        if len(self._times) >= self._enough:
            middle = len(self._times) // 2
            median = (self._times[middle] + self._times[-middle - 1]) / 2
            self._limit = max(PATIENCE * median, LEAST)

    def late(self) -> list[int]:
        """Return the workers that are late by now, the latest first."""
        if math.isinf(self._limit):
            return []
        return list(itertools.takewhile(self._is_late, self._since))

    def due(self) -> float:
        """Return when the next worker will be late; infinite if none will, as things are."""
        worker = next(itertools.dropwhile(self._is_late, self._since), None)
        return math.inf if worker is None else self._since[worker] + self._limit

    def _is_late(self, worker: int) -> bool:
        return self._clock() >= self._since[worker] + self._limit
