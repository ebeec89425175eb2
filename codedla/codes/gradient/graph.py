r"""A regular graph: worker ``w`` has the parts of its ``d`` neighbours; the sum is approximate.

**Any ``n - s`` of ``n`` workers decode, with a squared residual of at most**
:math:`(\lambda / d)^2 \, n s / (n - s)`, where :math:`\lambda` is the second largest absolute
eigenvalue of the graph. It degrades gracefully: no number of stragglers is a cliff.

:math:`B = A / d` for the adjacency matrix of a random d-regular graph (an expander, as nearly all
are): a circulant graph whose edges are exchanged at random, the best of several draws. Where
``n d`` is odd there is no such graph, and every worker's own part is one of its ``d``. Weights are
those of least squares, which equal ones, the paper's, cannot beat.

References
----------
N. Raviv, I. Tamo, R. Tandon, A. Dimakis, "Gradient coding from cyclic MDS codes and expander
graphs", IEEE Trans. Inf. Theory 66 (2020), arXiv:1707.03858.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["RegularGraph"]

_DRAWS = 8
_SWAPS = 12
"""Exchanges of two edges, for each edge."""


class RegularGraph(GradientCode):
    """Neighbours in a random regular graph; further parameters as of :class:`GradientCode`.

    Parameters
    ----------
    degree : int, optional
        ``d``, parts per worker, 1 to ``n_workers``; by default ``s + 1``, as of exact codes, but at
        least 3: graphs of degree 2 are circles, and no expanders.
    """

    name = "gradient-expander"
    scheme = "expander"
    options = ("degree",)
    approximate = True
    threshold_formula = "n - s (any number, with a larger residual)"
    citation = "Raviv, Tamo, Tandon, Dimakis, IEEE Trans. Inf. Theory 66 (2020)"
    weakness = "the sum is approximate"

    def __init__(
        self,
        n_workers: int,
        stragglers: int = 0,
        *,
        errors: int = 0,
        seed: int = 0,
        degree: int | None = None,
    ) -> None:
        super().__init__(n_workers, stragglers, errors=errors, seed=seed)
        self.degree = min(max(self.reach + 1, 3), n_workers) if degree is None else degree
        if not 1 <= self.degree <= n_workers:
            raise UsageError(
                f"a worker has 1 to {n_workers} parts; got degree={degree}; give one of these"
            )

    def _assignment(self) -> NDArray[np.float64]:
        n, d = self.n_workers, self.degree
        # The graph has no loops: an odd rest, or all parts, includes one's own.
        own = 1 if (n * d) % 2 or d == n or d == 1 else 0
        rng = np.random.default_rng(self.seed)
        drawn = [_regular(n, d - own, rng) + own * np.eye(n) for _ in range(_DRAWS)]
        best = min(drawn, key=_second)
        return best / d

    @property
    def second(self) -> float:
        """The second largest absolute eigenvalue of the graph."""
        return _second(self.B * self.degree)


def _regular(n: int, d: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the adjacency matrix of a simple d-regular graph; ``n d`` is even, ``d < n``."""
    graph = np.zeros((n, n), dtype=bool)
    every = np.arange(n)
    for step in range(1, d // 2 + 1):
        graph[every, (every + step) % n] = graph[(every + step) % n, every] = True
    if d % 2:
        graph[every, (every + n // 2) % n] = True
    edges = np.argwhere(np.triu(graph))
    for _ in range(_SWAPS * len(edges) if len(edges) > 1 else 0):
        one, two = rng.choice(len(edges), 2, replace=False)
        (a, b), (c, e) = edges[one], edges[two][:: rng.choice([1, -1])]
        # a-b and c-e become a-e and c-b.
        if len({a, b, c, e}) == 4 and not graph[a, e] and not graph[c, b]:
            for x, y, there in ((a, b, False), (c, e, False), (a, e, True), (c, b, True)):
                graph[x, y] = graph[y, x] = there
            edges[one], edges[two] = (a, e), (c, b)
    return graph.astype(float)


def _second(adjacency: NDArray[np.float64]) -> float:
    """Return the second largest absolute eigenvalue; the largest one's vector is all ones."""
    if len(adjacency) == 1:
        return 0.0
    return float(np.sort(np.abs(np.linalg.eigvalsh(adjacency)))[-2])
