"""Khatri-Rao parities: no small minor is worse than promised."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.families.khatri_rao import factors, parity_factors
from codedla.codes.families.khatri_rao_seeds import CHOICES
from codedla.codes.rows import row_kronecker
from codedla.codes.solve import Parity


def worst_of_all_minors(parity: np.ndarray, largest: int) -> float:
    """Worst amplification over every minor of up to ``largest`` rows (outputs of equal scale)."""
    losses, blocks = parity.shape
    rated = Parity(parity, np.linalg.norm(parity, axis=1))
    found = 0.0
    for size in range(1, min(largest, losses, blocks) + 1):
        lost = np.array(list(itertools.combinations(range(blocks), size)))
        for spared in itertools.combinations(range(losses), size):
            dead = [blocks + row for row in range(losses) if row not in spared]
            patterns = np.hstack([lost, np.tile(dead, (len(lost), 1)).astype(int)])
            found = max(found, float(rated.rate(patterns).max()))
    return math.sqrt(found / blocks)


@pytest.mark.parametrize("losses", sorted({key[2] for key in CHOICES}))
def test_every_minor_of_the_shipped_parities_is_within_its_bound(losses: int) -> None:
    shipped = {key: entry for key, entry in CHOICES.items() if key[2] == losses}
    assert shipped
    for (m, n, _), (_, bound) in shipped.items():
        parity = row_kronecker(*parity_factors(m, n, losses))
        largest = 3 if m * n <= 50 else 2
        assert worst_of_all_minors(parity, largest) <= bound, (m, n, losses)


@pytest.mark.parametrize(
    ("m", "n", "losses"), [(2, 3, 4), (2, 2, 4), (3, 3, 5), (1, 5, 4), (4, 3, 4), (2, 5, 5)]
)
def test_small_parities_exhaustively(m: int, n: int, losses: int) -> None:
    parity = row_kronecker(*parity_factors(m, n, losses))
    _, bound = CHOICES[min(m, n), max(m, n), losses]
    assert worst_of_all_minors(parity, losses) <= bound


@pytest.mark.parametrize(
    ("m", "n"), [(1, 2), (2, 2), (4, 4), (3, 4), (4, 3), (5, 5), (1, 9), (8, 8), (7, 10), (5, 16)]
)
def test_signed_geometric_pairs(m: int, n: int) -> None:
    """All pairs of losses: linear in the number of blocks, where random rows have 1e3 to 1e4."""
    parity = row_kronecker(*parity_factors(m, n, 2))
    assert worst_of_all_minors(parity, 2) < 4 + 0.95 * m * n


@pytest.mark.parametrize(
    ("m", "n", "bound"), [(2, 2, 8), (3, 4, 45), (4, 4, 75), (6, 6, 480), (5, 5, 320), (8, 8, 1650)]
)
def test_signed_geometric_triples(m: int, n: int, bound: float) -> None:
    parity = row_kronecker(*parity_factors(m, n, 3))
    assert worst_of_all_minors(parity, 3) < bound


@pytest.mark.parametrize(
    ("m", "n", "losses"), [(3, 2, 3), (5, 2, 4), (3, 1, 5), (4, 3, 2), (13, 12, 4)]
)
def test_swapping_the_operands_swaps_the_factors(m: int, n: int, losses: int) -> None:
    a, b = parity_factors(m, n, losses)
    b2, a2 = parity_factors(n, m, losses)
    assert np.array_equal(a, a2) and np.array_equal(b, b2)


@pytest.mark.parametrize("choice", [0, 11, 0.7, 1.5])
@pytest.mark.parametrize(("m", "n", "losses"), [(2, 2, 2), (3, 5, 4), (1, 4, 5), (4, 4, 3)])
def test_both_kinds_of_factors_are_mds(m: int, n: int, losses: int, choice: float | int) -> None:
    """Every square minor of the parity rows is invertible."""
    parity = row_kronecker(*factors(m, n, losses, choice))
    for size in range(1, min(losses, m * n) + 1):
        for rows in itertools.combinations(range(losses), size):
            for columns in itertools.combinations(range(m * n), size):
                minor = parity[np.ix_(rows, columns)]
                assert np.linalg.cond(minor) < 1e7, (rows, columns)


@pytest.mark.parametrize(
    ("m", "n", "losses"), [(4, 4, 1), (8, 8, 2), (5, 5, 3), (13, 11, 4), (1, 1, 3)]
)
def test_rows_have_the_scale_of_the_data(m: int, n: int, losses: int) -> None:
    a, b = parity_factors(m, n, losses)
    assert np.linalg.norm(a, axis=1) == pytest.approx(math.sqrt(m))
    assert np.linalg.norm(b, axis=1) == pytest.approx(math.sqrt(n))


def test_one_parity_is_the_plain_sum_and_exact() -> None:
    code = get("khatri-rao")(7, Grid(2, 1, 3))
    assert code.integral
    assert np.array_equal(code.generator[6], np.ones(6))
    weights = code.weights([0, 1, 2, 4, 5, 6])
    assert np.array_equal(weights[3], [-1, -1, -1, -1, -1, 1])
    assert not get("khatri-rao")(8, Grid(2, 1, 3)).integral


def test_more_parities_than_blocks() -> None:
    code = get("khatri-rao")(9, Grid(2, 1, 2))
    for survivors in itertools.combinations(range(9), 4):
        product = code.weights(survivors) @ code.generator[list(survivors)]
        assert np.abs(product - np.eye(4)).max() < 1e-11 * (1 + code.amplification(survivors))


def test_surplus_parities_lower_the_noise() -> None:
    code = get("khatri-rao")(20, Grid(4, 1, 4))
    few = [*range(2, 16), 16, 17]
    assert code.amplification([*few, 18, 19]) < code.amplification(few)
    assert code.amplification([*few, 18]) <= code.amplification(few)


def test_plain_replies_pass_untouched() -> None:
    code = get("khatri-rao")(10, Grid(2, 1, 4))
    weights = code.weights([0, 1, 2, 4, 5, 6, 7, 8, 9])
    plain = [0, 1, 2, 4, 5, 6, 7]
    assert np.array_equal(weights[plain, :7], np.eye(7))
    assert not weights[plain, 7:].any()


@pytest.mark.parametrize(("m", "n", "losses"), [(11, 13, 3), (25, 40, 0), (30, 33, 10)])
def test_sizes_without_a_shipped_seed(m: int, n: int, losses: int) -> None:
    code = get("khatri-rao")(m * n + losses, Grid(m, 1, n))
    rng = np.random.default_rng(4801)
    survivors = np.sort(rng.choice(code.n_workers, code.threshold, replace=False))
    weights = code.weights(survivors)
    slack = 1e-12 * code.amplification(survivors)
    assert np.abs(weights @ code.generator[survivors] - np.eye(m * n)).max() < slack
