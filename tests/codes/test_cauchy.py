"""Cauchy parities: never singular, and as weak as they are said to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get


@pytest.mark.parametrize("nodes", ["spread", "classical"])
def test_minors_have_the_determinant_of_the_closed_form(nodes: str) -> None:
    code = get("cauchy")(9, Grid(5, 1, 1), nodes=nodes)
    parity = code.generator_a[5:]
    if nodes == "classical":
        x, y = 5.0 + np.arange(4), np.arange(5.0)
    else:
        x, y = np.array([1.0, 3, 5, 7]), np.array([0.0, 2, 4, 6, 8])
    scale = parity[:, 0] * (x - y[0])
    for rows in itertools.combinations(range(4), 2):
        for columns in itertools.combinations(range(5), 2):
            (a, b), (c, d) = x[list(rows)], y[list(columns)]
            closed = (b - a) * (c - d) / ((a - c) * (a - d) * (b - c) * (b - d))
            minor = np.linalg.det(parity[np.ix_(rows, columns)])
            assert minor == pytest.approx(closed * scale[list(rows)].prod())


def test_it_is_the_weak_choice() -> None:
    """Measured: 36 blocks, 5 losses - spread points lose 6 digits, classical ones 12, mds 4."""
    grid = Grid(36, 1, 1)
    spread = get("cauchy")(41, grid).worst_amplification()[0]
    classical = get("cauchy")(41, grid, nodes="classical").worst_amplification()[0]
    best = get("mds")(41, grid).worst_amplification()[0]
    assert 1e5 < spread < 1e7 and classical > 1e11
    assert best < spread / 10
