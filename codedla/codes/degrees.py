"""Degree tables of GASP codes, and points for them: which powers blocks and masks stand before.

The product of ``sum_i A_i x**a_i`` and ``sum_j B_j x**b_j`` has a coefficient for every different
sum ``a_i + b_j``. The fewer there are, the fewer workers are needed; those of two blocks must be
the only ones of their degree.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from codedla.codes.private import reveals, singular_sets
from codedla.errors import UsageError
from codedla.galois import Field

__all__ = ["degree_table", "hiding_points", "product_degrees"]

DRAWS = 60
"""Drawn points that are tried; a set of workers is singular with probability about ``1/q``."""
MOST_SETS = 4000
"""Sets of lost workers that are tried of each draw: all, or a sample of them."""


@lru_cache(maxsize=4096)
def degree_table(m: int, n: int, colluders: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the degrees of A's blocks and masks, and of B's, with the fewest different sums."""
    tables = []
    for rows, cols, swapped in ((m, n, False), (n, m, True)):
        start = rows * cols
        b = [*range(0, start, rows), *range(start, start + colluders)]
        for run in range(1, max(1, min(rows, colluders)) + 1):
            a = [*range(rows), *(start + t % run + rows * (t // run) for t in range(colluders))]
            table = (tuple(b), tuple(a)) if swapped else (tuple(a), tuple(b))
            # Of equal tables those whose masks are Vandermonde matrices come first.
            proved = run in (1, min(rows, colluders))
            tables.append((len(product_degrees(*table)), not proved, swapped, run, table))
    return min(tables)[-1]


def product_degrees(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the different degrees of the product."""
    return tuple(sorted({i + j for i in a for j in b}))


@lru_cache(maxsize=256)
def hiding_points(workers: int, m: int, n: int, colluders: int, prime: int) -> NDArray[np.int64]:
    """Draw points at which any ``K`` workers decode, and no ``T`` see anything.

    Raises
    ------
    UsageError
        None were found: the field is too small.
    """
    field = Field(prime)
    a, b = degree_table(m, n, colluders)
    degrees = product_degrees(a, b)
    rng = np.random.default_rng([workers, m, n, colluders, prime])
    for _ in range(DRAWS):
        # Not 0, where masks vanish.
        points = rng.choice(prime - 1, workers, replace=False) + 1
        hidden = [field.vandermonde(points, part[blocks:]) for part, blocks in ((a, m), (b, n))]
        if any(
            not _proved(points, part[blocks:], field) and reveals(masks, prime) is not None
            for masks, (part, blocks) in zip(hidden, ((a, m), (b, n)), strict=True)
        ):
            continue
        if not singular_sets(field.vandermonde(points, degrees), prime, MOST_SETS):
            points.setflags(write=False)
            return points
    raise UsageError(
        f"code gasp found no {workers} points for blocks {m}x1x{n} and T={colluders} modulo "
        f"{prime}; use a larger prime, or fewer workers"
    )


def _proved(points: NDArray[np.int64], degrees: tuple[int, ...], field: Field) -> bool:
    """Tell whether masks of these degrees are Vandermonde matrices on different points."""
    steps = set(np.diff(degrees).tolist())
    if len(steps) > 1:
        return False
    step = steps.pop() if steps else 1
    return np.unique(field.power(points, step)).size == points.size
