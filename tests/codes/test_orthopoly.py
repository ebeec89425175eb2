"""OrthoPoly at the configurations of the literature."""

from __future__ import annotations

import anchors
import numpy as np
import pytest

from codedla import nodes
from codedla.blocks import Grid
from codedla.codes import get

PUBLISHED = [a for a in anchors.ANCHORS if a.code == "orthopoly" and a.workers < 31]


@pytest.mark.parametrize("anchor", PUBLISHED, ids=lambda a: f"n={a.workers}")
def test_condition_numbers_of_every_survivor_set(anchor: anchors.Anchor) -> None:
    row = anchors.measure(anchor)
    assert row["worst"] == pytest.approx(anchor.worst, rel=0.05)
    assert row["mean"] == pytest.approx(anchor.mean, rel=0.05)


def test_the_worst_and_the_mean_of_ramamoorthy_and_tang() -> None:
    """n = 31, k_A = 4, k_B = 7: 6.06e5 and 1.26e3 over 4,495 sets."""
    anchor = next(a for a in anchors.ANCHORS if a.code == "orthopoly" and a.workers == 31)
    row = anchors.measure(anchor)
    assert row["sets"] == 4495
    assert row["worst"] == pytest.approx(6.06e5, rel=0.01)
    assert row["mean"] == pytest.approx(1.26e3, rel=0.01)
    # Normalised as here the figures are a little better still.
    code = anchor.make()
    assert anchors.condition_numbers(code, code.generator).max() < row["worst"]


def test_products_of_factors_span_all_degrees() -> None:
    """The replies determine the coefficients of every polynomial of degree below m n."""
    code = get("orthopoly")(13, Grid(3, 1, 4))
    place = nodes.spread(13, 1)
    basis = nodes.chebyshev_basis(place, np.arange(12), 13)
    change = np.linalg.lstsq(basis, code.generator, rcond=None)[0]
    assert np.abs(basis @ change - code.generator).max() < 1e-13
    assert np.linalg.matrix_rank(change) == 12
