"""A coded matrix as SciPy's linear operator, against the plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import codedla
from codedla.engine.stragglers import Delays, Fault, parse_fault
from codedla.errors import NotDecodable, PoolClosed, UsageError

RNG = np.random.default_rng(77023)
HOW = {
    "separate": {},
    "shared": {"adjoint": "shared"},
    "replication": {"adjoint": "shared", "code": "replication"},
    "uncoded": {"adjoint": "shared", "code": "uncoded", "tolerate": 0},
    "complex points": {"adjoint": "shared", "blocks": (2, 2, 1), "nodes": "unity"},
}


def matrix(shape, dtype="f8"):
    a = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * RNG.standard_normal(shape)
    return a.astype(dtype)


def close(got, expected, scale, eps=2.0**-52):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert np.linalg.norm(got - expected) <= 1e4 * eps * scale


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.fixture
def late():
    """Eight workers of which two are late in every round, each by much more than a round."""
    faults = [parse_fault("delay:3:0.1"), parse_fault("delay:6:0.1")]
    with codedla.SimulatedPool(8, Delays("exp", (1e-3,)), faults, seed=8) as pool:
        yield pool


@pytest.fixture
def symmetric():
    """Positive definite, of condition 30."""
    q = np.linalg.qr(matrix((60, 60)))[0]
    a = q * np.linspace(1, 30, 60) @ q.T
    return (a + a.T) / 2


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(31, 31), (23, 40), (40, 7), (1, 5), (5, 1)])
def test_products_of_all_kinds(shape, dtype, how):
    a, (rows, cols) = matrix(shape, dtype), shape
    with codedla.SerialPool(8) as pool, codedla.aslinearoperator(a, pool=pool, **HOW[how]) as op:
        assert (op.shape, op.dtype) == (a.shape, a.dtype)
        for kind, more in (("f8", ()), ("f4", (1,)), ("c16", (3,))):
            x, y = matrix((cols, *more), kind), matrix((rows, *more), kind)
            eps = max(np.finfo(dtype).eps, np.finfo(kind).eps)
            size = np.linalg.norm(a)
            close(op @ x, a @ x, size * np.linalg.norm(x), eps)
            close(op.H @ y, a.conj().T @ y, size * np.linalg.norm(y), eps)
            close(op.T @ y, a.T @ y, size * np.linalg.norm(y), eps)
            product = op.rmatmat if more else op.rmatvec
            close(product(y), a.conj().T @ y, size * np.linalg.norm(y), eps)
            close(op.H.rmatvec(x) if not more else op.H.rmatmat(x), a @ x, size * 10, eps * 10)


@pytest.mark.parametrize("how", ["separate", "shared", "complex points"])
def test_sparse_matrices(how):
    a = sp.random_array((50, 37), density=0.2, rng=RNG, format="csr")
    x, y = matrix(37), matrix((50, 2))
    with codedla.SerialPool(7) as pool:
        for form in ("csr", "csc", "coo"):
            with codedla.aslinearoperator(a.asformat(form), pool=pool, **HOW[how]) as op:
                np.testing.assert_allclose(op @ x, a @ x, atol=1e-11)
                np.testing.assert_allclose(op.H @ y, a.T @ y, atol=1e-11)


def test_of_a_sparse_matrix_nothing_is_mixed_where_one_set_serves_both_ways():
    a = sp.random_array((50, 37), density=0.2, rng=RNG, format="csr")
    with codedla.SerialPool(8) as pool:
        with codedla.aslinearoperator(a, pool=pool, adjoint="shared") as op:
            assert op.forward.plan.code.name == "replication"
        with codedla.aslinearoperator(a.toarray(), pool=pool, adjoint="shared") as op:
            assert op.forward.plan.code.name == "entangled"
            assert (op.forward.plan.grid.m, op.forward.plan.grid.p) == (2, 2)
            assert op.forward.plan.code.field == "real"


def test_integers_are_cast_and_vectors_of_integers_too():
    a = RNG.integers(-9, 9, (20, 20))
    with codedla.SerialPool(4) as pool, codedla.aslinearoperator(a, pool=pool) as op:
        assert op.dtype == np.float64
        np.testing.assert_allclose(op @ np.arange(20), a @ np.arange(20), atol=1e-10)
        np.testing.assert_allclose(op @ (np.arange(20) > 9), a @ (np.arange(20) > 9), atol=1e-10)


def test_results_are_the_callers_to_change():
    a, x = matrix((20, 20)), matrix(20)
    for how in HOW.values():
        with codedla.SerialPool(6) as pool, codedla.aslinearoperator(a, pool=pool, **how) as op:
            for product, expected in ((op.matvec, a @ x), (op.rmatvec, a.T @ x)):
                first = product(x)
                second = product(x)
                assert not np.may_share_memory(first, second)
                first[...] = np.nan
                np.testing.assert_allclose(product(x), expected, atol=1e-12)
                np.testing.assert_allclose(second, expected, atol=1e-12)


@pytest.mark.parametrize("how", [{}, {"adjoint": "shared"}, HOW["replication"]])
def test_a_file_that_workers_read(tmp_path, how):
    a = matrix((41, 33))
    np.save(tmp_path / "a.npy", a)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    with codedla.SerialPool(6) as pool:
        with codedla.aslinearoperator(mapped, pool=pool, encode="workers", **how) as op:
            x, y = matrix(33), matrix(41)
            np.testing.assert_allclose(op @ x, a @ x, atol=1e-11)
            np.testing.assert_allclose(op.rmatvec(y), a.T @ y, atol=1e-11)
        np.save(tmp_path / "i.npy", np.ones((4, 4), int))
        whole = np.load(tmp_path / "i.npy", mmap_mode="r")
        with pytest.raises(UsageError, match="floating or complex for workers"):
            codedla.aslinearoperator(whole, pool=pool, encode="workers", **how)


# -- solvers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("solver", [sla.cg, sla.minres, sla.gmres])
def test_square_solvers(late, symmetric, solver, dtype):
    """The same iterates; right-hand sides as columns and in single precision, too."""
    b = matrix(60).astype(dtype)
    with codedla.aslinearoperator(symmetric, pool=late, adjoint="hermitian") as op:
        for right in (b, b[:, None]):
            steps, plain = [], []
            option = {"callback_type": "legacy"} if solver is sla.gmres else {}
            x, info = solver(op, right, rtol=1e-12, maxiter=300, callback=steps.append, **option)
            expected, _ = solver(
                symmetric, right, rtol=1e-12, maxiter=300, callback=plain.append, **option
            )
            assert info == 0
            assert x.dtype == expected.dtype
            # Rounding may tip the last comparison of a residual with the tolerance.
            assert abs(len(steps) - len(plain)) <= 1
            assert relative(x, expected) < 1e-10
    assert set(op.totals.stragglers) >= {3, 6}
    assert min(op.totals.stragglers[3], op.totals.stragglers[6]) > 0.9 * op.totals.rounds


@pytest.mark.parametrize("how", ["separate", "shared"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("solver", [sla.lsqr, sla.lsmr])
def test_least_squares(late, solver, dtype, how):
    a, b = matrix((70, 25), dtype), matrix(70, dtype)
    with codedla.aslinearoperator(a, pool=late, **HOW[how]) as op:
        x = solver(op, b, atol=1e-13, btol=1e-13)[0]
    expected = solver(a, b, atol=1e-13, btol=1e-13)[0]
    assert relative(x, expected) < 1e-10
    assert relative(x, np.linalg.lstsq(a, b)[0]) < 1e-8


def test_eigsh(late, symmetric):
    start = matrix(60)
    with codedla.aslinearoperator(symmetric, pool=late) as op:
        values, vectors = sla.eigsh(op, k=4, v0=start)
    expected, others = sla.eigsh(symmetric, k=4, v0=start)
    assert relative(values, expected) < 1e-12
    assert relative(np.abs(np.sum(vectors * others, axis=0)), np.ones(4)) < 1e-10


def test_eigsh_of_a_complex_matrix(late):
    a = matrix((40, 40), "c16")
    a = a + a.conj().T
    start = matrix(40, "c16")
    with codedla.aslinearoperator(a, pool=late, adjoint="hermitian") as op:
        assert op.H is op
        values = sla.eigsh(op, k=3, v0=start, return_eigenvectors=False)
    assert relative(values, sla.eigsh(a, k=3, v0=start, return_eigenvectors=False)) < 1e-12


@pytest.mark.parametrize("how", ["separate", "shared", "replication"])
@pytest.mark.parametrize("shape", [(50, 30), (30, 50)])
def test_svds(late, shape, how):
    a, start = matrix(shape), matrix(30)
    with codedla.aslinearoperator(a, pool=late, **HOW[how]) as op:
        u, s, vt = sla.svds(op, k=3, v0=start)
    expected = sla.svds(a, k=3, v0=start)
    assert relative(s, expected[1]) < 1e-12
    assert relative(u * s @ vt, expected[0] * expected[1] @ expected[2]) < 1e-10


@pytest.mark.parametrize("how", ["separate", "shared"])
def test_expm_multiply(late, how):
    a = matrix((30, 30)) / 6
    b = matrix((30, 2))
    with codedla.aslinearoperator(a, pool=late, **HOW[how]) as op:
        got = sla.expm_multiply(op, b, traceA=np.trace(a))
    assert relative(got, sla.expm_multiply(a, b)) < 1e-12


def test_operators_made_of_operators(symmetric):
    with codedla.SerialPool(5) as pool, codedla.aslinearoperator(symmetric, pool=pool) as op:
        x = matrix(60)
        made = op @ op - 2 * op.T
        np.testing.assert_allclose(
            made @ x, symmetric @ symmetric @ x - 2 * symmetric.T @ x, atol=1e-9
        )
        assert sla.aslinearoperator(op) is op


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["separate", "shared", "replication"])
@pytest.mark.parametrize("seed", range(5))
def test_lost_and_random_late_workers(how, seed):
    """Two of eight die on the way, all are late at random: results stay the same."""
    rng = np.random.default_rng(seed)
    gone = rng.choice(8, 2, replace=False)
    faults = [Fault("kill", int(w), float(rng.uniform(0, 0.02))) for w in gone]
    a, b = matrix((44, 17)), matrix(44)
    with (
        codedla.SimulatedPool(8, Delays("exp", (5e-3,)), faults, seed=seed) as pool,
        codedla.aslinearoperator(a, pool=pool, tolerate=2, **HOW[how]) as op,
    ):
        x = sla.lsqr(op, b, atol=1e-13, btol=1e-13)[0]
        assert op.last_report.lost
        assert op.totals.rounds > 20
    assert relative(x, sla.lsqr(a, b, atol=1e-13, btol=1e-13)[0]) < 1e-10


def test_too_many_losses_without_anybody_left():
    faults = [Fault("kill", w, 0.0) for w in range(3)]
    with (
        codedla.SerialPool(3, faults=faults) as pool,
        codedla.aslinearoperator(matrix((9, 9)), pool=pool) as op,
        pytest.raises(NotDecodable),
    ):
        op @ np.ones(9)


# -- life and refusals -----------------------------------------------------------------------------


def test_close_frees_the_workers_memory_and_ends_all_use():
    a = matrix((30, 20))
    with codedla.SerialPool(8) as pool:
        for how in HOW.values():
            with codedla.aslinearoperator(a, pool=pool, **how) as op:
                op @ np.ones(20)
                adjoint = op.H
                adjoint @ np.ones(30)
                assert pool._resident
            assert not pool._resident
            op.close()
            for use in (op.matvec, op.H.rmatvec, op.matmat, adjoint.rmatvec):
                with pytest.raises(PoolClosed, match="operator is closed"):
                    use(np.ones((20, 1)))
            with pytest.raises(PoolClosed, match="operator is closed"):
                adjoint @ np.ones(30)


def test_one_stored_set_where_it_is_shared_and_the_second_one_only_when_needed():
    a = matrix((30, 20))
    with codedla.SerialPool(5) as pool:
        for how in ("separate", "shared", "replication"):
            with codedla.aslinearoperator(a, pool=pool, **HOW[how]) as op:
                op @ np.ones(20)
                forward = {key for _, key in pool._resident}
                op.rmatvec(np.ones(30))
                more = {key for _, key in pool._resident} - forward
                assert bool(more - set(op.forward._keys)) == (how == "separate")


def test_totals_and_reports():
    with (
        codedla.SerialPool(5) as pool,
        codedla.aslinearoperator(matrix((30, 20)), pool=pool, adjoint="shared") as op,
    ):
        assert op.last_report is None
        op.matmat(np.ones((20, 3)))
        assert op.last_report.operation == "matvec"
        op.rmatvec(np.ones(30))
        assert op.last_report.operation == "rmatvec"
        assert op.last_report.shapes["C"] == [1, 20]
        assert op.last_report.error_estimate < 1e-10
        op.T @ np.ones(30)
        totals = op.totals.to_dict()
    assert totals["rounds"] == 3
    assert totals["seconds"] > 0
    assert set(totals["stragglers"]) <= {"1", "2", "3", "4", "5"}


def test_promises_of_symmetry_are_checked(symmetric):
    spoilt = symmetric.copy()
    spoilt[3, 50] += 1e-6
    with codedla.SerialPool(4) as pool:
        far = [spoilt * 1e200, np.triu(symmetric) * 1e-200]  # whose squares leave the range
        for bad in (spoilt, sp.csr_array(spoilt), symmetric * 1j, *far):
            with pytest.raises(UsageError, match="promises that A is its own adjoint"):
                codedla.aslinearoperator(bad, pool=pool, adjoint="hermitian")
        with pytest.raises(UsageError, match="a Hermitian matrix is square; got 3 x 4"):
            codedla.aslinearoperator(np.ones((3, 4)), pool=pool, adjoint="hermitian")
        for good in (symmetric.astype("f4"), np.zeros((3, 3)), sp.csr_array(symmetric)):
            codedla.aslinearoperator(good, pool=pool, adjoint="hermitian").close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adjoint": "none"}, "adjoint must be one of"),
        ({"adjoint": "shared", "code": "mds"}, "those of uncoded, replication, entangled"),
        ({"adjoint": "shared", "verify": "locate"}, "not checked; got verify='locate'"),
        ({"adjoint": "shared", "blocks": (2, 2)}, "which are not cut; got blocks"),
        ({"adjoint": "shared", "blocks": (2, 2, 1), "tolerate": 3}, "needs 6 of 8 workers"),
        ({"adjoint": "shared", "blocks": (3, 3, 1)}, "need at least"),
        ({"timeout": 0}, "timeout must be"),
        ({"code": "nonsense"}, "unknown code"),
    ],
)
def test_refusals(options, message):
    with codedla.SerialPool(8) as pool, pytest.raises(UsageError, match=message):
        codedla.aslinearoperator(np.ones((20, 20)), pool=pool, **options)


def test_masks_are_not_dropped():
    masked = np.ma.array(np.ones(5), mask=[0, 1, 0, 0, 0])
    with codedla.SerialPool(3) as pool, codedla.aslinearoperator(np.eye(5), pool=pool) as op:
        for call in (op.matvec, op.rmatvec):
            with pytest.raises(UsageError, match="x is a masked array"):
                call(masked)


def test_values_that_cannot_be_mixed():
    a = matrix((12, 12))
    bad = a.copy()
    bad[2, 3] = math.nan
    with codedla.SerialPool(6) as pool:
        with pytest.raises(UsageError, match="must be finite, because blocks are added up"):
            codedla.aslinearoperator(bad, pool=pool, adjoint="shared")
        with codedla.aslinearoperator(bad, pool=pool) as op:
            np.testing.assert_array_equal(np.isnan(op @ np.ones(12)), np.isnan(bad @ np.ones(12)))
            np.testing.assert_array_equal(
                np.isnan(op.rmatvec(np.ones(12))), np.isnan(bad.T @ np.ones(12))
            )
        with (
            codedla.aslinearoperator(a, pool=pool, adjoint="shared") as op,
            pytest.raises(UsageError, match="y must be finite"),
        ):
            op.rmatvec(np.full(12, math.inf))


def test_replies_are_checked_both_ways():
    a, x = matrix((40, 40)), matrix(40)
    liar = [Fault("corrupt", 2, 1.0, corruption="scale")]
    with (
        codedla.SerialPool(6, faults=liar) as pool,
        codedla.aslinearoperator(a, pool=pool, verify="locate", tolerate=1) as op,
        pytest.warns(codedla.CodedlaWarning, match="rank 3 was not used"),
    ):
        np.testing.assert_allclose(op @ x, a @ x, atol=1e-11)
        np.testing.assert_allclose(op.rmatvec(x), a.T @ x, atol=1e-11)
