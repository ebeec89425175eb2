"""Replies of stored matrices: wrong ones are found, honest ones pass."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import codedla
from codedla.engine.stragglers import Fault
from codedla.errors import UsageError

CODES = [
    ("mds", (4, 1)),
    ("uncoded", (6, 1)),
    ("replication", (3, 1)),
    ("matdot", (1, 2, 1)),
    ("rotmatdot", (1, 2, 1)),
    ("circulant", (3, 1)),
    ("short-dot", (3, 1)),
]
DTYPES = ("f4", "f8", "c8", "c16")


def matrix(rng, shape, dtype):
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, (shape[0], 1))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


@pytest.mark.filterwarnings("ignore:rows of A")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(CODES),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 3)),
    st.integers(0, 2**32),
)
def test_honest_workers_are_not_accused(case, dtype, dtype_x, shape, seed):
    code, blocks = case
    rng = np.random.default_rng(seed)
    a = matrix(rng, shape[:2], dtype)
    if seed % 3 == 0:
        a = np.full(shape[:2], 0.1, a.dtype)  # long sums of equal numbers round in one direction
    with (
        codedla.SerialPool(6) as pool,
        codedla.store(a, pool=pool, code=code, blocks=blocks, verify="locate") as stored,
    ):
        for _ in range(2):
            x = matrix(rng, shape[1:], dtype_x)
            y = stored @ x
            assert stored.last_report.wrong == []
            assert stored.last_report.verified == "locate"
            scale = np.linalg.norm(a) * np.linalg.norm(x)
            eps = np.finfo(a.dtype).eps
            assert np.linalg.norm(y - a @ x) <= 1e3 * eps * scale


@pytest.mark.parametrize("how", ["entry", "nan", "scale", "stale"])
@pytest.mark.parametrize(("code", "blocks"), CODES)
@pytest.mark.parametrize("sparse", [False, True])
def test_liars_are_named_and_replaced(code, blocks, how, sparse):
    rng = np.random.default_rng(90127)
    a = sp.random_array((60, 50), density=0.3, rng=rng) if sparse else rng.random((60, 50))
    lies = [Fault("corrupt", worker, 1.0, corruption=how) for worker in (0, 2, 3, 4)]
    with (
        codedla.SerialPool(6, faults=lies) as pool,
        codedla.store(a, pool=pool, code=code, blocks=blocks, verify="locate") as stored,
    ):
        for _ in range(3):
            x = rng.standard_normal(50)
            with pytest.warns(codedla.CodedlaWarning, match="was not used"):
                y = stored @ x
            np.testing.assert_allclose(y, a @ x, atol=1e-11)
            assert set(stored.last_report.wrong) <= {1, 3, 4, 5}
            assert stored.last_report.wrong


def test_vectors_with_nan_are_multiplied_unchecked():
    a = np.eye(6)
    with (
        codedla.SerialPool(3) as pool,
        codedla.store(a, pool=pool, code="uncoded", verify="locate") as stored,
    ):
        x = np.arange(6.0)
        x[2] = np.nan
        np.testing.assert_array_equal(stored @ x, a @ x)
        assert stored.last_report.verified == "off"


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u8", "?", "f2"])
def test_the_extreme_entries_of_narrow_vectors(dtype):
    """The absolute value of -128 is -128 in 8 bits."""
    a = np.random.default_rng(90128).standard_normal((30, 20))
    kind = np.dtype(dtype)
    least = (
        kind.type(0) if kind.kind == "b" else (np.finfo if kind.kind == "f" else np.iinfo)(kind).min
    )
    x = np.full(20, least, dtype)
    with (
        codedla.SerialPool(6) as pool,
        codedla.store(a, pool=pool, tolerate=1, verify="locate") as stored,
    ):
        y = stored @ x
        assert stored.last_report.verified == "locate"
        assert stored.last_report.wrong == []
    expected = a @ x.astype(float)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize(("scale", "scale_x"), [(1e308, 1e-5), (1e200, 1e200)])
def test_products_near_overflow_are_computed_unchecked(scale, scale_x):
    signs = np.sign(np.random.default_rng(90129).standard_normal((30, 20)))
    a, x = signs * scale, np.full(20, scale_x)
    with (
        np.errstate(all="ignore"),
        codedla.SerialPool(6) as pool,
        codedla.store(a, pool=pool, code="replication", verify="locate") as stored,
    ):
        np.testing.assert_array_equal(np.isfinite(stored @ x), np.isfinite(a @ x))
        assert stored.last_report.wrong == []
        assert stored.last_report.verified == "off"


def test_what_cannot_be_verified_is_refused():
    with codedla.SerialPool(3) as pool:
        with pytest.raises(UsageError, match="must be finite"):
            codedla.store(np.full((3, 3), np.inf), pool=pool, code="uncoded", verify="locate")
        with pytest.raises(UsageError, match="'off' or 'locate'; got 'freivalds'"):
            codedla.store(np.eye(3), pool=pool, verify="freivalds")
