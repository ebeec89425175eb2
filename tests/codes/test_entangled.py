"""Entangled polynomial code: threshold and digits, against figures measured independently."""

from __future__ import annotations

import accuracy
import pytest

from codedla.blocks import Grid
from codedla.codes import get

# Error of the worst loss pattern at thresholds 3, 9, 19, 33, 51 (p = 2, m = n = 1 .. 5).
GRIDS = [Grid(side, 2, side) for side in range(1, 6)]
WORST_ERRORS = {
    ("unity", 2): (5e-16, 1e-15, 2.8e-15, 7.5e-15, 1.5e-14),
    ("unity", 5): (1e-15, 1.8e-14, 2.4e-13, 2.8e-12, 1.7e-11),
    ("chebyshev", 2): (1e-15, 9e-14, 3.8e-10, 5e-5),
    ("equispaced", 2): (1e-15, 3e-13, 7.7e-9),
}


@pytest.mark.parametrize(("nodes", "losses"), WORST_ERRORS, ids=str)
def test_worst_error(nodes: str, losses: int) -> None:
    family = get("entangled")
    for grid, measured in zip(GRIDS, WORST_ERRORS[nodes, losses], strict=False):
        code = family(family.needs(grid) + losses, grid, nodes=nodes)
        error = accuracy.Trial(code).error(code.worst_amplification()[1])
        assert measured / 30 < error < 10 * measured, f"{grid}: {error:.1e}"


@pytest.mark.parametrize(("m", "p", "n"), [(2, 3, 4), (5, 1, 2), (1, 6, 1), (3, 2, 3)])
def test_threshold(m: int, p: int, n: int) -> None:
    assert get("entangled").needs(Grid(m, p, n)) == p * m * n + p - 1


def test_special_cases_are_polynomial_and_matdot() -> None:
    flat, deep = Grid(2, 1, 3), Grid(1, 4, 1)
    assert get("entangled").needs(flat) == get("polynomial").needs(flat)
    assert get("entangled").needs(deep) == get("matdot").needs(deep)
    entangled, matdot = get("entangled")(9, deep), get("matdot")(9, deep, nodes="unity")
    assert entangled.generator_a == pytest.approx(matdot.generator_a)
    assert entangled.generator_b == pytest.approx(matdot.generator_b)
