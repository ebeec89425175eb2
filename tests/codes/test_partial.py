"""Plain parts first: nothing is decoded unless somebody is slow, whose plain parts count."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.stragglers import Fault


def test_every_worker_begins_with_plain_parts():
    code = get("partial")(5, Grid(4, 1, 1))
    assert [code.plain_block(s) for s in code.shares] == [*range(16), None, None, None, None]
    assert [code.home(s) for s in code.shares if code.plain_block(s) is None] == [1, 2, 3, 4]
    sums = code.generator_a[16:]
    assert np.allclose(sums @ sums.T, 16 * np.eye(4))


@pytest.mark.parametrize(("workers", "blocks"), [(3, 1), (3, 2)])
def test_any_rows_are_independent(workers, blocks):
    code = get("partial")(workers, Grid(blocks, 1, 1))
    sets = np.array(list(itertools.combinations(range(4 * workers), 4 * blocks)))
    smallest = np.linalg.svd(code.generator[sets], compute_uv=False)[:, -1]
    assert smallest.min() > 1e-4


def test_workers_of_equal_speed_leave_nothing_to_decode():
    rng = np.random.default_rng(6)
    a, x = rng.standard_normal((90, 8)), rng.standard_normal((8, 2))
    with codedla.SimulatedPool(10, task_seconds=1.0) as pool:
        y, report = codedla.matvec(a, x, pool=pool, code="partial", blocks=8, return_report=True)
    assert np.allclose(y, a @ x, rtol=1e-13, atol=1e-13)
    assert report.amplification == pytest.approx(1.0)
    assert report.times["total"] == 4.0


def test_quick_workers_make_up_for_slow_ones():
    rng = np.random.default_rng(6)
    a, x = rng.standard_normal((90, 8)), rng.standard_normal((8, 2))
    faults = [Fault("slow", 0, 2.0), Fault("slow", 3, 4.0), Fault("kill", 5)]
    with (
        codedla.SimulatedPool(10, faults=faults, task_seconds=1.0) as pool,
        pytest.warns(codedla.CodedlaWarning, match="rank 6"),
    ):
        y, report = codedla.matvec(a, x, pool=pool, code="partial", blocks=7, return_report=True)
    assert np.allclose(y, a @ x)
    # 28 parts by 7 quick workers would take exactly 4; the slow ones' 2 and 1 come on top.
    assert report.times["total"] == 4.0
    assert {1, 4} & set(report.responders)
    assert report.amplification > 1
