"""What one pass over an operand finds out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from codedla.engine import facts
from codedla.engine.facts import Facts, scan, spread

DTYPES = ["?", "i1", "u1", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16", ">f8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_norm_and_largest_entry(dtype, order, monkeypatch):
    monkeypatch.setattr(facts, "CHUNK_BYTES", 64)
    rng = np.random.default_rng(90007)
    matrix = np.asarray(rng.integers(0, 9, (23, 11)).astype(dtype), order=order)
    if np.dtype(dtype).kind == "c":
        matrix = matrix * np.array(1j, dtype) - 3
    found = scan(matrix)
    assert found.finite
    assert found.norm == pytest.approx(np.linalg.norm(matrix.astype(complex)), rel=1e-12)
    parts = np.abs([matrix.real.astype(float), matrix.imag.astype(float)])
    assert found.max_abs == parts.max()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [(0, 0), (6, 4), (3, 2)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_one_bad_entry_is_found(bad, where, dtype, monkeypatch):
    monkeypatch.setattr(facts, "CHUNK_BYTES", 16)
    matrix = np.ones((7, 5), dtype)
    assert scan(matrix).finite
    matrix[where] = bad
    found = scan(matrix)
    assert not found.finite
    assert math.isnan(found.norm)
    assert not scan(matrix[:, ::-1]).finite
    assert not scan(matrix.T).finite
    assert not scan(sp.csr_array(matrix.astype("f8" if dtype == "f2" else dtype))).finite
    if np.dtype(dtype).kind == "c":
        matrix[where] = complex(1.0, bad)
        assert not scan(matrix).finite


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_empty(shape):
    assert scan(np.empty(shape)) == Facts(True, 0.0, 0.0)
    assert scan(sp.csr_array((3, 4))) == Facts(True, 0.0, 0.0)


@pytest.mark.parametrize("scale", [1e300, 1e160, 1e-160, 1e-300])
def test_the_norm_neither_overflows_nor_vanishes(scale):
    matrix = np.array([[3.0, 0.0], [0.0, 4.0]]) * scale
    assert scan(matrix).norm == pytest.approx(5.0 * scale, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("dtype", "value"), [("i8", -(2**63)), ("u8", 2**64 - 1), ("i1", -128), ("?", True)]
)
def test_extreme_integers(dtype, value):
    found = scan(np.array([[value]], dtype))
    assert (found.finite, found.max_abs) == (True, abs(float(value)))


def test_sparse_entries_are_those_of_the_matrix():
    """Entries stored twice count as their sum, explicit zeros as nothing."""
    twice = sp.coo_array(([1e10] * 8, ([0] * 8, [1] * 8)), shape=(2, 2))
    for matrix in (twice, twice.tocsr(), sp.csr_array(twice).tobsr(), twice.todok()):
        assert scan(matrix).max_abs == 8e10
        assert scan(matrix).norm == 8e10
    uncanonical = sp.csr_array((np.ones(4), np.zeros(4, int), np.array([0, 4])), shape=(1, 1))
    assert scan(uncanonical) == Facts(True, 4.0, 4.0)
    assert uncanonical.nnz == 4
    assert scan(sp.dia_array(np.eye(3) * 2)).norm == pytest.approx(math.sqrt(12))
    assert scan(sp.lil_array(np.eye(3) * 2)).max_abs == 2


def test_the_operand_is_not_changed(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(3, 4))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert scan(mapped).max_abs == 11.0
    assert scan(np.broadcast_to(np.float64(2), (300, 4))).norm == pytest.approx(math.sqrt(4800))


def test_spread_compares_rows_or_columns():
    matrix = np.array([[1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [1e-8, 0.0, 0.0]])
    assert spread(matrix, 1) == 2e8
    assert spread(matrix, 0) == 2.0
    assert spread(np.asfortranarray(matrix), 1) == 2e8
    assert spread(sp.coo_array(matrix).tocsr(), 1) == 2e8
    assert spread(1j * matrix, 0) == 2.0
    assert spread(np.zeros((3, 2)), 1) == spread(np.zeros((0, 2)), 0) == 1.0
    assert spread(np.array([[1e-300], [1e300]]), 1) == math.inf
