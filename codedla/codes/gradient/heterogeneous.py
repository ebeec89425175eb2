r"""Heterogeneous loads: fast workers have more parts, and still any ``s`` may be late.

**Any ``n - s`` of ``n`` workers decode**, exactly. Every part lies on ``s + 1`` workers; how many
parts a worker has follows its speed.

For a random :math:`C` ((s + 1) x n) column ``j`` of ``B`` is, on the holders of part ``j``, the
solution of :math:`C_{holders} b = 1`; so :math:`C B = 1`. Some combination ``y`` of the rows of
``C`` vanishes on any ``s`` stragglers, and :math:`y^T C / (y^T 1)` are weights. ``C`` is the best
of several draws.

References
----------
H. Wang, S. Guo, B. Tang, R. Li, C. Li, "Heterogeneity-aware gradient coding for straggler
tolerance", ICDCS 2019, arXiv:1901.09339.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["Heterogeneous", "loads_of"]

Matrix = NDArray[np.float64]

_DRAWS = 16
_SETS = 1000
_PARTS = 2
"""Parts for each worker: enough to follow speeds roughly, few enough to stay large."""


def loads_of(
    speeds: Sequence[float] | NDArray[np.float64], n_parts: int, copies: int
) -> NDArray[np.int64]:
    """Return how many parts each worker has: in proportion to its speed, but each part once.

    Parameters
    ----------
    speeds : sequence of float (n,)
        Positive, in any unit.
    n_parts, copies : int
        The loads add up to their product; none is larger than ``n_parts``.
    """
    left = np.asarray(speeds, dtype=float)
    loads = np.zeros(len(left), dtype=np.int64)
    # Part by part to whoever would still be done first.
    for _ in range(n_parts * copies):
        finish = np.where(loads < n_parts, (loads + 1) / left, np.inf)
        loads[np.argmin(finish)] += 1
    return loads


class Heterogeneous(GradientCode):
    """Parts in proportion to speeds; further parameters as of :class:`GradientCode`.

    Parameters
    ----------
    speeds : sequence of float, optional
        Of every worker, in any unit; equal by default.
    """

    name = "gradient-heterogeneous"
    scheme = "heterogeneous"
    options = ("speeds",)
    threshold_formula = "n - s"
    citation = "Wang, Guo, Tang, Li, Li, ICDCS 2019"
    weakness = "random coefficients: digits are lost from about n=20 and s=n/2 on"

    def __init__(
        self,
        n_workers: int,
        stragglers: int = 0,
        *,
        errors: int = 0,
        seed: int = 0,
        speeds: Sequence[float] | None = None,
    ) -> None:
        given = np.ones(n_workers) if speeds is None else np.asarray(speeds, dtype=float)
        if given.shape != (n_workers,) or not (np.isfinite(given) & (given > 0)).all():
            raise UsageError(
                f"speeds must be {n_workers} positive numbers, one for each worker; got "
                f"{speeds!r}; leave them out for equal ones"
            )
        super().__init__(
            n_workers, stragglers, errors=errors, seed=seed, n_parts=_PARTS * n_workers
        )
        self.loads = loads_of(given, self.n_parts, self.reach + 1)

    def _assignment(self) -> Matrix:
        copies = self.reach + 1
        # Consecutive places on a circle of parts: no worker has a part twice.
        owners = np.repeat(np.arange(self.n_workers), self.loads)
        holders = np.sort(owners.reshape(copies, self.n_parts).T, axis=1)
        rng = np.random.default_rng(self.seed)
        drawn = [_columns(rng, holders, self.n_workers) for _ in range(_DRAWS)]
        sets = _lost_sets(self.n_workers, self.reach, rng)
        return min(drawn, key=lambda rows: _worst(rows, sets))


def _columns(rng: np.random.Generator, holders: NDArray[np.int64], n: int) -> Matrix:
    """Return an assignment with these holders of the parts, (n, parts)."""
    copies = holders.shape[1]
    checks = rng.standard_normal((copies, n))
    rows = np.zeros((n, len(holders)))
    for part, who in enumerate(holders):
        rows[who, part] = np.linalg.solve(checks[:, who], np.ones(copies))
    return rows


def _lost_sets(n: int, s: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    if math.comb(n, s) <= _SETS:
        return list(itertools.combinations(range(n), s))
    return [tuple(rng.permutation(n)[:s]) for _ in range(_SETS // 4)]


def _worst(rows: Matrix, lost: list[tuple[int, ...]]) -> float:
    """Return the largest amplification of rounding of any of these sets of lost workers."""
    norms = np.linalg.norm(rows, axis=1)
    norms[norms == 0] = 1.0
    worst = 0.0
    for some in lost:
        kept = np.setdiff1d(np.arange(len(rows)), some)
        inside = (rows[kept] / norms[kept, None]).T
        weights, *_ = np.linalg.lstsq(inside, np.ones(rows.shape[1]), rcond=1e-12)
        worst = max(worst, float(np.linalg.norm(weights)))
    return worst
