"""Lagrange coded computing: functions of blocks and batches of products, exact and hidden."""

import warnings

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.interpolate import batch_family
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable, UsageError, VerificationFailed
from codedla.galois import Field
from codedla.linalg.polynomial import Residues, Trace, trace

RNG_SEED = 11
CONSTANT = np.array([[1, -2, 3], [0, 5, -1]])

# (function, number of arguments, degree)
FUNCTIONS = (
    (lambda X: 3 * X - 1, 1, 1),
    (lambda X: X @ X + X, 1, 2),
    (lambda X: CONSTANT @ X.T @ X, 1, 2),
    (lambda X: X @ X @ X, 1, 3),
    (lambda X, Y: X @ Y - (Y * X) + 7 - Y**2, 2, 2),
    (lambda X, Y: -(X.T @ Y @ X), 2, 3),
)


def blocks_of(count, arguments, largest, real=False):
    rng = np.random.default_rng([RNG_SEED, count, largest])
    shape = (arguments, count, 3, 3)
    return rng.standard_normal(shape) if real else rng.integers(-largest, largest, shape)


@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: f"degree{c[2]}-{c[1]}")
@pytest.mark.parametrize("colluders", [0, 1, 2])
@pytest.mark.parametrize("largest", [3, 2**40])
def test_functions_of_integers_are_exact(case, colluders, largest):
    f, arguments, degree = case
    blocks = blocks_of(3, arguments, largest)
    need = (3 + colluders - 1) * degree + 1
    with codedla.SerialPool(need) as pool:
        results, report = codedla.lagrange_map(
            f, *blocks, pool=pool, colluders=colluders, return_report=True
        )
    expected = [f(*(block.astype(object) for block in one)) for one in blocks.swapaxes(0, 1)]
    assert np.array_equal(results, np.array(expected))
    assert report.threshold == need and report.operation == "map"
    assert report.code == ("lagrange" if colluders == 1 else f"lagrange:{colluders}")
    # Where everything fits int64, so is the result.
    assert results.dtype == (np.int64 if largest == 3 else object) or degree == 1


@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: f"degree{c[2]}-{c[1]}")
def test_functions_of_real_numbers(case):
    f, arguments, degree = case
    blocks = blocks_of(4, arguments, 1, real=True)
    with codedla.SerialPool(3 * degree + 2, faults=[parse_fault("kill:2:0")]) as pool:
        results, report = codedla.lagrange_map(f, *blocks, pool=pool, return_report=True)
    np.testing.assert_allclose(results, [f(*one) for one in blocks.swapaxes(0, 1)], atol=1e-11)
    assert report.code == "lagrange-real" and report.amplification < 100


@pytest.mark.parametrize("colluders", [0, 2])
def test_a_batch_of_products(colluders):
    rng = np.random.default_rng(5)
    As, Bs = rng.integers(-99, 99, (3, 4, 6)), rng.integers(-99, 99, (3, 6, 5))
    with codedla.SerialPool(12) as pool:
        products, report = codedla.batch_matmul(
            list(As), Bs, pool=pool, colluders=colluders, stragglers=1, return_report=True
        )
        assert np.array_equal(products, As @ Bs) and products.dtype == np.int64
        assert report.shapes == {"results": [3, 4, 5]}
        floats = codedla.batch_matmul(As / 7, Bs / 3, pool=pool)
    np.testing.assert_allclose(floats, (As / 7) @ (Bs / 3), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("real", [False, True])
def test_wrong_workers_are_named(real):
    blocks = blocks_of(2, 1, 50, real=real)[0]
    faults = [parse_fault(spec) for spec in ("corrupt:2:1", "corrupt:5:1:scale", "kill:3:0")]
    with codedla.SerialPool(8, faults=faults) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", codedla.CodedlaWarning)
        results, report = codedla.lagrange_map(
            lambda X: X @ X, blocks, pool=pool, stragglers=1, errors=2, return_report=True
        )
        np.testing.assert_allclose(results, blocks @ blocks, atol=1e-12 if real else 0)
        assert report.wrong == [2, 5] and report.verified == "spares"
        with pytest.raises(VerificationFailed, match="not tell whose"):
            codedla.lagrange_map(lambda X: X @ X, blocks, pool=pool, stragglers=1, errors=1)


def test_rounding_where_terms_cancel_is_not_taken_for_a_lie():
    f = lambda X: X @ X - (X - 1) @ (X - 1)  # noqa: E731
    for seed in range(6):
        blocks = 1e5 * np.random.default_rng([18, seed]).standard_normal((3, 3, 3))
        for faults in ((), (parse_fault("corrupt:3:1"),)):
            with codedla.SerialPool(7, faults=faults) as pool, warnings.catch_warnings():
                warnings.simplefilter("ignore", codedla.CodedlaWarning)
                results, report = codedla.lagrange_map(
                    f, blocks, pool=pool, errors=1, return_report=True
                )
            assert report.wrong == [3] * len(faults)
            np.testing.assert_allclose(results, [f(X) for X in blocks], rtol=0, atol=1e-2)


def test_the_number_of_workers_is_that_of_the_formula():
    blocks = blocks_of(3, 1, 9)[0]
    f = lambda X: X @ X  # noqa: E731
    with codedla.SerialPool(11) as pool:
        _, report = codedla.lagrange_map(
            f, blocks, pool=pool, colluders=1, stragglers=2, errors=1, return_report=True
        )
        # (3 + 1 - 1) 2 + 1 replies, and half of those that are spare.
        assert report.threshold == 7 and len(report.responders) == 8
    with (
        codedla.SerialPool(10) as pool,
        pytest.raises(UsageError, match=r"= 11 workers are needed; got 10; use 12 ranks"),
    ):
        codedla.lagrange_map(f, blocks, pool=pool, colluders=1, stragglers=2, errors=1)


def test_the_time_of_all_rounds_is_limited():
    blocks = blocks_of(2, 1, 2**60)[0]
    late = np.full(8, 10.0)
    for timeout, enough in ((15.0, False), (80.0, False), (1000.0, True)):
        with codedla.SimulatedPool(8, delays=lambda rng, n: late) as pool:
            if not enough:
                with pytest.raises(NotDecodable, match="the time-out passed"):
                    codedla.lagrange_map(lambda X: X @ X @ X, blocks, pool=pool, timeout=timeout)
                continue
            _, report = codedla.lagrange_map(
                lambda X: X @ X @ X, blocks, pool=pool, timeout=timeout, return_report=True
            )
            assert 80 < report.times["total"] < 100


def test_hidden_blocks_are_not_given_to_others():
    blocks = blocks_of(2, 1, 9)[0]
    dead = [parse_fault(f"kill:{rank}:0") for rank in (1, 2)]
    with codedla.SerialPool(6, faults=dead) as pool:
        with pytest.raises(NotDecodable, match="no worker may see the share of another"):
            codedla.lagrange_map(lambda X: X @ X, blocks, pool=pool, colluders=1)
        again = codedla.lagrange_map(lambda X: X @ X, blocks, pool=pool, degree=3)
    assert np.array_equal(again, blocks @ blocks)


def test_what_is_refused():
    X = blocks_of(2, 1, 9)[0]
    with codedla.SerialPool(9) as pool:
        for f, blocks, options, text in (
            (np.linalg.inv, X, {}, "polynomial built from"),
            (lambda X: X @ X[0], X, {}, "polynomial built from"),
            (lambda X: 5, X, {}, "depends on its arguments"),
            (lambda X: X @ np.ones(3, int), X, {}, "two dimensions"),
            (lambda X: X * 0.5, X, {}, "constants.*integers"),
            (lambda X: X, X / 2, {"colluders": 1}, "only integers can be hidden"),
            (lambda X: X @ X, X, {"degree": 1}, "below that of f, 2"),
            (lambda X: X, X[0], {}, "one or more matrices"),
            (lambda X: X, X * 1j, {}, "integers or real"),
            (lambda X: X, X * np.inf, {}, "finite"),
            (lambda X: X, X, {"errors": -1}, "errors"),
            (lambda X: X, X[:, :0], {}, "empty"),
            (lambda X: X, X, {"progress": 1}, "progress must be a function"),
        ):
            with pytest.raises(UsageError, match=text), np.errstate(invalid="ignore"):
                codedla.lagrange_map(f, blocks, pool=pool, **options)
        with pytest.raises(UsageError, match="as many blocks"):
            codedla.batch_matmul(X, X[:1], pool=pool)
        with pytest.raises(UsageError, match=r"as many columns.*got 3 x 2 and 3 x 3"):
            codedla.batch_matmul(X[:, :, :2], X, pool=pool)
    with pytest.raises(UsageError, match="worker ranks get None"):
        codedla.batch_matmul(X, X, pool=None)


def in_place(X):
    X += 1
    return X


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        # NumPy would take what stands for a matrix for a number.
        lambda X: np.dot(X, X),
        lambda X: np.inner(X, X),
        lambda X: np.kron(X, X),
        lambda X: np.asarray(X) * 2,
        lambda X: np.transpose(X),
        # Python has an answer to these for any object.
        lambda X: X + (X == 0),
        lambda X: X * (X != X.T),
        lambda X: X if X else -X,
        lambda X: X * (hash(X) % 3),
        # Other names of the same array would change with it.
        in_place,
        # A constant without a meaning, a power without an end, an error of its own.
        lambda X: X + np.zeros((0, 3), int),
        lambda X: np.matrix(np.eye(3, dtype=int)) * X,
        lambda X: np.ma.array([1, 2, 3], mask=[1, 0, 0]) * X,
        lambda X: X**10**9,
        lambda X: X * {}["scale"],
        lambda X: X * (1 // 0),
    ],
)
def test_what_is_no_polynomial_is_refused_before_anybody_computes(f, real):
    def nobody_asked(done, needed, total):
        raise AssertionError("a worker has computed")

    X = blocks_of(2, 1, 9, real=real)[0]
    with (
        codedla.SerialPool(9) as pool,
        pytest.raises(UsageError, match="polynomial built from") as caught,
    ):
        codedla.lagrange_map(f, X, pool=pool, progress=nobody_asked)
    assert "\n" not in str(caught.value)
    assert " at 0x" not in str(caught.value).split(": ")[0], "a name, not an address"


def test_constants_and_sizes():
    X = blocks_of(2, 1, 9)[0]
    with codedla.SerialPool(9) as pool:
        large = codedla.lagrange_map(lambda X: X * 2**70 - 2**65, X, pool=pool)
        for constant in (np.nan, np.inf):
            with pytest.raises(UsageError, match="constants must be finite"):
                codedla.lagrange_map(lambda X: X + constant, X / 2, pool=pool)  # noqa: B023
        for f in (lambda X: X @ X, lambda X: X**2, lambda X: X * 1e150):
            with pytest.raises(UsageError, match="far from overflow"):
                codedla.lagrange_map(f, X * 1e160, pool=pool)
    assert np.array_equal(large, X.astype(object) * 2**70 - 2**65)


def test_residues_compute_as_integers_do():
    field, rng = Field(2_097_143), np.random.default_rng(6)
    X, Y = rng.integers(-(2**40), 2**40, (2, 4, 4))
    for f, arguments, _ in FUNCTIONS:
        if f is FUNCTIONS[2][0]:
            continue  # its constant is for 3 x 3
        some = [X, Y][:arguments]
        found = f(*(Residues(field, x) for x in some))
        exact = f(*(x.astype(object) for x in some))
        assert np.array_equal(found.values, field.reduce(exact))
        seen = trace(f, [Trace(x.shape, 1, int(np.abs(x).max())) for x in some])
        assert seen.shape == exact.shape and np.abs(exact).max() <= seen.largest
    assert (5 - Residues(field, X)).shape == (X @ Residues(field, Y)).shape == (4, 4)


def test_real_batches_lose_digits_as_predicted():
    code = get("lagrange-real")(9, Grid(1, 4, 1))
    assert code.threshold == 7 and code.worst_amplification()[0] < 100


def test_lost_digits_are_told():
    blocks = blocks_of(12, 1, 1, real=True)[0]
    code = batch_family(real=True, degree=3, colluders=0)(40, Grid(12, 1, 1))
    alpha, members = code.worst_amplification()
    assert code.threshold == 34 and alpha > 1e7
    # The worst six are dead.
    dead = [parse_fault(f"kill:{rank + 1}:0") for rank in set(range(40)) - set(members)]
    with (
        codedla.SerialPool(40, faults=dead) as pool,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        results, report = codedla.lagrange_map(
            lambda X: X @ X @ X, blocks, pool=pool, return_report=True
        )
    said = [str(warning.message) for warning in caught]
    assert any("interpolating from these replies may err" in text for text in said)
    assert report.amplification == pytest.approx(alpha) and report.warnings
    exact = blocks @ blocks @ blocks
    error = np.linalg.norm(results - exact) / np.linalg.norm(exact)
    assert 1e-14 < error < 20 * report.amplification * 2.0**-52
