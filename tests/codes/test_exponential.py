"""Exponential parities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get


def parity(blocks: int, losses: int) -> np.ndarray:
    return get("exponential")(blocks + losses, Grid(blocks, 1, 1)).generator_a[blocks:]


def test_all_minors_are_positive() -> None:
    rows = parity(6, 4)
    for size in range(1, 5):
        for i in itertools.combinations(range(4), size):
            for j in itertools.combinations(range(6), size):
                assert np.linalg.det(rows[np.ix_(i, j)]) > 0


def test_one_parity_is_the_sum() -> None:
    assert np.array_equal(parity(5, 1), np.ones((1, 5)))


@pytest.mark.parametrize(("blocks", "losses", "most"), [(16, 2, 35), (64, 2, 150), (64, 3, 7e3)])
def test_amplification(blocks: int, losses: int, most: float) -> None:
    code = get("exponential")(blocks + losses, Grid(blocks, 1, 1))
    assert code.worst_amplification()[0] < most


def test_many_losses_stay_in_range() -> None:
    rows = parity(3, 60)
    assert np.isfinite(rows).all() and np.abs(rows).max() < 2
