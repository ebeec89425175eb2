"""Bivariate codes: products of every worker, in any number, decode together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.collector import Collector, Instruction
from codedla.engine.stragglers import Fault


def code(workers, m, n, nodes="random"):
    return get("bivariate")(workers, Grid(m, 1, n), nodes=nodes)


def test_a_worker_keeps_its_part_of_b():
    made = code(5, 3, 2, "trig")
    assert (made.load, made.threshold, made.tolerates, len(made.shares)) == (3, 6, 3, 15)
    for worker in range(5):
        mine = made.generator_b[worker::5]
        assert np.array_equal(mine, np.tile(mine[0], (3, 1)))
    assert len(np.unique(made.generator_b.round(9), axis=0)) == 5
    assert len(np.unique(made.generator_a.round(9), axis=0)) == 15


@pytest.mark.parametrize("nodes", ["trig", "random"])
@pytest.mark.parametrize(("workers", "m", "n"), [(3, 2, 2), (4, 2, 2), (4, 2, 3), (4, 3, 2)])
def test_all_sets_of_few_products_decode(workers, m, n, nodes):
    made = code(workers, m, n, nodes)
    sets = np.array(list(itertools.combinations(made.shares, m * n)))
    smallest = np.linalg.svd(made.generator[sets], compute_uv=False)[:, -1]
    assert smallest.min() > 1e-4


def test_a_singular_set_waits_for_more():
    # Five workers with two angles each: ten of 210 sets of four products are singular.
    made = code(5, 2, 2, "trig")
    singular = [s for s in itertools.combinations(made.shares, 4) if made.amplification(s) > 1e12]
    assert len(singular) == 10
    for few in singular:
        collector = Collector(made, eps=2.0**-52, tolerance=1e-9)
        rest = [share for share in made.shares if share not in few]
        answers = [collector.reply(share) for share in (*few, *rest)]
        assert answers[:4] == [Instruction.FOLD] * 4
        assert answers.index(Instruction.FINISH) <= 6
        assert collector.alpha < 1e3


def test_products_of_slow_workers_count():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((31, 9)), rng.standard_normal((9, 17))
    faults = [Fault("slow", 0, 2.0), Fault("slow", 1, 3.0), Fault("kill", 4)]
    with (
        codedla.SimulatedPool(5, faults=faults, task_seconds=1.0) as pool,
        pytest.warns(codedla.CodedlaWarning, match="rank 5"),
    ):
        c, report = codedla.matmul(
            a, b, pool=pool, code="bivariate", blocks=(3, 3), return_report=True
        )
    assert np.allclose(c, a @ b)
    # Two workers of full speed give 3 products in 3 s, the half one and the slowest one by then.
    assert report.times["total"] == 4.0
    assert set(report.responders) == {1, 2, 3, 4}
