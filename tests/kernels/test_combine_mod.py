"""combine_mod against Python's integers and against its NumPy twin."""

from __future__ import annotations

import numpy as np
import pytest

from codedla import _reference, kernels
from codedla.errors import UsageError
from tests.kernels.helpers import check_guard, guarded

WIDTHS = (0, 1, 7, 8, 23, 24, 25, 33, 47, 64, 193, 1031)
BLOCKS = ((1, 1), (1, 9), (3, 2), (9, 9), (10, 4), (19, 11))
PRIMES = (2, 3, 257, 65537, 2_097_143)


def residues(rng, shape, p):
    """Balanced residues, the largest in magnitude among them."""
    half = p // 2
    values = rng.integers(half - p + 1, half + 1, shape)
    values[rng.random(shape) < 0.1] = half
    return values.astype(float)


def exact(W, ins, p, start=0):
    total = [sum(int(w) * x.astype(object) for w, x in zip(row, ins, strict=True)) for row in W]
    return [(s + start) % p for s in total]


def check(got, want, p):
    assert np.array_equal(got, np.rint(got))
    assert np.array_equal(got.astype(np.int64) % p, want.astype(np.int64))
    assert got.size == 0 or (got.max() <= p // 2 and got.min() >= p // 2 - p + 1)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("p", PRIMES)
def test_sums_are_exact(isa, rng, p, accumulate):
    for width in WIDTHS:
        for n_out, n_in in BLOCKS:
            if width > 100 and n_out * n_in > 40:
                continue
            W = residues(rng, (n_out, n_in), p)
            ins = [residues(rng, width, p) for _ in range(n_in)]
            pairs = [guarded((width,), "float64") for _ in range(n_out)]
            twins = [np.zeros(width) for _ in range(n_out)]
            for (out, _), twin in zip(pairs, twins, strict=True):
                out[...] = p // 2
                twin[...] = p // 2
            start = p // 2 if accumulate else 0
            kernels.combine_mod(W, ins, [out for out, _ in pairs], p, accumulate=accumulate)
            _reference.combine_mod(W, ins, twins, float(p), accumulate, 0, 0, width)
            for (out, buffer), twin, want in zip(
                pairs, twins, exact(W, ins, p, start), strict=True
            ):
                check(out, np.asarray(want), p)
                assert np.array_equal(out, twin)
                check_guard(out, buffer)


@pytest.mark.parametrize("p", PRIMES)
def test_the_largest_sums_are_exact(isa, p):
    k = min((2**53 - 1 - 2 * p) // (p // 2) ** 2, 500)
    out = np.empty(100)
    for sign in (1.0, -1.0):
        kernels.combine_mod(
            np.full((1, k), sign * (p // 2)), [np.full(100, float(p // 2))] * k, [out], p
        )
        check(out, np.full(100, int(sign) * k * (p // 2) ** 2 % p), p)


@pytest.mark.parametrize("p", [*PRIMES, 97, 134_217_689])
def test_blocks_are_reduced_in_place_at_every_boundary(isa, p):
    centres = [0, p // 2, p, 3 * p // 2, ((2**53 - 9) // p - 3) * p + p // 2, -7 * p - p // 2]
    whole = (np.array(centres)[:, None] + np.arange(-9, 10)).ravel()
    block = whole.astype(float)
    kernels.combine_mod([[1.0]], [block], [block], p)
    check(block, whole % p, p)


@pytest.mark.parametrize("threads", [1, 2])
def test_column_blocks_and_threads(isa, rng, threads):
    p, width = 65537, 20_000
    A = residues(rng, (3, 3 * width), p)
    C = np.full((3, 2 * width + 5), 77.0)
    ins = [A[:, j * width : (j + 1) * width] for j in range(3)]
    outs = [C[:, :width], C[:, width + 5 :]]
    W = residues(rng, (2, 3), p)
    kernels.combine_mod(W, ins, outs, p, threads=threads)
    for out, row in zip(outs, W.astype(np.int64), strict=True):
        want = sum(w * x.astype(np.int64) for w, x in zip(row, ins, strict=True)) % p
        check(out, want, p)
    assert (C[:, width : width + 5] == 77).all()


def test_no_inputs_and_no_outputs(isa):
    out = np.full(5, 3.0)
    kernels.combine_mod(np.empty((1, 0)), [], [out], 7, accumulate=True)
    assert (out == 3).all()
    kernels.combine_mod(np.empty((1, 0)), [], [out], 7)
    assert (out == 0).all()
    kernels.combine_mod(np.empty((0, 0)), [], [], 7)


def test_what_would_not_be_exact_is_refused():
    block, out = np.zeros(4), np.empty(4)
    with pytest.raises(UsageError, match=r"sums of 3 products .* got p=134217689; use a smaller"):
        kernels.combine_mod([[1, 1, 1]], [block] * 3, [out], 134_217_689)
    with pytest.raises(UsageError, match="2 <= p"):
        kernels.combine_mod([[1]], [block], [out], 1)
    with pytest.raises(UsageError, match="balanced residues, integers of at most 3"):
        kernels.combine_mod([[4]], [block], [out], 7)
    with pytest.raises(UsageError, match="balanced residues"):
        kernels.combine_mod([[0.5]], [block], [out], 7)
    with pytest.raises(UsageError, match="balanced residues"):
        kernels.combine_mod([[np.nan]], [block], [out], 7)
    with pytest.raises(UsageError, match="float64"):
        kernels.combine_mod([[1]], [block.astype(np.float32)], [out], 7)
    with pytest.raises(UsageError, match="shape"):
        kernels.combine_mod([[1]], [np.zeros(3)], [out], 7)
    with pytest.raises(UsageError, match="float64"):
        kernels.combine_mod([[1]], [block], [np.empty(4, np.int64)], 7)
    with pytest.raises(UsageError, match="NumPy array"):
        kernels.combine_mod([[1]], [block], [[0.0] * 4], 7)
