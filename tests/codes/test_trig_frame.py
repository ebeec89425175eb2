"""The trigonometric frame has the condition numbers of the roots of unity, in real numbers."""

from __future__ import annotations

import anchors
import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get


def test_published_condition_numbers() -> None:
    """n = 31, k = 29: 55 at worst and 12.4 on average over all 465 survivor sets."""
    anchor = next(a for a in anchors.ANCHORS if a.code == "trig-frame")
    row = anchors.measure(anchor)
    assert row["sets"] == 465
    assert row["worst"] == pytest.approx(55.0, rel=0.01)
    assert row["mean"] == pytest.approx(12.4, rel=0.02)


@pytest.mark.parametrize(("workers", "blocks"), [(7, 4), (9, 5), (10, 8), (12, 7)])
def test_the_same_as_complex_roots_of_unity(workers: int, blocks: int) -> None:
    frame = get("trig-frame")(workers, Grid(blocks, 1, 1))
    unity = get("mds")(workers, Grid(blocks, 1, 1), nodes="unity")
    real = anchors.condition_numbers(frame, frame.generator)
    assert frame.field == "real" and unity.field == "complex"
    assert real == pytest.approx(anchors.condition_numbers(unity, unity.generator), rel=1e-9)


def test_all_shares_are_of_one_size() -> None:
    code = get("trig-frame")(11, Grid(6, 1, 1))
    assert np.linalg.norm(code.generator_a, axis=1) == pytest.approx(np.sqrt(6))
    assert code.generator_a.T @ code.generator_a == pytest.approx(11 * np.eye(6))


@pytest.mark.parametrize(("k", "worst"), [(16, 24), (36, 75), (64, 171)])
def test_two_losses(k: int, worst: float) -> None:
    """Worst condition number by two losses, measured independently."""
    code = get("trig-frame")(k + 2, Grid(k, 1, 1))
    assert anchors.condition_numbers(code, code.generator).max() == pytest.approx(worst, rel=0.02)
