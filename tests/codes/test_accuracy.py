"""Digits kept by every family, against figures measured independently before it was written."""

from __future__ import annotations

import math
import random

import accuracy
import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import registry, worst
from codedla.codes.draws import numbers
from codedla.errors import NotDecodable

SLACK = 10
# Exact codes have no error to estimate.
CASES = [case for case, (name, _) in accuracy.cases().items() if accuracy.inexact(name)]

# Error of the worst loss pattern, float64, random operands with inner dimension 100:
# case, losses -> errors at k = 16, 36, 64 (threshold of matdot: 17, 37, 65).
WORST_ERRORS = {
    ("khatri-rao", 2): (3.3e-15, 1.5e-14, 2.1e-14),
    ("mds", 2): (2.2e-15, 5.1e-15, 9.9e-15),
    ("mds", 5): (5.6e-14, 2.3e-12, 2.3e-11),
    ("polynomial", 2): (2.1e-15, 9.1e-15, 1.9e-14),
    ("polynomial", 5): (1.4e-13, 3.6e-12, 4.0e-11),
    ("polynomial/chebyshev", 2): (1.4e-13, 1.3e-12, 7.9e-12),
    ("polynomial/chebyshev", 5): (2.9e-10, 1.6e-7, 2.7e-5),
    ("mds/unity", 2): (2.6e-15, 8.2e-15, 1.5e-14),
    ("mds/unity", 5): (1.4e-13, 3.3e-12, 3.8e-11),
    ("mds/chebyshev", 2): (1.2e-13, 1.6e-12, 1.1e-11),
    ("mds/chebyshev", 5): (4e-10, 2e-7, 3e-5),
    ("matdot", 2): (3.8e-13, 6.5e-12, 5.5e-11),
    ("matdot", 5): (2e-9, 1.4e-6, 3e-4),
    ("matdot/unity", 2): (3.5e-15, 1.4e-14, 3.2e-14),
    ("matdot/unity", 5): (3e-13, 5e-12, 6e-11),
    ("rotation", 2): (3.5e-15, 9.6e-15, 2.5e-14),
    ("rotation", 5): (1.8e-13, 4e-12, 5.4e-11),
    ("rotation-mds", 2): (2.6e-15, 8.2e-15, 1.5e-14),
    ("rotmatdot", 2): (3.4e-15, 1.4e-14, 2.7e-14),
    ("rotmatdot", 5): (3e-13, 5e-12, 6e-11),
    ("rotation-entangled", 2): (3.4e-15, 6e-15, 2.3e-14),
    ("rotation-entangled", 5): (3.2e-13, 2.8e-12, 6.6e-11),
}

# Amplification of the worst loss pattern per recovered block (systematic) or per block.
WORST_AMPLIFICATIONS = {
    ("khatri-rao", 2): {16: 3.3e1, 36: 1.2e2, 64: 3.0e2, 100: 5.9e2},
    ("mds", 2): {16: 2.3e1, 36: 7.3e1, 64: 1.7e2, 100: 3.2e2},
    ("mds", 3): {16: 1.0e2, 64: 2.5e3, 100: 7.4e3},
    ("mds", 5): {16: 1.1e3},
    ("polynomial", 2): {16: 5.8, 36: 12, 64: 21, 100: 32},
    ("polynomial", 3): {16: 27, 64: 3.4e2, 100: 8.1e2},
    ("polynomial", 5): {16: 3.4e2, 64: 4.2e4, 100: 2.3e5},
    ("rotation", 2): {16: 5.8, 36: 12, 64: 21, 100: 32},
    ("rotation", 5): {16: 3.4e2, 64: 4.2e4, 100: 2.3e5},
}


@pytest.mark.parametrize(("case", "losses"), WORST_ERRORS, ids=lambda v: str(v))
def test_worst_error(case: str, losses: int) -> None:
    for k, published in zip((16, 36, 64), WORST_ERRORS[case, losses], strict=True):
        code = accuracy.make(case, k, losses)
        alpha, survivors = code.worst_amplification()
        error = accuracy.Trial(code).error(survivors)
        assert error < SLACK * published, f"k={k}: {error:.1e}, alpha {alpha:.1e}"


@pytest.mark.parametrize(("case", "losses"), WORST_AMPLIFICATIONS, ids=lambda v: str(v))
def test_worst_amplification(case: str, losses: int) -> None:
    for k, published in WORST_AMPLIFICATIONS[case, losses].items():
        code = accuracy.make(case, k, losses)
        alpha, survivors = code.worst_amplification()
        if code.systematic:
            lost = k - sum(worker < k for worker in survivors)
            alpha = math.sqrt((alpha**2 * k - (k - lost)) / lost)
        assert published / 2 < alpha < 1.3 * published, f"k={k}: {alpha:.1e} for {published:.1e}"


@pytest.mark.parametrize(
    ("losses", "k", "best_random"),
    [(3, 16, 5.6e2), (3, 64, 1.3e4), (3, 100, 5.7e4), (5, 16, 1.5e4)],
)
def test_khatri_rao_is_better_than_hundreds_of_random_draws(
    losses: int, k: int, best_random: float
) -> None:
    code = accuracy.make("khatri-rao", k, losses)
    alpha, survivors = code.worst_amplification()
    lost = k - sum(worker < k for worker in survivors)
    per_block = math.sqrt((alpha**2 * k - (k - lost)) / lost)
    assert per_block < best_random


@pytest.mark.parametrize("case", accuracy.DEFAULTS)
@pytest.mark.parametrize("k", [4, 16, 64, 100])
def test_defaults_lose_at_most_three_digits_to_two_losses(case: str, k: int) -> None:
    row = accuracy.measure(case, k, 2, np.float64, samples=5)
    assert row["worst"] < 1e-12
    assert row["random"] < 1e-14


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_error_estimate_tells_the_truth(case: str, dtype: type) -> None:
    for k, losses in ((4, 1), (9, 3), (25, 1), (25, 4)):
        if accuracy.make(case, k, losses) is None:
            continue
        quotients = accuracy.measure(case, k, losses, dtype, samples=8)["quotients"]
        if quotients is None:
            continue  # every set is refused
        low, high = quotients
        assert low >= 0.1, f"k={k} s={losses}: error above ten times the estimate"
        assert high <= 1e4, f"k={k} s={losses}: estimate far too dark"


@pytest.mark.parametrize("case", ["polynomial/equispaced", "mds/equispaced", "matdot/equispaced"])
def test_hopeless_nodes_are_refused_not_decoded(case: str) -> None:
    code = accuracy.make(case, 64, 2)
    alpha, survivors = code.worst_amplification()
    assert alpha == math.inf
    with pytest.raises(NotDecodable, match="linearly dependent in double precision"):
        code.weights(survivors)
    assert "every digit" in code.digits_warning()


def test_digits_warning_is_silent_for_the_defaults() -> None:
    for case in accuracy.DEFAULTS:
        assert accuracy.make(case, 64, 2).digits_warning() is None
    weak = accuracy.make("polynomial/chebyshev", 36, 5).digits_warning(tolerance=1e-8)
    assert "9 digits" in weak and "--nodes unity" in weak


def test_the_worst_of_very_many_unknowns_is_searched_for_with_little_effort() -> None:
    ratings = []

    def rate(lost):
        ratings.extend(lost.tolist())
        return lost.sum(axis=1).astype(float)

    found = worst.search(rate, 40, 3, (), 1e-9)
    assert 2 <= len(ratings) <= 10
    assert sum(found) == max(map(sum, ratings))


@pytest.mark.parametrize("name", ["bivariate", "rotation", "convolutional", "matdot", "partial"])
def test_rough_amplifications_are_those_of_the_weights(name: str) -> None:
    family = registry.get(name)
    code = family(9, max(family.grids(9, 2), key=lambda grid: (grid.m * grid.p * grid.n, grid.m)))
    for lost in ((), (0,), (2, 7)):
        shares = code.shares_without(lost)
        assert code.rough_amplification(shares) == pytest.approx(code.amplification(shares))


def test_many_more_replies_than_blocks_are_weighted_in_a_moment() -> None:
    code = registry.get("convolutional")(40, Grid(6, 1, 1))
    shares = code.shares_without(range(5))
    weights, rows = code.weights(shares), code.generator[list(shares)]
    unknowns = rows.shape[1]
    assert len(shares) > 10 * unknowns
    np.testing.assert_allclose(weights @ rows, np.eye(unknowns), atol=1e-13)
    best = np.linalg.pinv(rows / code.norms[list(shares), None]) / code.norms[list(shares)]
    np.testing.assert_allclose(weights, best, atol=1e-12)


def test_random_numbers_are_those_of_pythons_generator() -> None:
    draw = random.Random("a label")
    expected = [sum(draw.random() for _ in range(4)) - 2.0 for _ in range(400)]
    np.testing.assert_allclose(numbers("a label", 20, 20).ravel(), expected, atol=1e-15)
