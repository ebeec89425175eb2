r"""PageRank and personalised PageRank on coded products.

.. math:: x \leftarrow d\,(P x + v \sum_{i\,dangling} x_i) + (1 - d)\,v

with the transition matrix ``P`` on the workers, the damping ``d`` and the preference ``v``, uniform
or over the personalisation. Nodes without links out go on as ``v`` says. The iterate is scaled to
sum to 1 in every round: exact products keep the sum by themselves, and after substitute decoding
the error of the sum would be the slowest to vanish, by ``d`` a round.

References
----------
S. Brin, L. Page, "The anatomy of a large-scale hypertextual web search engine", Computer Networks
30 (1998). A. N. Langville, C. D. Meyer, "Deeper inside PageRank", Internet Mathematics 1 (2004).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.engine.arguments import fraction, positive, whole_number
from codedla.engine.round import Pool
from codedla.errors import CodedlaWarning, UsageError
from codedla.iterative.graphs import Graph, as_graph
from codedla.iterative.products import Products, open_products
from codedla.iterative.tally import Tally
from codedla.linalg.operands import as_array

__all__ = ["PageRank", "State", "pagerank", "preference"]

Array = NDArray[Any]

DAMPING = 0.85
TOL = 1e-9
ROUNDS = 1000
_LEAST = 1e-6
"""Sum of an iterate below which it is not scaled: decoding by zeros can leave nothing."""


@dataclass
class State:
    """Where an iteration stands: enough to go on from.

    Parameters
    ----------
    rounds : int
    x : ndarray (n,)
        Iterate.
    y : ndarray (n,)
        The latest product ``d P x``, as it was decoded.
    change : float
        1-norm of the latest change of ``x``.
    tally : Tally
        Of the rounds of this run.
    """

    rounds: int
    x: Array
    y: Array
    change: float
    tally: Tally = field(repr=False)


@dataclass
class PageRank:
    """What :func:`pagerank` found.

    Parameters
    ----------
    nodes : ndarray (n,) of int
        Ids, ascending.
    ranks : ndarray (n,)
        In this order; they sum to 1.
    change : float
        1-norm of the latest change; the error is at most about ``d / (1 - d)`` times that.
    rounds : int
        Of an earlier run that was resumed, too.
    converged : bool
    tally : Tally
        What happened in the rounds.
    """

    nodes: Array
    ranks: Array
    change: float
    rounds: int
    converged: bool
    tally: Tally = field(repr=False)

    def top(self, count: int | None = None) -> list[tuple[int, float]]:
        """Return (id, rank) of the highest ranks, falling; of equal ranks the lower id first."""
        order = np.lexsort((self.nodes, -self.ranks))[:count]
        return [(int(self.nodes[i]), float(self.ranks[i])) for i in order]


def pagerank(
    graph: Any,
    *,
    pool: Pool,
    damping: float = DAMPING,
    personalization: ArrayLike | Mapping[int, float] | None = None,
    tol: float = TOL,
    rounds: int = ROUNDS,
    decode: str = "exact",
    start: State | None = None,
    callback: Callable[[State], object] | None = None,
    **options: Any,
) -> PageRank:
    """Rank the nodes of a graph.

    Parameters
    ----------
    graph : array_like (E, 2) of int, scipy.sparse (n, n) or Graph
        Links from the first node to the second, by any integer ids, each counted once; or a matrix
        of weights whose entry (i, j) is the link from ``i`` to ``j``, ids from 0.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    damping : float
        ``d``, from 0 up to, not including, 1.
    personalization : array_like of int, or mapping of int to float, optional
        Ids to prefer, alike or by weight.
    tol : float
        Stop when the 1-norm of the change in a round is at most this; with substitute decoding,
        for as many rounds as it took to see all of the matrix.
    rounds : int
        Largest number of rounds.
    decode : {"exact", "substitute", "stale", "least-squares"}
        "substitute": no round waits for decodability, see :class:`SubstituteMatrix`; "stale":
        copies of plain blocks, what is missing stays as it was; "least-squares" is there to be
        compared with, it seldom converges.
    start : State, optional
        Go on from here.
    callback : callable, optional
        ``callback(state)`` after every round, on the master.
    **options
        Of :func:`codedla.store` (code, blocks, tolerate, ...), or for the other decodings of
        :class:`SubstituteMatrix` (blocks, weight, tolerate, deadline, erasures, seed).

    Returns
    -------
    PageRank
        Not ``converged``, and a warning, when the rounds were not enough.

    Raises
    ------
    UsageError
        The graph has no nodes, an id is not among them, or an option breaks its rule.
    NotDecodable, WorkerError
        As in :func:`codedla.matmul`.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> edges = np.array([[1, 2], [2, 3], [3, 1], [4, 1]])
    >>> with codedla.SerialPool(4) as pool:
    ...     found = codedla.pagerank(edges, pool=pool)
    >>> [node for node, _ in found.top(2)]
    [1, 2]
    """
    known = graph if isinstance(graph, Graph) else as_graph(graph)
    damping = fraction(damping, "damping", zero=True, cure="0.85 is usual")
    tol, rounds = positive(tol, "tol"), whole_number(rounds, "rounds", least=1)
    prefer = preference(known, personalization)
    transition, dangling = known.transition()
    products = open_products(transition * damping, pool, decode, **options)
    try:
        state = _state(start, prefer, damping)
        done = _iterate(products, state, damping, prefer, dangling, tol, rounds, callback)
    finally:
        products.close()
    if not done:
        warnings.warn(
            f"PageRank ended after {state.rounds} rounds with changes of {state.change:.1e}, above "
            f"{tol:.1e}; allow more rounds",
            CodedlaWarning,
            stacklevel=2,
        )
    # Parts that are not converged may be negative; nothing else is.
    return PageRank(known.nodes, state.x, state.change, state.rounds, done, state.tally)


def preference(
    graph: Graph, personalization: ArrayLike | Mapping[int, float] | None
) -> NDArray[np.float64]:
    """Return ``v`` (n,), which sums to 1.

    Raises
    ------
    UsageError
        An id that no node has, or weights that are negative or all zero.
    """
    count = len(graph.nodes)
    if personalization is None:
        return np.full(count, 1.0 / count)
    if isinstance(personalization, Mapping):
        ids, weights = list(personalization), as_array(list(personalization.values()), "weights")
    else:
        ids = list(np.atleast_1d(np.asarray(personalization)))
        weights = np.ones(len(ids))
    places = graph.places(ids, "personalization")
    numbers = weights.shape == places.shape and weights.dtype.kind in "iubf"
    if not (numbers and np.isfinite(weights).all() and weights.min() >= 0 and weights.max() > 0):
        raise UsageError(
            "weights of a personalization must be numbers, finite, not negative, and not all zero; "
            f"got {weights.tolist()}; correct them"
        )
    shares = weights / weights.max()  # whose sum is in range, whatever the weights are
    prefer = np.zeros(count)
    np.add.at(prefer, places, shares / shares.sum())
    return prefer


def _state(start: State | None, prefer: Array, damping: float) -> State:
    if start is None:
        # A product of a vector by d P sums to d at most: this is a fair guess of the first one.
        return State(0, prefer.copy(), damping * prefer, np.inf, Tally())
    if start.x.shape != prefer.shape or start.y.shape != prefer.shape:
        raise UsageError(
            f"a start has one entry a node, {len(prefer)}; got {start.x.shape} and "
            f"{start.y.shape}; start afresh"
        )
    return State(start.rounds, start.x.copy(), start.y.copy(), start.change, Tally())


def _iterate(
    products: Products,
    state: State,
    damping: float,
    prefer: Array,
    dangling: Array,
    tol: float,
    rounds: int,
    callback: Callable[[State], object] | None,
) -> bool:
    """Iterate in place; return whether it has converged."""
    while state.rounds < rounds:
        state.y = products.multiply(state.x[:, None], state.y[:, None])[:, 0]
        lost = damping * state.x[dangling].sum()
        x = state.y + (lost + 1.0 - damping) * prefer
        total = x.sum()
        if total > _LEAST:
            x /= total
        state.change = float(np.abs(x - state.x).sum())
        state.x = x
        state.rounds += 1
        state.tally.add(products.last_report)
        if products.settled(state.change <= tol):
            if callback is not None:
                callback(state)
            return True
        if callback is not None:
            callback(state)
    return False
