r"""Short-Dot: one coded operand, and every worker needs only a part of the vector.

**Any ``K`` of ``N`` workers decode**, ``m <= K <= N``. ``A`` is cut into ``m`` row blocks and some
column groups, and ``z = K - m`` row blocks ``Z`` are added to it. With a trigonometric frame
``[H, G]`` on ``N`` angles, any ``K`` rows of which are independent, worker ``w`` replies with

.. math:: y_w = \sum_i G_{wi} A_i x + \sum_j H_{wj} Z_j x .

In every column group ``g`` the added blocks are such that the combinations of ``z`` workers ``U``
vanish there, :math:`Z_{\cdot g} = -H_U^{-1} G_U A_{\cdot g}`. Every worker is in the same number of
these sets: of its dot products only the part ``(N - z)/N`` of the length is left, and it needs as
much of ``x``. The redundancy is halved: ``K = m + floor((N - m)/2)``, one half survives losses, the
other one shortens.

``U`` holds evenly spread angles and ``H`` the lowest frequencies, which are nearly orthogonal
there: coefficients stay small. For odd ``m`` one cosine lacks its sine, and angles are needed where
it does not vanish.

========== ===========================================================================
threshold  ``K = m + floor((N - m)/2)``
field      real
cost       worker ``(N - z)/(N m)`` of the product and of the storage, and that part of
           ``x``; decoding ``O(K)`` blocks
weakness   not systematic; half of the spare workers survive no loss
========== ===========================================================================

References
----------
Dutta, Cadambe, Grover, "Short-Dot: computing large linear transforms distributedly using coded
short dot products", NeurIPS 2016; IEEE Trans. Inf. Theory 65 (2019).
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
from codedla.errors import UsageError

__all__ = ["ShortDot"]

_MOST = 2**24  # coefficients of all shares together, most of them zero
# Offsets of the angles, in 61sts of their distance, that are tried for odd ``m``.
_PARTS = 61
_OFFSETS = range(1, 60, 7)


@register
class ShortDot(Code):
    """``m`` row blocks of one operand, of which every worker leaves out some column groups."""

    name = "short-dot"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "m + floor((N - m)/2)"
    field = "real"
    citation = "Dutta, Cadambe, Grover, NeurIPS 2016"
    weakness = (
        "decodes all blocks even when nobody is late; half of the spare workers survive no loss; "
        "sparse matrices fill up; about N**4 coefficients; 6 digits are lost by 5 losses at a "
        "threshold of 99"
    )

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        self.added = self.threshold - grid.m
        common = math.gcd(self.added, n_workers)
        # Sets of vanishing workers that differ, and of how many of them each is a member.
        groups, left_out = n_workers // common, self.added // common
        self.grid, self.stack = Grid(grid.m, groups, 1), (1, groups - left_out, 1)
        size = n_workers * self.stack[1] * grid.m * groups
        if size > _MOST:
            raise UsageError(
                f"code {self.name} has at most {_MOST} coefficients, blocks {grid} on {n_workers} "
                f"workers have {size}; use fewer workers and blocks, or code='trig-frame'"
            )

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return half of the redundancy, the larger one."""
        spare = n_workers - grid.m
        return spare if spare < 0 else spare - spare // 2

    @property
    def _vanishing(self) -> NDArray[np.int64]:
        """The angles ``U`` of every column group, (groups, z)."""
        even = np.arange(self.added) * self.n_workers // max(1, self.added)
        return (np.arange(self.grid.p)[:, None] + even) % self.n_workers

    def _coefficients(self, frame: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what stands before ``A_i`` in every column group, (groups, angles, m)."""
        added, kept = frame[:, : self.added], frame[:, self.added :]
        coefficients = np.empty((self.grid.p, self.n_workers, self.grid.m))
        for group, vanishing in enumerate(self._vanishing):
            cancelling = np.linalg.solve(added[vanishing], kept[vanishing])
            coefficients[group] = kept - added @ cancelling
            coefficients[group, vanishing] = 0.0
        return coefficients

    @cached_property
    def _design(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The frame and the coefficients, by angle."""
        workers = self.n_workers
        best: tuple[float, Any, Any] = (math.inf, None, None)
        for offset in _OFFSETS if self.added and self.grid.m % 2 else (0,):
            angles = _PARTS * np.arange(workers) + offset
            frame = points.trigonometric_basis(angles, self.threshold, _PARTS * workers)
            coefficients = self._coefficients(frame)
            size = float(np.linalg.norm(coefficients))
            if size < best[0]:
                best = size, frame, coefficients
        return best[1:]

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        workers, (_, held, _) = self.n_workers, self.stack
        place = points.spread(workers, self.tolerates)
        _, coefficients = self._design
        left_out = np.zeros((workers, self.grid.p), dtype=bool)
        left_out[self._vanishing.T, np.arange(self.grid.p)] = True
        a = np.zeros((workers, held, self.grid.m, self.grid.p))
        b = np.zeros((workers, held, self.grid.p))
        for worker, angle in enumerate(place):
            groups = np.flatnonzero(~left_out[angle])
            a[worker, np.arange(held), :, groups] = coefficients[groups, angle]
            b[worker, np.arange(held), groups] = 1.0
        return a.reshape(workers * held, -1), b.reshape(workers * held, -1)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        frame, _ = self._design
        wanted = np.eye(self.threshold)[self.added :]
        return frame[points.spread(self.n_workers, self.tolerates)], wanted
