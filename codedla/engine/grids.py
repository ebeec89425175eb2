"""Which grids of blocks to try for a product, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.errors import UsageError
from codedla.measured.speeds import Speeds, speeds

if TYPE_CHECKING:
    from codedla.engine.choose import Request

__all__ = ["grids_to_try", "named_grid"]


def named_grid(request: Request, family: type[Code]) -> Grid:
    """Turn the user's ``blocks`` into a grid; whether it fits is for the family to say.

    Raises
    ------
    UsageError
        The family has no grid of so many blocks.
    """
    blocks = request.blocks
    parts = (blocks,) if isinstance(blocks, int) else blocks or ()
    if len(parts) == 3:
        return Grid(*parts)
    if len(parts) == 2:
        return Grid(parts[0], 1, parts[1])
    count = parts[0]
    shapes = [grid for grid in _factorings(count) if _cuts_only(grid, family.splits)]
    if not shapes:
        raise UsageError(
            f"code {family.name!r} has no grid of {count} blocks; give blocks as MxN or MxPxN"
        )
    rate = speeds()
    return min(shapes, key=lambda grid: _seconds(request, grid, rate))


def grids_to_try(request: Request, family: type[Code], tolerate: int) -> Iterator[Grid]:
    """Yield the grids of a family that tolerate so many losses, cheapest first."""
    rows, inner, cols = request.shape
    allowed = family.grids(request.n_workers, tolerate)
    limits = (max(rows, 1), max(inner, 1), max(cols, 1))
    fitting = [grid for grid in allowed if _fits(grid, limits)]
    rate = speeds()
    yield from sorted(
        fitting or allowed,
        key=lambda grid: (_too_large(request, grid), _seconds(request, grid, rate)),
    )


def _too_large(request: Request, grid: Grid) -> bool:
    """Tell whether one block of each operand and two of the product exceed a worker's memory."""
    if request.memory is None:
        return False
    rows, inner, cols = request.shape
    height, depth, width = -(-rows // grid.m), -(-inner // grid.p), -(-cols // grid.n)
    entries = height * depth * request.density[0] + depth * width * request.density[1]
    return (entries + 2.0 * height * width) * request.itemsize > request.memory


def _fits(grid: Grid, limits: tuple[int, int, int]) -> bool:
    return grid.m <= limits[0] and grid.p <= limits[1] and grid.n <= limits[2]


def _cuts_only(grid: Grid, dimensions: tuple[str, ...]) -> bool:
    return all(getattr(grid, d) == 1 or d in dimensions for d in ("m", "p", "n"))


def _factorings(count: int) -> Iterator[Grid]:
    for m in range(1, count + 1):
        if count % m == 0:
            yield Grid(m, 1, count // m)
    yield Grid(1, count, 1)


def _seconds(request: Request, grid: Grid, rate: Speeds) -> float:
    """Model the round: one worker's flops, and all bytes through the master."""
    m, inner, n = request.shape
    flops = (
        2.0 * m * inner * n * request.density[0] * request.density[1] / (grid.m * grid.p * grid.n)
    )
    share_a = m * inner / (grid.m * grid.p) * request.density[0]
    share_b = inner * n / (grid.p * grid.n) * request.density[1]
    reply = m * n / (grid.m * grid.n)
    entries = request.n_workers * (share_a + share_b + reply)
    seconds = flops / rate.flops + entries * request.itemsize / rate.bandwidth
    # Among equals prefer the squarer grid: shares of both operands stay small.
    return seconds * (1.0 + 1e-6 * abs(math.log(grid.m / grid.n)))
