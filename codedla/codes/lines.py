"""Short systematic codes, of which codes in two dimensions are made: rows, columns, groups."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.rows import trigonometric_parity
from codedla.codes.solve import Parity

__all__ = ["Line", "best_shape"]


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
