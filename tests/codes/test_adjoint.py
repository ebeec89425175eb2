"""The way back through stored shares: which replies decode, and to what."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import registry
from codedla.codes.adjoint import adjoint_of
from codedla.errors import NotDecodable, UsageError

RNG = np.random.default_rng(50341)


def replies(forward, back, a, y):
    """What workers answer: the combination of y's blocks times the stored share."""
    m, p = forward.grid.m, forward.grid.p
    rows, cols = a.shape[0] // m, a.shape[1] // p
    blocks = a.reshape(m, rows, p, cols).swapaxes(1, 2).reshape(m * p, rows, cols)
    shares = np.tensordot(forward.generator_a, blocks, 1)
    np.testing.assert_array_equal(forward.generator_a, back.generator_b)
    return np.einsum("wr,wrc->wc", back.generator_a @ y.reshape(m, rows), shares)


@pytest.mark.parametrize("nodes", ["unity", "chebyshev", "equispaced"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (3, 1), (1, 3), (2, 2), (3, 2), (2, 3)])
def test_entangled_shares_serve_both_ways_from_every_set_of_replies(grid, nodes):
    m, p = grid
    need = 2 * m * p - p
    n = max(need, m * p + p - 1) + 2
    forward = registry.get("entangled")(n, Grid(m, p, 1), nodes=nodes)
    back = adjoint_of(forward)
    assert (forward.threshold, back.threshold) == (m * p + p - 1, need)
    a, y = RNG.standard_normal((6, 6)), RNG.standard_normal(6)
    answers, expected = replies(forward, back, a, y), a.T @ y
    for chosen in combinations(range(n), need):
        got = (back.weights(chosen) @ answers[list(chosen)]).ravel()
        bound = 1e2 * back.amplification(chosen) * 2.0**-52
        assert np.linalg.norm(got - expected) <= bound * np.linalg.norm(a) * np.linalg.norm(y)
    if need > 1:
        with pytest.raises(NotDecodable, match=f"needs any {need} of {n}"):
            back.weights(range(need - 1))


def test_copies_serve_both_ways_from_every_set_that_holds_all_rows():
    forward = registry.get("replication")(7, Grid(3, 1, 1))
    back = adjoint_of(forward)
    assert (back.tolerates, back.active) == (forward.tolerates, forward.active) == (1, 7)
    a, y = RNG.standard_normal((6, 4)), RNG.standard_normal(6)
    answers = replies(forward, back, a, y)
    decodable = 0
    for count in range(8):
        for chosen in combinations(range(7), count):
            assert back.decodable(chosen) == forward.decodable(chosen)
            if not back.decodable(chosen):
                continue
            decodable += 1
            got = (back.weights(chosen) @ answers[list(chosen)]).ravel()
            np.testing.assert_allclose(got, a.T @ y, atol=1e-13)
    assert decodable > 40


def test_uncoded_needs_everybody_who_has_rows():
    back = adjoint_of(registry.get("uncoded")(5, Grid(4, 1, 1)))
    assert (back.active, back.tolerates, back.threshold) == (4, 0, 4)
    assert not back.decodable(range(3))


def test_other_codes_and_too_few_workers_are_refused():
    with pytest.raises(UsageError, match="uncoded, replication and entangled; got mds"):
        adjoint_of(registry.get("mds")(5, Grid(3, 1, 1)))
    with pytest.raises(UsageError, match="need at least 6 workers"):
        adjoint_of(registry.get("entangled")(5, Grid(2, 2, 1)))
