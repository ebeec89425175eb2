"""PageRank against a dense solve, on ordinary and odd graphs, and with replies that are missing."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla import CodedlaWarning, SerialPool, SimulatedPool, UsageError
from codedla.engine.stragglers import Delays, parse_fault
from codedla.iterative.graphs import as_graph
from codedla.iterative.pagerank import State

WIKI = os.environ.get("CODEDLA_WIKI_VOTE", "")
"""Where the edge list of wiki-Vote is, if it is anywhere (SNAP's file wiki-Vote.txt.gz)."""


def solved(graph, damping=0.85, prefer=None):
    """Return the ranks by a dense solve of the defining equations."""
    links = as_graph(graph).links.toarray()
    n = len(links)
    v = np.full(n, 1 / n) if prefer is None else prefer
    out = links.sum(axis=1)
    P = np.where(out[:, None] > 0, links / np.where(out, out, 1)[:, None], v).T
    return np.linalg.solve(np.eye(n) - damping * P, (1 - damping) * v)


def random_graph(seed, n=60, links=240):
    """A graph some of whose nodes have no links out, and some none in."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.5, n) + 0.1
    source = rng.integers(0, n - n // 5, links)
    target = rng.choice(n, links, p=weights / weights.sum())
    return np.stack([source, target], axis=1)


ODD = {
    "dangling": [[0, 1], [0, 2], [1, 2]],
    "disconnected": [[0, 1], [1, 0], [5, 6], [6, 7], [7, 5]],
    "self loops": [[0, 0], [0, 1], [1, 1], [2, 0]],
    "one node": [[7, 7]],
    "duplicates": [[1, 2], [1, 2], [1, 3], [2, 1], [2, 1], [3, 1]],
    "star": [[i, 0] for i in range(1, 30)],
    "far ids": [[-5, 10**12], [10**12, 3], [3, -5], [3, 10**12]],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    ("decode", "options"), [("exact", {}), ("substitute", {"erasures": 0.3}), ("stale", {})]
)
def test_odd_graphs(name, decode, options):
    with SerialPool(6) as pool:
        found = codedla.pagerank(ODD[name], pool=pool, decode=decode, tol=1e-12, **options)
    assert found.converged
    np.testing.assert_allclose(found.ranks, solved(ODD[name]), atol=1e-10)
    assert found.nodes.tolist() == sorted({node for link in ODD[name] for node in link})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("decode", "options"),
    [
        ("exact", {"tolerate": 2}),
        ("exact", {"code": "replication"}),
        ("substitute", {}),
        ("substitute", {"erasures": 0.3}),
        ("stale", {"erasures": 0.3}),
    ],
)
def test_ranks_are_those_of_a_dense_solve(seed, decode, options):
    graph = random_graph(seed)
    with SimulatedPool(9, delays=Delays("exp", (0.1,)), seed=seed) as pool:
        found = codedla.pagerank(graph, pool=pool, decode=decode, tol=1e-11, **options)
    assert found.converged
    assert found.ranks.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.ranks, solved(graph), atol=1e-9)


@pytest.mark.parametrize("decode", ["exact", "substitute"])
def test_personalised_ranks(decode):
    graph = random_graph(7)
    nodes = as_graph(graph).nodes
    prefer = np.zeros(len(nodes))
    prefer[np.searchsorted(nodes, [nodes[3], nodes[8]])] = [0.75, 0.25]
    with SerialPool(5) as pool:
        found = codedla.pagerank(
            graph,
            pool=pool,
            decode=decode,
            damping=0.6,
            personalization={nodes[3]: 3.0, nodes[8]: 1.0},
            tol=1e-12,
        )
        alike = codedla.pagerank(graph, pool=pool, personalization=nodes[[3, 8]])
    np.testing.assert_allclose(found.ranks, solved(graph, 0.6, prefer), atol=1e-10)
    prefer[prefer > 0] = 0.5
    np.testing.assert_allclose(alike.ranks, solved(graph, prefer=prefer), atol=1e-7)


def test_a_matrix_of_weights_and_its_isolated_nodes():
    weights = sp.csr_array(np.array([[0, 3.0, 1.0, 0], [0, 0, 2.0, 0], [1.0, 0, 0, 0], [0] * 4]))
    with SerialPool(4) as pool:
        found = codedla.pagerank(weights, pool=pool, tol=1e-13)
    np.testing.assert_allclose(found.ranks, solved(weights))
    assert found.nodes.tolist() == [0, 1, 2, 3]


def test_no_damping_leaves_the_preference():
    with SerialPool(3) as pool:
        found = codedla.pagerank(random_graph(1), pool=pool, damping=0)
    np.testing.assert_allclose(found.ranks, found.ranks[0])


def test_the_highest_ranks_come_first_and_lower_ids_before_higher_ones():
    with SerialPool(2) as pool:
        found = codedla.pagerank([[9, 1], [4, 1], [1, 6]], pool=pool)
    order = [node for node, _ in found.top()]
    assert order == [6, 1, 4, 9], "6 goes on as all prefer"
    assert found.top(1) == [(6, found.ranks[2])]


def test_an_iteration_goes_on_from_where_another_ended():
    graph = random_graph(3)
    states = []
    with SerialPool(6) as pool:
        whole = codedla.pagerank(graph, pool=pool, tol=1e-12, callback=lambda s: states.append(s.x))
        kept: list[State] = []
        with pytest.warns(CodedlaWarning, match="ended after 10 rounds"):
            codedla.pagerank(graph, pool=pool, rounds=10, tol=1e-12, callback=kept.append)
        rest = codedla.pagerank(graph, pool=pool, tol=1e-12, start=kept[-1])
    assert len(states) == whole.rounds == rest.rounds
    assert rest.tally.rounds == whole.rounds - 10
    np.testing.assert_array_equal(whole.ranks, rest.ranks)


@pytest.mark.filterwarnings("ignore:rank")
@pytest.mark.parametrize("decode", ["exact", "substitute"])
def test_lost_workers_change_nothing(decode):
    graph = random_graph(4)
    faults = [parse_fault("kill:2:0"), parse_fault("kill:5:0.005")]
    with SimulatedPool(8, faults=faults) as pool:
        found = codedla.pagerank(graph, pool=pool, decode=decode, tol=1e-11)
    assert set(found.tally.lost) == {2, 5}
    np.testing.assert_allclose(found.ranks, solved(graph), atol=1e-9)


def rounds_to(x, graph, decode, workers, **options):
    """Return the rounds after which the 1-norm of the error stays below 1e-6; inf for never."""
    errors = []
    with SerialPool(workers) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", CodedlaWarning)
        codedla.pagerank(
            graph,
            pool=pool,
            decode=decode,
            tol=1e-9,
            rounds=60,
            callback=lambda state: errors.append(np.abs(state.x - x).sum()),
            **options,
        )
    above = np.flatnonzero(np.array(errors) > 1e-6)
    return above[-1] + 2 if above.size and above[-1] + 1 < len(errors) else np.inf


@pytest.fixture(params=["generated", "wiki-Vote"])
def network(request):
    """A graph, and its ranks."""
    if request.param == "generated":
        graph = random_graph(6, n=600, links=4000)
    else:
        if not Path(WIKI).is_file():
            pytest.skip("set CODEDLA_WIKI_VOTE to SNAP's wiki-Vote.txt.gz to run this")
        graph = np.loadtxt(WIKI, dtype=np.int64)
    with SerialPool(4) as pool:
        return graph, codedla.pagerank(graph, pool=pool, tol=1e-14).ranks


@pytest.mark.parametrize("workers", [10, 40])
def test_substitute_decoding_is_nearly_as_fast_as_exact_decoding(network, workers):
    """Three replies in ten are missing in every round."""
    graph, ranks = network
    noiseless = rounds_to(ranks, graph, "exact", workers)
    seeds = range(3)
    substitute = [
        rounds_to(ranks, graph, "substitute", workers, erasures=0.3, seed=s) for s in seeds
    ]
    squares = [
        rounds_to(ranks, graph, "least-squares", workers, erasures=0.3, seed=s) for s in seeds
    ]
    assert max(substitute) <= 1.5 * noiseless
    assert np.median(squares) > 1.5 * noiseless


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (np.zeros((0, 2), int), {}, "got no links"),
        ([[1.5, 2.0]], {}, "integer ids"),
        ([1, 2, 3], {}, "an array .E, 2."),
        ([[1, 2, 3]], {}, "an array .E, 2."),
        ([[1, 2], [3]], {}, "graph must be an array"),
        (sp.csr_array((3, 4)), {}, "square and not empty"),
        (sp.csr_array((0, 0)), {}, "square and not empty"),
        (sp.csr_array(np.array([[0, -1.0], [0, 0]])), {}, "positive and finite"),
        (sp.csr_array(np.array([[0, 1j], [0, 0]])), {}, "must be real"),
        ([[1, 2]], {"damping": 1.0}, "damping must be from 0"),
        ([[1, 2]], {"damping": -0.1}, "damping must be from 0"),
        ([[1, 2]], {"damping": "most"}, "damping must be from 0"),
        (np.ma.array([[1, 2]], mask=[[False, True]]), {}, "masked array"),
        ([[1, 2]], {"personalization": {1: "much"}}, "must be numbers"),
        ([[1, 2]], {"personalization": {1: 1j}}, "must be numbers"),
        ([[1, 2]], {"decode": "substitute", "erasures": "some"}, "erasures must be from 0"),
        ([[1, 2]], {"personalization": [3]}, "got 3, which no link has"),
        ([[1, 2]], {"personalization": []}, "one or more integers"),
        ([[1, 2]], {"personalization": {1: -1.0}}, "not negative"),
        ([[1, 2]], {"personalization": {1: 0.0}}, "not all zero"),
        ([[1, 2]], {"tol": 0}, "tol must be positive"),
        ([[1, 2]], {"rounds": 0}, "rounds must be >= 1"),
        ([[1, 2]], {"decode": "magic"}, "decode must be one of"),
        ([[1, 2]], {"erasures": 0.3}, "decode='exact' has the options"),
        ([[1, 2]], {"decode": "substitute", "code": "mds"}, "decode='substitute' has the"),
    ],
)
def test_wrong_arguments_are_named(graph, options, message):
    with SerialPool(3) as pool, pytest.raises(UsageError, match=message):
        codedla.pagerank(graph, pool=pool, **options)


def test_weights_whose_sums_leave_the_range():
    W = np.array([[0, 1e308, 1e308], [5e-324, 0, 5e-324], [1, 2, 0]])
    like = np.array([[0, 1.0, 1], [1, 0, 1], [1, 2, 0]])
    with SerialPool(3) as pool:
        found = codedla.pagerank(sp.csr_array(W), pool=pool)
        plain = codedla.pagerank(sp.csr_array(like), pool=pool)
        np.testing.assert_allclose(found.ranks, plain.ranks, rtol=1e-12)
        found = codedla.pagerank(
            sp.csr_array(like), pool=pool, personalization={0: 1e308, 2: 1e308}
        )
        plain = codedla.pagerank(sp.csr_array(like), pool=pool, personalization=[0, 2])
        np.testing.assert_allclose(found.ranks, plain.ranks, rtol=1e-12)


@pytest.mark.parametrize("dtypes", [("u8", "i8"), ("i8", "u8"), ("i1", "u8"), ("u1", "i2")])
def test_ids_of_other_integer_types_are_found_exactly(dtypes):
    first = min(np.iinfo(each).max for each in dtypes) - 4
    nodes, asked = (np.array([[0, 1], [1, 2], [2, 3]]) + first for _ in dtypes)
    nodes, asked = nodes.astype(dtypes[0]), asked[:1].ravel().astype(dtypes[1])
    with SerialPool(2) as pool:
        found = codedla.pagerank(nodes, pool=pool, personalization=asked)
        again = codedla.pagerank([[0, 1], [1, 2], [2, 3]], pool=pool, personalization=[0, 1])
    np.testing.assert_allclose(found.ranks, again.ranks, rtol=1e-12)
    assert found.nodes.dtype == np.dtype(dtypes[0])


def test_a_start_of_another_graph_is_refused():
    kept = []
    with SerialPool(3) as pool:
        codedla.pagerank([[1, 2], [2, 1]], pool=pool, callback=kept.append)
        with pytest.raises(UsageError, match="one entry a node, 3"):
            codedla.pagerank([[1, 2], [2, 3]], pool=pool, start=kept[-1])
