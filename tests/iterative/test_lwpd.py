"""Training on coded derivatives: blocks, the three updates, losses and late replies."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import Delays, parse_fault
from codedla.iterative.lwpd_blocks import CodedDerivative, Layout, batch_rows
from codedla.iterative.lwpd_codes import ring
from codedla.iterative.mlp import MLP

SIZES = (6, 7, 4)


def data(rows=240, seed=0, dtype=np.float64):
    """Four classes that a small network can tell apart."""
    rng = np.random.default_rng([seed, 90313])
    y = rng.integers(0, 4, rows)
    centres = 3 * rng.standard_normal((4, 6))
    return (centres[y] + rng.standard_normal((rows, 6))).astype(dtype), y


def descent(X, y, steps, rate, batch, seed=0):
    """Plain gradient descent on the same batches, from the same start."""
    model = MLP(SIZES)
    theta = model.start(seed, X.dtype)
    for version in range(steps):
        rows = batch_rows(version, len(X), batch, seed)
        theta = theta - rate * model.loss_and_grad(theta, X[rows], y[rows])[1] / len(rows)
    return theta


@pytest.mark.parametrize("sizes", [(6, 7, 4), (784, 10), (5, 30, 2), (3, 1), (1, 1, 1), (20, 3, 9)])
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_combinations_of_blocks_of_layers_of_any_sizes(sizes, k):
    rng = np.random.default_rng([k, *sizes])
    model = MLP(sizes)
    layout = Layout(model.layers_shapes, k)
    theta = model.start(1) + 0.1
    X, y = rng.standard_normal((9, sizes[0])), rng.integers(0, sizes[-1], 9)
    gradient = model.loss_and_grad(theta, X, y)[1]
    blocks = layout.gather(gradient)
    np.testing.assert_array_equal(layout.scatter(blocks), gradient)
    assert sorted(layout.places[layout.places < model.n_parameters]) == list(
        range(model.n_parameters)
    )
    codeword = rng.standard_normal(k) * (rng.random(k) < 0.7)
    _, factors = model.backward_factors(theta, X, y)
    np.testing.assert_allclose(
        layout.combine(codeword, factors), codeword @ blocks, rtol=1e-9, atol=1e-9
    )
    for j in range(k):
        layout.add(theta, j, -blocks[j])
    np.testing.assert_allclose(theta, model.start(1) + 0.1 - gradient)


def test_blocks_are_cut_where_that_pads_less():
    assert Layout(MLP((784, 10)).layers_shapes, 8).size == 99 * 10, (
        "not 785 columns of errors times 2"
    )
    assert Layout(MLP((6, 8)).layers_shapes, 8).size == 7, "not 7 activations in 8 groups"


def test_each_row_comes_once_in_a_pass():
    rows = np.concatenate([batch_rows(v, 100, 30, 5) for v in range(3)])
    assert len(set(rows)) == 90
    assert set(batch_rows(3, 100, 30, 5)) != set(rows[:30])
    np.testing.assert_array_equal(np.sort(batch_rows(7, 20, 20, 5)), np.arange(20))


def test_bytes_are_scaled_on_the_worker():
    rng = np.random.default_rng(3)
    X = rng.integers(0, 256, (40, 6)).astype(np.uint8)
    y = rng.integers(0, 4, (1, 40))
    iterate = np.append(MLP(SIZES).start(2), 3.0)[None, :]
    code = ring(2, 3)[2:]
    of_bytes = CodedDerivative(MLP(SIZES), 2, 20, 0, 1 / 255)(code, X, y, iterate)
    of_numbers = CodedDerivative(MLP(SIZES), 2, 20, 0, 1.0)(code, X / 255.0, y, iterate)
    np.testing.assert_allclose(of_bytes, of_numbers, rtol=1e-12)


@pytest.mark.parametrize(
    ("update", "code"),
    [
        ("peel", "ring"),
        ("peel", "replication"),
        ("least-squares", "dense"),
        ("least-squares", "greedy"),
        ("least-squares", "ring"),
    ],
)
def test_decoded_gradients_are_those_of_plain_descent(update, code):
    """Whoever is late, or dead: what is decoded is the gradient itself."""
    X, y = data()
    faults = [parse_fault("slow:2:20"), parse_fault("kill:5:0.02")]
    pool = codedla.SimulatedPool(10, Delays("exp", (0.002,)), faults, seed=4)
    options = {"blocks": 4, "rate": 0.4, "batch": 60, "dtype": np.float64}
    with pool, codedla.LWPD(SIZES, X, y, pool=pool, update=update, code=code, **options) as lwpd:
        known = []
        lwpd.run(40, lambda step: known.append(step.known))
        assert known == [4] * 40
        np.testing.assert_allclose(lwpd.theta, descent(X, y, 40, 0.4, 60), atol=1e-9)
        assert lwpd.accuracy(X, y) > 0.9
        assert set(lwpd.report.lost) == {5}


@pytest.mark.parametrize("code", ["ring", "greedy", "replication"])
@pytest.mark.parametrize("damped", [False, True])
def test_replies_used_at_once(code, damped):
    X, y = data(dtype=np.float32)
    faults = [parse_fault("slow:1:10"), parse_fault("slow:2:10"), parse_fault("kill:5:0.02")]
    pool = codedla.SimulatedPool(8, Delays("exp", (0.001,)), faults)
    with (
        pool,
        codedla.LWPD(SIZES, X, y, pool=pool, code=code, rate=0.2, batch=60, damped=damped) as lwpd,
    ):
        seen = []
        lwpd.run(800, lambda step: seen.append((step.version, step.seconds, step.workers)))
        assert [version for version, _, _ in seen] == list(range(1, 801))
        assert all(before <= after for before, after in pairwise(seen))
        assert lwpd.accuracy(X, y) > 0.9
        report = lwpd.report
        assert set(report.lost) == {5}
        assert sum(n for own in report.staleness.values() for n in own.values()) == 800
        assert max(report.staleness[1]) > max(report.staleness[4])


def test_k_replies_of_single_blocks_are_one_gradient_step():
    X, y = data()
    with (
        codedla.SerialPool(4) as pool,
        codedla.LWPD(
            SIZES, X, y, pool=pool, blocks=4, rate=0.3, batch=240, dtype=np.float64
        ) as lwpd,
    ):
        start = lwpd.theta.copy()
        lwpd.run(4)
        gradient = MLP(SIZES).loss_and_grad(start, X, y)[1] / 240
        np.testing.assert_allclose(lwpd.theta, start - 0.3 * gradient, atol=1e-12)


def test_old_replies_make_no_steps():
    X, y = data()
    pool = codedla.SimulatedPool(4, faults=[parse_fault("slow:1:20")])
    with pool, codedla.LWPD(SIZES, X, y, pool=pool, oldest=10) as lwpd:
        used = set()
        lwpd.run(200, lambda step: used.update(step.workers))
        assert used == {1, 2, 3}
        assert set(lwpd.report.dropped) == {1}


@pytest.mark.parametrize("late", ["offer", "drop", "cancel"])
def test_late_replies_to_versions(late):
    X, y = data()
    pool = codedla.SimulatedPool(6, Delays("exp", (0.002,)), seed=8)
    with (
        pool,
        codedla.LWPD(
            SIZES,
            X,
            y,
            pool=pool,
            blocks=3,
            update="peel",
            wait=3,
            late=late,
            damped=True,
            rate=0.2,
        ) as lwpd,
    ):
        known = []
        lwpd.run(300, lambda step: known.append(step.known))
        assert lwpd.accuracy(X, y) > 0.9
        ages = {age for own in lwpd.report.staleness.values() for age in own}
        assert (ages == {0}) == (late == "cancel")
        assert (sum(lwpd.report.dropped.values()) > 0) == (late == "drop")
        assert set(known) >= {2, 3}, "three replies do not always decode"


def test_blocks_of_which_nobody_is_left_to_tell():
    """Two of three codewords of a block are lost: the others go on being trained."""
    X, y = data()
    faults = [parse_fault(f"kill:{rank}:0.01") for rank in (1, 5)]
    with (
        codedla.SimulatedPool(8, faults=faults) as pool,
        codedla.LWPD(
            SIZES, X, y, pool=pool, blocks=4, code="replication", update="peel", rate=0.3
        ) as lwpd,
    ):
        known = []
        lwpd.run(200, lambda step: known.append(step.known))
        assert known[0] == 4
        assert known[-1] == 3
        assert lwpd.accuracy(X, y) > 0.8


def test_training_goes_on_and_can_be_ended_by_who_watches():
    X, y = data()
    with codedla.SerialPool(4) as pool, codedla.LWPD(SIZES, X, y, pool=pool) as lwpd:
        lwpd.run(100, lambda step: step.version == 7)
        assert lwpd.version == 7
        lwpd.run(0)
        lwpd.run(3)
        assert lwpd.version == 10
    with pytest.raises(codedla.PoolClosed):
        lwpd.run(1)


def test_nobody_left():
    X, y = data()
    faults = [parse_fault(f"kill:{rank}:0.01") for rank in (1, 2)]
    with (
        codedla.SimulatedPool(2, faults=faults) as pool,
        codedla.LWPD(SIZES, X, y, pool=pool) as lwpd,
        pytest.raises(codedla.NotDecodable, match="rank 1 is lost"),
    ):
        lwpd.run(1000)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"update": "sgd"}, "update must be one of"),
        ({"blocks": 5}, "at most the number of workers"),
        ({"X": np.ones((240, 5))}, "matrix of 6 columns"),
        ({"X": np.ones((3, 6), bool)}, "float32 or float64 or uint8"),
        ({"y": np.full(240, 4)}, "a class from 0 to 3"),
        ({"y": np.zeros(240)}, "a class from 0 to 3"),
        ({"rate": -1}, "rate"),
        ({"X": np.full((240, 6), np.nan)}, "X must be finite"),
        ({"X": np.ones((0, 6)), "y": np.zeros(0, int)}, "not empty"),
        ({"dtype": np.float16}, "float32 or float64; got float16"),
        ({"wait": 5}, "there are 4 workers; got wait=5"),
        ({"update": "peel", "code": "dense"}, "all 2 blocks one by one; this code leads to 0"),
        ({"code": np.eye(2)[[0, 0, 0, 0]]}, "span all 2 blocks"),
    ],
)
def test_bad_options(options, match):
    X, y = data()
    X, y = options.pop("X", X), options.pop("y", y)
    with codedla.SerialPool(4) as pool, pytest.raises(codedla.UsageError, match=match):
        codedla.LWPD(SIZES, X, y, pool=pool, **options)


@pytest.mark.parametrize("rate", [1e30, 1e300])
@pytest.mark.parametrize("update", ["immediate", "peel", "least-squares"])
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_steps_that_are_too_long_are_not_taken_for_training(update, rate):
    X, y = data()
    with (
        codedla.SerialPool(4) as pool,
        codedla.LWPD(SIZES, X, y, pool=pool, update=update, rate=rate, dtype=np.float64) as lwpd,
        pytest.raises(codedla.UsageError, match="smaller one"),
    ):
        lwpd.run(400)


@pytest.mark.parametrize("update", ["immediate", "peel", "least-squares"])
@pytest.mark.parametrize("code", ["ring", "greedy", "replication", "dense"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (2, 2), (5, 2), (5, 4), (9, 8)])
@pytest.mark.parametrize("kind", ["serial", "simulated"])
def test_any_numbers_of_workers_and_blocks(kind, n, k, code, update):
    """Layers narrower than the number of blocks, and fewer rows than that, included."""
    X, y = data(3, dtype=np.float32)
    if kind == "serial":
        pool = codedla.SerialPool(n)
    else:
        pool = codedla.SimulatedPool(n, Delays("exp", (0.01,)), seed=n)
    options = {"update": update, "code": code, "blocks": k, "rate": 0.5, "batch": 50}
    model = MLP(SIZES)
    if update == "peel" and code in ("greedy", "dense") and k > 1:
        with pool, pytest.raises(codedla.UsageError, match="one by one"):
            codedla.LWPD(SIZES, X, y, pool=pool, **options)
        return
    with pool, codedla.LWPD(SIZES, X, y, pool=pool, **options) as lwpd:
        assert lwpd.theta.dtype == np.float32
        before = model.loss_and_grad(lwpd.theta, X, y)[0]
        lwpd.run(10 if update != "immediate" else 20 * k)
        assert lwpd.theta.dtype == np.float32
        if update == "immediate":
            assert model.loss_and_grad(lwpd.theta, X, y)[0] < before
        else:
            expected = descent(X, y, 10, 0.5, 3)
            np.testing.assert_allclose(lwpd.theta, expected, atol=2e-3)


def test_codewords_that_are_alike_are_not_told_apart_by_rounding_errors():
    """Two of four blocks' worth of codewords differ by less than replies do by rounding."""
    X, y = data(dtype=np.float32)
    code = np.array([[1.0, 0.0], [1.0, 1e-5], [0.6, 0.8]])
    pool = codedla.SimulatedPool(3, faults=[parse_fault("slow:3:20")])
    options = {"blocks": 2, "rate": 0.4, "batch": 60, "update": "least-squares"}
    with pool, codedla.LWPD(SIZES, X, y, pool=pool, code=code, **options) as lwpd:
        used = []
        lwpd.run(30, lambda step: used.append(step.workers))
        np.testing.assert_allclose(lwpd.theta, descent(X, y, 30, 0.4, 60), atol=1e-3)
        assert all(2 in workers for workers in used), "the third was waited for"
