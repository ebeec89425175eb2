"""Owners of shares that are collected without having been closed."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import codedla
from codedla.iterative.linear_inverse import LinearInverse
from codedla.iterative.substitute import SubstituteMatrix

A = np.random.default_rng(41).standard_normal((12, 12))


def stored(pool):
    matrix = codedla.store(A, pool=pool)
    matrix @ np.ones(12)
    return matrix


def operator(pool):
    made = codedla.aslinearoperator(A, pool=pool)
    made.matvec(np.ones(12))
    made.rmatvec(np.ones(12))
    return made


def two_way(pool):
    made = codedla.aslinearoperator(A, pool=pool, adjoint="shared", tolerate=1)
    made.matvec(np.ones(12))
    return made


def substitute(pool):
    matrix = SubstituteMatrix(A, pool=pool)
    matrix.multiply(np.ones((12, 1)), np.zeros((12, 1)))
    return matrix


def inverse(pool):
    solver = LinearInverse(A / 100, pool=pool, rate=0.5)
    solver.solve(np.ones(12), iterations=2)
    return solver


@pytest.mark.parametrize("make", [stored, operator, two_way, substitute, inverse])
def test_what_is_forgotten_is_freed_when_something_else_is_stored(make):
    with codedla.SerialPool(4) as pool, codedla.SerialPool(4) as other:
        kept = make(pool)
        elsewhere = make(other)
        once = len(pool._resident)
        assert once
        for _ in range(5):
            make(pool)
            gc.collect()
            # The one that is kept, and the latest.
            assert len(pool._resident) <= 2 * once
        kept.close()
        codedla.store(A, pool=pool).close()
        assert not pool._resident
        assert len(other._resident) == once
        elsewhere.close()


class _Plain:
    """Somebody's own pool, that cannot be referred to weakly."""

    __slots__ = ("_pool",)

    def __init__(self, pool):
        self._pool = pool

    def __getattr__(self, name):
        return getattr(self._pool, name)


def test_a_pool_that_cannot_be_referred_to_weakly_serves_all_the_same():
    with codedla.SerialPool(4) as pool:
        matrix = codedla.store(A, pool=_Plain(pool))
        np.testing.assert_allclose(matrix @ np.ones(12), A @ np.ones(12))
        matrix.close()
        assert not pool._resident
