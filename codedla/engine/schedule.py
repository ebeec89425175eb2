"""Which round a free worker works for next, when several are open: no I/O, no clock.

A product in panels is several rounds that do not need each other. Any threshold of a panel's
replies decodes it, so a panel is worth no more tasks than that while another panel still lacks
some. From the first rule that applies, a free worker gets

1. a share of the earliest open round that the replies and the shares on their way do not decode
   yet: a healthy coded run computes ``K`` shares a round, not ``N``;
2. a share of a new round, while the window has room for one;
3. a share that may turn out to be superfluous, of the earliest round where it would be used: first
   where others have the missing shares only ahead, then anywhere.

So a slow worker's finished shares count, one that stops is made up for at the end or when the
window is full, and nobody is idle who can help.

A worker may have an order *ahead*, whose operands travel while it computes: never two of one round,
as codes with secrets show nobody two shares, and never by rule 3. A round that is decoded is
cancelled wherever it is under way or ahead (:meth:`Schedule.close`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from codedla.engine.collector import Collector

__all__ = ["Schedule", "Task"]

SLACK = 8
"""Open rounds beyond those that all workers are busy with: what a slow worker may lag behind."""


@dataclass(frozen=True)
class Task:
    """One order: a share of a round, named by its key."""

    key: int
    share: int


@dataclass
class _Entry:
    """An open round.

    Attributes
    ----------
    tasks : dict of int to int
        The share that each worker with an unanswered order computes.
    asked : set of int
        Workers that were ever given a share of the round.
    covered : bool or None
        Whether the replies and all shares on their way decode; None when that is to be found out.
    """

    key: int
    collector: Collector
    tasks: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    covered: bool | None = None


class Schedule:
    """Rounds that are open, and every worker's unanswered orders.

    Whoever drives it tells each event to the rounds' collectors first, then to the schedule.

    Parameters
    ----------
    n_workers : int
    draw : callable
        ``draw()`` begins one more round and returns its key and its collector, which has been told
        of the workers that are lost or silent already; None when there is no more.
    ahead : int
        Orders that a worker may have beyond the one it works on.
    window : int, optional
        Rounds that may be open at a time; by default as many as keep all workers busy, and
        :data:`SLACK` more.

    Attributes
    ----------
    given : int
        Orders so far.
    """

    def __init__(
        self,
        n_workers: int,
        draw: Callable[[], tuple[int, Collector] | None],
        *,
        ahead: int = 0,
        window: int | None = None,
    ) -> None:
        self.n_workers, self.ahead = n_workers, ahead
        self.given = 0
        self._draw = draw
        self._window = window
        self._exhausted = False
        self._open: dict[int, _Entry] = {}
        self._orders: dict[int, list[Task]] = defaultdict(list)
        # Those of them that are computed, and of which the reply is arriving.
        self._computed: dict[int, set[Task]] = defaultdict(set)
        # Workers for which there was nothing: there still is not while nothing has happened.
        self._vain: set[int] = set()

    # -- rounds --------------------------------------------------------------------------------

    def ensure(self) -> bool:
        """Open a round if none is open; return whether any is."""
        return bool(self._open) or self._begin() is not None

    def close(self, key: int) -> list[int]:
        """Forget a round that is over; return the workers that have an order for it."""
        self._vain.clear()
        return list(self._open.pop(key).tasks)

    def _begin(self) -> _Entry | None:
        """Open one more round, if there is one."""
        drawn = None if self._exhausted else self._draw()
        if drawn is None:
            self._exhausted = True
            return None
        entry = _Entry(*drawn)
        self._open[entry.key] = entry
        return entry

    def _has_room(self, newest: _Entry) -> bool:
        window = self._window
        if window is None:
            shares = (1 + self.ahead) * self.n_workers
            window = -(-shares // max(newest.collector.needed, 1)) + SLACK
        return len(self._open) < window

    # -- events --------------------------------------------------------------------------------

    def computed(self, worker: int, task: Task) -> None:
        """Note that a worker is through with one of its orders, though its reply is not here yet.

        It can be given another, so that it is not idle while a large reply travels.
        """
        if task in self._orders[worker]:
            self._computed[worker].add(task)
            self._vain.discard(worker)

    def answered(self, worker: int, task: Task) -> None:
        """Note that a worker has answered, or given up, one of its orders."""
        orders = self._orders[worker]
        self._computed[worker].discard(task)
        if task in orders:  # or the worker was lost in the meantime
            orders.remove(task)
        self._vain.clear()
        self._release(worker, task)

    def lost(self, worker: int) -> None:
        """Note that a worker will answer none of its orders."""
        self._computed.pop(worker, None)
        for task in self._orders.pop(worker, []):
            self._release(worker, task)
        self.changed()

    def changed(self) -> None:
        """Note that some collector believes otherwise than before in some worker."""
        self._vain.clear()
        for entry in self._open.values():
            entry.covered = None

    def _release(self, worker: int, task: Task) -> None:
        entry = self._open.get(task.key)
        if entry is not None:
            entry.tasks.pop(worker, None)
            entry.covered = None

    # -- orders --------------------------------------------------------------------------------

    def next(self, worker: int, prefers: Callable[[int, int], bool] | None = None) -> Task | None:
        """Return the next order of a worker that can take one, or None.

        Parameters
        ----------
        worker : int
        prefers : callable, optional
            ``prefers(key, share)`` tells which lost shares suit this worker best.
        """
        left = len(self._orders[worker]) - len(self._computed[worker])
        if left > self.ahead or worker in self._vain:
            return None
        entry = self._needed(worker) or self._another(worker)
        if entry is None and not left:
            entry = self._superfluous(worker)
        if entry is None:
            self._vain.add(worker)
            return None
        return self._give(entry, worker, prefers)

    def _give(
        self, entry: _Entry, worker: int, prefers: Callable[[int, int], bool] | None
    ) -> Task | None:
        def suits(share: int) -> bool:
            return prefers is not None and prefers(entry.key, share)

        collector = entry.collector
        share = collector.next(worker, suits if prefers is not None and collector.queue else None)
        if share is None:
            return None
        task = Task(entry.key, share)
        self._orders[worker].append(task)
        entry.tasks[worker] = share
        entry.asked.add(worker)
        entry.covered = None
        self._vain.clear()
        self.given += 1
        return task

    def _needed(self, worker: int) -> _Entry | None:
        """Return the earliest round that lacks shares of which this worker can compute one."""
        alone = self._exhausted and len(self._open) == 1
        for entry in self._open.values():
            if self._can_help(entry, worker) and (alone or not self._is_covered(entry)):
                return entry
        return None

    def _another(self, worker: int) -> _Entry | None:
        """Return a new round if this worker could do nothing but compute for it."""
        newest = next(reversed(self._open.values()), None)
        if newest is not None:
            # A worker without a share of its own does not open one round after the other.
            used = worker in newest.asked or self._is_covered(newest)
            if not used or not self._has_room(newest):
                return None
        entry = self._begin()
        return entry if entry is not None and self._can_help(entry, worker) else None

    def _superfluous(self, worker: int) -> _Entry | None:
        """Return the earliest round that this worker's share could help to end earlier."""
        helped = [entry for entry in self._open.values() if self._can_help(entry, worker)]
        waiting = (entry for entry in helped if not self._suffices(entry, self._under_way(entry)))
        return next(waiting, helped[0] if helped else None)

    def _can_help(self, entry: _Entry, worker: int) -> bool:
        collector = entry.collector
        if collector.finished or worker in entry.tasks or not _lives(collector, worker):
            return False
        return bool(collector.queue) or collector.has_more(worker)

    # -- what is on its way --------------------------------------------------------------------

    def _is_covered(self, entry: _Entry) -> bool:
        if entry.covered is None:
            entry.covered = self._suffices(entry, list(entry.tasks))
        return entry.covered

    def _under_way(self, entry: _Entry) -> list[int]:
        """Return the workers that compute for a round, without those that have it only ahead."""
        return [worker for worker in entry.tasks if entry.key in self._begun(worker)]

    def _begun(self, worker: int) -> set[int]:
        """Return the rounds for which a worker computes, or of which its reply is arriving."""
        computed = self._computed[worker]
        keys = {task.key for task in computed}
        for task in self._orders[worker]:
            if task.key in self._open and task not in computed:
                return keys | {task.key}
        return keys

    def _suffices(self, entry: _Entry, workers: list[int]) -> bool:
        """Tell whether a round can be decoded once these workers have answered their orders.

        A round that is decodable and not over yet waits for one more reply, for instance for its
        accuracy.
        """
        collector = entry.collector
        coming = {
            entry.tasks[worker]
            for worker in workers
            if _lives(collector, worker) and collector.wants(entry.tasks[worker])
        }
        if not coming:
            return False
        code, shares = collector.code, coming.union(collector.responders)
        if code.counts:
            return len(shares) >= collector.needed
        # Fewer replies never decode, and are told sooner.
        return len(shares) >= code.needs(code.blocks) and code.decodable(shares)


def _lives(collector: Collector, worker: int) -> bool:
    """Tell whether a round expects answers of a worker."""
    return (
        worker in collector.workers
        and worker not in collector.lost_workers
        and worker not in collector.silent_workers
    )
