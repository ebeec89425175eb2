r"""Random Khatri-Rao: both operands coded by random mixtures, real arithmetic.

**Any ``m n`` of ``N`` workers decode, with probability 1.** Worker ``w`` multiplies

.. math:: \tilde A = \sum_i a_{wi} A_i, \qquad \tilde B = \sum_j b_{wj} B_j

with random coefficients, scaled to :math:`\|a_w\|^2 = m`, :math:`\|b_w\|^2 = n`, and so replies
with the row :math:`a_w \otimes b_w` of all block products. Rows of one size halve the
condition number against plain Gaussian ones. The seeds are fixed, and the best of a few draws is
taken.

Unlike points on a line or a circle, no survivor set is much worse than the others, however many
workers are lost; unlike ``khatri-rao``, no share is a plain block.

========== ===================================================================
threshold  ``m n``
field      real
cost       worker one block product; decoding ``O(m n)`` blocks, whoever is late
weakness   the worst pattern is known by search only
========== ===================================================================

References
----------
Subramaniam, Heidarzadeh, Narayanan, "Random Khatri-Rao-product codes for numerically-stable
distributed matrix multiplication", Allerton 2019, arXiv 1907.05965.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.draws import best_draw, random_rows, worst_of_generator
from codedla.codes.registry import register
from codedla.codes.rows import row_kronecker

__all__ = ["RandomKhatriRao"]

Factors = tuple[NDArray[np.float64], NDArray[np.float64]]


@register
class RandomKhatriRao(Code):
    """``m x n`` blocks, both operands coded by random rows."""

    name = "random-khatri-rao"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "real"
    citation = "Subramaniam, Heidarzadeh, Narayanan, Allerton 2019"
    weakness = (
        "decodes all blocks even when nobody is late; up to 6 digits are lost at m*n=64, and the "
        "worst pattern is known by search only"
    )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return _factors(self.grid.m, self.grid.n, self.n_workers)


@lru_cache(maxsize=64)
def _factors(m: int, n: int, workers: int) -> Factors:
    """The best of a few draws: rows of A (workers, m) and of B (workers, n)."""
    norms = np.full(workers, math.sqrt(m * n))

    def draw(seed: int) -> Factors:
        label = f"random-khatri-rao {m} {n} {workers} {seed}"
        return random_rows(f"{label} a", workers, m), random_rows(f"{label} b", workers, n)

    def rate(factors: Factors, effort: float) -> float:
        return worst_of_generator(row_kronecker(*factors), norms, effort)

    return best_draw(draw, rate, m * n, workers - m * n)
