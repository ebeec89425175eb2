"""Random orthonormal frames: the draw is fixed, and good."""

from __future__ import annotations

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.draws import best_draw, numbers, worst_of_generator


def test_the_frame_is_one_and_its_rows_have_one_size() -> None:
    code = get("orthonormal")(12, Grid(7, 1, 1))
    assert np.linalg.norm(code.generator_a, axis=1) == pytest.approx(np.sqrt(7))
    assert np.linalg.matrix_rank(code.generator_a) == 7


@pytest.mark.parametrize(("workers", "blocks"), [(10, 7), (9, 3)])
def test_systematic_parities_are_orthogonal(workers: int, blocks: int) -> None:
    code = get("orthonormal")(workers, Grid(blocks, 1, 1), nodes="systematic")
    assert np.array_equal(code.generator_a[:blocks], np.eye(blocks))
    parity = code.generator_a[blocks:]
    gram = parity @ parity.T if workers <= 2 * blocks else parity.T @ parity
    if workers <= 2 * blocks:
        assert gram == pytest.approx(blocks * np.eye(workers - blocks))
    assert np.linalg.norm(parity, axis=1) == pytest.approx(np.sqrt(blocks))


def test_many_losses_keep_digits_where_points_lose_them() -> None:
    """Ten of 74 lost: neighbouring angles cost everything, a random frame does not."""
    grid = Grid(64, 1, 1)
    assert get("trig-frame")(74, grid).worst_amplification()[0] > 1e7
    assert get("orthonormal")(74, grid).worst_amplification()[0] < 1e6


def test_numbers_never_change() -> None:
    """Encoded data outlives a release: the coefficients of a label are fixed for ever."""
    drawn = numbers("a label", 3)
    assert drawn == pytest.approx(numbers("a label", 4)[:3])
    assert drawn.tolist() == pytest.approx([-0.676211, -0.23244, -0.588399], abs=1e-6)
    wide = numbers("wide", 20_000)
    assert abs(wide.mean()) < 0.02 and wide.var() == pytest.approx(1 / 3, rel=0.05)


def test_the_best_draw_is_taken() -> None:
    ratings = {0: 5.0, 1: 7.0, 2: 2.0}
    chosen = best_draw(lambda seed: seed, lambda seed, effort: ratings.get(seed, 9.0), 4, 2)
    assert chosen == 2
    assert best_draw(lambda seed: seed, lambda seed, effort: -seed, 4, 0) == 0


def test_dependent_rows_are_rated_infinite() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert worst_of_generator(rows, np.ones(3), 1.0) > 1e15
