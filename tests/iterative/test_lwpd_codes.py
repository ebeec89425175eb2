"""Codes for partial derivatives: frames, coherence, decoders, and the errors that they leave."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from codedla.errors import UsageError
from codedla.iterative.lwpd_codes import (
    coherence,
    dense,
    frame_bounds,
    greedy,
    kaczmarz,
    least_squares,
    make_code,
    peel,
    peels,
    replication,
    ring,
    welch,
)


@pytest.mark.parametrize(("k", "weight", "m"), [(4, 2, 8), (4, 2, 12), (8, 2, 16), (8, 4, 16)])
@pytest.mark.parametrize("seed", [0, 1])
def test_tight_frames_favour_no_block(k, weight, m, seed):
    code = greedy(k, m, weight, seed)
    assert frame_bounds(code) == pytest.approx((m / k, m / k))
    assert coherence(code) == pytest.approx(0.5)
    assert (np.count_nonzero(code, axis=1) == weight).all()
    np.testing.assert_allclose(np.linalg.norm(code, axis=1), 1)


@pytest.mark.parametrize(
    ("k", "weight", "m", "highest"), [(4, 2, 6, 0.5), (8, 3, 16, 2 / 3), (5, 1, 5, 0.0)]
)
def test_coherence_where_no_tight_frame_is_found(k, weight, m, highest):
    code = greedy(k, m, weight)
    assert coherence(code) == pytest.approx(highest)
    low, high = frame_bounds(code)
    assert low <= m / k <= high
    assert low > 0.9


@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 3, 8])
def test_no_code_is_below_welchs_bound(k, more):
    m = k + more
    for code in (ring(k, m), replication(k, m), dense(k, m)):
        assert coherence(code) >= welch(k, m) - 1e-12
    if more == 1 and k == 3:
        # The corners of a tetrahedron reach it.
        corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1.0]])
        assert coherence(corners) == pytest.approx(welch(3, 4))


def test_the_ring_has_single_blocks_then_neighbours():
    code = ring(4, 8) * np.sqrt(2)
    np.testing.assert_allclose(code[:4], np.sqrt(2) * np.eye(4))
    np.testing.assert_allclose(
        code[4:], [[1, 1, 0, 0], [0, 1, -1, 0], [0, 0, 1, 1], [-1, 0, 0, 1]], atol=1e-12
    )
    # Further rows are pairs at a larger distance: none comes twice where there is a choice.
    assert coherence(ring(6, 18)) < 0.99


def test_lines_come_again_when_there_are_no_others():
    code = greedy(2, 5)
    assert len(np.unique(code[:2], axis=0)) == 2
    assert len(np.unique(code, axis=0)) == 2
    assert frame_bounds(greedy(2, 6)) == pytest.approx((3, 3))


ERRORS = {
    "replication": ([0.73, 0.58, 0.43, 0.27, 0.12], [0.73, 0.58, 0.43, 0.27, 0.12]),
    "ring": ([0.70, 0.50, 0.27, 0.09, 0.02], [0.74, 0.60, 0.49, 0.39, 0.30]),
    "greedy": ([0.69, 0.47, 0.17, 0.02, 0.00], [0.73, 0.61, 0.47, 0.36, 0.28]),
    "dense": ([0.69, 0.45, 0.00, 0.00, 0.00], [0.76, 0.66, 0.59, 0.53, 0.46]),
}
"""Relative errors of least squares and of one pass of Kaczmarz, of a random gradient in 8 blocks,
after 4, 6, 8, 10 and 12 of 16 replies."""
PEELED = {"replication": [0.45, 0.62, 0.77, 0.87, 0.95], "ring": [0.35, 0.60, 0.82, 0.95, 0.99]}


@pytest.fixture(scope="module")
def errors():
    """Errors by code and number of replies, of many random gradients in random order."""
    rng = np.random.default_rng(90281)
    k, m, found = 8, 16, {}
    for name in ERRORS:
        code = make_code(name, k, m)
        for s in (4, 6, 8, 10, 12):
            squares, passes, solved = [], [], []
            for _ in range(600):
                g = rng.standard_normal((k, 1))
                rows = rng.permutation(m)[:s]
                some, size = code[rows], np.linalg.norm(g)
                squares.append(np.linalg.norm(least_squares(some, some @ g) - g) / size)
                estimate = kaczmarz(some, some @ g, np.zeros_like(g))
                passes.append(np.linalg.norm(estimate - g) / size)
                solved.append(peels(code, rows) / k)
            found[name, s] = np.mean(squares), np.mean(passes), np.mean(solved)
    return found


@pytest.mark.parametrize("name", ERRORS)
def test_errors_after_some_replies(errors, name):
    for place, s in enumerate((4, 6, 8, 10, 12)):
        squares, one_pass, solved = errors[name, s]
        assert squares == pytest.approx(ERRORS[name][0][place], abs=0.03)
        assert one_pass == pytest.approx(ERRORS[name][1][place], abs=0.03)
        assert solved == pytest.approx(PEELED.get(name, [0.0] * 5)[place], abs=0.03)


@pytest.mark.parametrize("s", [6, 8, 10, 12])
def test_light_codes_come_between_dense_ones_and_replication(errors, s):
    order = [errors[name, s][0] for name in ("dense", "greedy", "ring", "replication")]
    assert all(less <= more + 0.02 for less, more in pairwise(order))
    assert order[0] < order[-1] - 0.1


@pytest.mark.parametrize("seed", range(60))
def test_what_peeling_finds_is_right_and_least_squares_knows_no_less(seed):
    rng = np.random.default_rng([seed, 90289])
    k = int(rng.integers(1, 9))
    m = k + int(rng.integers(0, 9))
    code = make_code(("ring", "replication")[seed % 2], k, m)
    gradient = rng.standard_normal((k, 5))
    rows = rng.permutation(m)[: int(rng.integers(1, m + 1))]
    replies = code[rows] @ gradient
    blocks, known = peel(code[rows], replies)
    np.testing.assert_allclose(blocks[known], gradient[known], atol=1e-9)
    assert not blocks[~known].any()
    assert known.sum() == peels(code, rows)
    start = rng.standard_normal((k, 5))
    estimate = least_squares(code[rows], replies, start)
    np.testing.assert_allclose(code[rows] @ estimate, replies, atol=1e-9)
    np.testing.assert_allclose(estimate[known], gradient[known], atol=1e-9)
    # The last one that Kaczmarz projects on is met, and no step leads away from the truth.
    swept = kaczmarz(code[rows], replies, start)
    np.testing.assert_allclose(code[rows[-1]] @ swept, replies[-1], atol=1e-9)
    assert np.linalg.norm(swept - gradient) <= np.linalg.norm(start - gradient) + 1e-9


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ring(0, 4), "k must be >= 1"),
        (lambda: dense(5, 4), "m must be >= 5"),
        (lambda: greedy(4, 8, 5), "at most k"),
        (lambda: greedy(40, 50, 8), "looked|choose from"),
        (lambda: make_code("mds", 2, 4), "one of 'ring'"),
        (lambda: make_code(np.eye(3), 3, 4), "one finite row"),
        (lambda: make_code(np.zeros((4, 3)), 3, 4), "not zero"),
        (lambda: make_code(np.eye(3)[[0, 1, 1, 0]], 3, 4), "span all 3 blocks.*got 2"),
    ],
)
def test_what_cannot_be(call, match):
    with pytest.raises(UsageError, match=match):
        call()
