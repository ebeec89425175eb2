"""Fractional repetition in classes: who stands in for whom, for any number of workers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.stragglers import Fault
from codedla.errors import NotDecodable

SIZES = [(7, 3), (8, 3), (11, 4), (11, 2), (10, 5), (9, 9), (5, 1), (13, 3)]


@pytest.mark.parametrize(("workers", "parts"), SIZES)
def test_all_loss_patterns(workers, parts):
    """Decodable just when some class is complete; the guarantee is tight; weights are 0 and 1."""
    code = get("binary")(workers, Grid(1, parts, 1))
    classes = workers // parts
    assert code.tolerates == classes - 1
    # Numbers of workers that hold each interval, by the size of the interval.
    intervals = {w: code.generator[w].tobytes() for w in range(workers)}
    width = {w: int(code.generator[w].sum()) for w in range(workers)}
    whole = np.ones(code.grid.p)
    broken = 0
    for lost in itertools.combinations(range(workers), classes):
        members = [w for w in range(workers) if w not in lost]
        complete = any(
            len({intervals[w] for w in members if width[w] == size}) * size == code.grid.p
            for size in set(width.values())
        )
        assert code.decodable(members) == complete
        if not complete:
            broken += 1
            with pytest.raises(NotDecodable, match="a complete class"):
                code.weights(members)
            continue
        weights = code.weights(members)
        assert set(np.unique(weights)) <= {0.0, 1.0}
        assert np.array_equal(weights[0] @ code.generator[members], whole)
    assert broken > 0
    for lost in itertools.combinations(range(workers), classes - 1):
        assert code.decodable([w for w in range(workers) if w not in lost])


@pytest.mark.parametrize(("workers", "parts"), SIZES)
def test_every_class_divides_the_work_evenly(workers, parts):
    code = get("binary")(workers, Grid(1, parts, 1))
    held = np.array([len(code.rows_a(w)) for w in range(workers)]) / code.grid.p
    classes = workers // parts
    assert sorted(np.unique(np.round(1 / held))) == sorted(
        {workers // classes, -(-workers // classes)}
    )
    assert held.max() <= 1 / parts
    assert held.sum() == pytest.approx(classes)
    for worker in range(workers):
        assert np.array_equal(code.rows_a(worker), code.rows_b(worker))


def test_equal_classes_need_no_stack():
    code = get("binary")(12, Grid(1, 4, 1))
    assert (code.stack, code.grid) == ((1, 1, 1), Grid(1, 4, 1))


def test_integers_beyond_floating_point_are_exact():
    """Sums of wrap-around products are NumPy's, whichever worker stays away."""
    rng = np.random.default_rng(11)
    info = np.iinfo(np.int64)
    A = rng.integers(info.min, info.max, (6, 41), endpoint=True)
    B = rng.integers(info.min, info.max, (41, 5), endpoint=True)
    for lost in range(11):
        with codedla.SerialPool(11, faults=[Fault("kill", lost, 0.0)]) as pool:
            C = codedla.matmul(A, B, pool=pool, code="binary", blocks=(1, 5, 1))
        np.testing.assert_array_equal(C, A @ B)


@pytest.mark.filterwarnings("ignore:rank .* was not used")
def test_wrong_integers_are_found_in_stacks():
    """Compared modulo 2**64, part by part of the inner dimension."""
    rng = np.random.default_rng(12)
    A = rng.integers(-(2**62), 2**62, (6, 41))
    B = rng.integers(-(2**62), 2**62, (41, 5))
    assert get("binary")(11, Grid(1, 5, 1)).stack[1] > 1
    for liar in range(11):
        with codedla.SerialPool(11, faults=[Fault("corrupt", liar, 1.0)]) as pool:
            C, report = codedla.matmul(
                A,
                B,
                pool=pool,
                code="binary",
                blocks=(1, 5, 1),
                verify="locate",
                return_report=True,
            )
        np.testing.assert_array_equal(C, A @ B)
        assert report.wrong in ([], [liar + 1])
