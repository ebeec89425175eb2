r"""Khatri-Rao: both operands coded, systematic; the default for matrix products.

**Any ``m n`` of ``N`` workers decode.** Worker ``i n + j`` computes the plain product ``A_i B_j``.
Parity worker ``r = 0 .. s-1`` multiplies :math:`\sum_i a_{ri} A_i` by :math:`\sum_j b_{rj} B_j` and
so replies with the parity row :math:`a_r \otimes b_r` of all blocks (a Khatri-Rao product of rows).
Without stragglers nothing is decoded; ``e`` lost blocks cost an ``e x e`` system.

Parity factors (rows scaled to norm ``sqrt(m)`` and ``sqrt(n)``):

* ``s = 1``: all ones, the plain sum (exact in wrap-around integers).
* *signed geometric*: every block has a node :math:`x_{ij} = \alpha_i \beta_j` on the real line, and
  parity row ``r`` is :math:`x^{r - (s-1)/2}`, a Khatri-Rao product because powers multiply. The
  nodes are equally spaced on a logarithmic scale, ``-u .. u``; half of the :math:`\beta_j` are
  negative, with magnitudes in the gaps of the others. Any two columns are far from parallel, and
  consecutive rows are a Vandermonde matrix on distinct real nodes: never singular.
* random: signs times ``exp(uniform(-1, 1))``. Better from about ``s = 5``, ``m n = 64`` on.

Up to ``s = 3``, ``u = 1.5`` is a flat optimum (less for very few blocks). For more losses the
choice is in ``khatri_rao_seeds``, or searched among a few candidates of both kinds.

========== ==================================================================
threshold  ``m n``
field      real
cost       worker one block product; decoding ``O(e)`` blocks for ``e`` lost
========== ==================================================================

References
----------
Subramaniam, Heidarzadeh, Narayanan, "Random Khatri-Rao-product codes for numerically-stable
distributed matrix multiplication", Allerton 2019.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes import accuracy
from codedla.codes.base import Code
from codedla.codes.families.khatri_rao_seeds import CHOICES
from codedla.codes.registry import register
from codedla.codes.rows import row_kronecker, scaled_rows

__all__ = ["KhatriRao", "factors", "parity_factors"]

_SPREADS = (0.8, 1.0, 1.2, 1.5, 1.8)  # half-widths of log|x| that are tried
_MANY = 32  # losses beyond which rating one draw takes longer than it is worth

Factors = tuple[NDArray[np.float64], NDArray[np.float64]]


@register
class KhatriRao(Code):
    """``m x n`` plain products, and parity products of combined blocks."""

    name = "khatri-rao"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "real"
    systematic = True
    citation = "Subramaniam, Heidarzadeh, Narayanan, Allerton 2019"
    purpose = "systematic: nothing to decode unless a worker is late"
    weakness = "rare patterns of 5 lost workers cost up to 6 digits at m*n=100 (3 lost: 4 digits)"

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.integral = self.tolerates <= 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        a, b = parity_factors(m, n, self.tolerates)
        block = np.arange(m * n)
        return (
            np.concatenate([np.eye(m)[block // n], a]),
            np.concatenate([np.eye(n)[block % n], b]),
        )


@lru_cache(maxsize=64)
def parity_factors(m: int, n: int, losses: int) -> Factors:
    """Return the factors of the parity rows, ``a`` (losses, m) and ``b`` (losses, n)."""
    if losses <= 1 or m * n == 1:
        return np.ones((losses, m)), np.ones((losses, n))
    if m > n:
        return parity_factors(n, m, losses)[::-1]
    if losses <= 3:
        # With three parities and few blocks, nodes so far apart make the rows lopsided.
        return factors(m, n, losses, 1.5 if losses == 2 else min(1.5, 0.6 + 0.06 * m * n))
    choice, _ = CHOICES.get((m, n, losses)) or (_search(m, n, losses), None)
    return factors(m, n, losses, choice)


def factors(m: int, n: int, losses: int, choice: float | int) -> Factors:
    """Return signed-geometric factors of spread ``choice``, or random ones if it is an int."""
    if isinstance(choice, int):
        return _random(m, n, losses, choice)
    half = (n + 1) // 2
    i, j = np.arange(m), np.arange(n)
    negative = j >= half
    step = 2 * choice / (m * half - 0.5)
    log_a = step * i
    log_b = step * (m * (j % half) + 0.5 * negative) - choice
    row = np.arange(losses)
    power = row - (losses - 1) / 2
    signs = np.where(np.outer(row % 2 == 1, negative), -1.0, 1.0)
    return scaled_rows(np.exp(np.outer(power, log_a))), scaled_rows(
        signs * np.exp(np.outer(power, log_b))
    )


def _random(m: int, n: int, losses: int, seed: int) -> Factors:
    """Random factors, the same on every machine and Python (only ``random()`` is drawn)."""
    draw = random.Random(f"khatri-rao {m} {n} {losses} {seed}")

    def rows(width: int) -> NDArray[np.float64]:
        size = (losses, width)
        signs = np.array([draw.random() < 0.5 for _ in range(losses * width)]).reshape(size)
        logs = np.array([draw.random() for _ in range(losses * width)]).reshape(size)
        return scaled_rows(np.where(signs, -1.0, 1.0) * np.exp(2.0 * logs - 1.0))

    return rows(m), rows(n)


@lru_cache(maxsize=64)
def _search(m: int, n: int, losses: int) -> float | int:
    """The best of a few candidates; their number depends on the size only, never on the clock."""
    if losses > _MANY:
        return 0
    draws = range(max(2, min(8, 100_000 // (m * n * losses**2))))
    return min((*_SPREADS, *draws), key=lambda choice: _rated(m, n, losses, choice))


def _rated(m: int, n: int, losses: int, choice: float | int) -> float:
    return accuracy.worst_of_parity(row_kronecker(*factors(m, n, losses, choice)), effort=0.05)
