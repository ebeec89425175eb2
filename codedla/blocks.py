"""Block layouts: which index belongs to which block. Index arithmetic only, no arrays are moved.

A matrix product ``C = A @ B`` is cut by a :class:`Grid`: ``A`` into ``m x p`` blocks, ``B`` into
``p x n``, ``C`` into ``m x n``. A dimension is cut by a :class:`Split` into parts whose sizes
differ by at most one, longer parts first, so that any length works for any number of parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

__all__ = ["Grid", "Split"]


@dataclass(frozen=True)
class Grid:
    """Numbers of blocks: ``m`` row blocks of A, ``p`` inner blocks, ``n`` column blocks of B."""

    m: int
    p: int
    n: int

    @property
    def outputs(self) -> int:
        """Number of blocks of ``C``."""
        return self.m * self.n

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" if self.p == 1 else f"{self.m}x{self.p}x{self.n}"


@dataclass(frozen=True)
class Split:
    """One dimension of ``length`` indices cut into ``parts`` nearly equal, consecutive pieces.

    The first ``length % parts`` pieces have one index more than the others; pieces may be empty.
    """

    length: int
    parts: int

    @cached_property
    def size(self) -> int:
        """Length of the longest piece: the common (padded) length of every coded share."""
        return -(-self.length // self.parts)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Index ranges of all pieces."""
        quotient, longer = divmod(self.length, self.parts)
        starts = [part * quotient + min(part, longer) for part in range(self.parts + 1)]
        return tuple(slice(a, b) for a, b in pairwise(starts))

    def slice(self, part: int) -> slice:
        """Indices of piece ``part``."""
        return self.slices[part]
