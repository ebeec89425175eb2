"""How many digits a code costs: amplification, its worst case, and what is said about it."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes import worst
from codedla.codes.cache import Recent
from codedla.codes.solve import Parity
from codedla.nodes import stride

if TYPE_CHECKING:
    from codedla.codes.base import Code

Rate = Callable[[NDArray[np.int64]], NDArray[np.float64]]

__all__ = [
    "amplification",
    "digits_warning",
    "error_estimate",
    "worst_amplification",
    "worst_of_parity",
]

# Effort of a search where every pattern is solved for by itself: a few hundred patterns.
_SLOW = 0.003
_DRAWS = 20  # of different speeds
# Plans are made anew for every product; the search for the worst survivor set is not.
_KNOWN: Recent[tuple[float, tuple[int, ...]]] = Recent(256)


def amplification(weights: NDArray[Any], norms: NDArray[np.float64], products: int) -> float:
    r"""Return the RMS gain of the replies' rounding errors on the way to the output.

    .. math:: \alpha = \sqrt{\frac1{products} \sum_{o} \sum_i |W_{oi}|^2 r_i^2}

    Parameters
    ----------
    weights : ndarray (outputs, replies)
    norms : ndarray (replies,)
        Noise scale ``r_i`` of each reply.
    products : int
        Number ``m n p`` of block products of the uncoded computation.

    Returns
    -------
    float
    """
    return float(np.linalg.norm(weights * norms)) / math.sqrt(products)


def worst_amplification(code: Code) -> tuple[float, tuple[int, ...]]:
    """Return the largest amplification of any ``K`` replies, and who replied.

    Every set is tried when there are few; see :mod:`codedla.codes.worst` for what is done else.
    Where workers have several shares, also what has come, of workers of different speeds, when it
    first suffices. Found once per generator, however many objects have it.
    """
    if code.only_plain or (code.tolerates == 0 and code.load == 1):
        # One survivor set only, or copies, which are all alike.
        survivors = code.shares if code.load > 1 else tuple(range(code.threshold))
        return code.amplification(survivors), survivors
    key = _fingerprint(code)
    found = _KNOWN.get(key)
    if found is None:
        lost: tuple[int, ...] = ()
        if code.tolerates:
            rate, suspects, effort = _rating(code)
            lost = worst.search(rate, code.active, code.tolerates, suspects, effort)
        survivors = code.shares_without(lost)
        found = code.amplification(survivors), survivors
        for early in _first_to_suffice(code) if code.load > 1 else ():
            alpha = code.amplification(early)
            # A set that is singular by chance waits for one more reply.
            found = (alpha, early) if found[0] < alpha < math.inf else found
        _KNOWN.put(key, found)
    return found


def _first_to_suffice(code: Code) -> Iterator[tuple[int, ...]]:
    """What has come when it first suffices, of workers of seeded random speeds (1 to 5)."""
    draw = random.Random(f"speeds {code.n_workers} {code.n_shares}")
    for _ in range(int(min(_DRAWS, max(2, 2e6 / code.generator.shape[1] ** 2)))):
        speeds = [draw.uniform(1.0, 5.0) for _ in range(code.n_workers)]
        due = {s: (s // code.n_workers + 1) / speeds[code.home(s)] for s in code.shares}
        suffice, told = code.watch(), []
        for share in sorted(code.shares, key=due.__getitem__):
            told.append(share)
            if suffice(share):
                yield tuple(sorted(told))
                break


def _rating(code: Code) -> tuple[Rate, Iterable[NDArray[np.int64]], float]:
    """Return what rates patterns of lost workers, patterns worth a look, and an effort."""
    if code.rate(np.arange(code.tolerates)[None, :]) is not None:
        return _rated_at_once(code), _suspects(code), 1.0 / code.rating_cost

    def solve_each(lost: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([code.rough_amplification(code.shares_without(p)) for p in lost])

    # Of workers with many shares far more replies are left than there are unknowns.
    rows, unknowns = code.generator.shape
    left = max(rows * (code.active - code.tolerates) / code.active, unknowns)
    return solve_each, (), _SLOW * min(1.0, 3e6 / (left * unknowns**2))


def _rated_at_once(code: Code) -> Rate:
    def rate(lost: NDArray[np.int64]) -> NDArray[np.float64]:
        found = code.rate(lost)
        assert found is not None
        return found

    return rate


def worst_of_parity(rows: NDArray[np.float64], effort: float = 1.0) -> float:
    """Return the worst amplification found of a systematic code with these parity rows.

    For families that search for good rows; outputs all of one scale.

    Parameters
    ----------
    rows : ndarray (s, k)
    effort : float, optional
        As in :func:`codedla.codes.worst.search`.
    """
    losses, blocks = rows.shape
    parity = Parity(rows, np.linalg.norm(rows, axis=1))
    rare = worst.suspects(blocks, losses, effort)
    lost = worst.search(parity.rate, blocks + losses, losses, rare, effort)
    return math.sqrt(parity.rate(np.array([lost]))[0] / blocks)


def digits_warning(code: Code, eps: float, tolerance: float) -> str | None:
    """Return a sentence when ``alpha * eps`` of the worst loss is above the tolerance, else None.

    Parameters
    ----------
    code : Code
    eps : float
        Machine epsilon of the dtype the workers compute in.
    tolerance : float
    """
    alpha, _ = code.worst_amplification()
    if alpha * eps <= tolerance:
        return None
    digits = "every digit" if alpha * eps >= 0.1 else f"about {math.log10(alpha):.0f} digits"
    cure = "use fewer blocks, fewer losses or more precision"
    if code.node_choices and code.nodes != code.node_choices[0]:
        cure = f"use --nodes {code.node_choices[0]}"
    chosen = f" with nodes {code.nodes}" if code.nodes else ""
    return (
        f"code {code.name}{chosen}, {code.blocks} on {code.n_workers} workers: the worst loss "
        f"pattern amplifies rounding errors by {alpha:.1e} and loses {digits}; {cure}"
    )


def error_estimate(alpha: float, eps: float, scale: float = 1.0) -> float:
    r"""Estimate the relative error of a decoded product.

    .. math:: \frac{\|\hat C - C\|_F}{\|C\|_F} \approx
              \sqrt{1 + \alpha^2} \; \varepsilon \; \frac{\|A\|_F \|B\|_F}{\|C\|_F}

    The last factor is what any product of these operands suffers from cancellation; ``alpha``
    what decoding adds.

    Parameters
    ----------
    alpha : float
        :meth:`Code.amplification` of the replies used.
    eps : float
        Machine epsilon of the dtype the workers compute in (``numpy.finfo(dtype).eps``).
    scale : float, optional
        ``||A||_F ||B||_F / ||C||_F``, at least 1.

    Returns
    -------
    float

    Notes
    -----
    ``benchmarks/accuracy.py`` checks that the true error of products of random operands is never
    above ten times the estimate nor below a ten-thousandth of it.
    """
    return math.hypot(1.0, alpha) * eps * scale


def _suspects(code: Code) -> Iterator[NDArray[np.int64]]:
    """Loss patterns worth rating when not all can be."""
    if code.systematic:
        yield from worst.suspects(code.grid.outputs, code.tolerates)
    else:
        # Neighbouring evaluation points, wherever `nodes.stride` put their workers.
        step = pow(stride(code.active, code.tolerates), -1, code.active)
        yield worst.runs(code.active, code.tolerates, step)


def _fingerprint(code: Code) -> bytes:
    """What the worst amplification depends on, whoever built it."""
    # The name, too: families of equal generators may decode by different weights.
    parameters = (code.name, code.active, code.tolerates, code.grid, code.stack, code.load)
    digest = hashlib.blake2b(repr(parameters).encode())
    for matrix in (code.generator, code.wanted, code.norms):
        digest.update(matrix.tobytes())
    return digest.digest()
