"""Random Khatri-Rao rows: of one size, fixed, and without hopeless sets."""

from __future__ import annotations

import anchors
import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get


def test_rows_have_the_scale_of_the_data() -> None:
    code = get("random-khatri-rao")(14, Grid(3, 1, 4))
    assert np.linalg.norm(code.generator_a, axis=1) == pytest.approx(np.sqrt(3))
    assert np.linalg.norm(code.generator_b, axis=1) == pytest.approx(2.0)


@pytest.mark.parametrize(("workers", "grid", "worst"), [(18, (5, 1, 3), 2.8e4), (6, (2, 1, 2), 30)])
def test_no_survivor_set_is_much_worse_than_published(workers, grid, worst) -> None:
    """Best of ten draws in the literature (n=18), best of twelve measured (k=4, two losses)."""
    code = get("random-khatri-rao")(workers, Grid(*grid))
    assert anchors.condition_numbers(code, code.generator).max() < 3 * worst


def test_many_losses_keep_digits_where_polynomials_lose_them() -> None:
    grid = Grid(5, 1, 6)
    assert get("random-khatri-rao")(42, grid).worst_amplification()[0] < 1e8
    assert get("orthopoly")(42, grid).worst_amplification()[0] > 1e12
