"""Peeling with inactivation: rank, weights and blocks are those of dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.peeling import Peeling


def sparse_system(rng, equations, unknowns, entries):
    rows = np.zeros((equations, unknowns))
    for row in rows:
        members = rng.choice(unknowns, min(entries, unknowns), replace=False)
        row[members] = rng.choice([-2.0, -1.0, 1.0, 3.0], members.size)
    return rows


def peeled(rows):
    return Peeling(
        [(np.flatnonzero(r).tolist(), r[r != 0].astype(int).tolist()) for r in rows], rows.shape[1]
    )


def test_a_chain_is_peeled_from_its_end():
    rows = np.array([[1, 1, 0], [0, 1, -1], [0, 0, 1]])
    peeling = peeled(rows)
    assert peeling.steps == [(2, 2), (1, 1), (0, 0)]
    assert (peeling.inactive, peeling.checks) == ([], [])
    assert np.array_equal(peeling.weights(None), [[1, -1, -1], [0, 1, 1], [0, 0, 1]])


def test_a_circle_takes_an_inactive_block():
    rows = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    peeling = peeled(rows)
    assert len(peeling.inactive) == len(peeling.checks) == 1
    assert np.allclose(peeling.weights(None) @ rows, np.eye(3))
    # The differences around a circle do not tell the sum of the three.
    assert peeled(np.array([[1, -1, 0], [0, 1, -1], [1, 0, -1]])).kernel.shape == (3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_has_the_dimension_of_the_null_space(seed):
    rng = np.random.default_rng(seed)
    unknowns = int(rng.integers(1, 30))
    rows = sparse_system(rng, int(rng.integers(0, 40)), unknowns, int(rng.integers(1, 4)))
    kernel = peeled(rows).kernel
    assert kernel.shape[1] == unknowns - (np.linalg.matrix_rank(rows) if rows.size else 0)
    assert not (rows.astype(np.int64) @ kernel % 67_108_859).any()


@pytest.mark.parametrize("seed", range(5))
def test_weights_of_least_noise(seed):
    rng = np.random.default_rng(seed)
    rows = sparse_system(rng, 40, 25, 4)
    assert np.linalg.matrix_rank(rows) == 25
    norms = np.linalg.norm(rows, axis=1)
    expected = np.linalg.pinv(rows / norms[:, None]) / norms
    assert np.allclose(peeled(rows).weights(norms), expected, atol=1e-9)
    plain = peeled(rows).weights(None)
    assert np.allclose(plain @ rows, np.eye(25), atol=1e-9)
    assert np.linalg.norm(plain * norms) >= np.linalg.norm(expected * norms)


def test_undetermined_blocks_are_said_to_be():
    with pytest.raises(np.linalg.LinAlgError):
        peeled(np.array([[1, 1, 0], [0, 0, 1], [2, 2, 1]])).weights(None)


@pytest.mark.filterwarnings("ignore:.*the worst loss pattern amplifies:codedla.CodedlaWarning")
@pytest.mark.parametrize(
    ("dtype", "error"), [(np.float64, 1e-11), (np.float32, 1e-4), (np.complex128, 1e-11)], ids=str
)
@pytest.mark.parametrize("rows", [300, 317, 90])
def test_many_blocks_are_decoded_by_peeling(rows, dtype, error):
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, 7)).astype(dtype)
    b = rng.standard_normal((7, 3)).astype(dtype)
    assert get("lt")(6, Grid(150, 1, 1)).peels
    with codedla.SerialPool(6) as pool:
        c = codedla.matvec(a, b, pool=pool, code="lt", blocks=150)
    assert c.dtype == dtype
    assert np.linalg.norm(c - a @ b) <= error * np.linalg.norm(a @ b)


@pytest.mark.parametrize("blocks", [64, 100])
def test_long_chains_do_not_spoil_the_weights(blocks):
    code = get("lt")(4, Grid(blocks, 1, 1))
    rng = np.random.default_rng(1)
    for _ in range(4):
        suffice, told = code.watch(), []
        for share in rng.permutation(code.shares).tolist():
            told.append(share)
            if suffice(share):
                break
        wrong = code.weights(told) @ code.generator[sorted(told)] - np.eye(blocks)
        assert np.abs(wrong).max() < 1e-14 * code.amplification(told)


def test_the_estimated_amplification_is_near_that_of_the_weights():
    for name, workers, blocks in (("lt", 10, 150), ("convolutional", 14, 11)):
        code = get(name)(workers, Grid(blocks, 1, 1))
        assert code.peels
        told = code.shares_without(range(code.tolerates))
        exact = np.linalg.norm(code.weights(told) * code.norms[list(told)])
        exact /= np.sqrt(code.grid.outputs)
        assert code.amplification(told) == pytest.approx(exact, rel=0.3)
        with pytest.raises(codedla.NotDecodable):
            code.amplification(told[: code.grid.outputs - 1])
