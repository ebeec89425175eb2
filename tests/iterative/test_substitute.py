"""Substitute decoding: exact where it can be, a projection of the change where it cannot."""

import numpy as np
import pytest
import scipy.sparse as sp

from codedla import PoolClosed, SerialPool, SimulatedPool, UsageError
from codedla.engine.stragglers import Delays, parse_fault
from codedla.iterative.substitute import SubstituteMatrix, sparse_generator


@pytest.mark.parametrize(
    ("workers", "blocks", "weight"), [(1, 1, 1), (3, 2, 2), (8, 5, 3), (8, 5, 2), (40, 26, 3)]
)
def test_the_generator_is_sparse_balanced_and_of_full_rank(workers, blocks, weight):
    for seed in range(5):
        H = sparse_generator(workers, blocks, weight, seed)
        assert H.shape == (workers, blocks)
        assert (np.count_nonzero(H, axis=1) == weight).all()
        assert np.linalg.matrix_rank(H) == blocks
        sizes = np.abs(H[H != 0])
        assert 0.5 <= sizes.min() <= sizes.max() <= 1.5
        np.testing.assert_array_equal(H, sparse_generator(workers, blocks, weight, seed))


def test_a_generator_that_cannot_exist_is_refused():
    # One non-zero a row: two blocks of one worker each are told apart, three workers' too few.
    with pytest.raises(UsageError, match="cannot tell 3 blocks apart"):
        sparse_generator(2, 3, 1, 0)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("rows", [1, 4, 37])
@pytest.mark.parametrize("generator", ["sparse", "replication"])
def test_with_all_replies_the_product_is_exact(kind, rows, generator):
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((rows, 11)) * (rng.random((rows, 11)) < 0.5)
    x, guess = rng.standard_normal((11, 2)), rng.standard_normal((rows, 2))
    given = sp.csr_array(A) if kind == "sparse" else A
    with (
        SerialPool(7) as pool,
        SubstituteMatrix(given, pool=pool, tolerate=0, generator=generator) as stored,
    ):
        y = stored.multiply(x, guess)
        np.testing.assert_allclose(y, A @ x, atol=1e-12)
        assert stored.settled(True)


def test_the_error_is_the_part_of_the_change_that_nobody_saw():
    rng = np.random.default_rng(5)
    A, x = rng.standard_normal((30, 9)), rng.standard_normal((9, 1))
    guess = A @ x + 0.1 * rng.standard_normal((30, 1))
    deficient = 0
    with SerialPool(9) as pool:
        for seed in range(20):
            with SubstituteMatrix(A, pool=pool, erasures=0.4, seed=seed, blocks=6) as stored:
                y = stored.multiply(x, guess)
                ranks = stored.last_report.responders
                H = stored._code.generator_a[sorted(rank - 1 for rank in ranks)]
                null = np.eye(6) - np.linalg.pinv(H) @ H if len(H) else np.eye(6)
                unseen = (null @ (guess - A @ x).reshape(6, 5)).reshape(30, 1)
                np.testing.assert_allclose(y - A @ x, unseen, atol=1e-12)
                full = len(H) > 0 and np.linalg.matrix_rank(H) == 6
                deficient += not full
                assert stored.settled(True) == full
    assert 0 < deficient < 20, "both cases were seen"


def test_a_complex_matrix_keeps_its_dtype():
    rng = np.random.default_rng(6)
    A = rng.standard_normal((8, 8)) + 1j * rng.standard_normal((8, 8))
    x = rng.standard_normal((8, 1))
    with SerialPool(4) as pool, SubstituteMatrix(A, pool=pool, tolerate=0) as stored:
        y = stored.multiply(x, np.zeros((8, 1)))
    assert y.dtype == np.complex128
    np.testing.assert_allclose(y, A @ x)


def test_a_round_waits_for_as_many_replies_as_were_asked_for():
    A = np.ones((12, 3))
    with (
        SimulatedPool(12, delays=Delays("exp", (0.1,)), seed=1) as pool,
        SubstituteMatrix(A, pool=pool, tolerate=5) as stored,
    ):
        for _ in range(5):
            stored.multiply(np.ones((3, 1)), np.full((12, 1), 3.0))
            assert len(stored.last_report.responders) == 7
            assert len(stored.last_report.stragglers) == 5


def test_a_round_ends_at_its_deadline_with_what_has_come():
    def delays(rng, n):
        return np.where(np.arange(n) < 4, 0.0, 5.0)

    A, guess = np.arange(24.0).reshape(8, 3), np.zeros((8, 1))
    with (
        SimulatedPool(8, delays=delays) as pool,
        SubstituteMatrix(A, pool=pool, tolerate=0, deadline=1.0) as stored,
    ):
        stored.multiply(np.ones((3, 1)), guess)
        assert stored.last_report.responders == [1, 2, 3, 4]
        assert pool.clock == pytest.approx(1.0)
        assert not stored.settled(True), "half of the workers have not seen all blocks"


def test_a_deadline_before_any_reply_leaves_the_guess():
    A, guess = np.ones((4, 2)), np.arange(4.0)[:, None]
    with (
        SimulatedPool(4, task_seconds=3.0) as pool,
        SubstituteMatrix(A, pool=pool, deadline=1.0) as stored,
    ):
        np.testing.assert_array_equal(stored.multiply(np.ones((2, 1)), guess), guess)


@pytest.mark.filterwarnings("ignore:rank")
def test_lost_workers_are_replaced_when_too_few_are_left():
    A = np.arange(40.0).reshape(8, 5)
    faults = [parse_fault(f"kill:{rank}:0") for rank in (1, 2, 5)]
    with (
        SerialPool(6, faults=faults) as pool,
        SubstituteMatrix(A, pool=pool, tolerate=0) as stored,
    ):
        y = stored.multiply(np.ones((5, 1)), np.zeros((8, 1)))
        np.testing.assert_allclose(y[:, 0], A.sum(axis=1))
        assert stored.last_report.redispatched == [1, 2, 5]


def test_workers_keep_their_shares_and_forget_them_at_the_end():
    with SerialPool(4) as pool:
        with SubstituteMatrix(np.eye(6), pool=pool, tolerate=0) as stored:
            for _ in range(3):
                stored.multiply(np.ones((6, 1)), np.zeros((6, 1)))
            assert len(pool._resident) == 4
        assert not pool._resident
        with pytest.raises(PoolClosed, match="store it again"):
            stored.multiply(np.ones((6, 1)), np.zeros((6, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 9}, "at most one a worker"),
        ({"blocks": 0}, "blocks must be >= 1"),
        ({"tolerate": 4}, "tolerate is below the 4 workers"),
        ({"erasures": 1.0}, "erasures must be from 0"),
        ({"deadline": 0.0}, "deadline must be positive"),
        ({"generator": "dense"}, "generator must be one of"),
        ({"weight": 1.5}, "weight must be a whole number"),
        ({"weight": 3}, "at most the number of blocks, 2 with 4 workers; got 3"),
    ],
)
def test_options_are_checked(options, message):
    with SerialPool(4) as pool, pytest.raises(UsageError, match=message):
        SubstituteMatrix(np.eye(4), pool=pool, **options)


def test_a_matrix_with_nan_is_refused():
    with SerialPool(4) as pool, pytest.raises(UsageError, match="must be finite"):
        SubstituteMatrix(np.full((2, 2), np.nan), pool=pool)
