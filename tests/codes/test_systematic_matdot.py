"""Systematic MatDot: the first p replies just add up; any 2p - 1 decode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.errors import NotDecodable


@pytest.mark.parametrize("nodes", ["chebyshev", "unity"])
def test_the_plain_workers_suffice_and_are_summed(nodes: str) -> None:
    code = get("systematic-matdot")(9, Grid(1, 4, 1), nodes=nodes)
    assert np.array_equal(code.generator_a[:4], np.eye(4))
    assert np.array_equal(code.weights(range(4)), np.ones((1, 4)))
    assert np.array_equal(code.weights([0, 1, 2, 3, 6]), [[1, 1, 1, 1, 0]])
    assert code.amplification(range(4)) == 1


def test_decodable_is_all_plain_or_seven() -> None:
    code = get("systematic-matdot")(9, Grid(1, 4, 1))
    assert (code.threshold, code.tolerates) == (7, 2)
    for size in range(10):
        for survivors in itertools.combinations(range(9), size):
            expected = size >= 7 or {0, 1, 2, 3} <= set(survivors)
            assert code.decodable(survivors) == expected
    with pytest.raises(NotDecodable, match="any 7 of 9 workers, or workers 0 to 3"):
        code.weights([0, 1, 2, 4, 5, 6])


@pytest.mark.parametrize("nodes", ["chebyshev", "unity"])
def test_shares_are_values_of_the_lagrange_polynomials(nodes: str) -> None:
    code = get("systematic-matdot")(11, Grid(1, 4, 1), nodes=nodes)
    # Lagrange polynomials of a partition: they add up to one, and stay of order one.
    assert code.generator_a.sum(axis=1) == pytest.approx(np.ones(11))
    assert np.abs(code.generator_a).max() < 1.6
    # Reproduce a polynomial of degree 3 from its values at the first four points.
    cubic = code.generator[:, :4] @ np.array([0.3, -1.0, 0.7, 2.0])
    assert code.generator_a @ cubic[:4] == pytest.approx(cubic)


def test_fewer_than_2p_minus_1_workers_are_just_the_plain_ones() -> None:
    code = get("systematic-matdot")(6, Grid(1, 4, 1))
    assert (code.active, code.tolerates, code.threshold) == (4, 0, 4)
    assert not code.generator_a[4:].any()
    assert not code.decodable([0, 1, 2, 4, 5])


def test_the_functional_is_solved_for_directly() -> None:
    """Interpolating all 39 unknowns first would leave errors of 1e-11 in weights of order 50."""
    code = get("systematic-matdot")(43, Grid(1, 20, 1))
    survivors = [w for w in range(43) if w not in (11, 25, 30, 35)]
    weights = code.weights(survivors)
    products = np.einsum("wi,wj->wij", code.generator_a, code.generator_a)[survivors]
    identity = np.tensordot(weights[0], products, axes=1)
    assert np.abs(identity - np.eye(20)).max() < 1e-13 * np.abs(weights).max()
