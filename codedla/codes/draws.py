"""Random coefficients that are the same on every machine, and the choice among several draws.

Random generators keep more digits than polynomial ones when many workers may be lost, but a single
draw may be unlucky: families draw a few times and take the draw whose worst loss pattern is best.
How often depends on the size only, never on the clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from codedla.codes import accuracy, worst
from codedla.codes.rows import scaled_rows
from codedla.codes.solve import Completion

__all__ = [
    "best_draw",
    "best_frame",
    "best_parity",
    "numbers",
    "orthonormal_columns",
    "random_rows",
    "worst_of_generator",
]

FloatArray = NDArray[np.float64]
Draw = TypeVar("Draw")

_MANY = 32  # losses beyond which rating a draw takes longer than it is worth
_MOST_DRAWS = 40
_ENTRIES = 2_000_000  # of the generators of all draws together
_SHORT, _LONG = 0.01, 0.1  # efforts of the searches for a draw's worst pattern


def numbers(label: str, *shape: int) -> FloatArray:
    """Return nearly normal random numbers that depend on the label only.

    Sums of four uniform ones: ``random.Random(label).random()`` is the same on every Python, while
    normal generators differ in their last bits with the logarithm of the machine.
    """
    _, state, _ = random.Random(label).getstate()
    # NumPy's frozen generator goes on from there with the very same numbers, far faster.
    twister = np.random.RandomState()
    words = np.array(state[:-1], dtype=np.uint32)
    twister.set_state(("MT19937", words, state[-1], 0, 0.0))
    uniform = twister.random_sample((*shape, 4))
    total: FloatArray = uniform.sum(axis=-1) - 2.0
    return total


def random_rows(label: str, count: int, width: int) -> FloatArray:
    """Return ``count`` random rows of norm ``sqrt(width)``."""
    return scaled_rows(numbers(label, count, width))


def orthonormal_columns(label: str, count: int, width: int) -> FloatArray:
    """Return ``count >= width`` rows with orthonormal columns, drawn at random."""
    q, r = np.linalg.qr(numbers(label, count, width))
    # The signs of LAPACK's factors are a convention; these are unique.
    columns: FloatArray = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return columns


def worst_of_generator(generator: FloatArray, norms: FloatArray, effort: float) -> float:
    """Return the worst amplification found of a code all of whose unknowns are wanted.

    Parameters
    ----------
    generator : ndarray (N, K)
    norms : ndarray (N,)
        Noise scale of each reply.
    effort : float
        As in :func:`codedla.codes.worst.search`.

    Returns
    -------
    float
        Infinite if some ``K`` replies are dependent.
    """
    workers, size = generator.shape
    solver = Completion(generator, np.eye(size), norms)
    lost = worst.search(solver.rate, workers, workers - size, (), effort)
    return math.sqrt(solver.rate(np.array([lost]))[0] / size)


def best_draw(
    make: Callable[[int], Draw],
    rate: Callable[[Draw, float], float],
    unknowns: int,
    losses: int,
) -> Draw:
    """Return the draw ``make(seed)`` with the smallest rating, of up to 40 of them.

    Parameters
    ----------
    make : callable
        Turns a seed into a draw.
    rate : callable
        The worst amplification of a draw, found with so much effort.
    unknowns, losses : int
        Size of the code, which decides how many are tried.
    """
    best = make(0)
    if not 0 < losses <= _MANY or unknowns == 1:
        return best
    least = rate(best, _LONG)
    few = min(_MOST_DRAWS, 60_000 // (unknowns * losses**2), _ENTRIES // unknowns**2)
    for seed in range(1, max(2, few)):
        draw = make(seed)
        # A short search refutes most draws: what it finds only grows with effort.
        if rate(draw, _SHORT) < least:
            rating = rate(draw, _LONG)
            if rating < least:
                best, least = draw, rating
    return best


@lru_cache(maxsize=128)
def best_frame(draw: Callable[[str, int, int], FloatArray], blocks: int, losses: int) -> FloatArray:
    """Return the best draw of a generator of ``blocks + losses`` rows, of norm ``sqrt(blocks)``.

    Parameters
    ----------
    draw : callable
        Turns a label, a number of rows and a width into rows of norm ``sqrt(width)``.
    blocks, losses : int
    """
    workers = blocks + losses
    norms = np.full(workers, math.sqrt(blocks))
    return best_draw(
        lambda seed: draw(f"frame {blocks} {losses} {seed}", workers, blocks),
        lambda rows, effort: worst_of_generator(rows, norms, effort),
        blocks,
        losses,
    )


@lru_cache(maxsize=128)
def best_parity(
    draw: Callable[[str, int, int], FloatArray], blocks: int, losses: int
) -> FloatArray:
    """Return the best draw of ``losses`` parity rows; parameters as of :func:`best_frame`."""
    if losses == 0:
        return np.empty((0, blocks))
    return best_draw(
        lambda seed: draw(f"parity {blocks} {losses} {seed}", losses, blocks),
        accuracy.worst_of_parity,
        blocks,
        losses,
    )
