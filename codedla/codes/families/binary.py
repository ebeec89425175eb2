r"""Binary: fractional repetition of inner parts, sums only, for any number of workers.

**Any set of workers that holds one complete class, or a copy of each part of equal classes,
decodes**; any ``N - s`` do for certain, ``s + 1 = floor(N/p)``.

The workers form ``s + 1`` classes of ``p`` or more workers, whose sizes differ by at most one. Each
class divides the inner dimension evenly among its workers, and worker ``w`` with the parts in its
interval :math:`I_w` replies with

.. math:: \sum_{i \in I_w} A_i B_i .

The replies of a class add up to ``C``. After ``s`` losses one of the ``s + 1`` classes is complete;
workers of equal classes hold the same intervals and stand in for each other. Where classes differ,
``l`` and ``l + 1`` workers, the inner dimension is cut into ``l (l + 1)`` parts.

========== ================================================================
threshold  ``N - s``, ``s = floor(N/p) - 1``, for certain; ``p`` in the best case
field      none needed: coefficients are 0 and 1, in decoding, too
cost       worker at most ``1/p`` of the flops, but a reply as large as
           ``C``; decoding adds ``p`` blocks or some more
========== ================================================================

References
----------
Charalambides, Mahdavifar, Hero, "Generalized fractional repetition codes for binary coded
computations", arXiv 2109.10484. Tandon, Lei, Dimakis, Karampatziakis, "Gradient coding: avoiding
stragglers in distributed learning", ICML 2017: classes of one size.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Binary"]


@register
class Binary(Code):
    """Inner parts summed by several classes of workers, each of which computes the whole."""

    name = "binary"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "N - floor(N/p) + 1, or any workers that hold a complete class"
    field = "real"
    integral = True
    citation = "Charalambides, Mahdavifar, Hero, arXiv 2109.10484"
    weakness = "each loss survived costs a full copy of the work; every reply is as large as C"

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        classes = n_workers // grid.p
        small, larger = divmod(n_workers, classes)
        sizes = [small + 1] * larger + [small] * (classes - larger)
        parts = small * (small + 1) if larger else small
        # By worker: the size of its class, and its place there.
        self._size = np.repeat(sizes, sizes)
        self._spot = np.concatenate([np.arange(size) for size in sizes])
        self.grid = Grid(1, parts, 1)
        self.stack = (1, parts // small, 1)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of workers of the smallest possible class."""
        return grid.p

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of classes that may be broken."""
        if n_workers < grid.p:
            return n_workers - grid.p
        return n_workers // grid.p - 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        _, held, _ = self.stack
        rows = np.zeros((self.n_workers, held, self.grid.p))
        for worker, (size, spot) in enumerate(zip(self._size, self._spot, strict=True)):
            width = self.grid.p // size
            # A worker of a large class has one part less: its last combination is empty.
            rows[worker, np.arange(width), spot * width + np.arange(width)] = 1.0
        flat = rows.reshape(-1, self.grid.p)
        return flat, flat

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        held = self.generator_a.reshape(self.n_workers, -1, self.grid.p)
        return held.sum(axis=1), np.ones((1, self.grid.p))

    def _complete(self, responders: Collection[int]) -> int | None:
        """Return the size of the classes of which all places are held, None if there is none."""
        members = np.array(sorted(responders), dtype=int)
        for size in np.unique(self._size):
            spots = self._spot[members][self._size[members] == size]
            if np.unique(spots).size == size:
                return int(size)
        return None

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the responders hold a complete class."""
        return self._complete(responders) is not None

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        members = np.array(survivors)
        ours = np.flatnonzero(self._size[members] == self._complete(survivors))
        # The first copy of each part: the others are left alone.
        _, first = np.unique(self._spot[members[ours]], return_index=True)
        weights = np.zeros((1, len(survivors)))
        weights[0, ours[first]] = 1.0
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        return f"a complete class of about {self.n_workers // (self.tolerates + 1)} workers"
