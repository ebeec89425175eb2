"""Norms of numbers whose squares leave the range."""

import numpy as np
import pytest

from codedla.engine.norms import column_norms, norm, unit


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("share", [0.0, 0.75, 0.9, -0.75, -0.9])
def test_norms_follow_the_scale(dtype, share):
    # From the middle of the range towards its ends.
    precision = np.finfo(dtype)
    end = precision.max if share > 0 else precision.smallest_normal
    scale = precision.dtype.type(float(end) ** abs(share))
    drawn = np.random.default_rng(5).standard_normal((50, 3)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        drawn = drawn * np.array(0.6 + 0.8j, dtype)
    plain = np.linalg.norm(drawn.astype(np.complex128), axis=0)
    scaled = drawn * scale
    np.testing.assert_allclose(column_norms(scaled) / float(scale), plain, rtol=1e-5)
    assert norm(scaled) / float(scale) == pytest.approx(float(np.linalg.norm(plain)), rel=1e-5)
    made = unit(scaled[:, 0])
    assert made.dtype == drawn.dtype
    np.testing.assert_allclose(made, drawn[:, 0] / plain[0], rtol=1e-5)


def test_norms_of_nothing_and_of_what_is_not_finite():
    assert norm(np.zeros(0)) == 0.0
    assert norm(np.zeros((3, 2))) == 0.0
    assert column_norms(np.zeros((0, 2))).tolist() == [0.0, 0.0]
    assert column_norms(np.zeros((2, 0))).tolist() == []
    found = column_norms(np.array([[1.0, np.inf, np.nan, 3.0], [2.0, 0.0, 1.0, -4.0]]))
    assert found[1] == np.inf
    assert np.isnan(found[2])
    assert found[3] == 5.0


def test_complex_numbers_whose_modulus_leaves_single_precision():
    z = np.array([3e38 + 3e38j, 0], np.complex64)
    assert norm(z) == pytest.approx(3e38 * 2**0.5)
    assert unit(z).dtype == np.complex64
    np.testing.assert_allclose(unit(z), [(1 + 1j) / 2**0.5, 0], rtol=1e-6)
