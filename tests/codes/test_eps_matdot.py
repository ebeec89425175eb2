"""Approximate MatDot: the error is of order delta, and no larger than predicted."""

from __future__ import annotations

import itertools

import accuracy
import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import Code, get

# Worst relative error over all sets of p replies, measured independently: (p, N) -> delta, error.
MEASURED = {
    (3, 6): {0.1: 0.159, 0.01: 0.0158, 1e-3: 1.6e-3, 1e-4: 1.6e-4, 1e-5: 1.8e-5},
    (4, 8): {0.1: 0.233, 0.01: 0.023, 1e-3: 2.3e-3},
}


def code_at(p: int, workers: int, delta: float) -> Code:
    code = get("eps-matdot")(workers, Grid(1, p, 1))
    code.delta = delta
    return code


def worst_error(code: Code) -> float:
    trial = accuracy.Trial(code)
    sets = itertools.combinations(range(code.n_workers), code.threshold)
    return max(trial.error(survivors) for survivors in sets)


@pytest.mark.parametrize(("p", "workers"), MEASURED, ids=str)
def test_error_at_given_deltas(p: int, workers: int) -> None:
    for delta, measured in MEASURED[p, workers].items():
        assert worst_error(code_at(p, workers, delta)) == pytest.approx(measured, rel=0.5)


@pytest.mark.parametrize("delta", [1e-1, 1e-2, 1e-3])
def test_a_tenth_of_delta_is_a_tenth_of_the_error(delta: float) -> None:
    ratio = worst_error(code_at(3, 6, delta)) / worst_error(code_at(3, 6, delta / 10))
    assert 8 < ratio < 12


@pytest.mark.parametrize(("p", "workers", "delta"), [(2, 5, 0.3), (3, 6, 0.1), (4, 7, 0.02)])
def test_the_bound_holds_and_is_reached(p: int, workers: int, delta: float) -> None:
    """The exact error of a set is known: the terms of higher degree, weighted."""
    code = code_at(p, workers, delta)
    powers = np.power.outer(code.generator_a[:, 1], np.arange(p, 2 * p - 1))
    largest = 0.0
    for size in (p, p + 1, workers):
        for survivors in itertools.combinations(range(workers), size):
            weights = code.weights(survivors)
            gains = np.abs(weights @ powers[list(survivors)])
            assert gains.sum() <= code.method_error * (1 + 1e-6)
            largest = max(largest, gains.sum())
    assert largest > code.method_error / 4


def test_weights_are_divided_differences() -> None:
    code = code_at(3, 6, 0.01)
    x = code.generator_a[[0, 2, 5], 1]
    expected = [1 / np.prod([x[i] - x[j] for j in range(3) if j != i]) for i in range(3)]
    assert code.weights([0, 2, 5])[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("p", "goal"), [(2, 1e-6), (3, 1e-4), (4, 3e-3), (5, 2e-2)])
def test_the_balanced_delta_does_what_double_precision_allows(p: int, goal: float) -> None:
    code = get("eps-matdot")(p + 3, Grid(1, p, 1))
    error = worst_error(code)
    assert error < goal
    # Neither a larger nor a smaller delta is much better.
    for factor in (0.1, 10.0):
        assert worst_error(code_at(p, p + 3, code.delta * factor)) > error / 2


def test_one_block_is_exact() -> None:
    code = get("eps-matdot")(3, Grid(1, 1, 1))
    assert code.method_error == 0 and worst_error(code) < 1e-15
