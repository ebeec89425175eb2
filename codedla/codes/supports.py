"""Which few blocks each worker combines, and whether that can be enough.

A *support* is a (workers, blocks) matrix of 0 and 1. Any ``N - s`` workers can determine all blocks
only if every ``t`` blocks are touched by ``t + s`` workers (Hall's condition); random coefficients
then do it with probability 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.draws import numbers

__all__ = ["runs", "scattered", "touched"]

Support = NDArray[np.float64]

_MANY_BLOCKS = 24  # blocks beyond which not all intervals are looked at
_MOST_SWAPS = 10_000


def runs(starts: NDArray[np.integer], length: Any, count: int) -> Support:
    """Return cyclic runs of ``length`` neighbours of ``count`` blocks, one for every start."""
    return ((np.arange(count) - starts[:, None]) % count < length).astype(float)


def scattered(label: str, count: int, extra: int, weight: int) -> Support:
    """Return supports of ``count + extra`` workers on ``count`` blocks, far apart in every share.

    The first ``count`` workers are a sum of ``weight`` random permutations: every block is touched
    ``weight`` times, and as a graph it expands, while runs of neighbours form one long chain along
    which errors grow. The others tile a random order of the blocks.

    Parameters
    ----------
    label : str
        What the draw depends on.
    count, extra, weight : int
        ``weight`` at most a quarter of ``count``.
    """
    layers = np.arange(count)[:, None]
    while layers.shape[1] < weight:
        layer = np.argsort(numbers(f"{label} {layers.shape[1]}", count))
        for step in range(_MOST_SWAPS):
            twice = np.flatnonzero((layers == layer[:, None]).any(axis=1))
            if not twice.size:
                break
            # Exchange with one after the other, until no share has a block twice.
            pair = np.array([twice[0], (twice[0] + 1 + step) % count])
            layer[pair] = layer[pair[::-1]]
        layers = np.column_stack([layers, layer])
    support = np.zeros((count + extra, count))
    np.put_along_axis(support[:count], layers, 1.0, axis=1)
    order = np.argsort(numbers(f"{label} rest", count))
    support[count:, order] = runs(weight * np.arange(extra) % count, weight, count)
    return support


def touched(a: Support, b: Support, losses: int) -> bool:
    """Whether every rectangle of ``t`` blocks is touched by ``t + losses`` workers.

    Parameters
    ----------
    a, b : ndarray (workers, m), (workers, n)
        Which blocks of both operands each worker combines.
    losses : int
    """
    sizes_a, touch_a = _intervals(a)
    sizes_b, touch_b = _intervals(b)
    return bool((touch_a @ touch_b.T >= np.outer(sizes_a, sizes_b) + losses).all())


def _intervals(support: Support) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
    """Lengths of cyclic intervals, and (intervals, workers) which workers touch each."""
    count = support.shape[1]
    lengths = np.arange(1, count + 1)
    if count > _MANY_BLOCKS:
        # Short intervals and the whole are what is touched least, for their size.
        lengths = lengths[(lengths <= 8) | (lengths == count)]
    starts = np.tile(np.arange(count), lengths.size)
    lengths = np.repeat(lengths, count)
    members = runs(starts, lengths[:, None], count)
    return lengths, (members @ support.T > 0).astype(float)
