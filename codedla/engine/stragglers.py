"""Delay and fault models, seeded: for tests, teaching and the simulated pool.

A fault is written ``kind:RANK:VALUE`` with the MPI rank of a worker (1, 2, ...; rank 0 is the
master), a random delay ``random:DISTRIBUTION:PARAMETERS``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.delays import DISTRIBUTIONS, SEED, Delays, parse_delays, unknown
from codedla.errors import UsageError
from codedla.measured.traces import Trace

__all__ = [
    "CORRUPTIONS",
    "DISTRIBUTIONS",
    "FAULTS",
    "Delays",
    "Fault",
    "FaultPlan",
    "check_ranks",
    "parse_fault",
]

FAULTS = {
    "slow": "slow:RANK:FACTOR     every panel takes FACTOR times as long",
    "delay": "delay:RANK:SECONDS   sleep this long inside every task",
    "kill": "kill:RANK:SECONDS    the rank kills itself this long after the start",
    "hang": "hang:RANK:SECONDS    the rank freezes (SIGSTOP) this long after the start",
    "corrupt": "corrupt:RANK:PROB[:KIND]  with this probability a reply is wrong: entry (default), "
    "flip, nan, scale, stale",
    "raise": "raise:RANK:ROUND     the task of this round (1, 2, ...) raises an exception",
    "random": "random:DIST:PARAMS   every task of every worker sleeps a random time",
}
"""Fault kinds and their spelling, for help texts."""

CORRUPTIONS = {
    "entry": "one entry has another value",
    "flip": "one bit of one entry is flipped, which may hardly be seen",
    "nan": "part of a row is NaN; of integers, garbage",
    "scale": "all entries are multiplied by a factor",
    "stale": "an earlier task's reply of the same shape; zeros when there is none",
}
"""How a reply may be wrong."""


@dataclass(frozen=True)
class Fault:
    """One fault on purpose.

    Parameters
    ----------
    kind : str
        A key of :data:`FAULTS`.
    worker : int
        Worker index (rank - 1); -1 for ``random``, which concerns everybody.
    value : float
        Seconds, factor or probability.
    distribution : str
        For ``random``: a key of :data:`~codedla.engine.delays.DISTRIBUTIONS`.
    parameters : tuple of float
        For ``random``.
    seed : int
        Seed of random choices.
    corruption : str
        For ``corrupt``: a key of :data:`CORRUPTIONS`.
    trace : Trace, optional
        For ``random:trace``.
    """

    kind: str
    worker: int
    value: float = 0.0
    distribution: str = ""
    parameters: tuple[float, ...] = ()
    seed: int = SEED
    corruption: str = "entry"
    trace: Trace | None = None


def parse_fault(spec: str) -> Fault:
    """Read one fault specification.

    Parameters
    ----------
    spec : str
        For instance ``"delay:3:30"`` or ``"random:exp:0.1:7"``.

    Raises
    ------
    UsageError
        The kind, the rank or a number is wrong.
    """
    kind, *fields = spec.split(":")
    if kind not in FAULTS:
        raise UsageError(unknown("fault", kind, FAULTS))
    if kind == "random":
        return _parse_random(spec)
    corruption = "entry"
    if kind == "corrupt" and len(fields) == 3:
        corruption = fields.pop()
        if corruption not in CORRUPTIONS:
            raise UsageError(unknown("kind of corruption", corruption, CORRUPTIONS))
    try:
        rank, value = int(fields[0]), float(fields[1])
        if len(fields) != 2 or rank < 1 or not math.isfinite(value) or value < 0:
            raise ValueError
    except (IndexError, ValueError):
        raise UsageError(
            f"a fault is written {FAULTS[kind].split()[0]} with RANK 1, 2, ... and a value >= 0; "
            f"got {spec!r}"
        ) from None
    if kind == "raise" and (value < 1 or value != int(value)):
        raise UsageError(f"{FAULTS[kind].split()[0]} counts rounds 1, 2, ...; got {spec!r}")
    if kind == "corrupt" and value > 1:
        raise UsageError(f"a probability is at most 1; got {spec!r}")
    if kind == "slow" and value < 1:
        raise UsageError(f"a slow rank's factor is at least 1; got {spec!r}")
    return Fault(kind, rank - 1, value, corruption=corruption)


def check_ranks(faults: Iterable[Fault], n_workers: int) -> None:
    """Refuse faults for workers that a pool of ``n_workers`` does not have.

    Raises
    ------
    UsageError
    """
    for fault in faults:
        if fault.worker >= n_workers:
            raise UsageError(
                f"faults name worker ranks 1 to {n_workers}; got rank {fault.worker + 1}"
            )


def _parse_random(spec: str) -> Fault:
    delays, seed = parse_delays(spec.partition(":")[2], "random:")
    return Fault(
        "random", -1, 0.0, delays.distribution, delays.parameters, seed, trace=delays.trace
    )


class FaultPlan:
    """The faults of one worker, as it meets them.

    Parameters
    ----------
    faults : iterable of Fault
        Those of all workers.
    worker : int
        Whose plan this is.
    """

    def __init__(self, faults: Iterable[Fault], worker: int) -> None:
        self.worker = worker
        mine = [fault for fault in faults if fault.worker in (worker, -1)]
        self.factor = math.prod(f.value for f in mine if f.kind == "slow")
        self.kill_after = _earliest(mine, "kill")
        self.hang_after = _earliest(mine, "hang")
        self._fixed = sum(f.value for f in mine if f.kind == "delay")
        self._raises = {int(f.value) for f in mine if f.kind == "raise"}
        self._random = [
            (
                Delays(f.distribution, f.parameters, f.trace).stream([worker]),
                np.random.default_rng([f.seed, worker]),
            )
            for f in mine
            if f.kind == "random"
        ]
        self._corrupt: dict[str, float] = {}
        for fault in mine:
            if fault.kind == "corrupt":
                known = self._corrupt.get(fault.corruption, 0.0)
                self._corrupt[fault.corruption] = max(known, fault.value)
        # Replies are kept only where they may be sent again.
        self._earlier: dict[tuple[tuple[int, ...], str], NDArray[np.generic]] = {}
        self._rng = np.random.default_rng([SEED, worker])
        self._tasks = 0

    def start_task(self) -> float:
        """Count a task; return the seconds it has to sleep.

        Raises
        ------
        RuntimeError
            A ``raise`` fault is planned for this task.
        """
        self._tasks += 1
        if self._tasks in self._raises:
            raise RuntimeError(f"injected exception in task {self._tasks}")
        drawn = sum(float(draw(rng, 1)[0]) for draw, rng in self._random)
        return self._fixed + drawn

    def corrupt(self, reply: NDArray[np.generic]) -> str:
        """Make the reply wrong, with the planned probability.

        Parameters
        ----------
        reply : ndarray
            Changed in place.

        Returns
        -------
        str
            The kind of corruption, a key of :data:`CORRUPTIONS`; empty when nothing was changed,
            also because the wrong reply happens to be equal to the right one.
        """
        if not (self._corrupt and reply.size):
            return ""
        place = (reply.shape, reply.dtype.str)
        honest = reply.copy() if "stale" in self._corrupt else None
        happened = ""
        for kind, probability in self._corrupt.items():
            if probability and self._rng.random() < probability:
                happened = kind if self._spoil(kind, reply, self._earlier.get(place)) else ""
                break
        if honest is not None:
            self._earlier[place] = honest
        return happened

    def _spoil(self, kind: str, reply: NDArray[Any], earlier: NDArray[np.generic] | None) -> bool:
        """Change the reply; return whether that made a difference."""
        rng = self._rng
        with np.errstate(all="ignore"):
            match kind:
                case "entry":
                    spot = self._spot(reply)
                    reply[spot] = reply[spot] + 1 if reply[spot] == 0 else reply[spot] * -2
                case "flip":
                    spot = self._spot(reply)
                    entry = np.array([reply[spot]])
                    raw = entry.view(np.uint8)
                    raw[rng.integers(raw.size)] ^= np.uint8(1 << int(rng.integers(8)))
                    reply[spot] = entry[0]
                case "nan":
                    *row, first = self._spot(reply)
                    burst = reply[tuple(row)][first : first + int(rng.integers(1, 65))]
                    # Odd, so that every entry changes.
                    if reply.dtype.kind in "iu":
                        burst ^= (rng.integers(0, 2**31, burst.shape) | 1).astype(reply.dtype)
                    else:
                        burst[...] = np.nan
                case "scale":
                    if not reply.any():
                        return False
                    # Of integers that wrap around, 3 changes all but 0 and -2**63.
                    whole = reply.dtype.kind in "iu"
                    reply *= 3 if whole else np.asarray(rng.uniform(1.5, 4), reply.dtype)
                case "stale":
                    again = np.zeros_like(reply) if earlier is None else earlier
                    if np.array_equal(again, reply):
                        return False
                    reply[...] = again
        return True

    def _spot(self, reply: NDArray[Any]) -> tuple[int, ...]:
        """Choose an entry."""
        return tuple(int(self._rng.integers(extent)) for extent in reply.shape)


def _earliest(faults: Iterable[Fault], kind: str) -> float | None:
    return min((fault.value for fault in faults if fault.kind == kind), default=None)
