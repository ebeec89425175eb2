r"""Generators of the coded linear inverse, and its decoding by weighted least squares.

The weights are computed by a QR factorisation of :math:`\Lambda^{-1/2} G^T` with rows by falling
weight and columns by pivoting, from the logarithms of the weights: the normal equations would
square a ratio of weights that soon exceeds all digits.

References
----------
A. J. Cox, N. J. Higham, "Stability of Householder QR factorization for weighted least squares
problems", Numerical Analysis 1997.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = ["decoding_weights", "orthonormal_rows"]

Array = NDArray[Any]

_DRAWS, _SETS, _WORK = 200, 1024, 2e7
"""Generators that are drawn at the most, sets of workers that each is rated by, and about how many
multiplications that may cost in all."""
_GAP = 20.0
"""From one weight's square root to the next smaller one, in natural logarithms, at the most: with
weights e^40 apart the lesser one has no say in any digit where the greater one has."""
_FLOOR = -660.0
"""Logarithm of the smallest square root of a weight: what is below would underflow."""


@lru_cache(maxsize=32)
def orthonormal_rows(k: int, n_workers: int, seed: int) -> NDArray[np.float64]:
    r"""Return ``G`` (k, n_workers), read-only: orthonormal rows, any ``k`` columns independent.

    The QR factor of a Gaussian matrix, the best of a few of them: subsets of its columns must be
    well conditioned, because errors of those who got far are amplified by the inverse. Rated is
    :math:`\|G_S^{-1}\|_F^2` in the mean over sets ``S`` of ``k`` columns, up to a constant from
    the orthogonal complement ``Z``, whose other columns have the same small singular values.
    """
    rng = np.random.default_rng(seed)
    size = min(k, n_workers - k)
    sets = _subsets(n_workers, size, rng)
    draws = int(np.clip(_WORK / (len(sets) * size**3 + 1), 1, _DRAWS)) if size else 1
    best, least = None, math.inf
    for _ in range(draws):
        q = np.linalg.qr(rng.standard_normal((n_workers, n_workers)))[0]
        rated = q[:, :k] if size == k else q[:, k:]
        with suppress(np.linalg.LinAlgError):
            score = float((np.linalg.inv(rated[sets]) ** 2).sum()) if draws > 1 else 0.0
            if score < least:
                best, least = q[:, :k].T, score
    if best is None:
        raise UsageError(
            f"no {k} rows of {n_workers} were found; got seed={seed}; choose another seed"
        )
    result = np.ascontiguousarray(best)
    result.setflags(write=False)
    return result


def _subsets(n: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return sets of so many of ``n`` numbers: all, or many random ones."""
    if math.comb(n, size) <= _SETS:
        return np.array(list(itertools.combinations(range(n), size)), np.int64)
    return np.argsort(rng.random((_SETS, n)), axis=1)[:, :size]


def decoding_weights(G: Array, iterations: Sequence[int], rate: float) -> NDArray[np.float64]:
    """Return ``(G L^-1 G^T)^-1 G L^-1`` with ``L = diag(rate^(2 l_i))``.

    Parameters
    ----------
    G : ndarray (k, s)
        Columns of those who replied; of rank ``k``.
    iterations : sequence of int
        ``l_i``.
    rate : float
        Between 0 and 1.

    Returns
    -------
    ndarray (k, s)
    """
    import scipy.linalg

    done = np.asarray(iterations, np.float64)
    order = np.argsort(-done, kind="stable")
    # Square roots of the weights, rate^-l, relative to the largest one. Only whose is larger
    # matters where they are far apart, and so gaps are shortened.
    gaps = np.minimum(np.diff(-done[order]) * -math.log(rate), _GAP)
    roots = np.empty(len(done))
    roots[order] = np.exp(np.maximum(-np.cumsum(np.r_[0.0, gaps]), _FLOOR))
    q, r, pivots = scipy.linalg.qr(roots[order, None] * G.T[order], mode="economic", pivoting=True)
    solved = scipy.linalg.solve_triangular(r, q.T * roots[order])
    weights = np.empty(G.shape)
    weights[np.ix_(pivots, order)] = solved
    return weights
