"""Codes that turn pairs of blocks: as good as complex points, and what their papers state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.decoder import StreamingDecoder, make_decoder
from codedla.engine.stragglers import Fault
from codedla.nodes import rotations


def survivors_of(code, count, seed=4711):
    """Random sets of exactly ``K`` workers."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(sorted(rng.choice(code.n_workers, code.threshold, replace=False).tolist()))


def condition(code, members):
    rows = code.generator.reshape(code.n_workers, -1, code.generator.shape[1])
    return np.linalg.cond(rows[list(members)].reshape(-1, rows.shape[2]))


def test_rotations_turn_and_compose():
    turned = rotations(np.arange(12), np.array([0, 1, -1, 5]), 12)
    assert turned.shape == (12, 4, 2, 2)
    assert np.array_equal(turned[:, 0], np.broadcast_to(np.eye(2), (12, 2, 2)))
    assert np.array_equal(turned[3, 1], [[0, -1], [1, 0]])
    assert np.array_equal(turned[:, 2], turned[:, 1].transpose(0, 2, 1))
    for i in range(12):
        assert np.allclose(np.linalg.matrix_power(turned[i, 1], 5), turned[i, 3], atol=1e-15)


@pytest.mark.parametrize(
    ("name", "grid", "like", "same"),
    [
        ("rotation", Grid(4, 1, 7), "polynomial", Grid(4, 1, 7)),
        ("rotation", Grid(3, 1, 2), "polynomial", Grid(3, 1, 2)),
        ("rotation-mds", Grid(29, 1, 1), "mds", Grid(29, 1, 1)),
        ("rotation-mds", Grid(4, 1, 1), "mds", Grid(4, 1, 1)),
    ],
)
@pytest.mark.parametrize("losses", [2, 3])
def test_real_rotations_are_as_good_as_complex_points(name, grid, like, same, losses):
    """The same condition numbers and the same noise, set by set."""
    turned = get(name)(grid.outputs + losses, grid)
    plain = get(like)(same.outputs + losses, same, nodes="unity")
    assert turned.field == "real" and plain.field == "complex"
    for members in survivors_of(turned, 8):
        assert condition(turned, members) == pytest.approx(condition(plain, members), rel=1e-6)
        assert turned.amplification(members) == pytest.approx(
            plain.amplification(members), rel=1e-6
        )
    assert turned.worst_amplification()[0] == pytest.approx(
        plain.worst_amplification()[0], rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "grid", "worst"),
    [("rotation", Grid(4, 1, 7), 404), ("rotation-mds", Grid(29, 1, 1), 55)],
)
def test_published_worst_condition_number(name, grid, worst):
    """31 workers, as in the paper; neighbouring angles are the worst that can be lost."""
    code = get(name)(31, grid)
    members = code.worst_amplification()[1]
    assert condition(code, members) == pytest.approx(worst, rel=0.01)


def test_rotation_decodes_for_even_numbers_of_workers():
    """Angles are multiples of a full turn over N, whatever N: all sets of a small code."""
    code = get("rotation")(8, Grid(2, 1, 3))
    for members in itertools.combinations(range(8), 6):
        assert condition(code, members) < 60


@pytest.mark.parametrize("name", ["rotation", "rotation-entangled", "rotmatdot", "rotation-mds"])
def test_shares_are_turned_not_stretched(name):
    family = get(name)
    grid = Grid(*(3 if d in family.splits else 1 for d in "mpn"))
    code = family(family.needs(grid) + 2, grid)
    pairs = code.generator_a.reshape(code.n_workers, -1, code.grid.m * code.grid.p)
    norms = np.linalg.norm(pairs, axis=2)
    blocks = code.blocks.m * code.blocks.p
    assert np.allclose(norms, np.sqrt(blocks), rtol=1e-14)


# -- RotMatDot -----------------------------------------------------------------------------------


def test_the_mean_of_all_replies_is_the_product():
    code = get("rotmatdot")(9, Grid(1, 4, 1))
    assert code.threshold == 7
    assert np.allclose(code.weights(range(9)), 1 / 9, rtol=1e-13)


def test_a_reply_is_the_stated_trigonometric_polynomial():
    """What pairs of blocks give when multiplied, against rows that are stated separately."""
    code = get("rotmatdot")(7, Grid(1, 3, 1))
    rng = np.random.default_rng(12)
    A, B = rng.standard_normal((6, 4, 5)), rng.standard_normal((6, 5, 3))
    J = np.kron([[0.0, -1.0], [1.0, 0.0]], np.eye(5))
    pair_a = [np.hstack(A[2 * i : 2 * i + 2]) for i in range(3)]
    pair_b = [np.vstack(B[2 * i : 2 * i + 2]) for i in range(3)]
    unknown = np.zeros((5, 4, 3))
    for i, j in itertools.product(range(3), repeat=2):
        degree = abs(j - i)
        if degree == 0:
            unknown[0] += pair_a[i] @ pair_b[j]
        else:
            unknown[2 * degree - 1] += pair_a[i] @ pair_b[j] / np.sqrt(2)
            unknown[2 * degree] += np.sign(j - i) * pair_a[i] @ J @ pair_b[j] / np.sqrt(2)
    for worker in range(7):
        left = np.tensordot(code.rows_a(worker), A, 1)
        right = np.tensordot(code.rows_b(worker), B, 1)
        reply = left[0] @ right[0] + left[1] @ right[1]
        assert np.allclose(reply, np.tensordot(code.generator[worker], unknown, 1), atol=1e-12)


@pytest.mark.parametrize("losses", [1, 3])
def test_streaming_keeps_one_accumulator_more_than_losses(losses):
    code = get("rotmatdot")(2 * 6 - 1 + losses, Grid(1, 6, 1))
    decoder = make_decoder(code, np.empty((5, 4)), np.dtype(float))
    assert isinstance(decoder, StreamingDecoder)
    assert len(decoder._accumulators) == losses + 1


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_streaming_is_as_accurate_as_the_weights(losses):
    rng = np.random.default_rng(99)
    A, B = rng.standard_normal((31, 300)), rng.standard_normal((300, 23))
    workers = 2 * 10 - 1 + losses
    faults = [Fault("kill", w, 0.0) for w in range(losses)]
    with codedla.SerialPool(workers, faults=faults) as pool:
        C, report = codedla.matmul(
            A, B, pool=pool, code="rotmatdot", blocks=(1, 10, 1), return_report=True
        )
    error = np.linalg.norm(C - A @ B) / np.linalg.norm(A @ B)
    assert error <= 10 * report.error_estimate


# -- rotation-entangled ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 3, 2), (3, 1, 2), (2, 3, 1)])
def test_entangled_thresholds(shape):
    m, p, n = shape
    code = get("rotation-entangled")(p * m * n + p, Grid(*shape))
    assert (code.threshold, code.tolerates) == (p * m * n + p - 1, 1)
    assert code.generator.shape[1] == 4 * code.threshold
    # No fewer unknowns would do: all replies together see every one of them.
    assert np.linalg.matrix_rank(code.generator) == 4 * code.threshold


def test_entangled_is_as_well_conditioned_as_complex_points():
    code = get("rotation-entangled")(21, Grid(3, 2, 3))
    unity = get("mds")(21, Grid(19, 1, 1), nodes="unity")
    for members in survivors_of(code, 8):
        assert condition(code, members) == pytest.approx(condition(unity, members), rel=1e-6)


def test_entangled_without_inner_cuts_is_the_rotation_code():
    one = get("rotation-entangled")(8, Grid(2, 1, 3))
    two = get("rotation")(8, Grid(2, 1, 3))
    for members in survivors_of(one, 5):
        assert one.amplification(members) == pytest.approx(two.amplification(members), rel=1e-9)
