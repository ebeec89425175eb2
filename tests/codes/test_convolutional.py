"""The convolutional code: delays, additions only, integers stay exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.stragglers import Fault


def code(workers, blocks):
    return get("convolutional")(workers, Grid(blocks, 1, 1))


def test_the_shares_of_two_blocks_and_three_parities():
    # Worker by worker; blocks a0 a1 | b0 b1. Delays of b: 0, 1; of a with exponent -1: 1.
    conv = code(5, 2)
    expected = {
        0: [[1, 0, 0, 0], [0, 1, 0, 0]],
        1: [[0, 0, 1, 0], [0, 0, 0, 1]],
        2: [[1, 0, 1, 0], [0, 1, 0, 1]],
        3: [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]],
        4: [[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]],
    }
    for worker, rows in expected.items():
        mine = [s for s in conv.shares if conv.home(s) == worker]
        assert np.array_equal(conv.generator_a[mine], rows)
    assert conv.load == 3
    assert len(conv.shares) == 12


@pytest.mark.parametrize("losses", [1, 2, 3, 4])
def test_any_losses_are_peeled_without_an_inactive_block(losses):
    conv = code(4 + losses, 4)
    for lost in itertools.combinations(range(conv.active), losses):
        peeling = conv.peeling(conv.shares_without(lost))
        assert peeling.inactive == [], lost
        assert len(peeling.steps) == 16


def test_integers_beyond_float64_are_exact():
    rng = np.random.default_rng(3)
    a = rng.integers(-(2**31), 2**31, (50, 40))
    x = rng.integers(-(2**31), 2**31, 40)
    faults = [Fault("kill", 0), Fault("kill", 3)]
    with codedla.SerialPool(7, faults=faults) as pool, pytest.warns(codedla.CodedlaWarning):
        y = codedla.matvec(a, x, pool=pool, code="convolutional", blocks=5)
    assert np.array_equal(y, a @ x)


def test_partial_work_of_everybody_decodes():
    conv = code(6, 4)
    suffice = conv.watch()
    # Of each message the last part is missing, and alone in one sum each of the delayed parity.
    told = [suffice(share) for share in range(3 * 6)]
    rest = [share for share in conv.shares if share >= 3 * 6 and conv.home(share) == 5]
    assert rest == [23, 29, 35, 41]
    told += [suffice(share) for share in rest]
    assert told == [False] * 21 + [True]
