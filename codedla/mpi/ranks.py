"""Which ranks of a job there are on this machine, and whether one is gone that is needed.

Standard library only; MPI is never imported here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from codedla.mpi.leftovers import Process, is_stopped
from codedla.mpi.limits import start_limit

__all__ = ["DESERTED", "Ranks"]

#: Seconds that a job has to end by itself after a rank was gone that it cannot do without, and
#: that the ranks of a host have to appear one after the other.
DESERTED = 2.0


class Ranks:
    """What is known of a job's ranks from looking at its processes now and then.

    A fault-tolerant launcher goes on without a rank that has ended, but the others may wait for it
    for ever: for any rank until all have met, for rank 0 always.

    Parameters
    ----------
    met : bool
        Whether ranks other than 0 are dispensable from the start.

    Attributes
    ----------
    deserter : int or None
        The rank that is gone; -1 for one that ended before it was ever seen.
    late : bool
        Whether all that were seen are there, but have not met in time; or none was ever seen.
    """

    def __init__(self, *, met: bool) -> None:
        self.met = met
        self.deserter: int | None = None
        self.late = False
        self._seen: set[int] = set()
        #: By host: the ranks seen, and how many the launcher starts there.
        self._hosts: dict[str, set[int]] = {}
        self._expected: dict[str, int] = {}
        self._began = time.monotonic()
        self._first: float | None = None
        self._last_new = 0.0
        self._frozen_since: dict[int, float] = {}

    @property
    def started(self) -> bool:
        """Whether any rank was seen."""
        return self._first is not None

    def deserted(self, processes: Sequence[Process], begun: Path) -> bool:
        """Take note of a look at the job's processes; tell whether the job cannot go on.

        Parameters
        ----------
        processes : sequence of Process
            Those of the job that live on this machine.
        begun : Path
            The file that is there once all ranks have met.
        """
        now = time.monotonic()
        here: set[int] = set()
        for process in processes:
            if process.rank is None:
                continue
            here.add(process.rank)
            self._hosts.setdefault(process.host, set()).add(process.rank)
            if process.ranks_here is not None:
                self._expected[process.host] = process.ranks_here
        if here - self._seen:
            self._last_new = now
            self._first = now if self._first is None else self._first
        gone = self._seen - here
        self._seen |= here
        self.met = self.met or begun.exists()
        if self._first is None:
            # The launcher waits, for ever if need be, for its daemon on a host out of reach.
            self.late = not self.met and now > self._began + start_limit()
            return self.late
        if not self.met:
            gone |= self._frozen(processes, now)
        if now > self._last_new + DESERTED:
            # A host's ranks are started together; who is missing by now has come and gone.
            gone |= self._missing()
        if self.met:
            gone &= {0}
        elif not gone and now > self._first + start_limit():
            # Somebody on another host, perhaps; nobody here can know.
            self.late = True
            return True
        if not gone:
            self.deserter = None
            return False
        self.deserter = min(gone - {-1}, default=-1)
        return True

    def _frozen(self, processes: Sequence[Process], now: float) -> set[int]:
        """Ranks that have been stopped for a while; the others may wait for them for ever."""
        stopped = {p.rank for p in processes if p.rank is not None and is_stopped(p.pid)}
        since = {rank: self._frozen_since.get(rank, now) for rank in stopped}
        self._frozen_since = since
        return {rank for rank, start in since.items() if now > start + DESERTED}

    def _missing(self) -> set[int]:
        """Ranks that must have been on this machine and were never seen; -1 for one unknown."""
        missing = set() if 0 in self._seen else {0}
        for host, expected in self._expected.items():
            if len(self._hosts[host]) < expected:
                # With one host they are numbered from 0; else nobody can tell which one it was.
                alone = max(self._hosts[host]) < expected
                missing |= set(range(expected)) - self._seen if alone else {-1}
        return missing
