"""Search for the loss pattern that costs most digits.

The number of patterns explodes, so: all of them when few; else runs of neighbours (the usual
culprits of polynomial codes), a seeded sample, whatever the code suspects, and from the worst of
these a climb that exchanges one lost worker at a time. Work is bounded, about a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from codedla.codes.solve import Parity

__all__ = ["of_parity", "pairs", "runs", "search"]

Patterns = NDArray[np.int64]

_EXHAUSTIVE = 20_000  # at most this many patterns are tried one by one
_SAMPLE = 4_000
_WORK = 4e7  # bound on patterns * (matrix size) ** 3
_SEED = 72_613
_CLIMBS = 4


def search(
    rate: Callable[[Patterns], NDArray[np.float64]],
    workers: int,
    losses: int,
    suspects: Iterable[Patterns] = (),
    effort: float = 1.0,
) -> tuple[int, ...]:
    """Return the ``losses`` of ``workers`` workers with the largest ``rate``.

    Parameters
    ----------
    rate : callable
        Maps patterns (count, losses) to their badness (count,).
    workers, losses : int
        ``1 <= losses < workers``.
    suspects : iterable of ndarray (count, losses)
        Patterns worth a look; used only if not all patterns are tried.
    effort : float, optional
        Scales the bounds on the number of patterns tried.

    Returns
    -------
    tuple of int, sorted
    """
    size = min(losses, workers - losses)
    limit = int(min(_EXHAUSTIVE * effort, max(2, effort * _WORK / size**3)))
    if math.comb(workers, losses) <= limit:
        patterns = np.array(list(itertools.combinations(range(workers), losses)))
        return _as_tuple(patterns[np.argmax(rate(patterns))])
    rng = np.random.default_rng(_SEED)
    groups = [_windows(workers, losses), _sample(rng, workers, losses, min(_SAMPLE, limit))]
    groups.extend(suspects)
    best, badness = groups[0][0], -math.inf
    for group in groups:
        # A thinned group keeps its spread: take evenly spaced rows.
        chosen = group[np.linspace(0, len(group) - 1, min(len(group), limit)).astype(int)]
        rated = rate(chosen)
        if rated.size and rated.max() > badness:
            best, badness = chosen[np.argmax(rated)], float(rated.max())
    for _ in range(_CLIMBS if limit >= 100 else 0):
        neighbours = _exchanges(rng, best, workers, min(limit, _SAMPLE))
        rated = rate(neighbours)
        if not rated.max() > badness:
            break
        best, badness = neighbours[np.argmax(rated)], float(rated.max())
    return _as_tuple(best)


def pairs(blocks: int, parities: int, limit: int = _EXHAUSTIVE) -> Patterns:
    """Return patterns that lose two plain blocks and leave two parities (systematic codes).

    Two nearly parallel columns of two parity rows are rare and ruinous: no sample finds them.
    Empty when the code cannot lose two blocks.
    """
    if blocks < 2 or parities < 2:
        return np.empty((0, parities), dtype=np.int64)
    rng = np.random.default_rng(_SEED)
    # With very many parities the patterns themselves are long.
    limit = max(1, min(limit, 2_000_000 // parities))
    spared = _two_of(rng, parities, math.isqrt(limit))
    lost = _two_of(rng, blocks, max(1, limit // len(spared)))
    keep = np.ones((len(spared), parities), dtype=bool)
    np.put_along_axis(keep, spared, False, axis=1)
    dead = blocks + np.nonzero(keep)[1].reshape(len(spared), parities - 2)
    return np.concatenate(
        [np.repeat(lost, len(dead), axis=0), np.tile(dead, (len(lost), 1))], axis=1
    )


def _two_of(rng: np.random.Generator, count: int, limit: int) -> Patterns:
    """All pairs of ``count`` things, or ``limit`` of them."""
    pairs = np.stack(np.triu_indices(count, 1), axis=1)
    if len(pairs) > limit:
        pairs = pairs[rng.choice(len(pairs), limit, replace=False)]
    return pairs


def of_parity(parity: Parity, effort: float = 1.0) -> float:
    """Return the worst amplification found of a systematic code (outputs all of one scale).

    Parameters
    ----------
    parity : Parity
    effort : float, optional
        As in :func:`search`.
    """
    losses, blocks = parity.parity.shape
    suspects = [pairs(blocks, losses, int(_EXHAUSTIVE * effort))]
    lost = search(parity.rate, blocks + losses, losses, suspects, effort)
    return math.sqrt(parity.rate(np.array([lost]))[0] / blocks)


def runs(workers: int, losses: int, gap: int) -> Patterns:
    """Return the cyclic runs ``a, a + gap, a + 2 gap, ...``; ``gap`` coprime to ``workers``."""
    return (np.arange(workers)[:, None] + gap * np.arange(losses)) % workers


def _windows(workers: int, losses: int) -> Patterns:
    """Runs of neighbours (cyclic, so also both ends) and every second or third of a longer run."""
    gaps = [gap for gap in (1, 2, 3) if gap == 1 or gap * losses < workers]
    return np.concatenate([runs(workers, losses, gap) for gap in gaps])


def _sample(rng: np.random.Generator, workers: int, losses: int, count: int) -> Patterns:
    return np.argsort(rng.random((count, workers)), axis=1)[:, :losses]


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
