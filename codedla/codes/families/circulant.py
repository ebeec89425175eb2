r"""Circulant: one coded operand; shares are plain sums of blocks, moved round a circle.

**Any ``k`` of ``N`` workers decode.** With ``q`` the least odd prime not below ``N``, each of the
``k`` row blocks of ``A`` is cut into ``q - 1`` parts, and a last part, minus their sum, is added.
Worker ``w`` moves the ``q`` parts of block ``j`` round by ``j w`` places and adds up:

.. math:: \sum_j (P^{j w} \otimes I) \begin{bmatrix} A_{j,0} \\ \vdots \\ A_{j,q-1} \end{bmatrix} B,
          \qquad P \text{ the cyclic shift of } q \text{ places}.

A discrete Fourier transform over the parts takes a reply apart: at frequency ``f`` it is
:math:`\sum_j \omega^{f j w} \hat A_{j,f} B`, a Vandermonde system on ``q``-th roots of unity.
Frequency 0 would be the same for all workers, but there the sum of the parts is zero. Since ``q``
is prime, the roots of the other frequencies are distinct, the same ones in another order:
neighbours at one frequency are far apart at others, and no set of workers is much worse than
another.

========== ===========================================================================
threshold  ``k``
field      real; coefficients 0, 1, and -1 of the last parts
cost       worker ``q/(k (q - 1))`` of the product, encoded by additions alone; decoding
           ``k (q - 1)`` parts out of ``k q``, whoever is late
weakness   ``q - N`` more than needed acts like as many workers that are always lost
========== ===========================================================================

References
----------
Ramamoorthy and Tang, "Numerically stable coded matrix computations via circulant and rotation
matrix embeddings", IEEE Trans. Inf. Theory 68 (2022), arXiv 1910.06515.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.solve import Completion
from codedla.errors import UsageError

__all__ = ["Circulant"]

_MOST = 2**23  # coefficients of all shares together, most of them zero


@register
class Circulant(Code):
    """``k`` row blocks of one operand, whose parts are moved round and added."""

    name = "circulant"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    citation = "Ramamoorthy and Tang, IEEE Trans. Inf. Theory 68 (2022)"
    weakness = (
        "decodes all blocks even when nobody is late, in k*(q - 1) parts, q a prime of at least N; "
        "numbers of workers just above a prime are bad; about N**4 coefficients"
    )

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.prime = max(3, n_workers | 1)
        while any(self.prime % d == 0 for d in range(3, math.isqrt(self.prime) + 1, 2)):
            self.prime += 2
        self.grid = Grid(grid.m * (self.prime - 1), 1, 1)
        self.stack = (self.prime, 1, 1)
        size = n_workers * self.prime * self.grid.m
        if size > _MOST:
            raise UsageError(
                f"code {self.name} has at most {_MOST} coefficients, blocks {grid} on {n_workers} "
                f"workers have {size}; use fewer workers and blocks, or code='rotation-mds'"
            )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        workers, blocks, parts = self.n_workers, self.blocks.m, self.prime
        worker, part, block = np.ogrid[:workers, :parts, :blocks]
        # Which part of each block is moved to this place.
        source = (part - block * worker) % parts
        rows = np.vstack([np.eye(parts - 1), -np.ones(parts - 1)])[source]
        return rows.reshape(workers * parts, -1), np.ones((workers, 1))

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """Noise scale of each part of the replies: one number, the root mean square of a reply."""
        last = 2 * self.blocks.m * (self.prime - 1) / self.prime
        return np.full(self.n_workers * self.prime, math.sqrt(last))

    @cached_property
    def _systems(self) -> list[Completion]:
        """The systems at frequencies 1, 2, ... up to the half; the others are their conjugates."""
        workers, blocks = np.arange(self.n_workers), np.arange(self.blocks.m)
        noise, wanted = self.norms[:: self.prime], np.eye(blocks.size)
        return [
            Completion(points.unity_powers(-f * workers, blocks, self.prime), wanted, noise)
            for f in range(1, self.prime // 2 + 1)
        ]

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        members, parts = np.array(survivors), self.prime
        inverses = np.array([system.weights(members) for system in self._systems])
        # Back from frequencies: how a part of a block depends on a part of a reply, by distance.
        nothing = np.zeros((1, *inverses.shape[1:]))
        kernels = np.fft.irfft(np.concatenate([nothing, inverses]), parts, axis=0)
        # Part i of a block needs part l of a reply by kernel (i - l): windows that move along.
        backwards = np.moveaxis(kernels[-np.arange(2 * parts) % parts], 0, -1)
        windows = np.lib.stride_tricks.sliding_window_view(backwards, parts, axis=-1)
        weights = windows[:, :, :1:-1].transpose(0, 2, 1, 3)
        return np.ascontiguousarray(weights).reshape(self.grid.m, -1)

    def rate(self, lost: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the squared noise of many patterns of lost workers: that of all frequencies."""
        total = np.sum([system.rate(lost) for system in self._systems], axis=0)
        scaled: NDArray[np.float64] = total * (2 * (self.prime - 1) / self.prime)
        return scaled

    @property
    def rating_cost(self) -> float:
        """Number of small systems of a pattern."""
        return float(len(self._systems))
