"""combine, fold and stream_copy against their NumPy twins and against extended precision."""

from __future__ import annotations

import numpy as np
import pytest

from codedla import _reference, kernels
from tests.kernels.helpers import DTYPES, POISON, check_guard, close, guarded, numbers, weights

# Around a vector, a chunk and a cache line of every instruction set.
WIDTHS = (0, 1, 2, 7, 8, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 193, 4099)
BLOCKS = ((1, 1), (1, 9), (2, 3), (3, 2), (5, 7), (9, 9), (10, 4), (19, 11))
BIG = 120_011  # three float64 outputs of this width are streamed
TYPES = [(dtype, False) for dtype in DTYPES] + [("complex64", True), ("complex128", True)]


def exact(W, ins, shape):
    """Sum in extended precision, term by term."""
    wide = np.clongdouble if any(a.dtype.kind == "c" for a in (W, *ins)) else np.longdouble
    total = [np.zeros(shape, wide) for _ in range(W.shape[0])]
    for i, row in enumerate(W):
        for weight, block in zip(row, ins, strict=True):
            total[i] += wide(weight) * block.astype(wide)
    return total


def test_twin_agrees_with_extended_precision(rng):
    for dtype, complex_weights in TYPES:
        W = weights(rng, (4, 6), complex_weights)
        ins = [numbers(rng, 5000, dtype) for _ in range(6)]
        outs = [np.empty(5000, dtype) for _ in range(4)]
        _reference.combine(W, ins, outs, False, 0, 0, 5000)
        for out, want in zip(outs, exact(W, ins, 5000), strict=True):
            close(out, want.astype(dtype), 6, scale=8)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
def test_combine_matches_twin(isa, rng, dtype, complex_weights, accumulate):
    for width in WIDTHS:
        for n_out, n_in in BLOCKS:
            if width > 1000 and n_out * n_in > 30:
                continue
            W = weights(rng, (n_out, n_in), complex_weights)
            ins = [numbers(rng, width, dtype) for _ in range(n_in)]
            for block in ins:
                block.flags.writeable = False
            pairs = [guarded((width,), dtype) for _ in range(n_out)]
            want = [guarded((width,), dtype)[0] for _ in range(n_out)]
            kernels.combine(W, ins, [out for out, _ in pairs], accumulate=accumulate)
            _reference.combine(W, ins, want, accumulate, 0, 0, width)
            for (out, buffer), expected in zip(pairs, want, strict=True):
                close(out, expected, n_in, scale=20)
                check_guard(out, buffer)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
def test_streamed_outputs_of_any_alignment(isa, rng, dtype, complex_weights, threads):
    width = BIG * 16 // np.dtype(dtype).itemsize
    W = weights(rng, (3, 4), complex_weights)
    ins = [numbers(rng, width, dtype) for _ in range(4)]
    want = [np.empty(width, dtype) for _ in range(3)]
    _reference.combine(W, ins, want, False, 0, 0, width)
    for offsets in ((0, 0, 0), (1, 1, 1), (2, 2, 2), (5, 5, 5), (0, 3, 6), (8, 0, 16)):
        pairs = [guarded((width,), dtype, offset) for offset in offsets]
        kernels.combine(W, ins, [out for out, _ in pairs], threads=threads)
        for (out, buffer), expected, offset in zip(pairs, want, offsets, strict=True):
            close(out, expected, 4, scale=20)
            check_guard(out, buffer, offset)


@pytest.mark.parametrize("k", [0, 1, 64, 180, 181, 200])
def test_many_inputs(isa, rng, k):
    W = rng.standard_normal((13, k))
    ins = [rng.standard_normal(77) for _ in range(k)]
    outs = [np.full(77, np.nan) for _ in range(13)]
    kernels.combine(W, ins, outs)
    for out, want in zip(outs, exact(W, ins, 77), strict=True):
        close(out, want.astype(float), k, scale=10)


def test_no_inputs_accumulate_nothing(isa):
    out = np.full(5, 3.0)
    kernels.combine(np.empty((1, 0)), [], [out], accumulate=True)
    assert (out == 3).all()
    kernels.combine(np.empty((1, 0)), [], [out])
    assert (out == 0).all()


def test_no_outputs(isa):
    kernels.combine(np.empty((0, 2)), [np.ones(3), np.ones(3)], [])
    kernels.combine(np.empty((0, 0)), [], [])
    kernels.fold([], [], np.ones(3))
    kernels.stream_copy([], [])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (7, 1), (13, 33), (40, 100), (3, 70_000)])
def test_column_blocks_of_matrices(isa, rng, dtype, rows, width, threads):
    """Column blocks are read and written where they lie; the gap between them is not touched."""
    A = numbers(rng, (rows, 3 * width), dtype)
    C = np.full((rows, 2 * width + 3), POISON, dtype)
    ins = [A[:, j * width : (j + 1) * width] for j in range(3)]
    outs = [C[:, :width], C[:, width + 3 :]]
    before = A.copy()
    W = rng.standard_normal((2, 3))
    kernels.combine(W, ins, outs, threads=threads)
    for out, want in zip(outs, exact(W, ins, (rows, width)), strict=True):
        close(out, want.astype(dtype), 3, scale=10)
    kernels.combine(W, ins, outs, accumulate=True, threads=threads)
    for out, want in zip(outs, exact(2 * W, ins, (rows, width)), strict=True):
        close(out, want.astype(dtype), 6, scale=20)
    assert (C[:, width : width + 3] == POISON).all()
    assert (before == A).all()


@pytest.mark.parametrize(
    "awkward",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: a[:, ::-1].copy()[:, ::-1],
    ],
    ids=["fortran", "every second column", "rows reversed", "columns reversed"],
)
@pytest.mark.parametrize("accumulate", [False, True])
def test_other_layouts_are_copied(isa, rng, awkward, accumulate):
    plain = [rng.standard_normal((6, 11)) for _ in range(3)]
    W = rng.standard_normal((2, 3))
    outs = [awkward(np.full((6, 11), 2.0)) for _ in range(2)]
    kernels.combine(W, [awkward(block) for block in plain], outs, accumulate=accumulate)
    for out, want in zip(outs, exact(W, plain, (6, 11)), strict=True):
        close(out, (want + (2 if accumulate else 0)).astype(float), 3, scale=10)
    accs = [awkward(np.full((6, 11), 2.0)) for _ in range(2)]
    kernels.fold(accs, W[:, 0], awkward(plain[0]))
    for acc, weight in zip(accs, W[:, 0], strict=True):
        close(acc, 2 + weight * plain[0], 1, scale=10)


def test_bytes_that_are_not_aligned(isa, rng):
    raw = np.zeros(8 * 50 + 1, np.uint8)[1:].view(np.float64)
    assert not raw.flags.aligned
    block = rng.standard_normal(50)
    kernels.combine([[2.0]], [block], [raw])
    assert (raw == 2 * block).all()
    kernels.combine([[0.5]], [raw], [block])
    assert (raw == 2 * block).all()


def test_repeated_rows(isa):
    """Stride 0 and overlapping rows are fine for inputs."""
    row = np.arange(9.0)
    repeated = np.broadcast_to(row, (4, 9))
    sliding = np.lib.stride_tricks.sliding_window_view(np.arange(12.0), 9)
    out = np.empty((4, 9))
    kernels.combine([[1.0, 10.0]], [repeated, sliding], [out])
    assert (out == repeated + 10 * sliding).all()


@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
def test_nan_and_inf_go_where_the_twin_puts_them(isa, rng, dtype, complex_weights):
    width, n_out, n_in = 97, 7, 5
    W = weights(rng, (n_out, n_in), complex_weights)
    W[2, 3] = 0  # zero times infinity is NaN, not nothing
    ins = [numbers(rng, width, dtype) for _ in range(n_in)]
    ins[0][3], ins[1][3], ins[3][40], ins[2][96], ins[4][0] = (
        np.inf,
        -np.inf,
        np.inf,
        np.nan,
        -np.inf,
    )
    outs = [np.empty(width, dtype) for _ in range(n_out)]
    want = [np.empty(width, dtype) for _ in range(n_out)]
    with np.errstate(invalid="ignore"):
        kernels.combine(W, ins, outs)
        _reference.combine(W, ins, want, False, 0, 0, width)
    for out, expected in zip(outs, want, strict=True):
        for got, right in ((out.real, expected.real), (out.imag, expected.imag)):
            assert (np.isnan(got) == np.isnan(right)).all()
            infinite = np.isinf(right)
            assert (got[infinite] == right[infinite]).all()
            assert (np.isfinite(got) == np.isfinite(right)).all()
    assert np.isnan(outs[2][40].real)


def test_unit_weights_copy_exactly(isa, rng):
    """A plain share of a systematic code keeps every bit."""
    ins = [rng.standard_normal(1000) * 10.0**power for power in (-300, 0, 300)]
    outs = [np.empty(1000) for _ in range(3)]
    kernels.combine(np.eye(3), ins, outs)
    for out, block in zip(outs, ins, strict=True):
        assert (out == block).all()


def test_small_integers_are_exact(isa, rng):
    W = rng.integers(-9, 9, (11, 30))
    stacked = rng.integers(-999, 999, (30, 500)).astype(float)
    outs = list(np.empty((11, 500)))
    kernels.combine(W, list(stacked), outs)
    assert (np.stack(outs) == W @ stacked).all()


@pytest.mark.parametrize(("dtype", "complex_weights"), TYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_fold_matches_twin(isa, rng, dtype, complex_weights, threads):
    for width in (0, 1, 7, 31, 33, 64, 4099, 70_001):
        for s in (1, 2, 3, 4, 5, 9):
            if width > 5000 and s > 3:
                continue
            w = weights(rng, s, complex_weights)
            block = numbers(rng, width, dtype)
            block.flags.writeable = False
            pairs = [guarded((width,), dtype, offset=3) for _ in range(s)]
            want = [guarded((width,), dtype)[0] for _ in range(s)]
            kernels.fold([acc for acc, _ in pairs], w, block, threads=threads)
            _reference.fold(want, w, block, 0, 0, width)
            for (acc, buffer), expected in zip(pairs, want, strict=True):
                close(acc, expected, 2, scale=80)
                check_guard(acc, buffer, offset=3)


def test_fold_into_column_blocks(isa, rng):
    C = np.zeros((9, 40))
    block = rng.standard_normal((9, 60))[:, 20:40]
    kernels.fold([C[:, :20], C[:, 20:]], [1.0, -2.0], block)
    assert (C[:, :20] == block).all()
    assert (C[:, 20:] == -2 * block).all()


def test_folds_add_up_to_one_combine(isa, rng):
    ins = [rng.standard_normal(513) for _ in range(8)]
    W = rng.standard_normal((3, 8))
    accs, outs = list(np.zeros((3, 513))), list(np.empty((3, 513)))
    for j, block in enumerate(ins):
        kernels.fold(accs, W[:, j], block)
    kernels.combine(W, ins, outs)
    for acc, out in zip(accs, outs, strict=True):
        close(acc, out, 8, scale=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [0, 1, 33, 4099, BIG])
def test_stream_copy(isa, rng, dtype, width):
    ins = [numbers(rng, width, dtype) for _ in range(2)]
    pairs = [guarded((width,), dtype, offset) for offset in (0, 5)]
    kernels.stream_copy(ins, [out for out, _ in pairs], threads=2)
    for (out, buffer), block, offset in zip(pairs, ins, (0, 5), strict=True):
        assert (out == block).all()
        check_guard(out, buffer, offset)


def test_stream_copy_of_column_blocks(isa, rng):
    A, C = rng.standard_normal((5, 90)), np.full((5, 90), np.nan)
    kernels.stream_copy([A[:, 45:]], [C[:, :45]])
    assert (C[:, :45] == A[:, 45:]).all()
    assert np.isnan(C[:, 45:]).all()


def test_instruction_sets_agree(rng):
    """The same sums in the same order: only fused rounding may differ."""
    W = rng.standard_normal((5, 40))
    ins = [rng.standard_normal(999) for _ in range(40)]
    results = []
    for name in kernels.available_instruction_sets():
        with kernels.using_instruction_set(name):
            outs = list(np.empty((5, 999)))
            kernels.combine(W, ins, outs)
            results.append(np.stack(outs))
    for result in results:
        close(result, results[0], 40, scale=5)
