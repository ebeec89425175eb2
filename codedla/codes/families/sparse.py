r"""Sparse: every share combines few blocks, so that sparse operands stay sparse.

**Any ``m n`` of ``N`` workers decode** (``s = N - m n`` losses). A dense combination of ``k``
sparse blocks has ``k`` times their density, and a worker's time grows with it. Here worker ``w``
multiplies

.. math:: \tilde A = \sum_{i \in T_w} a_{wi} A_i, \qquad \tilde B = \sum_{j \in U_w} b_{wj} B_j

where :math:`T_w`, :math:`U_w` hold only :math:`\omega_A`, :math:`\omega_B` blocks: runs of
neighbours, the first ``m n`` workers starting at every block once, the others tiling the blocks. If
many blocks of one operand alone are coded they are scattered: runs form a chain along which errors
grow. Every block must be touched by ``s + 1`` workers, hence
:math:`N \omega_A \omega_B \ge m n (s + 1)`; the smallest weights, the larger of the two first, are
taken for which

* every rectangle of ``t`` blocks is touched by ``t + s`` workers (else some loss leaves more
  unknowns than equations), and
* no loss pattern found by search is singular, for the best of a few draws of the coefficients.

So ``A`` alone (``n = 1``) needs weight ``s + 1`` at most where dense parities have ``m``; with two
coded operands about ``sqrt(s + 1)`` each. No share is plain: what counts is the densest share.

========== =========================================================================
threshold  ``m n``
field      real
cost       worker ``omega_A omega_B`` times the flops of a plain product of sparse
           blocks; decoding ``O(m n)`` blocks, whoever is late
weakness   more digits are lost than with dense mixtures
========== =========================================================================

References
----------
Das, Ramamoorthy, "Coded sparse matrix computation schemes that leverage partial stragglers", IEEE
Trans. Inf. Theory 68 (2022), arXiv 2012.06065: few combined blocks keep sparse operands sparse.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.draws import best_draw, numbers, worst_of_generator
from codedla.codes.registry import register
from codedla.codes.rows import row_kronecker
from codedla.codes.supports import runs, scattered, touched

__all__ = ["Sparse", "least_weights"]

_MANY_BLOCKS = 500  # beyond, rating a draw takes seconds, and one is as good as another
_ACCEPTABLE = 1e9  # worst amplification beyond which larger weights are tried
_SPREADS = (0.25, 0.5, 1.0)  # half-widths of log|coefficient|

Factors = tuple[NDArray[np.float64], NDArray[np.float64]]


@register
class Sparse(Code):
    """``m x n`` blocks, of which every share combines only a few neighbours."""

    name = "sparse"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "real"
    preserves_sparsity = True
    citation = "Das and Ramamoorthy, IEEE Trans. Inf. Theory 68 (2022)"
    purpose = "few blocks are combined: shares of sparse operands stay sparse"
    weakness = (
        "nothing plain, and few terms lose more digits than dense mixtures: 4 at m*n=64 and 2 "
        "losses, up to 7 with more"
    )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return _factors(self.grid.m, self.grid.n, self.n_workers)


@lru_cache(maxsize=64)
def _factors(m: int, n: int, workers: int) -> Factors:
    losses = workers - m * n

    def rate(factors: Factors, effort: float) -> float:
        norms = np.linalg.norm(factors[0], axis=1) * np.linalg.norm(factors[1], axis=1)
        return worst_of_generator(row_kronecker(*factors), norms, effort)

    for weights in _possible_weights(m, n, workers):
        if m * n > _MANY_BLOCKS:
            return _drawn(m, n, workers, weights, 0)
        best = best_draw(partial(_drawn, m, n, workers, weights), rate, m * n, losses)
        if losses == 0 or rate(best, 0.1) < _ACCEPTABLE:
            break
    return best


def least_weights(m: int, n: int, workers: int) -> tuple[int, int]:
    """Return the smallest weights of shares of A and of B that may do."""
    return next(_possible_weights(m, n, workers))


def _possible_weights(m: int, n: int, workers: int) -> Iterator[tuple[int, int]]:
    """Weights, smallest first, with which rectangles of blocks are touched often enough."""
    losses = workers - m * n
    pairs = itertools.product(range(1, m + 1), range(1, n + 1))
    for pair in sorted(pairs, key=lambda pair: (max(pair), pair[0] * pair[1], pair)):
        if workers * pair[0] * pair[1] < m * n * (losses + 1):
            continue
        if pair == (m, n) or touched(*_supports(m, n, workers, pair, 0), losses):
            yield pair


def _supports(m: int, n: int, workers: int, weights: tuple[int, int], seed: int) -> Factors:
    """Which blocks each worker combines, 0 or 1: (workers, m) and (workers, n)."""
    extra = workers - m * n
    if n == 1 and m >= 4 * weights[0]:
        label = f"sparse {m} {workers} {weights[0]} {seed}"
        return scattered(label, m, extra, weights[0]), np.ones((workers, 1))
    if m == 1 and n >= 4 * weights[1]:
        return _supports(n, 1, workers, weights[::-1], seed)[::-1]
    plain, rest = np.arange(m * n), np.arange(extra)
    across = -(-m // weights[0])
    starts_a = np.concatenate([plain // n, rest % across * weights[0]])
    starts_b = np.concatenate([plain % n, rest // across * weights[1]])
    return runs(starts_a, weights[0], m), runs(starts_b, weights[1], n)


def _drawn(m: int, n: int, workers: int, weights: tuple[int, int], seed: int) -> Factors:
    a, b = _supports(m, n, workers, weights, seed)
    return _coefficients(a, f"a {seed}", seed), _coefficients(b, f"b {seed}", seed)


def _coefficients(support: NDArray[np.float64], label: str, seed: int) -> NDArray[np.float64]:
    """Signs and sizes around 1 on a support; 1 where a share is a single block."""
    drawn = numbers(f"sparse {support.shape} {label}", 2, *support.shape)
    sizes = np.exp(_SPREADS[seed % len(_SPREADS)] * np.clip(1.7 * drawn[0], -1.0, 1.0))
    rows = np.where(drawn[1] < 0, -sizes, sizes) * support
    weight = support.sum(axis=1, keepdims=True)
    scaled = rows * np.sqrt(weight) / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(weight == 1, support, scaled)
