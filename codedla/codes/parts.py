"""Codes whose workers answer in parts: every block is cut into four, and so is every share."""

from __future__ import annotations

from codedla.blocks import Grid
from codedla.codes.base import Code

__all__ = ["PARTS", "PartsCode"]

PARTS = 4
"""Parts of a block, and of a worker's work."""


class PartsCode(Code):
    """One coded operand: any ``4 k`` of the ``4 N`` replies decode, ``k`` row blocks of four parts.

    So do all replies of any ``k`` workers, and what slower ones have finished counts.
    """

    operation = "matvec"
    splits = ("m",)
    field = "real"
    load = PARTS

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Cut every block into the parts of a share."""
        return Grid(PARTS * blocks.m, 1, 1)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of parts."""
        return PARTS * grid.m

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return how many workers there are beyond ``k``."""
        return n_workers - grid.m
