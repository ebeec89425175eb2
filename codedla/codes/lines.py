"""Codes in two dimensions: short systematic codes of rows and columns, or of groups."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.rows import trigonometric_parity
from codedla.codes.solve import Parity

__all__ = ["Line", "LinesCode", "best_shape"]


class Line:
    """A code of ``blocks`` plain cells and ``size - blocks`` parities: any ``blocks`` decode.

    Parameters
    ----------
    blocks, size : int

    Attributes
    ----------
    generator : ndarray (size, blocks)
        The cells as combinations of the plain ones, which come first.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size = blocks, size
        parity = trigonometric_parity(blocks, size - blocks)
        self.generator = np.concatenate([np.eye(blocks), parity])
        self._solver = Parity(parity, np.linalg.norm(parity, axis=1))

    def completed(self, have: NDArray[np.bool_], cells: NDArray[Any]) -> NDArray[Any]:
        """Return all cells of a line of which enough are known.

        Parameters
        ----------
        have : ndarray (size,) of bool
            Which cells are known, at least ``blocks`` of them.
        cells : ndarray (size, ...)
            The cells, or what they are made of; those not known do not matter.

        Returns
        -------
        ndarray (size, ...)
            Known cells are returned as they are.
        """
        complete = cells.copy()
        if not have.all():
            plain = self._solver.weights(np.flatnonzero(have))
            weights = self.generator[~have] @ plain
            complete[~have] = np.tensordot(weights, cells[have], axes=1)
        return complete


@lru_cache(maxsize=1024)
def best_shape(n_workers: int, grid: Grid) -> tuple[int, int] | None:
    """Return rows and columns of the grid of workers that survives most losses; None: none fits.

    With ``r`` more rows than ``m`` and ``c`` more columns than ``n``, any ``(r + 1)(c + 1) - 1``
    losses are survived. Of equally good grids the largest is taken, then the most even.
    """
    m, n = grid.m, grid.n
    shapes = [(rows, n_workers // rows) for rows in range(m, n_workers // n + 1)]

    def rank(shape: tuple[int, int]) -> tuple[int, int, int]:
        rows, columns = shape
        spare = rows - m + 1, columns - n + 1
        return spare[0] * spare[1], rows * columns, min(spare)

    return max(shapes, key=rank, default=None)


class LinesCode(Code):
    """Workers in a grid (or in groups), a code along each of its two dimensions.

    With ``r`` and ``c`` parities any ``(r + 1)(c + 1) - 1`` losses are survived: the least pattern
    that is not is a rectangle with more losses than parities in every row and column.
    """

    local_decoding = True

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return ``(r + 1)(c + 1) - 1`` of the best grid of workers."""
        shape = best_shape(n_workers, grid)
        if shape is None:
            return n_workers - grid.outputs
        return (shape[0] - grid.m + 1) * (shape[1] - grid.n + 1) - 1

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return the size of the grid of workers."""
        rows, columns = best_shape(n_workers, grid) or (1, n_workers)
        return rows * columns

    @cached_property
    def lines(self) -> tuple[Line, Line]:
        """The codes of the blocks of ``A`` (a grid column) and of those of ``B`` (a grid row)."""
        rows, columns = best_shape(self.n_workers, self.grid) or (self.grid.m, self.grid.n)
        return Line(self.grid.m, rows), Line(self.grid.n, columns)
