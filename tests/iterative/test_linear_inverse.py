"""Coded linear inverse: weighted by progress, stable, and far better than replication."""

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla import NotDecodable, SerialPool, SimulatedPool, UsageError
from codedla.engine.stragglers import parse_fault
from codedla.iterative.inverse_codes import decoding_weights, orthonormal_rows
from codedla.iterative.linear_inverse import LinearInverse


def ring(n, each_side):
    """The random walk on a ring whose nodes know ``each_side`` neighbours on either side."""
    steps = [step for step in range(-each_side, each_side + 1) if step]
    A = sum(np.roll(np.eye(n), step, axis=0) for step in steps)
    return A / len(steps)


def plainly(B, R, x, count):
    for _ in range(count):
        x = R + B @ x
    return x


def test_the_weights_are_those_of_the_normal_equations_while_these_can_be_solved():
    rng = np.random.default_rng(1)
    for _ in range(20):
        k, n = 4, 7
        G = orthonormal_rows(k, n, int(rng.integers(100)))
        counts = rng.integers(1, 12, n)
        inverse = np.diag(0.85 ** (-2.0 * counts))
        expected = np.linalg.solve(G @ inverse @ G.T, G @ inverse)
        np.testing.assert_allclose(decoding_weights(G, counts, 0.85), expected, rtol=1e-6)


def test_the_weights_stay_right_when_their_ratio_exceeds_all_digits():
    G = orthonormal_rows(10, 14, 2)
    counts = np.full(14, 60_000)
    counts[[1, 5, 9]] = [3, 40, 1000]
    W = decoding_weights(G, counts, 0.85)
    np.testing.assert_allclose(W @ G.T, np.eye(10), atol=1e-12)
    # Eleven that got far suffice: the three that did not have no say.
    assert np.abs(W[:, [1, 5, 9]]).max() < 1e-15
    np.testing.assert_allclose(
        np.delete(W, [1, 5, 9], axis=1),
        np.linalg.pinv(np.delete(G, [1, 5, 9], axis=1).T),
        atol=1e-12,
    )


def test_slow_workers_are_used_where_nobody_else_knows():
    G = orthonormal_rows(4, 5, 3)
    counts = [2000, 2000, 1, 20, 2000]
    W = decoding_weights(G, counts, 0.5)
    np.testing.assert_allclose(W @ G.T, np.eye(4), atol=1e-12)
    assert np.abs(W[:, 3]).max() > 1e-2
    assert np.abs(W[:, 2]).max() < 1e-6, "of the two slow ones the slower counts less"


@pytest.mark.parametrize("sides", [None, 3, 23])
def test_with_many_iterations_the_fixed_points_are_found(sides):
    rng = np.random.default_rng(4)
    B = 0.85 * ring(60, 2)
    R = rng.random(60) if sides is None else rng.random((60, sides))
    with SerialPool(7) as pool:
        found = codedla.linear_inverse(sp.csr_array(B), R, pool=pool, rate=0.85, iterations=400)
    assert found.x.shape == R.shape
    np.testing.assert_allclose(found.x, np.linalg.solve(np.eye(60) - B, R), rtol=1e-10)
    assert set(found.iterations) == set(range(1, 8))


def test_the_error_ratio_of_replication_to_coding_exceeds_a_thousand():
    """The ring with 400 nodes, 10 queries on 14 workers, a tenth of them ten times slower."""
    n, k, workers, damping, T = 400, 10, 14, 0.15, 40
    rng = np.random.default_rng(5)
    B = (1 - damping) * ring(n, 4)
    R = damping * rng.dirichlet(np.full(n, 0.05), k).T
    X, start = np.linalg.solve(np.eye(n) - B, R), np.full((n, k), 1 / n)
    reached = {count: plainly(B, R, start, count) for count in (T // 10, T)}
    coded = replicated = 0.0
    with (
        SerialPool(workers) as pool,
        LinearInverse(sp.csr_array(B), pool=pool, rate=1 - damping, tolerate=4) as solver,
    ):
        for _ in range(25):
            counts = np.where(rng.random(workers) < 0.1, T // 10, T)
            found = solver.solve(R, iterations=counts, start=start)
            assert list(found.iterations.values()) == counts.tolist()
            coded += ((found.x - X) ** 2).sum()
            # Four of the ten queries are computed twice; the copy that got further counts.
            best = counts[:k].copy()
            for spare, query in enumerate(rng.choice(k, workers - k, replace=False)):
                best[query] = max(best[query], counts[k + spare])
            columns = np.stack([reached[c][:, q] for q, c in enumerate(best)], axis=1)
            replicated += ((columns - X) ** 2).sum()
    assert replicated / coded > 1e3


def test_a_time_budget_ends_the_iterations_on_every_worker():
    B = 0.99 * ring(300, 3)
    with SerialPool(4) as pool:
        found = codedla.linear_inverse(B, np.eye(300, 3), pool=pool, rate=0.99, seconds=0.02)
    assert len(found.iterations) == 4
    assert all(count >= 1 for count in found.iterations.values())
    assert found.report.times["total"] < 2


def test_a_worker_stops_when_nothing_changes_any_more():
    with SerialPool(3) as pool:
        found = codedla.linear_inverse(
            0.5 * np.eye(2), np.ones(2), pool=pool, rate=0.5, seconds=30.0
        )
    np.testing.assert_allclose(found.x, 2.0)
    assert found.report.times["total"] < 5


@pytest.mark.filterwarnings("ignore:rank")
def test_late_and_lost_workers_are_left_out():
    B, R = 0.8 * ring(50, 2), np.eye(50, 5)
    X = np.linalg.solve(np.eye(50) - B, R)

    def delays(rng, n):
        return np.where(np.arange(n) == 2, 100.0, 0.0)

    faults = [parse_fault("kill:6:0")]
    with SimulatedPool(8, delays=delays, faults=faults) as pool:
        found = codedla.linear_inverse(
            B, R, pool=pool, rate=0.8, iterations=300, seconds=50.0, tolerate=3, grace=1.0
        )
    assert set(found.iterations) == {1, 2, 4, 5, 7, 8}
    assert found.report.stragglers == [3]
    assert set(found.report.lost) == {6}
    np.testing.assert_allclose(found.x, X, atol=1e-10)


def test_too_few_replies_by_the_deadline_fail():
    def delays(rng, n):
        return np.where(np.arange(n) < 3, 0.0, 100.0)

    with SimulatedPool(6, delays=delays) as pool, pytest.raises(NotDecodable, match="time-out"):
        codedla.linear_inverse(
            0.5 * np.eye(4), np.eye(4), pool=pool, rate=0.5, iterations=5, seconds=1.0, tolerate=2
        )


def test_the_matrix_stays_on_the_workers_until_the_end():
    with SerialPool(3) as pool:
        with LinearInverse(0.5 * np.eye(4), pool=pool, rate=0.5) as solver:
            for _ in range(3):
                solver.solve(np.ones(4), iterations=3)
            assert len(pool._resident) == 3
        assert not pool._resident


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": np.ones((2, 3))}, "B must be square"),
        ({"B": np.full((3, 3), np.inf)}, "B must be square, real and finite"),
        ({"R": np.ones(4)}, "R must be real, finite columns of 3 entries"),
        ({"R": np.full(3, np.nan)}, "R must be real, finite"),
        ({"start": np.ones(4)}, "start must be real"),
        ({"start": np.ones((3, 2))}, "start must have the shape of R"),
        ({"rate": 1.0}, "rate must be between 0 and 1"),
        ({"rate": 0}, "rate must be between 0 and 1"),
        ({"rate": "fast"}, "rate must be between 0 and 1"),
        ({"tolerate": 4}, "tolerate is below"),
        ({"iterations": None}, "neither iterations nor seconds"),
        ({"iterations": [1, 2]}, "one for each of 4 workers"),
        ({"iterations": -1}, "iterations must be >= 0"),
        ({"seconds": -1.0}, "seconds must be positive"),
        ({"seconds": 1.0, "grace": 0.0}, "grace must be positive"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {"B": np.eye(3) / 2, "R": np.ones(3), "rate": 0.5, "iterations": 2, **change}
    B, R = arguments.pop("B"), arguments.pop("R")
    with SerialPool(4) as pool, pytest.raises(UsageError, match=message):
        codedla.linear_inverse(B, R, pool=pool, **arguments)
