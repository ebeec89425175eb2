"""The rateless code: degrees, plain copies, and work of all speeds put to use."""

from __future__ import annotations

import math

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.families.lt import soliton
from codedla.engine.stragglers import Fault


def code(workers, blocks, nodes=None):
    return get("lt")(workers, Grid(blocks, 1, 1), nodes=nodes)


def test_degrees_are_robust_soliton():
    # Luby's formulas, by hand for k = 100: R = 0.05 * 10 * ln(2000) = 3.80, the spike at 26.
    weights, size = soliton(100), 0.5 * math.log(2000)
    assert round(100 / size) == 26
    spike = size * math.log(size / 0.05) / 100
    total = 1 + sum(size / (100 * d) for d in range(1, 26)) + spike
    assert weights[0] == pytest.approx((1 / 100 + size / 100) / total)
    assert weights[1] == pytest.approx((1 / 2 + size / 200) / total)
    assert weights[25] == pytest.approx(
        (1 / (26 * 25) + size * math.log(size / 0.05) / 100) / total
    )
    assert weights[99] == pytest.approx(1 / (100 * 99) / total)
    assert sum(weights) == pytest.approx(1)


def test_blocks_are_mixed_in_equally_often():
    lt = code(20, 400)
    rows = lt.generator_a[: lt.coded * 20]
    assert np.isin(rows, (-1, 0, 1)).all()
    often = np.count_nonzero(rows, axis=0)
    assert often.max() - often.min() <= 1
    mean = sum(d * p for d, p in enumerate(soliton(400), 1))
    assert np.count_nonzero(rows) / len(rows) == pytest.approx(mean, rel=0.1)


@pytest.mark.parametrize("nodes", ["soliton", "plain-first"])
@pytest.mark.parametrize(("workers", "blocks"), [(2, 5), (3, 7), (20, 33)])
def test_plain_copies_are_on_different_workers(workers, blocks, nodes):
    lt = code(workers, blocks, nodes)
    first = blocks if nodes == "plain-first" else 0
    certain = [s for s in lt.shares if s < first or s >= lt.coded * workers]
    assert all(np.count_nonzero(lt.generator_a[s]) == 1 for s in certain)
    for block in range(blocks):
        homes = [lt.home(s) for s in certain if lt.generator_a[s, block]]
        assert len(homes) == len(set(homes)) == min(workers, 3) == lt.tolerates + 1


@pytest.mark.parametrize("nodes", ["soliton", "plain-first"])
def test_little_more_than_k_replies_are_needed(nodes):
    rng = np.random.default_rng(11)
    for blocks, most in ((100, 1.05), (1000, 1.01)):
        lt = code(20, blocks, nodes)
        for _ in range(3):
            suffice = lt.watch()
            coded = rng.permutation(lt.coded * 20)
            needed = next(count for count, s in enumerate(coded, 1) if suffice(int(s)))
            assert blocks <= needed <= most * blocks


@pytest.mark.parametrize(("nodes", "blocks"), [("soliton", 1000), ("plain-first", 500)])
def test_time_is_near_the_ideal_for_workers_of_any_speed(nodes, blocks):
    rng = np.random.default_rng(7)
    speeds = rng.uniform(1, 5, 20)
    faults = [Fault("slow", w, 5 / speed) for w, speed in enumerate(speeds)]
    a, x = rng.standard_normal((2000, 30)), rng.standard_normal(30)
    with codedla.SimulatedPool(20, faults=faults, task_seconds=1.0) as pool:
        y, report = codedla.matvec(
            a, x, pool=pool, code="lt", nodes=nodes, blocks=blocks, return_report=True
        )
    ideal = blocks / (speeds / 5).sum()
    assert ideal <= report.times["total"] <= 1.08 * ideal
    assert np.linalg.norm(y - a @ x) <= 1e-11 * np.linalg.norm(a @ x)
    assert report.stragglers == []
    # Without computing anything, the same.
    with codedla.SimulatedPool(20, faults=faults, task_seconds=1.0) as pool:
        assert pool.round_times(code(20, blocks, nodes), 1) == pytest.approx(report.times["total"])


def test_plain_first_leaves_nothing_to_decode_among_equals():
    rng = np.random.default_rng(7)
    a, x = rng.standard_normal((500, 30)), rng.standard_normal((30, 2))
    with codedla.SimulatedPool(10, task_seconds=1.0) as pool:
        y, report = codedla.matvec(
            a, x, pool=pool, code="lt", nodes="plain-first", blocks=200, return_report=True
        )
    assert report.times["total"] == 20.0
    assert report.amplification == pytest.approx(1.0)
    assert np.allclose(y, a @ x, rtol=1e-13, atol=1e-13)
