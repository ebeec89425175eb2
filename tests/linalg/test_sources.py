"""Operands that are read by ranges: every kind of file gives what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from codedla.cli.files import inspect
from codedla.engine.facts import scan
from codedla.errors import UsageError
from codedla.linalg import sources
from codedla.linalg.sources import as_source, survey

SHAPE = (57, 43)
RANGES = [((0, 57), (0, 43)), ((3, 20), (0, 43)), ((0, 57), (5, 9)), ((50, 57), (42, 43))]


@pytest.fixture
def matrix():
    return np.random.default_rng(14142).standard_normal(SHAPE)


def npy(folder, matrix):
    np.save(folder / "A.npy", matrix)
    return str(folder / "A.npy")


def fortran(folder, matrix):
    return npy(folder, np.asfortranarray(matrix))


def big_endian(folder, matrix):
    return npy(folder, matrix.astype(">f8"))


def hdf5(folder, matrix, **how):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "A.h5", "w") as file:
        file.create_dataset("deep/A", data=matrix, **how)
    return f"{folder / 'A.h5'}:/deep/A"


def chunked(folder, matrix):
    return hdf5(folder, matrix, chunks=(10, 7), compression="gzip")


@pytest.mark.parametrize("gap", [0, 1 << 14])
@pytest.mark.parametrize("save", [npy, fortran, big_endian, hdf5, chunked])
def test_ranges_of_files(tmp_path, monkeypatch, matrix, save, gap):
    # Pieces of lines are read one by one, or whole lines and cut.
    monkeypatch.setattr(sources, "_SMALL_GAP", gap)
    monkeypatch.setattr(sources, "WINDOW_BYTES", 2000)
    monkeypatch.setattr(sources, "_LARGEST_READ", 300)
    source = inspect(save(tmp_path, matrix), "A").open()
    assert (source.shape, source.nnz, source.in_memory) == (SHAPE, None, False)
    for rows, cols in RANGES:
        expected = matrix[slice(*rows), slice(*cols)]
        np.testing.assert_array_equal(source.read(rows, cols), expected)
        seen = np.zeros(SHAPE, int)
        for down, across in source.windows(rows, cols):
            seen[slice(*down), slice(*across)] += 1
        # Each entry once, and nothing else.
        assert seen[slice(*rows), slice(*cols)].min() == seen.max() == 1
        assert seen.sum() == expected.size


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("save", [npy, fortran, chunked])
def test_facts_in_one_pass(tmp_path, monkeypatch, matrix, save, axis):
    monkeypatch.setattr(sources, "WINDOW_BYTES", 3000)
    matrix[20, 10] = np.nan
    source = inspect(save(tmp_path, matrix), "A").open()
    ranges = [(0, 7), (7, 15), (30, 43)]
    for (start, stop), facts in zip(ranges, survey(source, ranges, axis), strict=True):
        expected = scan(matrix[start:stop] if axis == 0 else matrix[:, start:stop])
        assert facts.finite == expected.finite
        if expected.finite:
            assert facts.max_abs == expected.max_abs
            assert facts.norm == pytest.approx(expected.norm, rel=1e-14)
    assert [facts.finite for facts in survey(source, ranges, axis)].count(False) == axis


def test_memory_is_not_copied(matrix):
    source = as_source(matrix, "A")
    assert np.shares_memory(source.read((3, 9), (1, 2)), matrix)
    assert source.read((0, 57), (0, 43)) is matrix
    sparse = scipy.sparse.csr_array(matrix)
    np.testing.assert_array_equal(
        as_source(sparse, "A").read((3, 9), (1, 5)).toarray(), matrix[3:9, 1:5]
    )


def test_a_vector_is_one_column(tmp_path):
    vector = np.arange(9.0)
    for source in (as_source(vector, "x"), inspect(npy(tmp_path, vector), "x").open()):
        np.testing.assert_array_equal(source.read((2, 5), (0, 1)), vector[2:5, None])


def test_a_file_that_ends_early(tmp_path, matrix):
    operand = inspect(npy(tmp_path, matrix), "A")
    source = operand.open()
    with open(operand.path, "r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(OSError, match="ends early"):
        source.read((0, 57), (0, 43))


def test_what_is_no_matrix():
    with pytest.raises(UsageError, match="3 dimensions"):
        as_source(np.zeros((2, 2, 2)), "A")
    with pytest.raises(UsageError, match="dtype"):
        as_source(np.zeros((2, 2), dtype="U3"), "A")
