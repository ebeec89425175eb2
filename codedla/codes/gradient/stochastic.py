r"""Stochastic block code: random parts, mostly of one's own cluster; the sum is approximate.

**Any ``n - s`` of ``n`` workers decode approximately.** Workers and parts are in clusters; a worker
has a part of its own cluster with probability ``inside``, another with probability ``outside``.
Between fractional repetition (1 and 0: exact while no cluster is lost, and easy prey for an
adversary) and a Bernoulli code (equal: no structure an adversary could use). A part that nobody
drew goes to one worker of its cluster; columns are divided by their number of holders.

References
----------
Z. Charles, D. Papailiopoulos, "Gradient coding using the stochastic block model", ISIT 2018,
arXiv:1805.10378.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["StochasticBlock"]


class StochasticBlock(GradientCode):
    """Random assignment by clusters; further parameters as of :class:`GradientCode`.

    Parameters
    ----------
    clusters : int, optional
        About ``s + 1`` workers to a cluster by default.
    inside, outside : float
        Probabilities.
    """

    name = "gradient-stochastic"
    scheme = "stochastic"
    options = ("clusters", "inside", "outside")
    approximate = True
    threshold_formula = "n - s (any number, with a larger residual)"
    citation = "Charles, Papailiopoulos, ISIT 2018"
    weakness = "the sum is approximate, and how nearly is a matter of the draw"

    def __init__(
        self,
        n_workers: int,
        stragglers: int = 0,
        *,
        errors: int = 0,
        seed: int = 0,
        clusters: int | None = None,
        inside: float = 0.9,
        outside: float = 0.1,
    ) -> None:
        super().__init__(n_workers, stragglers, errors=errors, seed=seed)
        self.clusters = max(1, n_workers // (self.reach + 1)) if clusters is None else clusters
        if not 1 <= self.clusters <= n_workers:
            raise UsageError(
                f"there are 1 to {n_workers} clusters; got {clusters}; give one of these numbers"
            )
        if not (0 <= outside <= 1 and 0 <= inside <= 1):
            raise UsageError(
                f"inside and outside are probabilities; got {inside} and {outside}; give 0 to 1"
            )
        self.inside, self.outside = inside, outside

    def _assignment(self) -> NDArray[np.float64]:
        n = self.n_workers
        rng = np.random.default_rng(self.seed)
        cluster = np.arange(n) * self.clusters // n
        same = cluster[:, None] == cluster[None, :]
        has = rng.random((n, n)) < np.where(same, self.inside, self.outside)
        # Nothing is lost, and nobody idle, for want of luck: then the part of one's own number.
        alone = (~has.any(axis=0)) | (~has.any(axis=1))
        has[alone, alone] = True
        return has / has.sum(axis=0)
