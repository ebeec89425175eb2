"""Single-precision blocks summed in double precision: against the twin and the exact sum."""

from __future__ import annotations

import numpy as np
import pytest

from codedla import _reference, kernels
from tests.kernels.helpers import check_guard, guarded, numbers, weights
from tests.kernels.test_combine import BIG, BLOCKS, WIDTHS, exact

TYPES = [("float32", False), ("complex64", False), ("complex64", True)]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
def test_rounded_once(isa, rng, dtype, complex_weights, accumulate):
    """Within half a unit in the last place of the exact sum, however its terms cancel."""
    for width in WIDTHS:
        for n_out, n_in in BLOCKS:
            if width > 1000 and n_out * n_in > 30:
                continue
            W = weights(rng, (n_out, n_in), complex_weights)
            ins = [numbers(rng, width, dtype) for _ in range(n_in)]
            pairs = [guarded((width,), dtype) for _ in range(n_out)]
            before = [out.copy() for out, _ in pairs]
            kernels.combine(W, ins, [out for out, _ in pairs], accumulate=accumulate, wide=True)
            _reference.combine_wide(W, ins, before, accumulate, 0, 0, width)
            start = guarded((width,), dtype)[0]
            total = exact(W, ins, (width,))
            for (out, buffer), twin, want in zip(pairs, before, total, strict=True):
                whole = want + start.astype(want.dtype) if accumulate else want
                for part in (np.real, np.imag):
                    error = abs(part(out) - part(whole))
                    ulp = np.spacing(abs(part(whole)).astype(np.float32))
                    assert (error <= 0.5001 * ulp + 1e-13).all()
                    np.testing.assert_allclose(part(out), part(twin), rtol=1.3e-7, atol=1e-13)
                check_guard(out, buffer)


@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
def test_streamed_and_strided(isa, rng, dtype, complex_weights):
    width = BIG * 16 // np.dtype(dtype).itemsize // 8
    A, C = numbers(rng, (8, 3 * width), dtype), np.zeros((8, 2 * width + 5), dtype)
    W = weights(rng, (2, 3), complex_weights)
    ins = [A[:, j * width : (j + 1) * width] for j in range(3)]
    outs = [C[:, :width], C[:, width + 5 :]]
    want = [np.empty_like(out) for out in outs]
    _reference.combine_wide(W, ins, want, False, 0, 0, width)
    for threads in (1, 2, 3):
        C[...] = 0
        kernels.combine(W, ins, outs, wide=True, threads=threads)
        if threads == 1:
            first = C.copy()
        elif isa != "numpy":  # BLAS may sum in another order at an edge
            np.testing.assert_array_equal(C, first)
    assert (C[:, width : width + 5] == 0).all()
    for out, expected in zip(outs, want, strict=True):
        np.testing.assert_allclose(out, expected, rtol=1.3e-7, atol=1e-6)


def test_double_precision_is_summed_as_ever(rng):
    W = weights(rng, (2, 3), False)
    ins = [numbers(rng, 100, "float64") for _ in range(3)]
    plain, wide = ([np.empty(100) for _ in range(2)] for _ in range(2))
    kernels.combine(W, ins, plain)
    kernels.combine(W, ins, wide, wide=True)
    np.testing.assert_array_equal(plain, wide)


def test_too_large_for_single_precision_is_infinite(isa):
    out = np.zeros(3, np.float32)
    kernels.combine(np.array([[1e10]]), [np.full(3, 1e30, np.float32)], [out], wide=True)
    assert np.isposinf(out).all()
    kernels.combine(np.array([[1e10]]), [np.full(3, np.nan, np.float32)], [out], wide=True)
    assert np.isnan(out).all()
