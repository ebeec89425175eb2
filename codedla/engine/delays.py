"""Random delays of tasks: distributions, bursts that last for rounds, and replayed measurements.

All are written ``DISTRIBUTION:PARAMETERS``, after ``random:`` in ``--inject`` and alone in
``codedla simulate --delays``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.measured.traces import Trace, read_trace

__all__ = ["DISTRIBUTIONS", "SEED", "Delays", "parse_delays", "unknown"]

DISTRIBUTIONS = {
    "exp": ("MEAN[:SEED]", 1),
    "shifted-exp": ("SHIFT:MEAN[:SEED]", 2),
    "weibull": ("SHAPE:SCALE[:SEED]", 2),
    "pareto": ("SHAPE:SCALE[:SEED]", 2),
    "bimodal": ("PROBABILITY:SECONDS[:SEED]", 2),
    "gilbert": ("P_SLOW:P_RECOVER:SECONDS[:SEED]", 3),
    "fritchman": ("P_SLOW:P_RECOVER:SECONDS[:SEED]", 3),
    "trace": ("FILE", 0),
}
"""Random delays, their parameters and the number of these."""

SEED = 20177
"""Used where none is given."""

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Delays:
    r"""Random delay of every task.

    ``exp``: exponential with this mean; ``shifted-exp``: the same after a constant; ``weibull``:
    ``scale * (-log(1 - u))**(1/shape)``; ``pareto``: ``scale * (1 - u)**(-1/shape) - scale``;
    ``bimodal``: this many seconds with this probability.

    ``gilbert``: a worker is well or slow, and a slow one takes this many seconds longer; from round
    to round it falls ill with probability ``p`` and recovers with probability ``r``, so that the
    part :math:`p / (p + r)` of all tasks is slow. ``fritchman``: the same with two slow states that
    are passed one after the other, each left with probability ``r``: a burst lasts at least two
    rounds, and the part :math:`2p / (2p + r)` is slow. ``trace``: what was measured is replayed.

    Parameters
    ----------
    distribution : str
    parameters : tuple of float
        As listed in :data:`DISTRIBUTIONS`.
    trace : Trace, optional
        For ``trace``.

    References
    ----------
    E. N. Gilbert, "Capacity of a burst-noise channel", Bell System Technical Journal 39, 1960.
    B. D. Fritchman, "A binary channel characterization using partitioned Markov chains", IEEE
    Transactions on Information Theory 13, 1967.
    """

    distribution: str
    parameters: tuple[float, ...]
    trace: Trace | None = None

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Draw ``size`` delays in seconds, of that many workers in one round.

        Of bursts, the state in which a worker is found at a random time; of a trace, its first
        round. See :meth:`stream` for rounds that follow each other.
        """
        return self.stream(range(size))(rng, size)

    def stream(self, workers: Sequence[int]) -> Draw:
        """Return a function that draws these workers' delays, round after round.

        Parameters
        ----------
        workers : sequence of int
            Worker indices, which matter to a trace only.

        Returns
        -------
        callable
            ``draw(rng, len(workers))`` returns seconds, (workers,). It remembers who was slow.

        Raises
        ------
        UsageError
            The distribution is not known.
        """
        if self.distribution not in DISTRIBUTIONS:
            raise UsageError(unknown("distribution", self.distribution, DISTRIBUTIONS))
        if self.distribution in ("gilbert", "fritchman"):
            return _Bursts(self.parameters, slow_states=1 + (self.distribution == "fritchman"))
        if self.trace is not None:
            return _Replay(self.trace, workers)
        return self._memoryless

    def table(self, rng: np.random.Generator, rounds: int, n_workers: int) -> NDArray[np.float64]:
        """Draw the delays of many rounds.

        Returns
        -------
        ndarray (rounds, n_workers)
            Seconds.
        """
        if self.distribution in DISTRIBUTIONS and DISTRIBUTIONS[self.distribution][1] in (1, 2):
            return self._memoryless(rng, rounds * n_workers).reshape(rounds, n_workers)
        draw = self.stream(range(n_workers))
        return np.array([draw(rng, n_workers) for _ in range(rounds)]).reshape(rounds, n_workers)

    def _memoryless(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        first, *rest = self.parameters
        match self.distribution:
            case "exp":
                return rng.exponential(first, size)
            case "shifted-exp":
                return first + rng.exponential(rest[0], size)
            case "weibull":
                return rest[0] * rng.weibull(first, size)
            case "pareto":
                return rest[0] * rng.pareto(first, size)
        # bimodal
        return np.where(rng.random(size) < first, rest[0], 0.0)


class _Bursts:
    """One Markov chain per worker: state 0 is well, the states after it are slow."""

    def __init__(self, parameters: tuple[float, ...], slow_states: int) -> None:
        self._slow, self._recover, self._seconds = parameters
        self._states = slow_states
        self._state: NDArray[np.int64] | None = None

    def __call__(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        chance = rng.random(size)
        if self._state is None:
            # As if the chains had run for ever: the shares of time are 1/p well, 1/r in each other.
            well = self._recover / (self._recover + self._states * self._slow)
            within = (chance - well) / (1.0 - well) if well < 1.0 else chance
            later = 1 + np.minimum((within * self._states).astype(np.int64), self._states - 1)
            self._state = np.where(chance < well, 0, later)
        else:
            leaves = chance < np.where(self._state == 0, self._slow, self._recover)
            self._state = np.where(leaves, (self._state + 1) % (self._states + 1), self._state)
        return np.where(self._state > 0, self._seconds, 0.0)


class _Replay:
    """A trace over and over: worker ``w`` has its column ``w``, round ``r`` its row ``r``."""

    def __init__(self, trace: Trace, workers: Sequence[int]) -> None:
        self._delays = trace.delays()
        self._columns = np.array(workers, dtype=np.int64) % self._delays.shape[1]
        self._round = 0

    def __call__(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        row = self._delays[self._round % len(self._delays)]
        self._round += 1
        return row[self._columns[:size]]


def parse_delays(text: str, prefix: str = "") -> tuple[Delays, int]:
    """Read ``DISTRIBUTION:PARAMETERS[:SEED]``.

    Parameters
    ----------
    text : str
        For instance ``"exp:0.1"``, ``"gilbert:0.02:0.5:3:7"`` or ``"trace:times.csv"``.
    prefix : str
        What stands before it where the user writes it, for messages.

    Returns
    -------
    delays : Delays
    seed : int

    Raises
    ------
    UsageError
        The distribution or a number is wrong, or the file of a trace cannot be read.
    """
    name, *fields = text.split(":")
    if name not in DISTRIBUTIONS:
        raise UsageError(unknown("distribution", name, DISTRIBUTIONS))
    names, count = DISTRIBUTIONS[name]
    usage = f"a random delay is written {prefix}{name}:{names}; got {prefix + text!r}"
    if name == "trace":
        file = text.partition(":")[2]
        if not file:
            raise UsageError(usage)
        return Delays(name, (), read_trace(file)), SEED
    try:
        numbers = [float(field) for field in fields[:count]]
        seed = int(fields[count]) if len(fields) == count + 1 else SEED
        if len(numbers) != count or len(fields) > count + 1 or seed < 0:
            raise ValueError
        if not all(math.isfinite(x) and x >= 0 for x in numbers) or not _possible(name, numbers):
            raise ValueError
    except ValueError:
        raise UsageError(usage) from None
    return Delays(name, tuple(numbers)), seed


def _possible(name: str, numbers: Sequence[float]) -> bool:
    """Tell whether probabilities are at most 1, and shapes are not 0."""
    match name:
        case "pareto" | "weibull":
            return numbers[0] > 0
        case "bimodal":
            return numbers[0] <= 1
        case "gilbert" | "fritchman":
            # Who never recovers would be slow for ever, and was already when the chain began.
            return numbers[0] <= 1 and 0 < numbers[1] <= 1
    return True


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, and which are."""
    return f"unknown {what} {name!r}; known: {', '.join(sorted(known))}"
