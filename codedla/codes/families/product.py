r"""Product code: a short code on the rows of blocks, one on the columns, decoded iteratively.

**What decodes is a pattern, not a number.** The workers form a grid of ``(m + r) x (n + c)``;
worker ``(i, j)`` multiplies

.. math:: \tilde A_i = \sum_{i'} G_{ii'} A_{i'}, \qquad \tilde B_j = \sum_{j'} H_{jj'} B_{j'},
          \qquad G = \begin{pmatrix} I \\ P \end{pmatrix},\
          H = \begin{pmatrix} I \\ Q \end{pmatrix}.

Any ``n`` replies of one grid row give all of it, any ``m`` of one grid column give all of that.
What a row gives, helps its columns, and so on: **any**
``(r + 1)(c + 1) - 1`` **losses are survived** (the least pattern that stops the iteration is a
rectangle with more losses than parities in every row and column), and most patterns of far more.
A lost block is recovered from its row or column, ``n`` or ``m`` blocks, where other codes combine
all ``m n``. One parity is the plain sum.

Of the shapes that fit, ``r`` and ``c`` survive most losses; workers ``0 .. m n - 1`` hold the plain
products, in order.

========== ============================================================================
threshold  ``(m + r)(n + c) - (r + 1)(c + 1) + 1`` in the worst case, ``m n`` in the best
field      real
cost       worker one block product; decoding ``m`` or ``n`` blocks for each lost one
weakness   few losses are guaranteed for many workers; random losses fare far better
========== ============================================================================

References
----------
Lee, Suh, Ramchandran, "High-dimensional coded matrix multiplication", ISIT 2017.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.lines import LinesCode
from codedla.codes.registry import register

__all__ = ["ProductCode"]


@register
class ProductCode(LinesCode):
    """``m x n`` plain products, with parities of rows, of columns, and of both."""

    name = "product"
    operation = "matmul"
    threshold_formula = "(m+r)*(n+c) - (r+1)*(c+1) + 1, or whatever peels down to m*n"
    field = "real"
    systematic = True
    citation = "Lee, Suh, Ramchandran, ISIT 2017"
    weakness = "survives (r+1)*(c+1) - 1 losses for certain, of (m+r)*(n+c) - m*n parity workers"

    @cached_property
    def _cells(self) -> NDArray[np.integer]:
        """Grid row and column of every active worker: first the plain products."""
        down, across = self.lines
        i, j = (x.ravel() for x in np.indices((down.size, across.size)))
        order = np.argsort((i >= self.grid.m) | (j >= self.grid.n), kind="stable")
        cells: NDArray[np.integer] = np.stack([i, j], axis=1)[order]
        return cells

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        factors = np.zeros((self.n_workers, self.grid.m)), np.zeros((self.n_workers, self.grid.n))
        for factor, line, place in zip(factors, self.lines, self._cells.T, strict=True):
            factor[: self.active] = line.generator[place]
        return factors

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether recovering rows and columns in turn ends with all of them."""
        known = self._known(responders)
        before = -1
        while before < (count := int(known.sum())) < known.size:
            before = count
            known[known.sum(axis=1) >= self.grid.n] = True
            known[:, known.sum(axis=0) >= self.grid.m] = True
        return bool(known.all())

    def _known(self, responders: Collection[int]) -> NDArray[np.bool_]:
        down, across = self.lines
        known = np.zeros((down.size, across.size), dtype=bool)
        i, j = self._cells[[w for w in responders if w < self.active]].T
        known[i, j] = True
        return known

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        m, n = self.grid.m, self.grid.n
        down, across = self.lines
        holders = [column for column, w in enumerate(survivors) if w < self.active]
        known = self._known(survivors)
        # What each cell is made of; rows of cells not yet known are zero.
        made = np.zeros((*known.shape, len(survivors)))
        i, j = self._cells[[survivors[column] for column in holders]].T
        made[i, j, holders] = 1.0
        while not known[:m, :n].all():
            for line, have, of in ((across, known, made), (down, known.T, made.swapaxes(0, 1))):
                for row in np.flatnonzero(have.sum(axis=1) >= line.blocks):
                    of[row] = line.completed(have[row], of[row])
                    have[row] = True
        weights: NDArray[Any] = made[:m, :n].reshape(m * n, -1)
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        down, across = self.lines
        return (
            f"any {self.threshold} of {self.active} workers, or a pattern of the "
            f"{down.size} x {across.size} grid that rows of {self.grid.n} and columns of "
            f"{self.grid.m} complete"
        )
