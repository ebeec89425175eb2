"""Product code: what peels, decodes; what does not, has a rectangle or worse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.errors import NotDecodable


def cells(code) -> np.ndarray:
    """Grid position of every worker, read off the generators."""
    rows = {tuple(row): i for i, row in enumerate(code.lines[0].generator)}
    columns = {tuple(row): i for i, row in enumerate(code.lines[1].generator)}
    return np.array(
        [
            (rows[tuple(a)], columns[tuple(b)])
            for a, b in zip(code.generator_a, code.generator_b, strict=True)
        ]
    )


def test_the_shape_that_survives_most_is_taken() -> None:
    """16 workers, 3 x 3 blocks: 4 x 4 survives 3 losses, 5 x 3 only 2."""
    code = get("product")(16, Grid(3, 1, 3))
    assert (code.active, code.tolerates, code.threshold) == (16, 3, 13)
    assert (get("product")(15, Grid(3, 1, 3)).active, get("product")(14, Grid(3, 1, 3)).active) == (
        15,
        12,
    )


def test_single_parities_fail_only_where_a_cycle_of_losses_is() -> None:
    """Undecodable exactly if the losses contain a cycle of rows and columns."""
    code = get("product")(9, Grid(2, 1, 2))
    place = cells(code)
    for size in range(4, 10):
        for survivors in itertools.combinations(range(9), size):
            lost = place[sorted(set(range(9)) - set(survivors))]
            # A forest of rows and columns has (nodes - components) edges, a cycle has more.
            forest = np.linalg.matrix_rank(
                np.array([[*np.eye(3)[i], *-np.eye(3)[j]] for i, j in lost]).reshape(-1, 6)
            ) == len(lost)
            assert code.decodable(survivors) == forest


def test_four_at_the_corners_of_a_rectangle_are_too_many() -> None:
    code = get("product")(16, Grid(3, 1, 3))
    place = cells(code)
    corners = [w for w in range(16) if place[w][0] in (0, 2) and place[w][1] in (1, 3)]
    assert len(corners) == 4
    survivors = sorted(set(range(16)) - set(corners))
    with pytest.raises(NotDecodable, match="any 13 of 16 workers, or a pattern of the 4 x 4 grid"):
        code.weights(survivors)
    assert code.decodable([*survivors, corners[0]])


def test_whole_rows_and_columns_are_made_up_for() -> None:
    """Seven of sixteen lost: a row and a column."""
    code = get("product")(16, Grid(3, 1, 3))
    survivors = [w for w, (i, j) in enumerate(cells(code)) if i != 1 and j != 2]
    assert len(survivors) == 9
    weights = code.weights(survivors)
    assert np.abs(weights @ code.generator[survivors] - np.eye(9)).max() < 1e-14
    assert np.isin(np.round(weights, 12), (-1, 0, 1)).all()


def test_a_lost_block_costs_its_row_only() -> None:
    code = get("product")(36, Grid(5, 1, 5))
    survivors = [w for w in range(36) if w != 7]
    weights = code.weights(survivors)
    assert np.count_nonzero(weights[7]) <= 6
    others = [b for b in range(25) if b != 7]
    assert np.array_equal(weights[np.ix_(others, range(24))], np.eye(24))


def test_most_random_losses_beyond_the_guarantee_decode() -> None:
    """3 losses are survived for certain, 8 of 36 nearly always."""
    code = get("product")(36, Grid(5, 1, 5))
    rng = np.random.default_rng(99)
    decoded = sum(code.decodable(rng.choice(36, 28, replace=False).tolist()) for _ in range(300))
    assert code.tolerates == 3 and 200 < decoded < 300
