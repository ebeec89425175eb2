"""Compare schemes under random delays: quantiles of the time of a product, for many workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import codedla.codes  # noqa: F401  enters the codes into the table
from codedla.codes import registry
from codedla.codes.base import Code
from codedla.engine.choose import Request, default_tolerate, too_many_shares
from codedla.engine.delays import SEED, Delays
from codedla.engine.grids import grids_to_try
from codedla.errors import UsageError
from codedla.linalg.stream import usual_rows
from codedla.planning.machine import Machine
from codedla.planning.rounds import Timings, simulate
from codedla.planning.workload import workload_of

__all__ = ["QUANTILES", "Scheme", "Study", "code_for", "parse_scheme"]

QUANTILES = (50, 90, 99)
SPECULATIVE = "speculative"
_CHUNK = 1 << 21
"""Worker-rounds simulated at a time: a few arrays of so many numbers are held."""
_MEMORYLESS = ("exp", "shifted-exp", "weibull", "pareto", "bimodal")

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Scheme:
    """A code, or ``speculative``, and how many losses it is to tolerate.

    Parameters
    ----------
    name : str
    tolerate : float, optional
        Workers; below 1 a part of them; None: as usual for the number of workers.
    """

    name: str
    tolerate: float | None = None

    def __str__(self) -> str:
        if self.tolerate is None:
            return self.name
        if 0 < self.tolerate < 1:
            return f"{self.name}@{100 * self.tolerate:g}%"
        return f"{self.name}@{self.tolerate:g}"

    def losses(self, n_workers: int) -> int:
        """Return how many of so many workers may be lost."""
        if self.name in ("uncoded", SPECULATIVE):
            return 0
        if self.tolerate is None:
            # A second copy of everything is dear enough.
            return 1 if self.name == "replication" else default_tolerate(n_workers)
        if 0 < self.tolerate < 1:
            return math.ceil(self.tolerate * n_workers)
        return int(self.tolerate)


def parse_scheme(text: str, tolerate: float | None = None) -> Scheme:
    """Read ``NAME``, ``NAME@LOSSES`` or ``NAME@PERCENT%``.

    Raises
    ------
    UsageError
        The code is not known, or the number of losses is none.
    """
    name, at, losses = text.partition("@")
    if name != SPECULATIVE:
        registry.get(name)
    return Scheme(name, parse_losses(losses) if at else tolerate)


def parse_losses(text: str) -> float:
    """Read a number of workers, or a part of them with a percent sign.

    Raises
    ------
    UsageError
    """
    number = text.removesuffix("%")
    try:
        value = float(number) / 100 if number != text else float(int(number))
        if not 0 <= value < math.inf or (number != text and value >= 1):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"losses to tolerate are a whole number of workers, or a part like 5%; got {text!r}"
        ) from None
    return value


def code_for(
    name: str,
    n_workers: int,
    tolerate: int,
    shape: tuple[int, int, int],
    dtype: np.dtype,
    operation: str = "product",
) -> Code:
    """Build a code on the grid that a product would choose for it.

    Raises
    ------
    UsageError
        The family has no grid for so many workers and losses.
    """
    family = registry.get(name)
    request = Request(
        operation="matvec" if operation == "round" or shape[2] == 1 else "matmul",
        shape=shape,
        n_workers=n_workers,
        code=name,
        blocks=None,
        tolerate=tolerate,
        nodes=None,
        eps=float(np.finfo(dtype).eps),
        itemsize=dtype.itemsize,
        tolerance=1.0,
        check_accuracy=False,
        strict=False,
        plain_only=False,
        exact_integers=False,
        density=(1.0, 1.0),
        compute=dtype,
        resident=operation == "round",
    )
    grid = next(grids_to_try(request, family, tolerate), None)
    if grid is None:
        raise UsageError(
            f"code {name} has no grid on which {tolerate} of {n_workers} workers may be lost; use "
            "fewer losses or another code"
        )
    code = family(n_workers, grid)
    refused = too_many_shares(code)
    if refused:
        raise UsageError(refused)
    return code


def _usual_panels(code: Code, shape: tuple[int, int, int], dtype: np.dtype) -> int:
    """Return how many panels a product on MPI ranks would have."""
    flops = workload_of(code, shape, dtype).flops
    return -(-shape[0] // usual_rows(shape[0], code.grid.m, flops))


@dataclass(frozen=True)
class Study:
    """What is compared.

    Parameters
    ----------
    shape : (int, int, int)
        Rows of A, inner dimension, columns of B.
    dtype : numpy.dtype
    machine : Machine
    delays : Delays, optional
        By which workers are late in a product; None: nobody is.
    rounds : int
    seed : int
    operation : {"product", "round"}
        "round": A's shares are on the workers.
    encoding : {"master", "workers"}
    panels : int, optional
        Panels of a product that the master encodes, in codes where any replies do; by default as
        many as a product has.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype
    machine: Machine
    delays: Delays | None = None
    rounds: int = 100
    seed: int = SEED
    operation: str = "product"
    encoding: str = "master"
    panels: int | None = None

    def run(self, scheme: Scheme, n_workers: int, advance: Advance | None = None) -> dict[str, Any]:
        """Simulate one scheme on so many workers.

        Parameters
        ----------
        scheme : Scheme
        n_workers : int
        advance : callable, optional
            Told the number of rounds after every part of them.

        Returns
        -------
        dict
            ``scheme, workers, code, grid, tolerates, panels, p50, p90, p99, mean, max``,
            ``worker_seconds, master_seconds, failed``: seconds, ``inf`` where a round never ends;
            worker-seconds are the mean per round, ``failed`` the part of the rounds that never end.

        Raises
        ------
        UsageError
            No code fits.
        """
        speculative = scheme.name == SPECULATIVE
        name = "uncoded" if speculative else scheme.name
        losses = scheme.losses(n_workers)
        code = code_for(name, n_workers, losses, self.shape, self.dtype, self.operation)
        panels = 1
        counting = code.counts and code.load == 1 and not speculative
        if counting and (self.operation, self.encoding) == ("product", "master"):
            panels = self.panels or _usual_panels(code, self.shape, self.dtype)
        work = workload_of(
            code,
            self.shape,
            self.dtype,
            operation=self.operation,
            encoding=self.encoding,
            panels=panels,
        )
        parts: list[Timings] = []
        for delays, again in self._draws(code, speculative):
            # In panels each of a worker's tasks is late by its part.
            parts.append(simulate(work, self.machine, delays / panels, again=again))
            if advance is not None:
                advance(len(delays))
        seconds = np.concatenate([part.seconds for part in parts])
        held = np.concatenate([part.worker_seconds for part in parts])
        ended = np.isfinite(seconds)
        found = {f"p{q}": float(np.quantile(seconds, q / 100, method="higher")) for q in QUANTILES}
        return {
            "scheme": str(scheme),
            "workers": n_workers,
            "code": code.name,
            "grid": str(code.blocks),
            "tolerates": code.tolerates,
            "panels": panels,
            **found,
            "mean": float(seconds.mean()),
            "max": float(seconds.max()),
            "worker_seconds": float(held[ended].mean()) if ended.any() else math.inf,
            "master_seconds": parts[0].master,
            "failed": float(1.0 - ended.mean()),
        }

    def _draws(
        self, code: Code, speculative: bool
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64] | None]]:
        """Yield the delays of some rounds at a time, the same for every scheme."""
        n = code.n_workers
        rng, other = np.random.default_rng(self.seed), np.random.default_rng([self.seed, 1])
        draw = None if self.delays is None else self.delays.stream(range(n))
        step = max(_CHUNK // max(len(code.shares), 1), 1)
        for first in range(0, self.rounds, step):
            size = min(step, self.rounds - first)
            delays = np.zeros((size, n))
            if draw is not None:
                for row in delays:
                    row[:] = draw(rng, n)
            yield delays, self._again(other, delays) if speculative else None

    def _again(self, rng: np.random.Generator, delays: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the delays of copies of tasks, should they be made."""
        if self.delays is None or self.delays.distribution in _MEMORYLESS:
            model = self.delays
            if model is None:
                return np.zeros_like(delays)
            return model.sample(rng, delays.size).reshape(delays.shape)
        # Who is slow stays so: the latest task goes to the fastest worker, and so on.
        ranks = delays.argsort(axis=1).argsort(axis=1)
        fastest: NDArray[np.float64] = np.sort(delays, axis=1)
        return np.take_along_axis(fastest, delays.shape[1] - 1 - ranks, axis=1)
