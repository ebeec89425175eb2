"""Shares against an explicitly padded reference, for every memory layout and sparse format."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from codedla.blocks import Split
from codedla.engine.encoder import DenseEncoder, SparseEncoder, make_encoder

SHAPES = [(6, 4), (7, 5), (1, 1), (2, 9), (13, 3), (0, 3), (3, 0), (5, 97)]
GRIDS = [(1, 1), (2, 1), (1, 3), (3, 2), (4, 4)]


def padded_share(matrix, rows, cols, weights, dtype):
    """Sum of the zero-padded blocks, by the definition."""
    share = np.zeros((rows.size, cols.size), dtype)
    for u, weight in enumerate(weights):
        i, j = divmod(u, cols.parts)
        block = matrix[rows.slice(i), cols.slice(j)]
        share[: block.shape[0], : block.shape[1]] += (weight * block).astype(dtype)
    return share


LAYOUTS = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "row stride": lambda a: np.repeat(a, 2, axis=0)[::2],
    "column stride": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed rows": lambda a: a[::-1].copy()[::-1],
    "reversed columns": lambda a: a[:, ::-1].copy()[:, ::-1],
    "transposed twice": lambda a: np.ascontiguousarray(a.T).T,
    "sub-matrix": lambda a: np.pad(a, 2)[2:-2, 2:-2],
    "misaligned": lambda a: misaligned(a),
    "field of records": lambda a: field_of_records(a),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


def misaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:]
    view = raw.view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def field_of_records(a):
    """Rows lie a number of bytes apart that is no multiple of the item size."""
    records = np.zeros(a.shape[0], [("row", a.dtype, a.shape[1:]), ("tag", "i1")])
    records["row"] = a
    return records["row"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int64])
def test_dense(layout, dtype):
    rng = np.random.default_rng(40009)
    for shape in SHAPES:
        values = rng.integers(-9, 9, shape).astype(dtype)
        matrix = LAYOUTS[layout](values)
        np.testing.assert_array_equal(matrix, values)
        matrix.setflags(write=False)
        for parts in GRIDS:
            rows, cols = Split(shape[0], parts[0]), Split(shape[1], parts[1])
            encoder = make_encoder(matrix, rows, cols, np.dtype(dtype))
            assert isinstance(encoder, DenseEncoder)
            weights = rng.integers(-3, 4, parts[0] * parts[1]).astype(float)
            share = encoder.coded(weights)
            assert share.dtype == dtype
            assert share.dtype.isnative
            np.testing.assert_array_equal(share, padded_share(values, rows, cols, weights, dtype))
            for block in range(parts[0] * parts[1]):
                i, j = divmod(block, parts[1])
                plain = encoder.plain(block)
                assert plain.dtype == dtype
                np.testing.assert_array_equal(plain, values[rows.slice(i), cols.slice(j)])
        np.testing.assert_array_equal(matrix, values)


@pytest.mark.parametrize("order", ["C", "F"])
def test_plain_blocks_are_views(order):
    matrix = np.asarray(np.arange(42.0).reshape(6, 7), order=order)
    encoder = make_encoder(matrix, Split(6, 2), Split(7, 3), np.dtype(float))
    assert all(np.shares_memory(encoder.plain(block), matrix) for block in range(6))


def test_no_weight_is_a_share_of_zeros():
    encoder = make_encoder(np.ones((5, 4)), Split(5, 2), Split(4, 1), np.dtype(float))
    np.testing.assert_array_equal(encoder.coded(np.zeros(2)), np.zeros((3, 4)))


def test_complex_weights():
    rng = np.random.default_rng(30011)
    matrix, weights = rng.standard_normal((7, 5)), rng.standard_normal(3) * (1 + 2j)
    rows, cols = Split(7, 3), Split(5, 1)
    encoder = make_encoder(matrix, rows, cols, np.dtype(complex))
    expected = padded_share(matrix, rows, cols, weights, complex)
    np.testing.assert_allclose(encoder.coded(weights), expected, rtol=1e-14)


def test_a_memory_map_is_read_not_changed(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(35.0).reshape(7, 5))
    matrix = np.load(tmp_path / "a.npy", mmap_mode="r")
    encoder = make_encoder(matrix, Split(7, 2), Split(5, 1), np.dtype(float))
    np.testing.assert_array_equal(encoder.coded(np.ones(2))[3], matrix[3])


FORMATS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_sparse(fmt, kind):
    rng = np.random.default_rng(20011)
    for shape in [(6, 4), (7, 5), (13, 3), (40, 30)]:
        values = rng.integers(-9, 9, shape) * (rng.random(shape) < 0.15)
        matrix = kind(values.astype(float)).asformat(fmt)
        for parts in GRIDS:
            rows, cols = Split(shape[0], parts[0]), Split(shape[1], parts[1])
            encoder = make_encoder(matrix, rows, cols, np.dtype(float))
            assert isinstance(encoder, SparseEncoder)
            weights = rng.integers(-3, 4, parts[0] * parts[1]).astype(float)
            share = encoder.coded(weights)
            dense = share if isinstance(share, np.ndarray) else share.toarray()
            np.testing.assert_array_equal(dense, padded_share(values, rows, cols, weights, float))
            for block in range(parts[0] * parts[1]):
                i, j = divmod(block, parts[1])
                plain = encoder.plain(block)
                assert plain.format == "csr"
                np.testing.assert_array_equal(plain.toarray(), values[rows.slice(i), cols.slice(j)])


def test_sparse_duplicates_are_summed_in_a_copy():
    data, rows, cols = np.array([1.0, 2.0, 4.0, -4.0]), [0, 0, 2, 2], [1, 1, 0, 0]
    starts, by_column = np.array([0, 2, 2, 4]), np.array([4.0, -4.0, 1.0, 2.0])
    for matrix in (
        sp.coo_array((data, (rows, cols)), shape=(3, 2)),
        sp.csr_array((data, np.array(cols), starts), shape=(3, 2)),
        sp.csc_array((by_column, np.array([2, 2, 0, 0]), np.array([0, 2, 4])), shape=(3, 2)),
    ):
        encoder = make_encoder(matrix, Split(3, 2), Split(2, 1), np.dtype(float))
        np.testing.assert_array_equal(encoder.plain(0).toarray(), [[0, 3], [0, 0]])
        np.testing.assert_array_equal(encoder.plain(1).toarray(), [[0, 0]])
        assert matrix.nnz == 4


def test_large_integers_stay_exact_in_sparse_shares():
    entries = np.array([2**60 + 1, -(2**62) + 3, 5, 2**53 + 1])
    matrix = sp.csr_array((entries, ([0, 3, 1, 2], [0, 0, 1, 1])), shape=(4, 2))
    encoder = make_encoder(matrix, Split(4, 2), Split(2, 1), np.dtype(np.int64))
    share = encoder.coded(np.array([1.0, 1.0]))
    dense = share if isinstance(share, np.ndarray) else share.toarray()
    exact = matrix.toarray()
    np.testing.assert_array_equal(dense, exact[:2] + exact[2:])


def test_full_shares_of_sparse_operands_turn_dense():
    rng = np.random.default_rng(10007)
    thick = sp.csr_array(rng.random((20, 20)) * (rng.random((20, 20)) < 0.4))
    thin = sp.csr_array(([1.0], ([3], [4])), shape=(20, 20))
    split = Split(20, 4), Split(20, 1), np.dtype(float)
    assert isinstance(make_encoder(thick, *split).coded(np.ones(4)), np.ndarray)
    assert make_encoder(thin, *split).coded(np.ones(4)).format == "csr"
    assert make_encoder(thin, *split).coded(np.zeros(4)).nnz == 0


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 97])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 8])
def test_splits(length, parts):
    split = Split(length, parts)
    sizes = [piece.stop - piece.start for piece in split.slices]
    assert [i for piece in split.slices for i in range(piece.start, piece.stop)] == list(
        range(length)
    )
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert split.size == max(sizes)
    assert split.slice(parts - 1) == split.slices[-1]


@pytest.mark.parametrize("layout", ["C", "F", "sub-matrix", "csr", "csc"])
@pytest.mark.parametrize(("count", "across"), [(4, 2), (6, 3), (3, 1), (2, 2), (1, 1)])
@pytest.mark.parametrize("filled", [0.2, 1.0])
def test_stacks(layout, count, across, filled):
    """Combinations beside and below each other, of the same blocks or of different ones."""
    rng = np.random.default_rng([40013, count, across])
    for shape in SHAPES:
        values = rng.standard_normal(shape)
        matrix = LAYOUTS[layout](values) if layout in LAYOUTS else sp.csr_array(values)
        if layout == "csc":
            matrix = matrix.tocsc()
        for m, n in GRIDS:
            rows, cols = Split(shape[0], m), Split(shape[1], n)
            weights = rng.standard_normal((count, m * n)) * (rng.random((count, m * n)) < filled)
            share = make_encoder(matrix, rows, cols, np.dtype(float)).coded(weights, across)
            whole = share if isinstance(share, np.ndarray) else share.toarray()
            parts = [padded_share(values, rows, cols, row, float) for row in weights]
            grid = [parts[start : start + across] for start in range(0, count, across)]
            np.testing.assert_allclose(whole, np.block(grid), rtol=0, atol=1e-13)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_what_is_under_way_goes_on_while_a_large_share_is_made(monkeypatch, layout):
    """In bands, which change no bit of the share."""
    monkeypatch.setattr("codedla.engine.encoder.BAND_BYTES", 4 << 20)
    a = LAYOUTS[layout](np.random.default_rng(7).standard_normal((2048, 1030)))
    weights = np.array([[1.0, 0.25], [1.0, -2.0]])
    splits = Split(2048, 2), Split(1030, 1)
    encoder = DenseEncoder(a, *splits, a.dtype)
    calls = []
    encoder.meanwhile = lambda: calls.append(1)
    share = encoder.coded(weights)
    assert 4 <= len(calls) <= 64
    expected = [sum(w * a[i * 1024 : (i + 1) * 1024] for i, w in enumerate(row)) for row in weights]
    np.testing.assert_array_equal(share, np.vstack(expected))
