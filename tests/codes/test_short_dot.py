"""Short-Dot: how short the dot products are, that they vanish where they should, and stay small."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.stragglers import Fault
from codedla.errors import UsageError

SIZES = [(3, 7), (4, 10), (4, 12), (5, 14), (1, 9), (16, 25), (17, 20), (20, 27)]


@pytest.mark.parametrize(("blocks", "workers"), SIZES)
def test_lengths_are_those_of_the_paper(blocks, workers):
    """Each dot product has the length L (N - K + m) / N, and K replies suffice."""
    code = get("short-dot")(workers, Grid(blocks, 1, 1))
    assert code.threshold == blocks + (workers - blocks) // 2
    groups, held = code.grid.p, code.stack[1]
    assert held * workers == groups * (workers - code.threshold + blocks)
    used = np.array([code.rows_b(w).any(axis=0) for w in range(workers)])
    assert (used.sum(axis=1) == held).all()
    # Every column group is left out by K - m workers.
    assert (used.sum(axis=0) == workers - (code.threshold - blocks)).all()


@pytest.mark.parametrize(("blocks", "workers"), SIZES)
def test_vanishing_combinations_are_combinations_all_the_same(blocks, workers):
    """In each group the coefficients of all workers have rank m: Z is a mixture of A."""
    code = get("short-dot")(workers, Grid(blocks, 1, 1))
    frame = code.generator
    for group in range(code.grid.p):
        coefficients = np.zeros((workers, blocks))
        for worker in range(workers):
            rows = code.rows_a(worker).reshape(-1, blocks, code.grid.p)
            coefficients[worker] = rows[:, :, group].sum(axis=0)
        # G_A + G_Z M for one M: the part that is not of G_A lies in the span of G_Z.
        added = code.added
        rest = coefficients - frame[:, added:]
        nearest = np.linalg.lstsq(frame[:, :added], rest, rcond=None)[0]
        assert np.allclose(frame[:, :added] @ nearest, rest, atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 4, 5, 15, 16])
@pytest.mark.parametrize("spare", [2, 3, 5, 8, 12])
def test_coefficients_stay_small(blocks, spare):
    """Shares are at the scale of the data, whatever the parity of the number of blocks."""
    code = get("short-dot")(blocks + spare, Grid(blocks, 1, 1))
    held = code.stack[1]
    size = np.linalg.norm(code.generator_a) / np.sqrt(code.n_workers * held * blocks)
    assert 0.9 < size < (2 if blocks % 2 == 0 else 8)


def test_workers_get_a_part_of_the_vector_only():
    rng = np.random.default_rng(4)
    A, x = rng.standard_normal((30, 83)), rng.standard_normal(83)
    with codedla.SerialPool(10, faults=[Fault("kill", w, 0.0) for w in (1, 4, 5)]) as pool:
        y, report = codedla.matvec(
            A, x, pool=pool, code="short-dot", blocks=4, return_report=True, verify="freivalds"
        )
        with codedla.store(A, pool=pool, code="short-dot", blocks=4) as stored:
            again = stored @ x
    assert np.linalg.norm(y - A @ x) <= 10 * report.error_estimate * np.linalg.norm(A @ x)
    np.testing.assert_array_equal(y, again)


def test_too_many_coefficients_are_refused():
    with pytest.raises(UsageError, match=r"at most .* coefficients.*use fewer workers"):
        get("short-dot")(103, Grid(100, 1, 1))
