"""One task: a product in panels that can be stopped between them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from codedla.engine import work
from codedla.engine.work import multiply

SHAPES = [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (300, 40, 500), (129, 7, 257), (500, 3, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("panel", [1.0, 1e4, 2e8])
@pytest.mark.parametrize("kinds", ["dd", "sd", "ds", "ss"])
def test_panels_make_up_the_product(shape, panel, kinds, monkeypatch):
    monkeypatch.setattr(work, "PANEL_FLOPS", panel)
    rng = np.random.default_rng(10009)
    m, inner, n = shape
    a = rng.integers(-5, 5, (m, inner)).astype(float)
    b = rng.integers(-5, 5, (inner, n)).astype(float)
    out = np.full((m, n), np.nan)
    left, right = (
        sp.csr_array(x) if kind == "s" else x for x, kind in zip((a, b), kinds, strict=True)
    )
    assert multiply(left, right, out)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("sparse", [False, True])
def test_it_stops_between_panels(sparse, monkeypatch):
    monkeypatch.setattr(work, "PANEL_FLOPS", 1.0)
    a, b, out = np.ones((1000, 10)), np.ones((10, 4)), np.zeros((1000, 4))
    asked = []

    def carry_on():
        asked.append(int(out[:, 0].sum()))
        return len(asked) < 3

    assert not multiply(sp.csr_array(a) if sparse else a, b, out, carry_on)
    assert len(asked) == 3
    assert asked[0] == 0 < asked[1] < asked[2]
    assert 0 < np.count_nonzero(out[:, 0]) < 1000


@pytest.mark.parametrize("smallest", [(work.MIN_ROWS, work.MIN_COLS), (1, 64)])
@pytest.mark.parametrize("flops", [2e9, 2e7])
def test_a_panel_is_bounded_and_not_small(flops, smallest):
    for rows, inner, cols in (
        (10, 10, 10),
        (4000, 4000, 4000),
        (10**5, 10, 10**5),
        (300, 10**5, 7),
    ):
        height, width = work._panel(rows, inner, cols, flops, smallest)
        size = 2.0 * height * inner * min(width, cols)
        assert size <= 2 * max(flops, 2.0 * inner * smallest[0] * smallest[1])
        assert height == rows or height >= smallest[0]
        assert width >= min(cols, smallest[1])
