"""Batches: any 4 k of the 4 N replies decode, whoever they are from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.stragglers import Fault


@pytest.mark.parametrize("nodes", ["trig", "random"])
@pytest.mark.parametrize(("workers", "blocks"), [(3, 1), (3, 2)])
def test_any_rows_are_independent(workers, blocks, nodes):
    code = get("batch")(workers, Grid(blocks, 1, 1), nodes=nodes)
    assert (code.grid.m, code.load, code.threshold) == (4 * blocks, 4, 4 * blocks)
    sets = np.array(list(itertools.combinations(range(4 * workers), 4 * blocks)))
    smallest = np.linalg.svd(code.generator[sets], compute_uv=False)[:, -1]
    assert smallest.min() > 1e-4


def test_lost_workers_are_those_of_the_circle_of_n_points():
    # The angles of a worker are evenly spaced, so that the four residues of the frequencies part:
    # the condition is that of k functions on N angles.
    code = get("batch")(7, Grid(5, 1, 1))
    frame = get("trig-frame")(7, Grid(5, 1, 1))
    worst = [
        max(np.linalg.cond(c.generator[list(c.shares_without(lost))]) for lost in pairs)
        for c, pairs in ((c, list(itertools.combinations(range(7), 2))) for c in (code, frame))
    ]
    assert worst[0] == pytest.approx(worst[1], rel=1e-6)


def test_what_a_slow_worker_has_done_counts():
    rng = np.random.default_rng(5)
    a, x = rng.standard_normal((97, 11)), rng.standard_normal(11)
    faults = [Fault("slow", 1, 2.0), Fault("slow", 2, 2.0), Fault("slow", 4, 4.0)]
    with codedla.SimulatedPool(5, faults=faults, task_seconds=1.0) as pool:
        y, report = codedla.matvec(a, x, pool=pool, code="batch", blocks=3, return_report=True)
    assert np.allclose(y, a @ x)
    # By then two workers have done all four parts, two have done two, the slowest is not needed.
    assert report.times["total"] == 4.0
    assert set(report.responders) == {1, 2, 3, 4}
    assert report.stragglers == [5]
