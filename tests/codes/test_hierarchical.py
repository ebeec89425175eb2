"""Hierarchical code: enough groups with enough replies each, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.errors import NotDecodable


@pytest.mark.parametrize(("workers", "grid"), [(9, (2, 1, 2)), (8, (1, 1, 3)), (10, (4, 1, 1))])
def test_decodable_is_enough_groups_with_enough_replies(workers, grid) -> None:
    code = get("hierarchical")(workers, Grid(*grid))
    groups, size = (line.size for line in code.lines)
    assert groups * size == code.active
    for count in range(workers + 1):
        for survivors in itertools.combinations(range(workers), count):
            replies = np.bincount(
                [w // size for w in survivors if w < code.active], minlength=groups
            )
            assert code.decodable(survivors) == ((replies >= grid[2]).sum() >= grid[0])


def test_groups_are_neighbours() -> None:
    code = get("hierarchical")(12, Grid(2, 1, 3))
    assert [line.size for line in code.lines] == [3, 4]
    assert all(
        np.array_equal(code.generator_a[w], code.generator_a[4 * (w // 4)]) for w in range(12)
    )
    assert all(np.array_equal(code.generator_b[w], code.generator_b[w % 4]) for w in range(12))


def test_a_whole_group_and_one_of_each_other_may_be_lost() -> None:
    """12 workers in 3 groups of 4: six replies are enough."""
    code = get("hierarchical")(12, Grid(2, 1, 3))
    survivors = [4, 6, 7, 8, 9, 10]
    weights = code.weights(survivors)
    assert np.abs(weights @ code.generator[survivors] - np.eye(6)).max() < 1e-14
    assert code.tolerates == 3
    with pytest.raises(NotDecodable, match="any 3 of the 4 workers in each of any 2 of 3 groups"):
        code.weights([0, 1, 4, 5, 6, 7, 8, 9])


def test_losses_within_a_group_are_made_up_for_on_the_spot() -> None:
    code = get("hierarchical")(16, Grid(3, 1, 3))
    survivors = [w for w in range(16) if w not in (1, 6, 11)]
    weights = code.weights(survivors)
    for block in range(9):
        used = {survivors[column] // 4 for column in np.flatnonzero(weights[block])}
        assert used == {block // 3}


def test_product_decodes_whatever_this_does() -> None:
    grid = Grid(2, 1, 2)
    groups, flat = get("hierarchical")(9, grid), get("product")(9, grid)
    of = {tuple(row): w for w, row in enumerate(flat.generator)}
    more = 0
    for survivors in itertools.combinations(range(9), 5):
        twins = [of[tuple(groups.generator[w])] for w in survivors]
        assert flat.decodable(twins) or not groups.decodable(survivors)
        more += flat.decodable(twins) and not groups.decodable(survivors)
    assert more > 0
