"""Circulant permutations: the systems of the frequencies, and what the paper states of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.errors import UsageError


def frequencies(code):
    """The generator seen at each frequency, (q, N, k, q - 1)."""
    rows = code.generator.reshape(code.n_workers, code.prime, code.blocks.m, code.prime - 1)
    return np.fft.fft(rows, axis=1).transpose(1, 0, 2, 3)


@pytest.mark.parametrize(("workers", "prime"), [(1, 3), (4, 5), (5, 5), (6, 7), (8, 11), (24, 29)])
def test_least_odd_prime(workers, prime):
    code = get("circulant")(workers, Grid(1, 1, 1))
    assert (code.prime, code.stack, code.grid.m) == (prime, (prime, 1, 1), prime - 1)


def test_shares_are_plain_sums_moved_round():
    """Worker 0 adds the blocks as they are; another one moves block j by j places per number."""
    code = get("circulant")(6, Grid(3, 1, 1))
    rows = code.generator_a.reshape(6, 7, 3, 6)
    extended = np.vstack([np.eye(6), -np.ones(6)])
    for worker, block in itertools.product(range(6), range(3)):
        moved = np.roll(extended, worker * block, axis=0)
        assert np.array_equal(rows[worker, :, block], moved)


@pytest.mark.parametrize(("blocks", "workers"), [(3, 5), (4, 6), (9, 11)])
def test_every_frequency_is_a_vandermonde_system(blocks, workers):
    code = get("circulant")(workers, Grid(blocks, 1, 1))
    seen = frequencies(code)
    assert np.abs(seen[0]).max() < 1e-13
    for f in range(1, code.prime):
        exponents = -f * np.outer(np.arange(workers), np.arange(blocks))
        vandermonde = np.exp(2j * math.pi * (exponents % code.prime) / code.prime)
        part = seen[f, 0, 0]
        assert np.abs(part).min() > 0.1 / code.prime
        assert np.allclose(seen[f] / part, vandermonde[:, :, None], atol=1e-12)


def test_published_condition_numbers():
    """31 workers, 29 blocks, over all survivor sets: worst 55, mean 12.4; at each frequency."""
    code = get("circulant")(31, Grid(29, 1, 1))
    seen = frequencies(code)
    sets = np.array(
        [np.delete(np.arange(31), lost) for lost in itertools.combinations(range(31), 2)]
    )
    values = np.linalg.svd(seen[1, :, :, 0][sets], compute_uv=False)
    conditions = values[:, 0] / values[:, -1]
    assert conditions.max() == pytest.approx(55.0, rel=0.01)
    assert conditions.mean() == pytest.approx(12.4, rel=0.01)
    # The same systems in another order at another frequency.
    others = np.linalg.svd(seen[7, :, :, 0][sets], compute_uv=False)
    assert np.allclose(np.sort(others[:, 0] / others[:, -1]), np.sort(conditions), rtol=1e-9)


def test_two_losses_cost_the_same_whoever_they_are():
    """Which is less than the worst losses of other codes on the circle cost, in real arithmetic."""
    code = get("circulant")(31, Grid(29, 1, 1))
    found = {
        round(code.amplification(np.delete(np.arange(31), lost)), 9)
        for lost in ([0, 1], [3, 17], [29, 30])
    }
    assert len(found) == 1
    assert found.pop() < 0.5 * get("trig-frame")(31, Grid(29, 1, 1)).worst_amplification()[0]


@pytest.mark.parametrize(("blocks", "workers"), [(3, 5), (3, 6), (5, 8), (9, 11)])
def test_patterns_are_rated_by_their_noise(blocks, workers):
    """What the frequencies' systems say is the noise of the weights themselves."""
    code = get("circulant")(workers, Grid(blocks, 1, 1))
    patterns = np.array(list(itertools.combinations(range(workers), code.tolerates)))[:30]
    rated = np.sqrt(code.rate(patterns) / code.grid.m)
    noises = [code.amplification(code.shares_without(lost.tolist())) for lost in patterns]
    assert np.allclose(rated, noises, rtol=1e-9)


def test_noise_is_the_mean_of_a_reply():
    code = get("circulant")(8, Grid(5, 1, 1))
    squares = (code.generator_a**2).sum(axis=1).reshape(8, -1).mean(axis=1)
    assert np.allclose(code.norms.reshape(8, -1).T ** 2, squares, rtol=1e-13)


def test_too_many_parts_are_refused():
    with pytest.raises(UsageError, match=r"at most .* coefficients.*use fewer workers"):
        get("circulant")(66, Grid(64, 1, 1))
