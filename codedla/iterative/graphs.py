"""Graphs as PageRank needs them: nodes with their ids, and a matrix of link weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.errors import UsageError
from codedla.linalg.operands import as_array

__all__ = ["Graph", "as_graph"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Graph:
    """A directed graph.

    Parameters
    ----------
    nodes : ndarray (n,) of int
        Ids, ascending.
    links : scipy.sparse.csr_array (n, n), float64
        Entry (i, j): weight of the link from node ``i`` to node ``j``, positive.
    """

    nodes: Array
    links: Any

    def places(self, ids: ArrayLike, name: str) -> Array:
        """Return the places of these ids among the nodes.

        Raises
        ------
        UsageError
            An id that no node has, or none given.
        """
        wanted = np.atleast_1d(np.asarray(ids))
        if wanted.size == 0 or wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise UsageError(
                f"{name} must be ids of nodes, one or more integers; got {ids!r}; list them"
            )
        # In the nodes' own dtype: signed and unsigned integers would be searched for as floats.
        inside = (wanted >= self.nodes[0]) & (wanted <= self.nodes[-1])
        known = np.full(wanted.shape, self.nodes[0])
        known[inside] = wanted[inside]
        places = np.searchsorted(self.nodes, known)
        missing = wanted[~inside | (self.nodes[places] != known)]
        if missing.size:
            raise UsageError(
                f"{name} must be ids of nodes of the graph; got {missing[0]}, which no link has; "
                "check the ids"
            )
        return places

    def transition(self) -> tuple[Any, Array]:
        """Return the transition matrix and who has no links out.

        Returns
        -------
        P : scipy.sparse.csr_array (n, n)
            Entry (j, i): probability of going from node ``i`` to node ``j``; columns of nodes
            without links out are zero.
        dangling : ndarray (n,) of bool
        """
        import scipy.sparse as sp

        # Relative to the largest weight of each node first: sums may leave the range otherwise.
        counts = np.diff(self.links.indptr)
        dangling = counts == 0
        shares = self.links.copy()
        shares.data /= np.repeat(self.links.max(axis=1).toarray().ravel(), counts)
        shares.data /= np.repeat(np.asarray(shares.sum(axis=1)).ravel(), counts)
        return sp.csr_array(shares.T), dangling


def as_graph(graph: Any, first_id: int = 0) -> Graph:
    """Check a graph.

    Parameters
    ----------
    graph : array_like (E, 2) of int, or scipy.sparse (n, n)
        Links from the first node to the second, by ids; links given twice count once. Or a sparse
        matrix of non-negative weights whose entry (i, j) is the link from ``i`` to ``j``.
    first_id : int
        Id of the first row of a matrix.

    Raises
    ------
    UsageError
        Neither of these, a negative or infinite weight, or no node at all.
    """
    import scipy.sparse as sp

    if sp.issparse(graph):
        return _from_matrix(graph, first_id)
    edges = as_array(graph, "graph")
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise UsageError(
            "a graph is an array (E, 2) of integer ids, or a scipy.sparse matrix; got "
            f"{edges.dtype} of shape {edges.shape}; convert it"
        )
    if len(edges) == 0:
        raise UsageError("a graph has at least one node; got no links; add some")
    nodes, places = np.unique(edges, return_inverse=True)
    source, target = places.reshape(edges.shape).T
    links = sp.coo_array((np.ones(len(edges)), (source, target)), shape=(len(nodes),) * 2).tocsr()
    links.data[:] = 1.0
    return Graph(nodes, links)


def _from_matrix(matrix: Any, first_id: int) -> Graph:
    import scipy.sparse as sp

    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise UsageError(
            f"the matrix of a graph is square and not empty; got shape {matrix.shape}; build it "
            "with one row and one column a node"
        )
    if matrix.dtype.kind not in "biuf":
        raise UsageError(f"weights of links must be real; got {matrix.dtype}; take their size")
    links = sp.csr_array(matrix, dtype=np.float64, copy=True)
    links.sum_duplicates()
    links.eliminate_zeros()
    bad = links.data[~((links.data > 0) & np.isfinite(links.data))]
    if bad.size:
        raise UsageError(f"weights of links must be positive and finite; got {bad[0]}; take it out")
    return Graph(np.arange(first_id, first_id + links.shape[0]), links)
