"""What a family can do with so many workers, said before anything is computed.

Grids that fit, and for a request that breaks a rule the message that names the rule, the value and
what would work instead.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from codedla.blocks import Grid
from codedla.errors import UsageError

if TYPE_CHECKING:
    from codedla.codes.base import Code

__all__ = [
    "check_grid",
    "check_losses",
    "checked_nodes",
    "fewest_workers",
    "grids",
    "most_tolerated",
]

_DIMENSIONS = {"m": "rows of A", "p": "inner dimension", "n": "columns of B"}


def grids(family: type[Code], n_workers: int, tolerate: int) -> list[Grid]:
    """Return the grids on which any ``tolerate`` of ``n_workers`` workers may be lost."""
    possible = _possible_grids(family, n_workers)
    return [grid for grid in possible if family.survives(n_workers, grid) >= tolerate]


def most_tolerated(family: type[Code], n_workers: int, wanted: int) -> int:
    """Return how many losses the family survives on its best grid, up to ``wanted``."""
    best = 0
    for grid in _possible_grids(family, n_workers):
        best = max(best, family.survives(n_workers, grid))
        if best >= wanted:
            return wanted  # on the first grid, as a rule: there are thousands of others
    return best


def fewest_workers(family: type[Code], grid: Grid) -> int:
    """Return how many workers the family needs on ``grid`` when nobody is lost."""
    # Never more than the replies that are needed: a worker gives at least one.
    needs = family.needs(grid)
    if needs == 1 or family.survives(needs - 1, grid) < 0:
        return needs
    enough = range(1, needs)
    return enough[bisect.bisect_left(enough, True, key=lambda n: family.survives(n, grid) >= 0)]


def checked_nodes(family: type[Code], nodes: str | None) -> str | None:
    """Return the name of the evaluation points: the family's first choice for None.

    Raises
    ------
    UsageError
        The family has no such points.
    """
    choices = family.node_choices
    if nodes is None:
        return choices[0] if choices else None
    if nodes in choices:
        return nodes
    if not choices:
        raise UsageError(
            f"code {family.name} has no nodes to choose, got {nodes!r}; leave them out"
        )
    raise UsageError(
        f"nodes of code {family.name} must be one of {', '.join(choices)}; got {nodes!r}"
    )


def check_grid(family: type[Code], n_workers: int, grid: Grid) -> None:
    """Refuse a grid that the family cannot cut, or that these workers are too few for.

    Raises
    ------
    UsageError
    """
    if n_workers < 1:
        raise UsageError(f"at least 1 worker is needed, got {n_workers}; use 2 ranks or more")
    if min(grid.m, grid.p, grid.n) < 1:
        raise UsageError(f"numbers of blocks must be at least 1, got {grid}")
    for dimension, of in _DIMENSIONS.items():
        if getattr(grid, dimension) > 1 and dimension not in family.splits:
            allowed = " x ".join(d if d in family.splits else "1" for d in _DIMENSIONS)
            raise UsageError(
                f"code {family.name} does not split the {of}, blocks {grid} do; use blocks "
                f"{allowed} ({' x '.join(_DIMENSIONS.values())})"
            )
    if family.survives(n_workers, grid) < 0:
        need = fewest_workers(family, grid)
        cure = f"{need + 1} ranks"
        smaller = _largest_grid(family, n_workers, 0)
        if smaller is not None:
            cure = f"--blocks {smaller} or {cure}"
        raise UsageError(
            f"blocks {grid} need at least {need} workers with code {family.name}, "
            f"there are {n_workers}; use {cure}"
        )


def check_losses(code: Code, tolerate: int) -> None:
    """Refuse a code that does not survive the loss of any ``tolerate`` workers.

    Raises
    ------
    UsageError
        The message offers fewer losses, the largest grid that fits, and more ranks.
    """
    if tolerate < 0:
        raise UsageError(f"the number of losses to tolerate must be at least 0, got {tolerate}")
    if tolerate <= code.tolerates:
        return
    family, grid = type(code), code.blocks
    cures = [f"--tolerate {code.tolerates}"]
    smaller = _largest_grid(family, code.n_workers, tolerate)
    if smaller is not None:
        cures.append(f"--blocks {smaller}")
    more = range(code.n_workers, (tolerate + 1) * code.needs(grid) + 1)
    enough = next((n for n in more if code.survives(n, grid) >= tolerate), None)
    if enough is not None:
        cures.append(f"{enough + 1} ranks")
    raise UsageError(
        f"code {code.name} with blocks {grid} on {code.n_workers} workers survives "
        f"{code.tolerates} lost workers, {tolerate} were asked for; use {_either(cures)}"
    )


def _largest_grid(family: type[Code], n_workers: int, tolerate: int) -> Grid | None:
    """The grid of most blocks (then the squarest) that fits these workers and losses."""
    return max(
        grids(family, n_workers, tolerate),
        key=lambda g: (g.m * g.p * g.n, -max(g.m, g.p, g.n), g.n),
        default=None,
    )


def _possible_grids(family: type[Code], n_workers: int) -> Iterator[Grid]:
    def sizes(dimension: str, room: int) -> range:
        return range(1, room + 1) if dimension in family.splits else range(1, 2)

    for m in sizes("m", n_workers * family.blocks_per_worker):
        for n in sizes("n", n_workers):
            if m * n > n_workers and family.survives(n_workers, Grid(m, 1, n)) < 0:
                break  # more blocks than workers need families with several shares a worker
            for p in sizes("p", n_workers):
                grid = Grid(m, p, n)
                if family.survives(n_workers, grid) < 0:
                    break  # the threshold grows with p
                yield grid


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
