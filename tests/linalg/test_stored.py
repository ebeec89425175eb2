"""Matrix times vector, once and with resident shares."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.engine.stragglers import Fault, parse_fault
from codedla.errors import PoolClosed, UsageError

RNG = np.random.default_rng(31489)
A = RNG.standard_normal((19, 7))


class CountingPool(codedla.SerialPool):
    """Counts how often a resident share is supplied."""

    supplied = 0

    def fetch(self, worker, operand):
        if operand.key and (worker, operand.key) not in self._resident:
            self.supplied += 1
        return super().fetch(worker, operand)


@pytest.mark.parametrize("columns", [None, 0, 1, 4])
@pytest.mark.parametrize("code", ["auto", "mds", "replication", "khatri-rao", "polynomial"])
@pytest.mark.parametrize("lost", [(), (1,), (0, 3)])
def test_matvec(columns, code, lost):
    x = RNG.standard_normal(7 if columns is None else (7, columns))
    blocks = None if code == "auto" else (2, 1)
    with codedla.SerialPool(6, faults=[Fault("kill", w, 0.0) for w in lost]) as pool:
        y, report = codedla.matvec(
            A, x, pool=pool, code=code, blocks=blocks, tolerate=2, return_report=True
        )
        assert (y.shape, report.operation) == ((A @ x).shape, "matvec")
        np.testing.assert_allclose(y, A @ x, atol=1e-12)
        with codedla.store(A, pool=pool, code=code, blocks=blocks, tolerate=2) as stored:
            again = stored @ x
            assert again.shape == y.shape
            np.testing.assert_allclose(again, A @ x, atol=1e-12)


def test_out_of_a_matvec():
    x, out = RNG.standard_normal(7), np.full(38, 7.0)[::2]
    with codedla.SerialPool(4) as pool:
        assert codedla.matvec(A, x, pool=pool, out=out) is out
        np.testing.assert_allclose(out, A @ x, atol=1e-12)
        with pytest.raises(UsageError, match="out must be a float64 array"):
            codedla.matvec(A, x, pool=pool, out=np.empty(18))
        with pytest.raises(UsageError, match="out must be a float64 array"):
            codedla.matvec(A, x, pool=pool, out=np.empty((19, 1)))
        with pytest.raises(UsageError, match="out must be a float64 array"):
            codedla.matvec(A, x, pool=pool, out=[0.0] * 19)
        square, y = RNG.standard_normal((7, 7)), x.copy()
        assert codedla.matvec(square, y, pool=pool, out=y) is y
        np.testing.assert_allclose(y, square @ x, atol=1e-12)


def test_shares_are_sent_once():
    with CountingPool(5) as pool, codedla.store(A, pool=pool, tolerate=1) as stored:
        for _ in range(6):
            x = RNG.standard_normal(7)
            np.testing.assert_allclose(stored.matvec(x), A @ x, atol=1e-12)
        used = len(stored.last_report.responders)
        assert pool.supplied == used == stored.plan.threshold


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("vector", ["?", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("code", ["auto", "polynomial"])
def test_wider_and_complex_vectors(dtype, vector, code):
    rng = np.random.default_rng(31511)
    a = rng.standard_normal((9, 6)).astype(dtype)
    x = (3 * rng.standard_normal(6)).astype(vector)
    if np.dtype(vector).kind == "c":
        x = x * np.array(1 - 2j, vector)
    with (
        codedla.SerialPool(5, faults=[Fault("kill", 0, 0.0)]) as pool,
        codedla.store(a, pool=pool, code=code, tolerate=1) as stored,
    ):
        for _ in range(2):
            y = stored @ x
            assert y.dtype == np.result_type(a, x)
            size = np.linalg.norm(a @ x)
            assert np.linalg.norm(y - a @ x) <= 20 * stored.last_report.error_estimate * size
        limit = 1e-4 if dtype in ("f4", "c8") else 1e-12
        assert stored.last_report.error_estimate < limit
        wide = RNG.standard_normal((6, 3))
        np.testing.assert_allclose(stored @ wide, a @ wide, atol=1e-3)


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "lil"])
def test_a_stored_sparse_matrix(fmt):
    rng = np.random.default_rng(31513)
    a = sp.random_array((40, 30), density=0.1, rng=rng).asformat(fmt)
    with (
        codedla.SerialPool(6, faults=[Fault("hang", 2, 0.0)]) as pool,
        codedla.store(a, pool=pool) as stored,
    ):
        for x in (rng.standard_normal(30), rng.standard_normal((30, 2)), sp.eye_array(30)):
            expected = a @ x
            expected = expected.toarray() if sp.issparse(expected) else expected
            np.testing.assert_allclose(stored @ x, expected, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (2, 3)])
def test_small_stored_matrices(shape):
    a, x = np.ones(shape), np.ones(shape[1])
    with codedla.SerialPool(7) as pool, codedla.store(a, pool=pool, tolerate=2) as stored:
        np.testing.assert_allclose(stored @ x, a @ x)
        assert stored.shape == shape


def test_closing():
    with CountingPool(5) as pool:
        first, second = (codedla.store(A, pool=pool) for _ in range(2))
        x = np.ones(7)
        first @ x, second @ x
        held = len(pool._resident)
        first.close()
        first.close()
        assert len(pool._resident) == held // 2
        with pytest.raises(PoolClosed, match="this coded matrix is closed; store it again"):
            first @ x
        np.testing.assert_allclose(second @ x, A @ x, atol=1e-12)
        with second:
            pass
        assert not pool._resident
        with pytest.raises(PoolClosed):
            second.matvec(x)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_the_vector(bad):
    x = np.ones(7)
    x[3] = bad
    with codedla.SerialPool(5) as pool:
        with codedla.store(A, pool=pool, tolerate=1) as stored:
            with pytest.raises(UsageError, match=r"x must be finite.*code='replication'"):
                stored @ x
            np.testing.assert_allclose(stored @ np.ones(7), A.sum(axis=1), atol=1e-12)
        with codedla.store(A, pool=pool, code="replication") as stored:
            np.testing.assert_array_equal(np.isfinite(stored @ x), np.isfinite(A @ x))


def test_a_vector_too_large_to_be_combined_is_refused_or_right():
    """Finite entries whose coded sums would overflow where the product does not."""
    a, x = np.ones((8, 1)), np.array([1e308])
    with codedla.SerialPool(5, faults=[Fault("kill", 0, 0.0)]) as pool:
        with (
            codedla.store(a, pool=pool, code="mds", tolerate=1) as stored,
            pytest.raises(UsageError, match="sums could overflow"),
        ):
            stored @ x
        with codedla.store(a, pool=pool, code="replication", tolerate=1) as stored:
            np.testing.assert_array_equal(stored @ x, a @ x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda pool: codedla.store(np.eye(3, dtype=int), pool=pool), "floating or complex"),
        (lambda pool: codedla.store(np.ones(3), pool=pool), "A must be a matrix"),
        (lambda pool: codedla.store(np.eye(3, dtype=object), pool=pool), "A: operands must be"),
        (
            lambda pool: codedla.store(np.eye(4), pool=pool, code="khatri-rao", blocks=(2, 2)),
            r"vectors, which are not cut; got blocks 2x2; use blocks=\(m, 1\)",
        ),
        (lambda pool: codedla.store(np.eye(3), pool=pool) @ np.ones(4), "x must have 3 entries"),
        (lambda pool: codedla.store(np.eye(3), pool=pool) @ 3.0, "x must be a vector"),
        (lambda pool: codedla.matvec(np.eye(3), np.ones(4), pool=pool), "columns of A must equal"),
        (lambda pool: codedla.matvec(np.eye(3), ["a"] * 3, pool=pool), "x: operands must be"),
    ],
)
def test_refusals(call, words):
    with codedla.SerialPool(5) as pool, pytest.raises(UsageError, match=words):
        call(pool)


def test_stragglers_catch_up_without_disturbing_later_vectors():
    late = [parse_fault("random:exp:1:8")]
    with (
        codedla.SimulatedPool(7, faults=late, seed=7001) as pool,
        codedla.store(A, pool=pool, tolerate=2) as stored,
    ):
        seen = set()
        for _ in range(40):
            x = RNG.standard_normal(7)
            np.testing.assert_allclose(stored @ x, A @ x, atol=1e-11)
            seen |= set(stored.last_report.responders)
    assert seen == set(range(1, stored.plan.code.active + 1))


def test_examples_in_docstrings():
    import doctest
    import importlib.util

    tried = 0
    root = Path(codedla.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if ">>> " in path.read_text():
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            if name.endswith("torch_bridge") and importlib.util.find_spec("torch") is None:
                continue
            result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
            assert result.failed == 0, name
            tried += result.attempted
    assert tried >= 8


@pytest.mark.filterwarnings("ignore::codedla.errors.CodedlaWarning")
def test_a_vector_of_another_dtype_is_warned_of_alike():
    with (
        codedla.SerialPool(8) as pool,
        codedla.store(A, pool=pool, code="eps-matdot", blocks=(1, 4, 1)) as stored,
    ):
        for x in (np.ones(7), np.ones(7, complex)):
            stored @ x
            assert any("is approximate" in text for text in stored.last_report.warnings)
