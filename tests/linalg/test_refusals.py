"""What no product can be made of is refused in one sentence, before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.engine.stragglers import Fault
from codedla.errors import CodedlaWarning, VerificationFailed

A, B = np.arange(12.0).reshape(4, 3), np.arange(6.0).reshape(3, 2)


@pytest.fixture
def pool():
    with codedla.SerialPool(4) as pool:
        yield pool


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": 2.5},
        {"blocks": "2x2"},
        {"tolerate": 1.5},
        {"tolerate": True},
        {"tolerate": "1"},
        {"tolerance": "1e-3"},
        {"tolerance": 1j},
        {"timeout": "3"},
        {"timeout": np.nan},
        {"timeout": (1,)},
        {"code": []},
        {"progress": 1},
        {"verify": True},
    ],
)
@pytest.mark.parametrize("multiply", [codedla.matmul, codedla.matvec])
def test_options(pool, multiply, options):
    (name,) = options
    with pytest.raises(codedla.UsageError, match=rf"\b{name}\b.* must be"):
        multiply(A, B, pool=pool, **options)


@pytest.mark.parametrize("no_pool", [None, 3, "pool"])
def test_a_pool_is_needed(no_pool):
    for call in (
        lambda: codedla.matmul(A, B, pool=no_pool),
        lambda: codedla.matvec(A, B[:, 0], pool=no_pool),
        lambda: codedla.store(A, pool=no_pool),
    ):
        with pytest.raises(codedla.UsageError, match="pool is not None"):
            call()


@pytest.mark.parametrize("workers", [0, -1, True, 2.5, "3", None])
def test_numbers_of_workers(workers):
    with pytest.raises(codedla.UsageError, match="number of workers"):
        codedla.SerialPool(workers)


def test_masks_and_ragged_rows_are_not_dropped(pool):
    masked = np.ma.masked_array(B, B > 2)
    with pytest.raises(codedla.UsageError, match="masked"):
        codedla.matmul(A, masked, pool=pool)
    with pytest.raises(codedla.UsageError, match="masked"):
        codedla.matvec(A, masked[:, 0], pool=pool)
    with codedla.store(A, pool=pool) as stored:
        with pytest.raises(codedla.UsageError, match="masked"):
            stored @ masked[:, 0]
        with pytest.raises(codedla.UsageError, match="x must be"):
            stored @ [1.0, [2.0], 3.0]
        with pytest.raises(codedla.UsageError, match="x must be a vector"):
            stored @ 3.0
    with pytest.raises(codedla.UsageError, match="A must be an array"):
        codedla.matmul([[1, 2], [3]], B, pool=pool)
    with pytest.raises(codedla.UsageError, match="MaskedArray"):
        codedla.matmul(A, B, pool=pool, out=np.ma.zeros((4, 2)))


def test_out_may_share_memory_with_a_sparse_operand(pool):
    data = np.arange(1.0, 10.0)
    S = sp.csr_array(data.reshape(3, 3))
    S.data = data
    expected = S.toarray() @ S.toarray()
    out = data.reshape(3, 3)
    assert codedla.matmul(S, S, pool=pool, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_a_product_near_overflow_is_not_blamed_on_a_worker(pool):
    with np.errstate(over="ignore"), pytest.raises(codedla.VerificationFailed) as caught:
        codedla.matmul(A * 1e200, B * 1e150, pool=pool, verify="freivalds")
    assert "overflow" in str(caught.value)
    assert "worker" not in str(caught.value)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    ("field", "place", "value"),
    [
        ("indices", 0, 1000),
        ("indices", 0, -1),
        ("indptr", 0, 1),
        ("indptr", 1, 99),
        ("indptr", -1, 99),
    ],
)
def test_sparse_indices_that_point_outside(pool, layout, field, place, value):
    broken = sp.csr_array(A).asformat(layout).copy()
    getattr(broken, field)[place] = value
    with pytest.raises(codedla.UsageError, match="points outside"):
        codedla.matmul(broken, B, pool=pool)


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_room_beyond_the_last_sparse_entry_is_no_part_of_the_matrix(pool, layout):
    roomy = sp.csr_array(A).asformat(layout)
    roomy.data = np.append(roomy.data, [np.nan, 9.0])
    roomy.indices = np.append(roomy.indices, [0, 0]).astype(roomy.indptr.dtype)
    for product in (
        codedla.matmul(roomy, B, pool=pool),
        codedla.matmul(B.T, roomy.T, pool=pool).T,
    ):
        np.testing.assert_allclose(product, A @ B)
    assert len(roomy.data) == np.count_nonzero(A) + 2


def test_an_approximate_product_is_estimated_and_verified():
    """The error estimate holds what the method itself leaves out, and so does the check."""
    rng = np.random.default_rng(61_001)
    A, B = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    with codedla.SerialPool(7) as pool, pytest.warns(CodedlaWarning, match="approximate"):
        C, report = codedla.matmul(
            A,
            B,
            pool=pool,
            code="eps-matdot",
            blocks=(1, 3, 1),
            verify="freivalds",
            return_report=True,
        )
    error = np.linalg.norm(C - A @ B) / np.linalg.norm(A @ B)
    assert 1e-9 < error <= report.error_estimate < 1
    assert len(report.responders) < 7


@pytest.mark.parametrize("verify", ["freivalds", "locate"])
@pytest.mark.parametrize("overlapping", ["A", "B"])
def test_a_product_written_over_an_operand_is_checked_before(pool, verify, overlapping):
    rng = np.random.default_rng(8)
    operands = {"A": rng.standard_normal((30, 30)), "B": rng.standard_normal((30, 30))}
    expected = operands["A"] @ operands["B"]
    out = operands[overlapping]
    codedla.matmul(**operands, pool=pool, verify=verify, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("verify", ["freivalds", "locate"])
def test_what_cannot_be_verified_is_refused_before_anything_is_computed(pool, monkeypatch, verify):
    monkeypatch.setattr(pool, "run", lambda job: pytest.fail("a worker computed"))
    with pytest.raises(VerificationFailed, match="NaN or Inf cannot be verified"):
        codedla.matmul(A, np.where(B == 2, np.nan, B), pool=pool, verify=verify)


@pytest.mark.parametrize("verify", ["freivalds", "locate"])
def test_narrow_integers_are_verified_without_the_bits_that_base3_loses(verify):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-(2**31), 2**31, size, dtype=np.int32) for size in ((9, 31), (31, 7)))
    for worker in range(1, 6):
        faults = [Fault("kill", worker, 0.0)]
        with codedla.SerialPool(8, faults=faults) as pool, pytest.warns(CodedlaWarning):
            options = {"code": "base3", "tolerate": 2, "verify": verify}
            np.testing.assert_array_equal(codedla.matmul(a, b, pool=pool, **options), a @ b)
