"""Weights and their rating: both routes, large codes, caching, properties over many codes."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla import vandermonde
from codedla.blocks import Grid
from codedla.codes import Code, available, error_estimate, get
from codedla.codes.exact import ExactCode
from codedla.codes.limits import fewest_workers
from codedla.codes.solve import Completion, Parity
from codedla.codes.worst import search
from codedla.errors import NotDecodable
from tests.conformance import enough_workers, reply_rows

# Exact codes have no noise to be least: tests/codes/test_exact.py.
FAMILIES = sorted(
    (name, nodes)
    for name in available()
    if not issubclass(get(name), ExactCode)
    for nodes in get(name).node_choices or (None,)
)

PLAIN = ("uncoded", "speculative")
# The others copy, peel or add up what suffices, and leave further replies alone.
LEAST_NOISE = [
    (name, nodes)
    for name, nodes in FAMILIES
    if get(name).decodable is Code.decodable and not get(name).approximate and name not in PLAIN
]


@st.composite
def coded_losses(draw):
    """A code of any family and a set of replies, decodable or not."""
    name, nodes = draw(st.sampled_from(FAMILIES))
    family = get(name)
    sizes = {d: draw(st.integers(1, 4)) if d in family.splits else 1 for d in ("m", "p", "n")}
    grid = Grid(**sizes)
    spare = draw(st.integers(0, 5))
    enough = fewest_workers(family, grid)
    workers = next(n for n in range(enough + spare, 1000) if family.survives(n, grid) >= 0)
    code = family(workers, grid, nodes=nodes)
    return code, draw(st.sets(st.sampled_from(code.shares)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(coded_losses())
def test_weights_reproduce_the_outputs_or_refuse(case) -> None:
    code, replied = case
    if not code.decodable(replied):
        with pytest.raises(NotDecodable):
            code.weights(replied)
        assert len(replied) < len(code.shares)
        return
    weights = code.weights(replied)
    alpha = code.amplification(replied)
    product = weights @ code.generator[reply_rows(code, sorted(replied))]
    assert np.abs(product - code.wanted).max() <= 1e-13 * code.grid.outputs * (1 + alpha)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(coded_losses(), st.data())
def test_one_more_reply_never_hurts(case, data) -> None:
    code, replied = case
    noisy = (code.name, code.nodes) in LEAST_NOISE
    if not noisy or not code.decodable(replied) or len(replied) == len(code.shares):
        return
    extra = data.draw(st.sampled_from(sorted(set(code.shares) - replied)))
    assert code.amplification({*replied, extra}) <= code.amplification(replied) * (1 + 1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 40),
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
def test_any_k_of_n(blocks: int, losses: int, random) -> None:
    code = get("mds")(blocks + losses, Grid(blocks, 1, 1))
    survivors = sorted(random.sample(range(blocks + losses), blocks))
    product = code.weights(survivors) @ code.generator[survivors]
    assert np.abs(product - np.eye(blocks)).max() < 1e-12 * (1 + code.amplification(survivors))
    assert not code.decodable(survivors[1:])


@pytest.mark.parametrize(("name", "nodes"), LEAST_NOISE, ids=str)
def test_weights_are_those_of_least_noise(name: str, nodes: str | None) -> None:
    """Scaled to equal noise, they are orthogonal to every combination of replies that vanishes."""
    family = get(name)
    grid = Grid(*(2 if d in family.splits else 1 for d in ("m", "p", "n")))
    code = family(enough_workers(family, grid, 3), grid, nodes=nodes)
    survivors = code.shares_without([0])
    rows = reply_rows(code, survivors)
    norms = code.norms[rows]
    left, sizes, _ = np.linalg.svd(code.generator[rows] / norms[:, None])
    vanishing = left[:, np.count_nonzero(sizes > 1e-9 * sizes[0]) :]
    assert vanishing.shape[1] >= 2
    weights = code.weights(survivors) * norms
    decoded = [o for o in range(code.grid.outputs) if np.count_nonzero(weights[o]) > 1]
    assert decoded, "nothing was decoded"
    alpha = code.amplification(survivors)
    assert np.abs(weights[decoded] @ vanishing).max() < 1e-12 * (1 + alpha)


@pytest.mark.parametrize("complex_points", [False, True])
def test_completion_agrees_with_a_dense_solve(complex_points: bool) -> None:
    rng = np.random.default_rng(31)
    generator = rng.standard_normal((12, 7))
    if complex_points:
        generator = generator + 1j * rng.standard_normal((12, 7))
    wanted = rng.standard_normal((3, 7))
    norms = rng.uniform(0.5, 2, 12)
    completion = Completion(generator, wanted, norms)
    for lost in ([0, 3, 4, 8, 11], [2, 5], [], [1, 2, 3, 4]):
        survivors = np.setdiff1d(np.arange(12), lost)
        rows = generator[survivors] / norms[survivors, None]
        expected = wanted @ np.linalg.pinv(rows) / norms[survivors]
        found = completion.weights(survivors)
        assert np.abs(found - expected).max() < 1e-12
        if len(lost) == 5:
            rated = completion.rate(np.array([lost]))[0]
            assert rated == pytest.approx(np.linalg.norm(expected * norms[survivors]) ** 2)


@pytest.mark.parametrize("nodes", ["equispaced", "unity"])
@pytest.mark.parametrize("blocks", [3, 8, 14])
def test_weights_agree_with_the_vandermonde_inverse(nodes: str, blocks: int) -> None:
    """An independent way to the same numbers, entry for entry."""
    code = get("mds")(blocks + 2, Grid(blocks, 1, 1), nodes=nodes)
    survivors = [*range(1, blocks), blocks + 1]
    points = code.generator[survivors, 1]  # powers 0, 1, 2, ...: the second column is the nodes
    expected = vandermonde.inverse(points)
    found = code.weights(survivors)
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


def test_parity_rates_what_its_weights_cost() -> None:
    rng = np.random.default_rng(37)
    rows = rng.standard_normal((4, 9))
    norms = rng.uniform(1, 2, 4)
    parity = Parity(rows, norms)
    for dead in itertools.combinations(range(13), 4):
        lost = [w for w in dead if w < 9]
        have = [r for r in range(4) if 9 + r not in dead]
        solved, known = parity.recovery(np.array(lost, dtype=int), np.array(have, dtype=int))
        plain = [w for w in range(9) if w not in lost]
        noise = (solved * norms[have]).ravel() @ (solved * norms[have]).ravel()
        expected = noise + (known[:, plain] ** 2).sum() + len(plain)
        assert parity.rate(np.array([dead]))[0] == pytest.approx(expected, rel=1e-6)


def test_singular_patterns_are_infinitely_bad_not_fatal() -> None:
    rows = np.array([[1.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
    parity = Parity(rows, np.ones(3))
    rated = parity.rate(np.array([[0, 1, 6], [0, 2, 6], [0, 1, 2]]))
    assert rated[0] == math.inf and np.all(np.isfinite(rated[1:]))
    with pytest.raises(np.linalg.LinAlgError):
        parity.weights(np.array([2, 3, 4, 5]))


def test_search_finds_a_needle_by_climbing() -> None:
    """Badness grows with the overlap with one hidden set of 40 choose 5."""
    needle = {3, 8, 20, 31, 39}

    def rate(patterns: np.ndarray) -> np.ndarray:
        return np.isin(patterns, list(needle)).sum(axis=1).astype(float)

    assert set(search(rate, 40, 5)) == needle


def test_weights_are_cached_and_bounded() -> None:
    code = get("polynomial")(12, Grid(2, 1, 3))
    first = code.weights(range(6))
    assert code.weights([5, 4, 3, 2, 1, 0]) is first
    for survivors in itertools.islice(itertools.combinations(range(12), 7), 200):
        code.weights(survivors)
    assert len(code._weights_cache) <= 64
    assert code.weights(range(6)) is not first


@pytest.mark.parametrize(
    ("name", "nodes", "shape"),
    [
        ("mds", "trig", (990, 1, 1)),
        ("mds", "unity", (990, 1, 1)),
        ("khatri-rao", None, (33, 1, 30)),
        ("polynomial", "unity", (33, 1, 30)),
        ("matdot", "chebyshev", (1, 495, 1)),
        ("replication", None, (20, 1, 25)),
        ("uncoded", None, (40, 1, 25)),
    ],
    ids=str,
)
def test_a_thousand_workers(name: str, nodes: str | None, shape: tuple[int, int, int]) -> None:
    code = get(name)(1000, Grid(*shape), nodes=nodes)
    rng = np.random.default_rng(52_163)
    code.weights(range(1000))  # what is computed once
    survivors = np.sort(rng.choice(1000, code.threshold, replace=False))
    if name == "uncoded":
        survivors = np.arange(1000)
    began = time.perf_counter()
    weights = code.weights(survivors)
    seconds = time.perf_counter() - began
    rows = [0, code.grid.outputs // 2, code.grid.outputs - 1]
    alpha = code.amplification(survivors)
    wrong = np.abs(weights[rows] @ code.generator[survivors] - code.wanted[rows]).max()
    assert wrong < 1e-12 * (1 + alpha)
    # A dense solve of a complex system of this size takes longer even on an idle machine.
    assert seconds < 1.0, f"a new survivor set took {seconds:.2f} s"
    began = time.perf_counter()
    ready = [code.decodable(range(count)) for count in range(0, 1001, 4)]
    assert time.perf_counter() - began < 1.0
    assert ready[-1] and not ready[0] and ready == sorted(ready)


def test_error_estimate_formula() -> None:
    assert error_estimate(0.0, 1e-16, 3.0) == 3e-16
    assert error_estimate(1e6, 1e-16, 2.0) == pytest.approx(2e-10)


@pytest.mark.parametrize(
    ("name", "nodes", "workers", "grid", "lost"),
    [
        ("matdot", "equispaced", 14, Grid(1, 6, 1), (0, 3, 6)),
        ("systematic-matdot", "chebyshev", 14, Grid(1, 6, 1), (2, 5, 11)),
        ("random-khatri-rao", None, 29, Grid(5, 1, 5), (0, 1, 2)),
        ("polynomial", "chebyshev-powers", 12, Grid(3, 1, 3), (0, 5, 10)),
    ],
    ids=str,
)
def test_weights_are_as_exact_as_their_size_explains(name, nodes, workers, grid, lost) -> None:
    """What they leave over is below the rounding of the replies that they multiply."""
    code = get(name)(workers, grid, nodes=nodes)
    survivors = code.shares_without(lost)
    rows = code.generator[list(survivors)].astype(np.longdouble)
    left = np.linalg.norm((code.weights(survivors) @ rows - code.wanted).astype(float))
    noise = code.amplification(survivors) * math.sqrt(grid.outputs * grid.p)
    assert left <= np.finfo(float).eps * noise
