"""Power and orthogonal iteration, truncated SVD and PCA against NumPy and SciPy."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import svds

import codedla
from codedla import CodedlaWarning, SerialPool, SimulatedPool, UsageError
from codedla.engine.stragglers import Delays

LOSSY = [
    ("exact", {}),
    ("substitute", {}),
    ("substitute", {"erasures": 0.3}),
    ("stale", {"erasures": 0.3}),
]


def with_eigenvalues(values, seed, *, complex_=False):
    rng = np.random.default_rng(seed)
    n = len(values)
    drawn = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if complex_ else 0)
    q = np.linalg.qr(drawn)[0]
    return (q * values) @ q.conj().T


@pytest.fixture
def pool():
    with SimulatedPool(8, delays=Delays("exp", (0.1,)), seed=11) as pool:
        yield pool


@pytest.mark.parametrize(("decode", "options"), LOSSY)
@pytest.mark.parametrize("largest", [10.0, -10.0])
def test_power_iteration_finds_the_dominant_pair(pool, decode, options, largest):
    A = with_eigenvalues(np.r_[largest, 6.0, np.linspace(-4, 4, 38)], 1)
    seen = []
    found = codedla.power_iteration(
        A,
        pool=pool,
        decode=decode,
        callback=lambda rounds, residual, report: seen.append((rounds, residual, report)),
        **options,
    )
    assert found.converged
    assert found.value == pytest.approx(largest, rel=1e-9)
    np.testing.assert_allclose(A @ found.vector, found.value * found.vector, atol=1e-7)
    assert [rounds for rounds, _, _ in seen] == list(range(1, found.rounds + 1))
    assert seen[-1][1] == found.residual <= 1e-10
    assert found.tally.rounds == found.rounds == found.tally.to_dict()["rounds"]
    assert all(report.n_workers == 8 for _, _, report in seen)


def test_power_iteration_of_a_complex_and_of_a_nonsymmetric_matrix(pool):
    A = with_eigenvalues(np.r_[5j, np.linspace(-3, 3, 19)], 2, complex_=True)
    found = codedla.power_iteration(A, pool=pool)
    assert found.value == pytest.approx(5j, rel=1e-8)
    B = np.triu(np.ones((6, 6))) + np.diag([9.0, 1, 1, 1, 1, 1])
    assert codedla.power_iteration(B, pool=pool).value == pytest.approx(10.0)


def test_power_iteration_repeats_itself_bit_for_bit():
    A = with_eigenvalues(np.r_[3.0, np.linspace(-2, 2, 15)], 3)
    with SerialPool(5) as pool:
        first, again = (codedla.power_iteration(A, pool=pool, seed=4) for _ in range(2))
        other = codedla.power_iteration(A, pool=pool, seed=5)
    np.testing.assert_array_equal(first.vector, again.vector)
    assert not np.array_equal(first.vector, other.vector)


def test_the_zero_matrix_and_one_number(pool):
    zero = codedla.power_iteration(np.zeros((4, 4)), pool=pool)
    assert (zero.value, zero.converged, zero.rounds) == (0.0, True, 1)
    assert codedla.power_iteration([[-2]], pool=pool).value == -2.0


def test_a_stored_matrix_and_an_operator_are_used_as_they_are(pool):
    A = with_eigenvalues(np.r_[9.0, -5.0, 4.0, np.linspace(-1, 1, 17)], 4)
    with codedla.store(A, pool=pool) as stored:
        assert codedla.power_iteration(stored).value == pytest.approx(9.0)
        values = codedla.orthogonal_iteration(stored, 2).values
        np.testing.assert_allclose(values, [9.0, -5.0], rtol=1e-7)
        assert stored.matvec(np.ones(20)).shape == (20,), "it is still open"
        with pytest.raises(UsageError, match="pass the plain matrix"):
            codedla.power_iteration(stored, decode="substitute")
        with pytest.raises(UsageError, match="products by the adjoint"):
            codedla.truncated_svd(stored, 2)
    with codedla.aslinearoperator(A[:, :9], pool=pool) as operator:
        found = codedla.truncated_svd(operator, 2)
    np.testing.assert_allclose(found.s, np.linalg.svd(A[:, :9])[1][:2], rtol=1e-9)


def test_rounds_that_do_not_suffice_are_told(pool):
    A = with_eigenvalues(np.r_[1.0, 0.999, np.zeros(8)], 5)
    with pytest.warns(CodedlaWarning, match="power iteration ended after 3 rounds"):
        found = codedla.power_iteration(A, pool=pool, rounds=3)
    assert not found.converged
    assert found.rounds == 3


@pytest.mark.parametrize(("decode", "options"), LOSSY)
def test_orthogonal_iteration_finds_the_largest_pairs(pool, decode, options):
    A = with_eigenvalues(np.r_[10.0, -8.0, 7.0, 5.0, np.linspace(-3, 3, 36)], 6)
    found = codedla.orthogonal_iteration(A, 3, pool=pool, decode=decode, **options)
    assert found.converged
    np.testing.assert_allclose(found.values, [10.0, -8.0, 7.0], rtol=1e-9)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(A @ found.vectors, found.vectors * found.values, atol=1e-6)


def test_orthogonal_iteration_of_a_hermitian_matrix_to_its_full_dimension(pool):
    A = with_eigenvalues(np.array([4.0, -3.0, 2.0, 1.0]), 7, complex_=True)
    found = codedla.orthogonal_iteration(A, 4, pool=pool)
    np.testing.assert_allclose(found.values, [4.0, -3.0, 2.0, 1.0])
    np.testing.assert_allclose((found.vectors * found.values) @ found.vectors.conj().T, A)


@pytest.mark.parametrize(("decode", "options"), LOSSY)
@pytest.mark.parametrize("shape", [(60, 25), (25, 60)])
def test_truncated_svd_is_scipys(pool, decode, options, shape):
    rng = np.random.default_rng(8)
    u, v = (np.linalg.qr(rng.standard_normal((side, 20)))[0] for side in shape)
    A = (u * np.r_[9.0, 7.0, 5.0, np.linspace(2, 0, 17)]) @ v.T
    found = codedla.truncated_svd(A, 3, pool=pool, decode=decode, **options)
    assert found.converged
    U, s, Vh = svds(A, 3)
    np.testing.assert_allclose(found.s, s[::-1], rtol=1e-9)
    near = (found.U * found.s) @ found.Vh
    np.testing.assert_allclose(near, (U * s) @ Vh, atol=1e-6)


def test_truncated_svd_of_a_sparse_complex_matrix(pool):
    rng = np.random.default_rng(9)
    A = sp.random_array((30, 12), density=0.3, rng=rng) + 1j * sp.random_array(
        (30, 12), density=0.3, rng=rng
    )
    found = codedla.truncated_svd(A, 2, pool=pool, extra=6)
    np.testing.assert_allclose(found.s, np.linalg.svd(A.toarray())[1][:2])
    np.testing.assert_allclose(A.conj().T @ found.U, found.Vh.conj().T * found.s, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("decode", ["exact", "substitute"])
def test_principal_components_are_those_of_the_centred_samples(pool, kind, decode):
    rng = np.random.default_rng(10)
    X = (rng.random((50, 9)) < 0.4) * rng.uniform(1, 3, (50, 9)) * np.linspace(4, 1, 9)
    given = sp.csr_array(X) if kind == "sparse" else X
    found = codedla.pca(given, 2, pool=pool, decode=decode, extra=5)
    _, s, Vh = np.linalg.svd(X - X.mean(axis=0))
    np.testing.assert_allclose(found.mean, X.mean(axis=0))
    np.testing.assert_allclose(found.explained_variance, s[:2] ** 2 / 49, rtol=1e-8)
    signs = np.sign([row[np.abs(row).argmax()] for row in Vh[:2]])
    np.testing.assert_allclose(found.components, Vh[:2] * signs[:, None], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: codedla.power_iteration(np.ones((3, 2)), pool=p), "square matrix"),
        (lambda p: codedla.power_iteration(np.eye(3)), "needs a pool"),
        (lambda p: codedla.power_iteration(np.eye(3), pool=p, tol=0), "tol must be positive"),
        (lambda p: codedla.power_iteration(np.eye(3), pool=p, decode="x"), "decode must be one"),
        (lambda p: codedla.power_iteration(np.eye(3), pool=p, weight=2), "has the options code"),
        (lambda p: codedla.power_iteration(np.eye(3), pool=p, start=[1, 2]), "of 3 entries"),
        (lambda p: codedla.power_iteration(np.eye(3), pool=p, start=[0, 0, 0]), "independent"),
        (lambda p: codedla.orthogonal_iteration(np.eye(3), 4, pool=p), "smaller dimension"),
        (lambda p: codedla.truncated_svd(np.ones(3), 1, pool=p), "must be a matrix"),
        (lambda p: codedla.pca(np.ones((1, 3)), 1, pool=p), "at least two"),
    ],
)
def test_wrong_arguments_are_named(pool, call, message):
    with pytest.raises(UsageError, match=message):
        call(pool)


@pytest.mark.parametrize("decode", ["exact", "substitute"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("end", ["large", "small"])
def test_norms_that_leave_the_range_end_nothing_early(decode, dtype, end):
    values = np.r_[5.0, -3.0, 2.0, np.linspace(-1, 1, 17)]
    A = with_eigenvalues(values, 12, complex_=dtype == "c16")
    scale = {"f4": 1e30, "f8": 1e200, "c16": 1e200}[dtype] ** (1 if end == "large" else -1)
    tol = 1e-5 if dtype == "f4" else 1e-9
    with SerialPool(5) as pool:
        words = {"pool": pool, "decode": decode, "tol": tol}
        B = (A * scale).astype(dtype)
        one = codedla.power_iteration(B, **words)
        some = codedla.orthogonal_iteration(B, 2, **words)
        svd = codedla.truncated_svd(B, 2, **words)
        parts = codedla.pca(B, 2, **words)
    assert one.converged and some.converged and svd.converged and parts.converged
    assert one.value / scale == pytest.approx(5.0, rel=1e-5)
    assert np.linalg.norm(one.vector) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(some.values / scale, [5.0, -3.0], rtol=1e-5)
    np.testing.assert_allclose(svd.s / scale, [5.0, 3.0], rtol=1e-5)
    centred = np.linalg.svd(A - A.mean(axis=0), compute_uv=False)[:2]
    np.testing.assert_allclose(parts.singular_values / scale, centred, rtol=1e-4)


@pytest.mark.parametrize("decode", ["exact", "substitute"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_matrices_that_are_not_finite_are_refused(bad, decode):
    A = np.eye(6)
    A[2, 3] = bad
    with SerialPool(3) as pool, np.errstate(invalid="ignore"):
        for call, *wanted in (
            (codedla.power_iteration,),
            (codedla.orthogonal_iteration, 2),
            (codedla.truncated_svd, 2),
            (codedla.pca, 2),
        ):
            with pytest.raises(UsageError, match="must be finite; got NaN or Inf"):
                call(A, *wanted, pool=pool, decode=decode)
        # Of what is stored already only its products are known.
        with codedla.store(A, pool=pool) as stored, pytest.raises(UsageError, match="got NaN or"):
            codedla.power_iteration(stored)


def test_arrays_that_are_no_numbers_are_refused_everywhere():
    masked = np.ma.array(np.eye(3), mask=np.eye(3, dtype=bool))
    with SerialPool(2) as pool:
        with pytest.raises(UsageError, match="start must be 1 finite"):
            codedla.power_iteration(np.eye(3), pool=pool, start=["a", "b", "c"])
        for call in (codedla.truncated_svd, codedla.pca):
            with pytest.raises(UsageError, match="masked array"):
                call(masked, 1, pool=pool)
        with pytest.raises(UsageError, match="operands must be"):
            codedla.pca([["a", "b"], ["c", "d"]], 1, pool=pool)
        found = codedla.power_iteration(
            np.diag([3.0, 1.0]), pool=pool, start=np.ones(2, np.longdouble)
        )
    assert found.value == pytest.approx(3.0)
