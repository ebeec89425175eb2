r"""Private codes: any ``T`` workers together learn nothing about the operands but their sizes.

Shares are ``G X + M Z`` over GF(p): data blocks ``X``, and ``T`` masks ``Z``, blocks of uniformly
random residues that are drawn anew for every product. When the rows of ``M`` of some ``T`` workers
are an invertible matrix, their ``M Z`` is uniformly random whatever ``X`` is, and so are their
shares: independent of the data in the strict sense, no matter how long the workers compute.

Masks are mixed into shares as further blocks are, so the generators have ``T`` more columns. Who
draws them is not this module's business, which is mathematics only.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.exact import DEFAULT_PRIME, ModularCode
from codedla.errors import UsageError
from codedla.galois import Field

__all__ = ["PrivateCode", "determinants", "reveals", "singular_sets"]

MOST_COLLUDERS = 64
"""More would need hundreds of workers for a single block."""
_WRITTEN = frozenset(map(str, range(MOST_COLLUDERS + 1)))
_BATCH = 200_000

Family = TypeVar("Family", bound="PrivateCode")


class PrivateCode(ModularCode):
    """A code over GF(p) with masks; users name ``name:T`` for ``T`` colluding workers.

    Families state their thresholds in terms of :attr:`colluders`, and generators with
    ``colluders`` columns beyond those of the blocks.
    """

    colluders: ClassVar[int] = 1
    """``T``: how many workers may put their shares together and still learn nothing."""

    def __init__(
        self, n_workers: int, grid: Grid, *, nodes: str | None = None, prime: int = DEFAULT_PRIME
    ) -> None:
        super().__init__(n_workers, grid, nodes=nodes, prime=prime)
        self.masks = (self.colluders, self.colluders)

    @classmethod
    def variant(cls, parameter: str) -> type[Code]:
        """Return the family for another number of colluders.

        Raises
        ------
        UsageError
            Not a whole number from 0 (nothing is hidden) to 64.
        """
        if parameter not in _WRITTEN:
            raise UsageError(
                f"{cls.name}:T is code {cls.name} against T colluding workers, T from 0 to "
                f"{MOST_COLLUDERS}; got {cls.name}:{parameter}; use for instance {cls.name}:2"
            )
        return _against(cls, int(parameter))


@lru_cache(maxsize=256)
def _against(family: type[Family], colluders: int) -> type[Family]:
    """Derive the family with this number of colluders: one class, so that equal codes compare."""
    if colluders == family.colluders:
        return family
    attributes: dict[str, Any] = {
        "__doc__": family.__doc__,
        "__module__": family.__module__,
        "name": f"{family.name.partition(':')[0]}:{colluders}",
        "colluders": colluders,
    }
    return type(f"{family.__name__}{colluders}", (family,), attributes)


def reveals(masks: NDArray[np.int64], p: int) -> tuple[int, ...] | None:
    """Return some ``T`` rows of an (N, T) matrix that are dependent modulo ``p``; None if none are.

    All of them are tried: these are the workers whose shares would not be uniformly random.
    """
    workers, size = masks.shape
    if size == 0:
        return None
    sets = itertools.combinations(range(workers), size)
    step = max(1, _BATCH // size**2)
    for _ in range(0, math.comb(workers, size), step):
        rows = np.array(list(itertools.islice(sets, step)))
        singular = np.flatnonzero(determinants(masks[rows], p) == 0)
        if singular.size:
            return tuple(int(worker) for worker in rows[singular[0]])
    return None


def singular_sets(generator: NDArray[np.int64], p: int, most: int) -> int:
    """Return how many sets of ``K`` rows of an (N, K) generator are dependent modulo ``p``.

    All sets are tried where there are at most ``most``, else as many drawn ones. Instead of ``K``
    rows that reply, the minor of the lost ones in the parity checks is looked at: it is smaller.
    """
    workers, size = generator.shape
    losses = workers - size
    checks = Field(p).null_space(generator.T)
    if checks.shape[1] > losses:
        return math.comb(workers, size)
    if losses == 0:
        return 0
    if math.comb(workers, losses) <= most:
        sets = np.array(list(itertools.combinations(range(workers), losses)))
    else:
        rng = np.random.default_rng([workers, size])
        sets = np.argsort(rng.random((most, workers)), axis=1)[:, :losses]
    step = max(1, _BATCH // losses**2)
    parts = [sets[start : start + step] for start in range(0, len(sets), step)]
    return sum(int((determinants(checks[part], p) == 0).sum()) for part in parts)


def determinants(matrices: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Return the determinants of many square matrices of residues modulo a prime ``p``, (count,).

    By elimination without pivoting over all matrices at once, rows exchanged where they must be.
    """
    left = np.array(matrices) % p
    count, size, _ = left.shape
    every = np.arange(count)
    result = np.ones(count, dtype=np.int64)
    for column in range(size):
        # The first row from the diagonal on that is not zero here.
        pivot = column + np.argmax(left[:, column:, column] != 0, axis=1)
        swapped = pivot != column
        rows = left[every, pivot].copy()
        left[every, pivot] = left[:, column]
        left[:, column] = rows
        head = rows[:, column]
        result = result * np.where(swapped, p - head, head) % p
        inverse = _inverses(head, p)
        factors = left[:, column + 1 :, column] * inverse[:, None] % p
        left[:, column + 1 :] -= factors[:, :, None] * rows[:, None, :] % p
        left[:, column + 1 :] %= p
    return result


def _inverses(values: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Return the inverses modulo p, and 0 of 0, by Fermat's little theorem."""
    result, square, exponent = np.ones_like(values), values % p, p - 2
    while exponent:
        if exponent & 1:
            result = result * square % p
        square, exponent = square * square % p, exponent >> 1
    return np.where(values % p == 0, 0, result)
