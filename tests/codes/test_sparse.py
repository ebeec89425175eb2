"""Sparse operands keep sparse shares, and the product is right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.families.sparse import least_weights
from codedla.codes.supports import runs, scattered, touched


def weights_of(code) -> tuple[int, int]:
    return tuple(
        int(np.count_nonzero(g, axis=1).max()) for g in (code.generator_a, code.generator_b)
    )


@pytest.mark.parametrize(
    ("grid", "losses"), [((10, 1, 1), 2), ((40, 1, 1), 2), ((4, 1, 4), 3), ((5, 1, 5), 5)], ids=str
)
def test_shares_of_one_per_cent_stay_below_four(grid: tuple[int, int, int], losses: int) -> None:
    code = get("sparse")(grid[0] * grid[2] + losses, Grid(*grid))
    rng = np.random.default_rng(314)
    A = (rng.random((grid[0], 40, 1000)) < 0.01) * rng.standard_normal((grid[0], 40, 1000))
    density = np.count_nonzero(A) / A.size
    shares = np.tensordot(code.generator_a, A, axes=1)
    densest = max(np.count_nonzero(share) / share.size for share in shares)
    assert densest < 4 * density
    # Dense parities would be as dense as all blocks together.
    assert weights_of(code)[0] < grid[0]


@pytest.mark.parametrize("shape", [(8, 1), (3, 3)], ids=str)
def test_a_sparse_product_is_right_whoever_is_lost(shape: tuple[int, int]) -> None:
    m, n = shape
    code = get("sparse")(m * n + 2, Grid(m, 1, n))
    rng = np.random.default_rng(159)
    A = sp.random_array((m * 5, 50), density=0.01, rng=rng).toarray().reshape(m, 5, 50)
    B = rng.standard_normal((n, 50, 4))
    replies = np.tensordot(code.generator_a, A, axes=1) @ np.tensordot(code.generator_b, B, axes=1)
    expected = (A[:, None] @ B[None]).reshape(m * n, 5, 4)
    for lost in itertools.combinations(range(code.n_workers), 2):
        survivors = [w for w in range(code.n_workers) if w not in lost]
        decoded = np.tensordot(code.weights(survivors), replies[survivors], axes=1)
        assert np.abs(decoded - expected).max() < 1e-12


def test_through_the_front_door() -> None:
    rng = np.random.default_rng(26)
    A = sp.random_array((120, 90), density=0.01, rng=rng, format="csr")
    B = rng.standard_normal((90, 40))
    with codedla.SerialPool(8) as pool:
        C = codedla.matmul(A, B, pool=pool, code="sparse", blocks=(3, 2))
    assert np.abs(C - A @ B).max() < 1e-13


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_weights_of_one_coded_operand_are_within_one_of_the_least_possible(losses: int) -> None:
    """Every block is touched by s + 1 workers at least: N omega >= k (s + 1)."""
    for blocks in (4, 7, 12, 20):
        code = get("sparse")(blocks + losses, Grid(blocks, 1, 1))
        least = -(-blocks * (losses + 1) // (blocks + losses))
        assert least <= weights_of(code)[0] <= min(blocks, least + 1)
        assert (np.count_nonzero(code.generator_a, axis=0) > losses).all()


def test_two_coded_operands_share_the_weight() -> None:
    assert weights_of(get("sparse")(27, Grid(5, 1, 5))) == (2, 2)
    assert least_weights(5, 5, 28) == (2, 2)
    assert weights_of(get("sparse")(38, Grid(6, 1, 6))) == (2, 2)


def test_no_losses_no_coding() -> None:
    code = get("sparse")(6, Grid(2, 1, 3))
    assert np.array_equal(code.generator, np.eye(6))
    assert get("sparse")(5, Grid(2, 1, 2)).tolerates == 1


@pytest.mark.parametrize(("grid", "losses"), [((6, 1, 1), 3), ((3, 1, 2), 3), ((2, 1, 4), 2)])
def test_no_survivor_set_is_singular(grid: tuple[int, int, int], losses: int) -> None:
    code = get("sparse")(grid[0] * grid[2] + losses, Grid(*grid))
    for survivors in itertools.combinations(range(code.n_workers), code.threshold):
        assert code.amplification(survivors) < 1e4


@pytest.mark.parametrize(("count", "extra", "weight"), [(12, 2, 3), (64, 5, 6), (17, 3, 4)])
def test_scattered_supports_touch_every_block_equally(count: int, extra: int, weight: int) -> None:
    support = scattered("a label", count, extra, weight)
    assert (support.sum(axis=1) == weight).all()
    assert (support[:count].sum(axis=0) == weight).all()
    assert np.array_equal(support, scattered("a label", count, extra, weight))


def test_scattering_saves_digits() -> None:
    """Runs of 64 blocks would lose 7 digits by 5 losses."""
    code = get("sparse")(69, Grid(64, 1, 1))
    assert weights_of(code) == (6, 1)
    assert code.worst_amplification()[0] < 1e6


def test_supports_that_some_loss_defeats_are_refused() -> None:
    """Shares of one row of blocks each: a row of three is touched by three workers only."""
    start = np.arange(9)
    rows, columns = runs(start // 3, 1, 3), runs(start % 3, 2, 3)
    extra = runs(np.array([0]), 1, 3), runs(np.array([0]), 2, 3)
    assert touched(rows, columns, 0)
    assert not touched(np.vstack([rows, extra[0]]), np.vstack([columns, extra[1]]), 1)
