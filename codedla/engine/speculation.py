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
import math
from collections.abc import Callable

__all__ = ["LEAST", "PATIENCE", "QUANTILE", "Speculation"]

QUANTILE = 0.75
"""Part of the needed replies that must have come before anybody is called late."""
PATIENCE = 1.5
"""A worker is late after this many times the median time of a task."""
LEAST = 0.1
"""Seconds within which nobody is late: sending a share again takes its time, too."""


class Speculation:
    """Tell who is late in one round.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    needed : int
        Replies that suffice.

    Examples
    --------
    >>> now = 0.0
    >>> policy = Speculation(lambda: now, needed=4)
    >>> for worker in range(4):
    ...     policy.began(worker)
    >>> now = 2.0
    >>> for worker in range(3):
    ...     policy.ended(worker)
    >>> policy.late(3), policy.due(3)
    (False, 3.0)
    >>> now = 3.0
    >>> policy.late(3)
    True
    """

    def __init__(self, clock: Callable[[], float], needed: int) -> None:
        self._clock = clock
        self._start = clock()
        # At least one, so that of two tasks the second can be late.
        self._enough = max(1, math.floor(QUANTILE * needed))
        self._since: dict[int, float] = {}
        self._times: list[float] = []
        self._limit = math.inf

    @property
    def limit(self) -> float:
        """Seconds after which a worker is late; infinite while too few replies have come."""
        return self._limit

    def began(self, worker: int) -> None:
        """Record that a worker is given something to compute."""
        self._since[worker] = self._clock()

    def ended(self, worker: int) -> None:
        """Record that a worker's reply is there and used."""
        now = self._clock()
        bisect.insort(self._times, now - self._since.get(worker, self._start))
        # If it has more to do, that begins now.
        self._since[worker] = now
        if len(self._times) >= self._enough:
            middle = len(self._times) // 2
            median = (self._times[middle] + self._times[-middle - 1]) / 2
            self._limit = max(PATIENCE * median, LEAST)

    def due(self, worker: int) -> float:
        """Return when a worker that owes a reply will be late, as things are.

        One that has been given nothing yet, because it is busy with something older, counts from
        the start of the round.
        """
        return self._since.get(worker, self._start) + self._limit

    def late(self, worker: int) -> bool:
        """Tell whether a worker that owes a reply is late by now."""
        return self._clock() >= self.due(worker)
