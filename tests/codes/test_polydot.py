"""PolyDot: thresholds, exponents and digits as published."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get

FAMILIES = ("polydot", "entangled")


@pytest.mark.parametrize(("t", "s"), [(1, 4), (2, 1), (2, 3), (3, 2), (4, 2)])
def test_threshold_of_square_grids(t: int, s: int) -> None:
    assert get("polydot").needs(Grid(t, s, t)) == t * t * (2 * s - 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", [(2, 2, 2), (3, 2, 1), (1, 3, 2), (2, 3, 2)], ids=str)
def test_wanted_coefficients_are_the_blocks(family: str, grid: tuple[int, int, int]) -> None:
    """Multiply the polynomials of scalars by hand: the wanted exponents hold the product."""
    m, p, n = grid
    code = get(family)(get(family).needs(Grid(*grid)) + 1, Grid(*grid))
    rng = np.random.default_rng(2718)
    A, B = rng.standard_normal((m, p)), rng.standard_normal((p, n))
    replies = (code.generator_a @ A.ravel()) * (code.generator_b @ B.ravel())
    coefficients = np.linalg.lstsq(code.generator, replies, rcond=None)[0]
    assert np.abs(code.generator @ coefficients - replies).max() < 1e-12
    assert np.abs(code.wanted @ coefficients - (A @ B).ravel()).max() < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_small_codes_over_every_survivor_set(family: str) -> None:
    """Every set of K replies decodes to 9 digits and more, real points included."""
    for nodes, (m, p, n) in itertools.product(get(family).node_choices, [(2, 2, 1), (1, 2, 2)]):
        grid = Grid(m, p, n)
        workers = get(family).needs(grid) + 2
        code = get(family)(workers, grid, nodes=nodes)
        for survivors in itertools.combinations(range(workers), code.threshold):
            assert code.amplification(survivors) < 1e5


def test_entangled_needs_nearly_half() -> None:
    grid = Grid(4, 2, 4)
    assert get("polydot").needs(grid) == 48
    assert get("entangled").needs(grid) == 33
