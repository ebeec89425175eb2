"""Coded gradients on pools in this process: the same numbers whoever is late, lost or wrong."""

import gc
import threading

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import codedla
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable, PoolClosed, UsageError, VerificationFailed, WorkerError
from codedla.iterative import shares
from codedla.iterative.mlp import MLP

RNG = np.random.default_rng(60013)
NET = MLP((7, 3))
X, Y = RNG.standard_normal((101, 7)), RNG.integers(0, 3, 101)
THETA = NET.start(5)
LOSS, SLOPE = NET.loss_and_grad(THETA, X, Y)


def coded(pool, data=(X, Y), function=NET.loss_and_grad, **options):
    return codedla.CodedGradient(function, data, pool=pool, **options)


def faults(*specs):
    return [parse_fault(spec) for spec in specs]


EXACT = [
    ("cyclic", 2, {}),
    ("fractional", 2, {}),
    ("heterogeneous", 2, {"speeds": [1, 2, 3, 1, 2, 3]}),
    ("uncoded", 0, {}),
]


@pytest.mark.parametrize(("scheme", "late", "more"), EXACT)
def test_exact_schemes_give_the_plain_gradient(scheme, late, more):
    kinds = ["delay:1:9", "delay:4:9"][:late]
    with (
        codedla.SerialPool(6, faults(*kinds)) as pool,
        coded(pool, scheme=scheme, stragglers=late, **more) as cg,
    ):
        loss, gradient = cg(THETA)
        assert loss == pytest.approx(LOSS, rel=1e-12)
        np.testing.assert_allclose(gradient, SLOPE, rtol=1e-10, atol=1e-11)
        again = cg(THETA)
        assert again[0] == loss
        assert np.array_equal(again[1], gradient), "equal survivors, equal bits"
        assert cg.rounds == 2
        assert set(cg.stragglers) >= {1, 4} if late else not cg.stragglers
        replies = len(cg.last_report.responders)
        assert replies <= 6 - late
        assert cg.bytes["received"] == 2 * replies * 8 * (1 + THETA.size)


@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_any_numbers_of_workers_rows_and_late_ones(sizes, rows, seed):
    n, s = sizes
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((rows, 7)), rng.integers(0, 3, rows)
    late = faults(*(f"delay:{rank + 1}:1" for rank in rng.permutation(n)[:s]))
    with (
        codedla.SerialPool(n, late) as pool,
        coded(pool, (x, y), stragglers=s, seed=seed) as cg,
    ):
        loss, gradient = cg(THETA)
    expected = NET.loss_and_grad(THETA, x, y)
    assert loss == pytest.approx(expected[0], rel=1e-10)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_workers_lost_in_the_middle_do_not_change_the_result(seed):
    """Up to all but one are lost; whoever is left computes their shares."""
    rng = np.random.default_rng(seed)
    gone = rng.permutation(6)[: 1 + seed % 5]
    specs = faults(*(f"kill:{rank + 1}:{rng.uniform(0.5, 9):.2f}" for rank in gone))

    def delays(rng, n):
        return rng.exponential(1.0, n) * (rng.random(n) < 0.4)

    scheme = ("cyclic", "fractional", "heterogeneous")[seed % 3]
    pool = codedla.SimulatedPool(6, delays, specs, seed=seed)
    with pool, coded(pool, scheme=scheme, stragglers=1, seed=seed) as cg:
        while pool.clock < 12:
            loss, gradient = cg(THETA)
            assert loss == pytest.approx(LOSS, rel=1e-10)
            np.testing.assert_allclose(gradient, SLOPE, rtol=1e-9, atol=1e-10)
        assert set(cg.lost) <= {rank + 1 for rank in gone}
        if len(gone) > 3:
            assert cg.last_report.redispatched


def test_scipy_minimizes_it_as_it_does_the_plain_function():
    plain = minimize(NET.loss_and_grad, THETA, args=(X, Y), jac=True, method="L-BFGS-B")
    with codedla.SerialPool(5) as pool, coded(pool, stragglers=1) as cg:
        found = minimize(cg, THETA, jac=True, method="L-BFGS-B")
        assert cg.rounds == found.nfev
    assert found.fun == pytest.approx(plain.fun, rel=1e-6)


def test_data_of_many_kinds():
    """Three dimensions, sparse rows, objects, one array alone; parameters of two dimensions."""
    images = RNG.standard_normal((31, 2, 3))
    sparse = scipy.sparse.random_array((31, 4), density=0.4, rng=RNG, format="coo")
    words = np.array([None, "ab"] * 15 + ["c"], dtype=object)

    def function(theta, images, sparse, words, flags):
        lengths = sum(len(word or "") for word in words)
        loss = images.sum() + sparse.sum() * theta.sum() + lengths + flags.sum()
        return loss, np.full(theta.shape, sparse.sum())

    flags = RNG.integers(0, 2, 31).astype(bool)
    theta = np.ones((2, 2))
    expected = function(theta, images, sparse, words, flags)
    with (
        codedla.SerialPool(4) as pool,
        coded(pool, (images, sparse, words, flags), function) as cg,
    ):
        loss, gradient = cg(theta)
        assert gradient.shape == (2, 2)
        with pytest.raises(UsageError, match="keep its shape"):
            cg(np.ones(4))
    assert loss == pytest.approx(expected[0])
    np.testing.assert_allclose(gradient, expected[1])
    with codedla.SerialPool(3) as pool, coded(pool, X, lambda t, x: (x.sum(), 0 * t)) as cg:
        assert cg(THETA)[0] == pytest.approx(X.sum())


@pytest.mark.parametrize("scheme", ["cyclic", "fractional", "heterogeneous", "expander"])
def test_batches_add_up_and_are_the_same_on_all_workers(scheme):
    with (
        codedla.SerialPool(6, faults("delay:2:1")) as pool,
        coded(pool, scheme=scheme, stragglers=1) as cg,
    ):
        total, rows = 0.0, 0
        for k in range(7):
            places = np.concatenate(
                [
                    np.arange(a + (b - a) * k // 7, a + (b - a) * (k + 1) // 7)
                    for a, b in zip(cg._cuts[:-1], cg._cuts[1:], strict=True)
                ]
            )
            loss, gradient = cg(THETA, batch=(k, 7))
            assert cg.rows((k, 7)) == len(places)
            if not cg.code.approximate:
                expected = NET.loss_and_grad(THETA, X[places], Y[places])
                assert loss == pytest.approx(expected[0], rel=1e-10)
                np.testing.assert_allclose(gradient, expected[1], atol=1e-10)
            total, rows = total + loss, rows + len(places)
        assert rows == len(X) == cg.rows()
        assert total == pytest.approx(cg(THETA)[0], rel=1e-10)
        with pytest.raises(UsageError, match="counted from 0"):
            cg(THETA, batch=(7, 7))
        for wrong in (3, (0, 1, 2), "ab"):
            with pytest.raises(UsageError, match=r"pair of whole|whole number"):
                cg(THETA, batch=wrong)


def test_the_function_and_the_data_are_sent_once_and_freed():
    pool = codedla.SerialPool(3)
    supplied = []
    original = pool.fetch

    def fetch(worker, operand):
        supply = operand.supply
        if operand.key:
            return original(worker, type(operand)(operand.key, lambda: note(supply)))
        return original(worker, operand)

    def note(supply):
        supplied.append(1)
        return supply()

    pool.fetch = fetch
    before = len(shares._HEADS)
    with coded(pool, stragglers=0) as cg:
        for _ in range(4):
            cg(THETA)
        assert len(supplied) == 6
        assert len(shares._HEADS) == before + 3
    assert pool._resident == {}
    gc.collect()
    assert len(shares._HEADS) == before
    with pytest.raises(PoolClosed):
        cg(THETA)
    cg.close()


def test_workers_cannot_change_the_data():
    def spoil(theta, x, y):
        x[:] = 0
        return 0.0, theta

    with (
        codedla.SerialPool(3) as pool,
        coded(pool, function=spoil) as cg,
        pytest.raises(WorkerError, match="read-only"),
    ):
        cg(THETA)


@pytest.mark.parametrize("scheme", ["expander", "stochastic", "bibd", "ignore"])
def test_approximate_schemes_tell_how_nearly(scheme):
    with codedla.SerialPool(7) as pool, coded(pool, scheme=scheme, stragglers=2) as cg:
        _, gradient = cg(THETA)
        report = cg.last_report
        parts = [
            NET.loss_and_grad(THETA, X[a:b], Y[a:b])[1]
            for a, b in zip(cg._cuts[:-1], cg._cuts[1:], strict=True)
        ]
        allowed = report.error_estimate * np.linalg.norm(parts)
        assert np.linalg.norm(gradient - SLOPE) <= allowed + 1e-9
        assert report.error_estimate**2 <= cg.code.bound() + 1e-9
        assert "parts" in report.summary()
        assert report.to_json()


# -- wrong workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["entry", "nan", "scale"])
@pytest.mark.parametrize(
    ("scheme", "robust", "n", "late"),
    [
        ("fractional", "majority", 6, 0),
        ("fractional", "majority", 8, 1),
        ("cyclic", "locate", 6, 1),
    ],
)
def test_wrong_workers_are_named_and_do_no_harm(scheme, robust, n, late, kind):
    specs = [f"corrupt:2:1:{kind}", *(["delay:5:3"] * late)]
    with (
        codedla.SerialPool(n, faults(*specs)) as pool,
        coded(pool, scheme=scheme, robust=robust, stragglers=late) as cg,
    ):
        with pytest.warns(codedla.CodedlaWarning, match="rank 2 was not used"):
            loss, gradient = cg(THETA)
        assert cg.wrong == {2: 1}
        assert cg.last_report.wrong == [2]
        assert 2 not in cg.last_report.responders
        assert loss == pytest.approx(LOSS, rel=1e-9)
        np.testing.assert_allclose(gradient, SLOPE, rtol=1e-8, atol=1e-9)


def test_more_wrong_workers_than_allowed_are_noticed():
    specs = faults("corrupt:1:1:scale", "corrupt:2:1:nan", "corrupt:3:1:entry")
    for scheme, robust in (("fractional", "majority"), ("cyclic", "locate")):
        with (
            codedla.SerialPool(6, specs) as pool,
            coded(pool, scheme=scheme, robust=robust, stragglers=0) as cg,
            pytest.raises(VerificationFailed, match="errors"),
        ):
            cg(THETA)


@pytest.mark.parametrize("robust", ["krum", "geometric-median", "trimmed-mean"])
def test_baselines_bound_what_a_wrong_worker_can_do(robust):
    def squares(theta, x):
        return 0.5 * float(((x - theta) ** 2).sum()), (theta - x).sum(axis=0)

    rng = np.random.default_rng(5)
    x = 3.0 + 0.1 * rng.standard_normal((100, 4))
    specs = faults("corrupt:3:1:scale")
    with (
        codedla.SerialPool(8, specs) as pool,
        coded(pool, x, squares, scheme="uncoded", robust=robust) as cg,
    ):
        _, gradient = cg(np.zeros(4))
    np.testing.assert_allclose(gradient, -x.sum(axis=0), rtol=0.05)


@pytest.mark.parametrize("robust", ["krum", "geometric-median", "trimmed-mean"])
def test_baselines_are_not_outvoted_by_workers_without_rows(robust):
    def mean_of(theta, x):
        return float(x.sum()), x.sum(axis=0)

    # Two rows for eight workers; then batches of which most parts have nothing.
    with (
        codedla.SerialPool(8) as pool,
        coded(pool, np.ones((2, 3)), mean_of, scheme="uncoded", robust=robust) as cg,
    ):
        loss, gradient = cg(np.zeros(3))
        assert loss == pytest.approx(6.0)
        np.testing.assert_allclose(gradient, 2.0)
        halves = [cg(np.zeros(3), batch=(k, 2)) for k in range(2)]
        assert [cg.rows((k, 2)) for k in range(2)] == [0, 2]
        assert [loss for loss, _ in halves] == pytest.approx([0.0, 6.0])


def test_robust_batches_are_weighed_by_the_rows_that_they_have():
    x = np.ones((9, 2))
    with (
        codedla.SerialPool(5) as pool,
        coded(
            pool, x, lambda t, x: (float(len(x)), x.sum(axis=0)), scheme="uncoded", robust="krum"
        ) as cg,
    ):
        for k in range(2):
            loss, gradient = cg(np.zeros(2), batch=(k, 2))
            assert loss == pytest.approx(cg.rows((k, 2)))
            np.testing.assert_allclose(gradient, cg.rows((k, 2)))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": (X, Y[:-1])}, "equally many rows"),
        ({"data": ()}, "equally many rows"),
        ({"data": [X, Y]}, "tuple of arrays"),
        ({"data": np.float64(3)}, "equally many rows"),
        ({"function": 3}, "loss_and_grad must be a function"),
        ({"scheme": "cyclc"}, "scheme must be one of"),
        ({"stragglers": 1.5}, "whole number"),
        ({"errors": 1}, "robust='locate'"),
        ({"robust": "vote"}, "robust must be one of"),
        ({"robust": "majority"}, "equal replies"),
        ({"robust": "krum"}, "equal standing"),
        ({"robust": "locate", "scheme": "heterogeneous", "stragglers": 1}, None),
        ({"robust": "locate", "scheme": "fractional", "stragglers": 0}, "do not check each other"),
        ({"timeout": 0}, "timeout"),
        ({"degree": 3}, "has these options"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(options, words):
    options = {"data": (X, Y), "function": NET.loss_and_grad, **options}
    with codedla.SerialPool(6) as pool:
        if words is None:
            coded(pool, **options).close()
        else:
            with pytest.raises(UsageError, match=words):
                coded(pool, **options)
        assert pool._resident == {}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda theta, x, y: 3.0, "must return a number and an array"),
        (lambda theta, x, y: (1.0, theta[:2]), "as large as the parameters"),
        (lambda theta, x, y: (1.0, 1j * theta), "both real"),
        (lambda theta, x, y: (1.0, None), "both real"),
        (lambda theta, x, y: (1j, theta), "both real"),
        (lambda theta, x, y: (theta, theta), "both real"),
        (lambda theta, x, y: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_functions_that_do_not_keep_the_contract_are_named(function, words):
    with (
        codedla.SerialPool(3) as pool,
        coded(pool, function=function) as cg,
        pytest.raises(WorkerError, match=words),
    ):
        cg(THETA)


def test_losses_may_be_arrays_of_one_number():
    def column(theta, x, y):
        loss, gradient = NET.loss_and_grad(theta, x, y)
        return np.array([[loss]]), gradient

    with codedla.SerialPool(4) as pool, coded(pool, function=column) as cg:
        assert cg(THETA)[0] == pytest.approx(LOSS)


@pytest.mark.parametrize("scheme", ["cyclic", "uncoded"])
def test_nan_is_handed_on_and_errors_leave_the_pool_usable(scheme):
    def fragile(theta, x, y):
        if theta[0] > 1:
            raise ValueError("too far")
        return float(theta[0]), theta

    theta = np.zeros(3)
    with (
        codedla.SerialPool(4) as pool,
        coded(pool, function=fragile, scheme=scheme) as cg,
        coded(pool, scheme=scheme) as other,
    ):
        assert np.isnan(cg(theta + np.nan)[0])
        for _ in range(2):
            with pytest.raises(WorkerError, match="too far"):
                cg(theta + 2)
            assert cg(theta)[0] == 0
            assert other(THETA)[0] == pytest.approx(LOSS)


def test_functions_that_cannot_be_sent_are_refused():
    lock = threading.Lock()
    with (
        codedla.SerialPool(3) as pool,
        coded(pool, function=lambda *_: lock.locked()) as cg,
        pytest.raises(UsageError, match=r"can be sent.*got <function"),
    ):
        cg(THETA)


@pytest.mark.parametrize("theta", [np.array(["a"]), np.zeros(0), 1j * np.ones(3)])
def test_parameters_must_be_real_numbers(theta):
    with (
        codedla.SerialPool(3) as pool,
        coded(pool) as cg,
        pytest.raises(UsageError, match="real numbers"),
    ):
        cg(theta)


def test_too_many_late_workers_end_with_the_time_out():
    specs = faults(*(f"hang:{rank}:0" for rank in range(1, 4)))
    with codedla.SerialPool(3, specs) as pool, coded(pool) as cg, pytest.raises(NotDecodable):
        cg(THETA)
