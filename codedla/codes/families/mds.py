r"""MDS: one coded operand (a matrix times a vector, or times an uncoded matrix).

**Any ``k`` of ``N`` workers decode.** ``A`` is cut into ``k`` row blocks (grid ``k x 1 x 1``),
``B`` goes to everybody, and worker ``w`` replies with :math:`\sum_j G_{wj} A_j B`.

With nodes ``trig`` (default) workers ``0 .. k-1`` hold plain blocks, ``s = N - k`` others parities

.. math:: P = F_{\text{rest}} \, F_{\text{even}}^{-1},

where ``F`` holds the first ``k`` real trigonometric functions at ``N`` equally spaced angles; the
angles of the plain workers are evenly spread among them. Any ``k`` rows of ``F`` are independent
(a Vandermonde matrix on the unit circle in real clothes), hence any ``k`` rows of ``[I; P]``. One
parity is the plain sum. From ``s >= 5`` on, random orthonormal rows may be better:
where the worst amplification is above 3e5, they are compared and the better ones taken.

========== ============================================================================
threshold  ``k``
field      real (``trig``, ``chebyshev``, ``equispaced``); complex (``unity``)
cost       worker ``1/k`` of the product; decoding ``O(e)`` blocks for ``e`` lost ones
           (``trig``), ``O(k)`` otherwise
========== ============================================================================

References
----------
Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran, "Speeding up distributed machine learning using
codes", IEEE Trans. Inf. Theory 64 (2018): the coded matrix-vector product. Fahim and Cadambe,
"Numerically stable polynomially coded computing", IEEE Trans. Inf. Theory 67 (2021): Chebyshev.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes import accuracy
from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows, trigonometric_parity

__all__ = ["MDS", "parity_rows"]

_GOOD_ENOUGH = 3e5  # worst amplification that random rows seldom beat
_MANY = 32  # losses beyond which parities are drawn and not compared


@register
class MDS(Code):
    """``k`` row blocks of one operand on ``N`` workers, any ``k`` of which decode."""

    name = "mds"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    systematic = True
    citation = "Lee et al., IEEE Trans. Inf. Theory 64 (2018)"
    purpose = "one operand is coded, the other goes to everybody"
    weakness = (
        "codes one operand only; nodes chebyshev lose more than 6 digits from 3 losses and k=36 "
        "on, equispaced from k=16 on (every digit from k=36)"
    )
    node_choices = ("trig", "chebyshev", "equispaced", "unity")

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.systematic = self.nodes == "trig"
        self.integral = self.systematic and self.tolerates <= 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks, workers = self.grid.m, self.n_workers
        everybody = np.ones((workers, 1))
        if self.nodes == "trig":
            parity = parity_rows(blocks, self.tolerates)
            return np.concatenate([np.eye(blocks), parity]), everybody
        degrees = np.arange(blocks)
        return points.at_workers(self.nodes, degrees, workers, self.tolerates), everybody


@lru_cache(maxsize=64)
def parity_rows(blocks: int, losses: int) -> NDArray[np.float64]:
    """Return the parity rows of the systematic code, each of norm ``sqrt(blocks)``.

    Parameters
    ----------
    blocks, losses : int
        ``k >= 1`` and ``s >= 0``.

    Returns
    -------
    ndarray (losses, blocks), float64, read-only
    """
    rows = trigonometric_parity(blocks, losses)
    if losses >= 5 and blocks > 1:
        rows = _better_of(rows)
    rows.setflags(write=False)
    return rows


def _better_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The given rows, or random orthonormal ones if their worst amplification is smaller."""
    losses, blocks = rows.shape
    if losses > _MANY:
        # Neighbouring angles are hopeless then, and rating a pattern is expensive: just draw.
        return _orthonormal(blocks, losses, 0)
    drawn, best = rows, _worst(rows, 0.1)
    if best < _GOOD_ENOUGH:
        return rows
    for seed in range(max(2, min(6, 80_000 // (blocks * losses**2)))):
        candidate = _orthonormal(blocks, losses, seed)
        # A short search refutes most draws: what it finds only grows with effort.
        if _worst(candidate, 0.02) < best:
            badness = _worst(candidate, 0.1)
            if badness < best:
                drawn, best = candidate, badness
    # Bad patterns of random rows are rare: let the long search have the last word.
    return drawn if _worst(drawn, 0.4) < _worst(rows, 0.4) else rows


def _orthonormal(blocks: int, losses: int, seed: int) -> NDArray[np.float64]:
    draw = random.Random(f"mds {blocks} {losses} {seed}")  # the same numbers on every Python
    tall, thin = max(blocks, losses), min(blocks, losses)
    numbers = np.array([draw.random() - 0.5 for _ in range(tall * thin)]).reshape(tall, thin)
    columns = np.linalg.qr(numbers)[0]
    return scaled_rows(columns.T if losses <= blocks else columns)


def _worst(rows: NDArray[np.float64], effort: float) -> float:
    return accuracy.worst_of_parity(rows, effort)
