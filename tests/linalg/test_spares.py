"""verify="spares": wrong replies are named by other replies, or noticed, and never decoded."""

import warnings

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import parse_fault
from codedla.errors import UsageError, VerificationFailed

CASES = (
    ("mds", (4, 1), 6, float),
    ("khatri-rao", (3, 2), 8, float),
    ("khatri-rao", (3, 2), 8, np.float32),
    ("polynomial", (2, 2), 6, complex),
    ("matdot", (1, 2, 1), 5, float),
    ("lagrange-real", (1, 2, 1), 5, float),
    ("replication", (2, 1), 6, float),
    ("rotation", (2, 2), 6, float),
    ("galois", (2, 2), 6, int),
    ("galois", (2, 2), 8, int),
    ("gasp", (2, 2), 10, int),
    ("secure-matdot:2", (1, 2, 1), 9, int),
    ("lagrange", (1, 2, 1), 7, int),
)


def product(case, *faults, shape=(7, 11, 9), verify="spares"):
    """Multiply on a pool with faults; return the result, what is right, and the report."""
    code, blocks, workers, dtype = case
    rng = np.random.default_rng(workers)
    A, B = rng.integers(-999, 999, shape[:2]), rng.integers(-999, 999, shape[1:])
    if dtype is not int:
        A, B = ((x / 7).astype(dtype) for x in (A, B))
    with (
        warnings.catch_warnings(),
        codedla.SerialPool(workers, faults=[parse_fault(fault) for fault in faults]) as pool,
    ):
        warnings.simplefilter("ignore", codedla.CodedlaWarning)
        C, report = codedla.matmul(
            A, B, pool=pool, code=code, blocks=blocks, verify=verify, return_report=True
        )
    return C, A @ B, report


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[2]}-{c[3].__name__}")
def test_a_wrong_worker_is_named_and_left_out(case):
    close = 1e-3 if case[3] is np.float32 else 1e-9
    C, expected, report = product(case)
    np.testing.assert_allclose(C, expected, rtol=close, atol=close * np.abs(expected).max())
    assert report.wrong == [] and report.verified == "spares"
    for rank, kind in ((1, "entry"), (3, "scale"), (2, "nan"), (1, "stale")):
        C, expected, report = product(case, f"corrupt:{rank}:1:{kind}")
        np.testing.assert_allclose(C, expected, rtol=close, atol=close * np.abs(expected).max())
        assert report.wrong == [rank] and rank in report.lost and rank not in report.responders
        assert any(event.kind == "wrong" for event in report.events)
    if case[3] is int:
        assert C.dtype == expected.dtype and np.array_equal(C, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[2]}-{c[3].__name__}")
def test_with_one_spare_nobody_is_accused(case):
    # All but one of the spare workers are dead.
    workers = case[2]
    _, _, report = product(case)
    spare = workers - report.threshold
    dead = [f"kill:{workers - i}:0" for i in range(spare - 1)]
    C, expected, report = product(case, *dead)
    np.testing.assert_allclose(C, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert report.wrong == []
    with pytest.raises(VerificationFailed, match="1 spare reply does not tell whose"):
        product(case, "corrupt:2:1:entry", *dead)


def test_two_spares_do_not_name_two_workers():
    for case in CASES[:2]:
        with pytest.raises(VerificationFailed, match="one wrong worker is named by two"):
            product(case, "corrupt:1:1:entry", "corrupt:2:1:entry")


def test_four_spares_name_two_workers():
    C, expected, report = product(("galois", (2, 2), 8, int), "corrupt:1:1", "corrupt:4:1:nan")
    assert np.array_equal(C, expected) and report.wrong == [1, 4]
    assert len(report.responders) == 6


def test_half_of_the_spare_replies_suffice_when_all_is_well():
    _, _, report = product(("galois", (2, 2), 8, int))
    assert len(report.responders) == 6


def test_without_a_spare_reply_nothing_is_claimed():
    with pytest.raises(VerificationFailed, match="no reply was left to compare with"):
        product(("mds", (4, 1), 6, float), "kill:5:0", "kill:6:0")


def test_codes_that_tell_nothing_are_refused():
    for code, blocks, workers, reason in (
        ("uncoded", (2, 2), 4, "none to spare"),
        ("base3", (2, 2), 6, "modulo 2"),
    ):
        with pytest.raises(UsageError, match=rf"spares.*{reason}"):
            product((code, blocks, workers, int))


def test_matrix_vector_products():
    rng = np.random.default_rng(3)
    A, x = rng.standard_normal((40, 30)), rng.standard_normal(30)
    for seed in range(5):
        liar = parse_fault(f"corrupt:{seed + 1}:1:entry")
        with (
            codedla.SerialPool(6, faults=[liar]) as pool,
            pytest.warns(codedla.CodedlaWarning, match="answered wrongly"),
        ):
            y, report = codedla.matvec(
                A, x, pool=pool, code="mds", blocks=4, verify="spares", return_report=True
            )
        assert report.wrong == [seed + 1] and np.allclose(y, A @ x)


def test_small_rows_and_columns_are_compared_at_their_own_size():
    rng = np.random.default_rng(12)
    A, B = rng.standard_normal((12, 9)), rng.standard_normal((9, 8))
    A[::2] *= 1e-7
    B[:, 1::2] *= 1e-6

    class Liar(codedla.SerialPool):
        def compute(self, job, share, worker, matrices):
            super().compute(job, share, worker, matrices)
            if worker == 2:
                job.decoder.target(share)[0, 1] *= 1.001  # about 1e-13

    with Liar(6) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", codedla.CodedlaWarning)
        C, report = codedla.matmul(
            A, B, pool=pool, code="polynomial", blocks=(2, 2), verify="spares", return_report=True
        )
    assert report.wrong == [3]
    np.testing.assert_allclose(C, A @ B, atol=1e-12)


def test_integers_in_which_an_error_of_one_could_hide_are_refused():
    rng = np.random.default_rng(13)
    A, B = (rng.integers(-(2**20), 2**20, shape) for shape in ((40, 30), (30, 40)))
    with codedla.SerialPool(6) as pool:
        with pytest.raises(VerificationFailed, match="an error of one could hide"):
            codedla.matmul(A, B, pool=pool, code="mds", blocks=4, verify="spares")
        C = codedla.matmul(A // 2**12, B // 2**12, pool=pool, code="mds", blocks=4, verify="spares")
    assert np.array_equal(C, (A // 2**12) @ (B // 2**12))


def test_sparse_operands():
    sp = pytest.importorskip("scipy.sparse")
    A = sp.random_array((30, 20), density=0.2, rng=np.random.default_rng(14), format="csr")
    B = np.random.default_rng(15).standard_normal((20, 6))
    with (
        codedla.SerialPool(6, faults=[parse_fault("corrupt:2:1:scale")]) as pool,
        pytest.warns(codedla.CodedlaWarning, match="answered wrongly"),
    ):
        C, report = codedla.matmul(
            A, B, pool=pool, code="mds", blocks=4, verify="spares", return_report=True
        )
    assert report.wrong == [2]
    np.testing.assert_allclose(C, A @ B, atol=1e-12)
