r"""Cyclic repetition: worker ``w`` has the parts ``w, w + 1, ..., w + s`` (modulo n).

**Any ``n - s`` of ``n`` workers decode**, exactly, for every ``s < n``; each computes ``s + 1`` of
``n`` parts, which is the least possible.

All rows of ``B`` lie in the null space of an ``s x n`` matrix ``H`` with ``H 1 = 0`` of which any
``s`` columns are independent. So any ``n - s`` rows span that space, and the vector of ones is in
it. Row ``w`` is the null vector with its support, the solution of
:math:`H_{w+1..w+s} x = -H_w`, scaled to unit length.

Two kinds of ``H`` are tried, and the one whose worst survivor set amplifies rounding least is
taken: seeded Gaussian matrices (the construction of the paper), and, where ``n - s`` is odd, ``s``
consecutive frequencies of the discrete Fourier transform about the highest, which make ``B`` a
real circulant matrix and any ``s`` columns independent as those of a Vandermonde matrix are.

References
----------
R. Tandon, Q. Lei, A. Dimakis, N. Karampatziakis, "Gradient coding: avoiding stragglers in
distributed learning", ICML 2017, PMLR 70. Cyclic codes over roots of unity: N. Raviv, I. Tamo,
R. Tandon, A. Dimakis, "Gradient coding from cyclic MDS codes and expander graphs", IEEE Trans. Inf.
Theory 66 (2020), arXiv:1707.03858.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode

__all__ = ["Cyclic"]

Matrix = NDArray[np.float64]

_DRAWS = 16
_SETS = 2000
"""At most so many survivor sets judge a draw: all of them up to 12 workers."""


class Cyclic(GradientCode):
    """``s + 1`` neighbouring parts per worker, Gaussian or circulant coefficients."""

    name = "gradient-cyclic"
    scheme = "cyclic"
    threshold_formula = "n - s"
    citation = "Tandon, Lei, Dimakis, Karampatziakis, ICML 2017"
    weakness = "digits are lost when many neighbours are: from about n=20 and s=n/2 on, too many"

    def _assignment(self) -> Matrix:
        n, s = self.n_workers, self.reach
        if s == 0:
            return np.eye(n)
        if s == n - 1:
            # Everybody has everything; the only circulant matrix that has the ones in its rows.
            return np.full((n, n), 1.0 / n)
        rng = np.random.default_rng(self.seed)
        sets = _survivor_sets(n, s, rng)
        checks = [_gaussian(n, s, rng) for _ in range(_DRAWS)]
        if (n - s) % 2:
            checks.append(_harmonic(n, s))
        drawn = [_rows_of(check) for check in checks]
        return min(drawn, key=lambda rows: _worst(rows, sets))


def _gaussian(n: int, s: int, rng: np.random.Generator) -> Matrix:
    """Return random checks that vanish on the ones, (s, n)."""
    checks = rng.standard_normal((s, n))
    return checks - checks.mean(axis=1, keepdims=True)


def _harmonic(n: int, s: int) -> Matrix:
    """Return the ``s`` frequencies about ``n / 2`` as real checks, (s, n)."""
    frequencies = np.arange((n - s + 1) // 2, (n + s - 1) // 2 + 1)
    angles = 2 * np.pi * np.outer(frequencies, np.arange(n)) / n
    # Frequency n - f is the conjugate of f: a cosine and a sine stand for the two.
    return np.where(2 * frequencies[:, None] <= n, np.cos(angles), np.sin(angles))


def _rows_of(checks: Matrix) -> Matrix:
    """Return the assignment that these checks vanish on, rows of unit length, (n, n)."""
    s, n = checks.shape
    rows = np.zeros((n, n))
    for worker in range(n):
        others = (worker + 1 + np.arange(s)) % n
        rows[worker, worker] = 1.0
        rows[worker, others] = np.linalg.lstsq(checks[:, others], -checks[:, worker], rcond=None)[0]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _survivor_sets(n: int, s: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return all survivor sets if they are few, else runs of neighbours and a sample."""
    if math.comb(n, s) <= _SETS:
        return np.array(list(itertools.combinations(range(n), n - s)))
    runs = [np.sort((start + np.arange(n - s)) % n) for start in range(n)]
    drawn = [np.sort(rng.permutation(n)[: n - s]) for _ in range(_SETS // 4)]
    return np.array([*runs, *drawn])


def _worst(rows: Matrix, sets: NDArray[np.int64]) -> float:
    """Return the largest norm of weights of any of these sets (the rows have unit length).

    In coordinates of the space that the rows span, every set is one square system.
    """
    size = sets.shape[1]
    basis = np.linalg.svd(rows)[2][:size]
    inside = rows @ basis.T
    systems = inside[sets].transpose(0, 2, 1)
    ones = np.broadcast_to(basis.sum(axis=1)[:, None], (len(sets), size, 1))
    try:
        weights = np.linalg.solve(systems, ones)
    except np.linalg.LinAlgError:
        return math.inf
    return float(np.linalg.norm(weights, axis=1).max())
