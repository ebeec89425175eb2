"""When replies that arrive at known times first decode: for many simulated rounds at once."""

from __future__ import annotations

import bisect
import math

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code

__all__ = ["decoding_times"]

_CHUNK = 1 << 20
"""Arrivals sorted at a time: more than that would only fill memory."""


def decoding_times(code: Code, arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when the replies of each round first suffice.

    Where any ``K`` replies do, that is their ``K``-th order statistic; elsewhere it is found by
    bisection over the replies in order, as more replies never do less, or by watching them.

    Parameters
    ----------
    code : Code
    arrivals : ndarray (rounds, shares)
        Seconds at which the reply to ``code.shares[j]`` is there; ``inf``: never.

    Returns
    -------
    ndarray (rounds,)
        Seconds; ``inf`` where the replies that ever come do not suffice.
    """
    rounds, count = arrivals.shape
    times = np.empty(rounds)
    if code.counts:
        place = code.threshold - 1
        step = max(_CHUNK // max(count, 1), 1)
        for top in range(0, rounds, step):
            part = np.partition(arrivals[top : top + step], place, axis=1)
            times[top : top + step] = part[:, place]
        return times
    shares = np.array(code.shares)
    for index, row in enumerate(arrivals):
        times[index] = _first_decodable(code, shares, row)
    return times


def _first_decodable(code: Code, shares: NDArray[np.int64], arrivals: NDArray[np.float64]) -> float:
    order = np.argsort(arrivals, kind="stable")
    order = order[np.isfinite(arrivals[order])]
    arrived = shares[order].tolist()
    if type(code).watch is not Code.watch:
        # Made for being told one reply after the other.
        suffice = code.watch()
        last = next((place for place, share in enumerate(arrived) if suffice(share)), None)
        return math.inf if last is None else float(arrivals[order[last]])
    if not code.decodable(arrived):
        return math.inf

    def decodes(count: int) -> bool:
        return code.decodable(arrived[:count])

    count = bisect.bisect_left(range(len(arrived) + 1), True, key=decodes)
    return float(arrivals[order[count - 1]])
