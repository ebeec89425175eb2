"""Search for the loss pattern that costs most digits.

The number of patterns explodes, so: all of them when few; else runs of neighbours (the usual
culprits of polynomial codes), a seeded sample, whatever the code suspects, and from the worst of
these several climbs that exchange one lost worker at a time. Work is bounded, about a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["runs", "search", "suspects"]

Patterns = NDArray[np.int64]

_EXHAUSTIVE = 100_000  # at most this many patterns are tried one by one
_RARE = 250_000  # size of a sample of rare patterns
_SAMPLE = 4_000
_WORK = 1e8  # bound on patterns * (matrix size) ** 3
_KEYS = 4_000_000  # random numbers drawn for one sample at most
_SEED = 72_613
_CLIMBS = 6
_BEAM = 12  # patterns the climb follows at once


def search(
    rate: Callable[[Patterns], NDArray[np.float64]],
    workers: int,
    losses: int,
    extra: Iterable[Patterns] = (),
    effort: float = 1.0,
) -> tuple[int, ...]:
    """Return the ``losses`` of ``workers`` workers with the largest ``rate``.

    Parameters
    ----------
    rate : callable
        Maps patterns (count, losses) to their badness (count,).
    workers, losses : int
        ``1 <= losses < workers``.
    extra : iterable of ndarray (count, losses)
        Patterns worth a look; used only if not all patterns are tried.
    effort : float, optional
        Scales the bounds on the number of patterns tried.

    Returns
    -------
    tuple of int, sorted
    """
    size = min(losses, workers - losses)
    limit = max(2, int(effort * min(_EXHAUSTIVE, _WORK / size**3)))
    if math.comb(workers, losses) <= limit:
        patterns = np.array(list(itertools.combinations(range(workers), losses)))
        return _as_tuple(patterns[np.argmax(rate(patterns))])
    rng = np.random.default_rng(_SEED)
    groups = [_windows(workers, losses), _sample(rng, workers, losses, min(_SAMPLE, limit))]
    found, ratings = _rated(rate, [*(_thinned(group, limit) for group in groups), *extra])
    for _ in range(_CLIMBS if limit >= 100 else 0):
        before = ratings[0]
        share = max(1, min(limit, _SAMPLE) // len(found))
        steps = [_exchanges(rng, pattern, workers, share) for pattern in found]
        found, ratings = _rated(rate, [found, *steps])
        if not ratings[0] > before:
            break
    return _as_tuple(found[0])


def _rated(
    rate: Callable[[Patterns], NDArray[np.float64]], groups: list[Patterns]
) -> tuple[Patterns, NDArray[np.float64]]:
    """The worst few of all patterns, worst first, and their ratings."""
    ratings = np.concatenate([rate(group) for group in groups])
    order = np.argsort(-ratings, kind="stable")[: 20 * _BEAM]
    # One set may come in several orders; twelve copies of one pattern would climb as one.
    _, first = np.unique(np.sort(np.concatenate(groups)[order], axis=1), axis=0, return_index=True)
    order = order[np.sort(first)[:_BEAM]]
    return np.concatenate(groups)[order], ratings[order]


def _thinned(group: Patterns, limit: int) -> Patterns:
    """At most ``limit`` evenly spaced rows, so that a thinned group keeps its spread."""
    return group[np.linspace(0, len(group) - 1, min(len(group), limit)).astype(int)]


def suspects(blocks: int, parities: int, effort: float = 1.0) -> Iterator[Patterns]:
    """Yield patterns of a systematic code that only just leave enough parities.

    Two or three plain blocks are lost and as many parities spared: all such patterns, or a sample
    of each kind. Two or three nearly dependent columns of as many parity rows are rare and ruinous,
    and samples of all losses seldom contain any.

    Parameters
    ----------
    blocks, parities : int
        Numbers of plain and of parity workers.
    effort : float, optional
        Scales the size of the samples.

    Yields
    ------
    ndarray (count, parities)
    """
    for size in range(2, 1 + min(3, blocks, parities)):
        yield _partial(blocks, parities, size, int(_RARE * effort))


def _partial(blocks: int, parities: int, size: int, limit: int) -> Patterns:
    rng = np.random.default_rng(_SEED)
    # With very many parities the patterns themselves are long.
    limit = max(1, min(limit, 4_000_000 // parities))
    spared = _subsets(rng, parities, size, math.isqrt(limit))
    lost = _subsets(rng, blocks, size, max(1, limit // len(spared)))
    keep = np.ones((len(spared), parities), dtype=bool)
    np.put_along_axis(keep, spared, False, axis=1)
    dead = blocks + np.nonzero(keep)[1].reshape(len(spared), parities - size)
    return np.concatenate(
        [np.repeat(lost, len(dead), axis=0), np.tile(dead, (len(lost), 1))], axis=1
    )


def _subsets(rng: np.random.Generator, count: int, size: int, limit: int) -> Patterns:
    """All subsets of ``size`` of ``count`` things, or ``limit`` random ones."""
    if math.comb(count, size) <= limit:
        return np.array(list(itertools.combinations(range(count), size)))
    return _sample(rng, count, size, limit)


def runs(workers: int, losses: int, gap: int) -> Patterns:
    """Return the cyclic runs ``a, a + gap, a + 2 gap, ...``; ``gap`` coprime to ``workers``."""
    return (np.arange(workers)[:, None] + gap * np.arange(losses)) % workers


def _windows(workers: int, losses: int) -> Patterns:
    """Runs of neighbours (cyclic, so also both ends) and every second or third of a longer run."""
    gaps = [gap for gap in (1, 2, 3) if gap == 1 or gap * losses < workers]
    return np.concatenate([runs(workers, losses, gap) for gap in gaps])


def _sample(rng: np.random.Generator, count: int, size: int, limit: int) -> Patterns:
    """About ``limit`` random subsets of ``size`` of ``count`` things (repeats may occur)."""
    if size * size <= count:
        # Draws seldom collide: throw those away. Sorting `count` keys per row would cost far more.
        drawn = rng.integers(count, size=(limit, size))
        ordered = np.sort(drawn, axis=1)
        return ordered[(np.diff(ordered, axis=1) > 0).all(axis=1)]
    rows = max(1, min(limit, _KEYS // count))
    return np.argsort(rng.random((rows, count)), axis=1)[:, :size]


def _exchanges(rng: np.random.Generator, lost: Patterns, workers: int, limit: int) -> Patterns:
    """Every pattern that differs from ``lost`` in one worker, or ``limit`` of them."""
    others = np.setdiff1d(np.arange(workers), lost)
    moves = np.arange(lost.size * others.size)
    if moves.size > limit:
        moves = rng.choice(moves, limit, replace=False)
    patterns = np.repeat(lost[None, :], moves.size, axis=0)
    patterns[np.arange(moves.size), moves // others.size] = others[moves % others.size]
    return patterns


def _as_tuple(pattern: Patterns) -> tuple[int, ...]:
    return tuple(sorted(int(w) for w in pattern))
