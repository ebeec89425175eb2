"""OrthMatDot: the quadrature is exact, and the conditioning as measured independently."""

from __future__ import annotations

import accuracy
import anchors
import numpy as np
import pytest

from codedla import nodes
from codedla.blocks import Grid
from codedla.codes import get


@pytest.mark.parametrize("p", [1, 2, 5, 16])
def test_the_quadrature_reads_off_the_first_coefficient(p: int) -> None:
    code = get("orthmatdot")(2 * p + 1, Grid(1, p, 1))
    assert np.abs(code.wanted - np.eye(1, 2 * p - 1)).max() < 1e-15
    twin = get("matdot")(2 * p + 1, Grid(1, p, 1), nodes="chebyshev")
    survivors = range(2 * p - 1)
    assert code.weights(survivors) == pytest.approx(twin.weights(survivors), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("p", "published"), [(8, 29.0), (16, 82.0), (20, 114.0), (30, 209.0)])
def test_worst_condition_number_of_one_loss(p: int, published: float) -> None:
    """Over all survivor sets; powers at the same points have 2e5, 3e11, 3e14 and worse."""
    code = get("orthmatdot")(2 * p, Grid(1, p, 1))
    worst = anchors.condition_numbers(code, code.generator).max()
    assert worst == pytest.approx(published, rel=0.01)
    powers = nodes.monomials(nodes.chebyshev(2 * p), np.arange(2 * p - 1))
    assert anchors.condition_numbers(code, powers).max() > 1000 * worst


def test_thirty_blocks_on_sixty_workers() -> None:
    """Below 1e-10 from the worst set, where powers leave nothing."""
    code = get("orthmatdot")(60, Grid(1, 30, 1))
    assert accuracy.Trial(code).error(code.worst_amplification()[1]) < 1e-12
    powers = get("matdot")(60, Grid(1, 30, 1), nodes="equispaced")
    assert powers.worst_amplification()[0] > 1e10


@pytest.mark.parametrize(("p", "measured"), [(9, 3.8e-13), (19, 6.5e-12), (33, 5.5e-11)])
def test_worst_error_of_two_losses(p: int, measured: float) -> None:
    code = get("orthmatdot")(2 * p + 1, Grid(1, p, 1))
    assert accuracy.Trial(code).error(code.worst_amplification()[1]) < 10 * measured
