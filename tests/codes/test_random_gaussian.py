"""The random Gaussian frame."""

from __future__ import annotations

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get


@pytest.mark.parametrize("nodes", ["frame", "systematic"])
def test_rows_have_the_scale_of_the_data(nodes: str) -> None:
    code = get("random-gaussian")(18, Grid(16, 1, 1), nodes=nodes)
    coded = code.generator_a[16:] if nodes == "systematic" else code.generator_a
    assert np.linalg.norm(coded, axis=1) == pytest.approx(4.0)
    assert code.systematic == (nodes == "systematic")


def test_entries_are_no_orthonormal_columns() -> None:
    rows = get("random-gaussian")(40, Grid(20, 1, 1)).generator_a
    gram = rows.T @ rows / 40
    assert np.abs(gram - np.eye(20)).max() > 0.2
    other = get("orthonormal")(40, Grid(20, 1, 1)).generator_a
    assert np.abs(other.T @ other / 40 - np.eye(20)).max() < 0.2


def test_the_best_draw_is_better_than_most() -> None:
    """At most as bad as known for the best of twelve draws, within a factor of ten."""
    assert get("random-gaussian")(18, Grid(16, 1, 1)).worst_amplification()[0] < 9e2
    systematic = get("random-gaussian")(18, Grid(16, 1, 1), nodes="systematic")
    assert systematic.worst_amplification()[0] < 4.6e2
