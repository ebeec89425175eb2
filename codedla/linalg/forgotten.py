"""Shares whose owner is gone without having been closed: freed when something else is stored.

A matrix that is made anew in a loop, and never closed, would fill the workers' memory. They cannot
be told at the moment its owner is collected, though: that may be in any thread, in the middle of a
round. So the keys are noted then, and dropped when the same pool stores the next matrix.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from codedla.engine.round import Pool

__all__ = ["hold"]

_left: weakref.WeakKeyDictionary[Pool, deque[Sequence[int]]] = weakref.WeakKeyDictionary()


def hold(owner: object, pool: Pool, keys: Sequence[int]) -> Callable[[], Any]:
    """Note whose shares the workers hold; free what earlier owners have left behind.

    Parameters
    ----------
    owner : object
    pool : Pool
    keys : sequence of int
        Of its resident operands.

    Returns
    -------
    callable
        To be called when the owner has dropped them itself.
    """
    try:
        left = _left.setdefault(pool, deque())
    except TypeError:  # somebody's own pool, that cannot be referred to weakly
        return lambda: None
    while left:
        pool.drop(left.popleft())
    note = weakref.finalize(owner, left.append, keys)
    note.atexit = False
    return note.detach
