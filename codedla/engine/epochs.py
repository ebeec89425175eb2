"""Epochs of an asynchronous iteration: who has answered which iterate; no I/O, no clock.

In every epoch the newest iterate goes to the workers that are free, and the epoch is over when
enough of them have answered *it*. Who is late goes on with the older iterate that it has; when its
stale reply comes, that is offered to the algorithm or dropped, and the worker gets the newest
iterate at once. So no worker is ever waited for, and none is idle while an epoch is under way
unless it has answered it.

The semantics are those of ``asyncmap!`` in MPIAsyncPools.jl (github.com/severinson), whose vector
``repochs`` is :attr:`Epochs.epochs` here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import check_choice, whole_number
from codedla.engine.converse import Heard
from codedla.errors import NotDecodable, UsageError

__all__ = ["LATE", "AsyncReport", "Epochs", "Staleness", "Wanted"]

Wanted = int | Callable[[frozenset[int]], bool]
"""How many workers must answer an epoch, or whether the set of those that have is enough."""

LATE = ("offer", "drop", "cancel")
"""What becomes of replies to earlier iterates; "cancel": nobody goes on computing them."""


class Staleness:
    """How old the iterates were that workers answered.

    Parameters
    ----------
    n_workers : int

    Attributes
    ----------
    histograms : list of Counter
        Of each worker: how many of its replies were so many epochs, or versions, old.
    dropped : list of int
        Of each worker: how many of its replies were not used.
    """

    def __init__(self, n_workers: int) -> None:
        self.histograms: list[Counter[int]] = [Counter() for _ in range(n_workers)]
        self.dropped = [0] * n_workers

    def note(self, worker: int, staleness: int, *, used: bool) -> None:
        """Note one reply."""
        self.histograms[worker][staleness] += 1
        self.dropped[worker] += not used

    def total(self) -> Counter[int]:
        """Return the histogram of all workers."""
        return sum(self.histograms, Counter())


@dataclass
class AsyncReport:
    """What happened in an asynchronous iteration: schema ``codedla.async-report/1``.

    Ranks are MPI ranks (worker index + 1).

    Parameters
    ----------
    n_workers, epochs : int
        Workers in the pool; epochs, or versions of the iterate, so far.
    staleness : dict of int to dict of int to int
        Of each rank: how many of its replies answered an iterate that was so many epochs old.
    dropped : dict of int to int
        Of each rank from which any were: how many replies were not used.
    lost, silent : dict of int to str
        Ranks that will not be heard of again; that were not waited for in the end; and why.
    seconds : float
        On the pool's clock.
    bytes : dict of str to int
        "sent" and "received".
    """

    n_workers: int
    epochs: int
    staleness: dict[int, dict[int, int]]
    dropped: dict[int, int] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    silent: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "schema": "codedla.async-report/1",
            "n_workers": self.n_workers,
            "epochs": self.epochs,
            "staleness": [
                {"rank": rank, "replies": {str(age): n for age, n in sorted(ages.items())}}
                for rank, ages in sorted(self.staleness.items())
            ],
            "dropped": [{"rank": rank, "replies": n} for rank, n in sorted(self.dropped.items())],
            "lost": [{"rank": rank, "reason": why} for rank, why in sorted(self.lost.items())],
            "silent": [{"rank": rank, "reason": why} for rank, why in sorted(self.silent.items())],
            "seconds": round(self.seconds, 6),
            "bytes": self.bytes,
        }

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def summary(self) -> str:
        """Return two lines for a person: how much was answered how late, and who is gone."""
        ages: Counter[int] = Counter()
        for own in self.staleness.values():
            ages.update(own)
        replies = sum(ages.values())
        fresh = ages[0] / replies if replies else 0.0
        gone = ", ".join(map(str, sorted(self.lost))) or "none"
        silent = ", ".join(map(str, sorted(self.silent))) or "none"
        return (
            f"{self.epochs} epochs in {self.seconds:.3f} s: {replies} replies, {fresh:.0%} of them "
            f"to the newest iterate, the oldest {max(ages, default=0)} epochs old, "
            f"{sum(self.dropped.values())} dropped\n"
            f"lost: {gone}; silent in the end: {silent}"
        )


class Epochs:
    """Who has answered what, and who is to be given the newest iterate.

    Whoever drives it gives orders to the workers that :meth:`due` names, says so by
    :meth:`ordered`, and passes on everything that is heard.

    Parameters
    ----------
    n_workers : int
    late : str
        "offer": replies to earlier iterates are offered to the algorithm; "drop": they are not;
        "cancel": those who have not answered when an epoch is over are to be told so
        (:meth:`overdue`).
    oldest : int, optional
        Replies to iterates more than so many epochs old are dropped in any case.

    Attributes
    ----------
    epoch : int
        The current one; they count from 1.
    epochs : ndarray of int64 (n_workers,)
        The epoch of the iterate that each worker's newest offered reply answers; 0: none yet.
    lost, silent : dict of int to str
        Workers that will not be heard of again; that are not waited for; and why.
    staleness : Staleness
    """

    def __init__(self, n_workers: int, late: str = "offer", oldest: int | None = None) -> None:
        self.n_workers = n_workers
        check_choice(late, "late", LATE)
        self.late = late
        self.oldest = None if oldest is None else whole_number(oldest, "oldest", least=0)
        self.epoch = 0
        self.epochs: NDArray[np.int64] = np.zeros(n_workers, np.int64)
        self.lost: dict[int, str] = {}
        self.silent: dict[int, str] = {}
        self.staleness = Staleness(n_workers)
        self._wanted: Wanted = 0
        self._answered: set[int] = set()
        self._free: set[int] = set()
        self._orders: dict[int, tuple[int, int]] = {}
        self._enough: bool | None = None

    @property
    def answered(self) -> frozenset[int]:
        """The workers that have answered the current epoch."""
        return frozenset(self._answered)

    def begin(self, wanted: Wanted) -> None:
        """Begin the next epoch.

        Parameters
        ----------
        wanted : int or callable
            How many workers must answer it: 0 to the number of workers. Or a predicate over the
            set of workers that have, asked at the beginning and after each of their replies, and
            when a worker is found lost or silent.

        Raises
        ------
        UsageError
            A number that the pool does not have.
        """
        if not callable(wanted):
            wanted = whole_number(wanted, "nwait", least=0)
            if wanted > self.n_workers:
                raise UsageError(
                    f"nwait is at most the number of workers; got {wanted} of {self.n_workers}; "
                    "wait for fewer, or for all of them"
                )
        self.epoch += 1
        self._wanted = wanted
        self._answered.clear()
        self._enough = None

    def forget(self) -> None:
        """Forget who is free and who was given what: every worker reports anew."""
        self._free.clear()
        self._orders.clear()
        self.lost.clear()
        self.silent.clear()

    def enough(self) -> bool:
        """Tell whether the current epoch has been answered by enough workers.

        Raises
        ------
        NotDecodable
            It never will be: too many workers are lost.
        """
        if self._enough is None:
            if callable(self._wanted):
                self._enough = bool(self._wanted(self.answered))
            else:
                self._enough = len(self._answered) >= self._wanted
        # Who has answered and is lost since has answered all the same.
        possible = self._answered | (set(range(self.n_workers)) - set(self.lost))
        if not self._enough and isinstance(self._wanted, int) and len(possible) < self._wanted:
            raise self.failure("too many workers are lost")
        return self._enough

    def due(self) -> list[int]:
        """Return the workers that are to be given the newest iterate now, in ascending order."""
        return sorted(self._free - self._answered)

    def overdue(self) -> list[int]:
        """Return the workers that are to be told, now that an epoch is over, not to go on."""
        if self.late != "cancel":
            return []
        return sorted({worker for worker, _ in self._orders.values()})

    def ordered(self, worker: int, number: int) -> None:
        """Note that a worker was given the newest iterate, in the order of this number."""
        self._free.discard(worker)
        self._orders[number] = (worker, self.epoch)

    def cancelled(self, worker: int) -> None:
        """Note that a worker was told that its order is void."""
        self._forget(worker)

    def hear(self, heard: Heard) -> int | None:
        """Take what was heard.

        Returns
        -------
        int or None
            Of a reply that is offered to the algorithm: the epoch of the iterate that it answers.

        Raises
        ------
        NotDecodable
            Nothing will be heard any more.
        """
        worker = heard.worker
        match heard.kind:
            case "free":
                self._forget(worker)
                self._free.add(worker)
            case "reply":
                return self._reply(worker, heard.number)
            case "lost":
                self.lost[worker], self._enough = heard.reason, None
                self.silent.pop(worker, None)
                self._forget(worker)
                self._free.discard(worker)
            case "silent":
                self.silent[worker], self._enough = heard.reason, None
            case "back":
                self.silent.pop(worker, None)
            case "deserted":
                raise self.failure(heard.reason)
        return None

    def failure(self, why: str) -> NotDecodable:
        """Return the error that says why this epoch is not answered by enough workers."""
        away = [f"rank {w + 1} is lost ({reason})" for w, reason in sorted(self.lost.items())]
        away += [f"rank {w + 1} is silent ({reason})" for w, reason in sorted(self.silent.items())]
        need = self._wanted if isinstance(self._wanted, int) else None
        asked = "the set of workers that nwait accepts" if need is None else f"{need} workers"
        return NotDecodable(
            f"epoch {self.epoch} must be answered by {asked} of {self.n_workers}; got "
            f"{len(self._answered)}: {why}; {'; '.join(away) or 'all workers are there'}; wait for "
            "fewer workers, or start the job with more",
            have=sorted(self._answered),
            need=need,
        )

    def report(self, seconds: float, sent: int, received: int) -> AsyncReport:
        """Return what has happened so far."""
        return make_report(
            self.staleness, self.epoch, self.lost, self.silent, (seconds, sent, received)
        )

    def _reply(self, worker: int, number: int) -> int | None:
        self._free.add(worker)
        entry = self._orders.pop(number, None)
        if entry is None:  # cancelled, when the answer was on its way
            return None
        epoch = entry[1]
        age = self.epoch - epoch
        if age == 0:
            self._answered.add(worker)
            self._enough = None
        offered = age == 0 or (self.late == "offer" and (self.oldest is None or age <= self.oldest))
        self.staleness.note(worker, age, used=offered)
        if not offered:
            return None
        self.epochs[worker] = epoch
        return epoch

    def _forget(self, worker: int) -> None:
        self._orders = {n: order for n, order in self._orders.items() if order[0] != worker}


def make_report(
    staleness: Staleness,
    epochs: int,
    lost: dict[int, str],
    silent: dict[int, str],
    measured: tuple[float, int, int],
) -> AsyncReport:
    """Put a report together.

    Parameters
    ----------
    staleness : Staleness
    epochs : int
    lost, silent : dict of int to str
        By worker.
    measured : tuple of (float, int, int)
        Seconds, bytes sent and received.
    """
    seconds, sent, received = measured
    return AsyncReport(
        n_workers=len(staleness.histograms),
        epochs=epochs,
        staleness={w + 1: dict(ages) for w, ages in enumerate(staleness.histograms)},
        dropped={w + 1: n for w, n in enumerate(staleness.dropped) if n},
        lost=_by_rank(lost.items()),
        silent=_by_rank(silent.items()),
        seconds=seconds,
        bytes={"sent": sent, "received": received},
    )


def _by_rank(items: Iterable[tuple[int, str]]) -> dict[int, str]:
    return {worker + 1: reason for worker, reason in items}
