"""Re-execution of late tasks on idle workers, as task schedulers do it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["DONE_FRACTION", "PATIENCE", "copies"]

Times = NDArray[np.float64]

DONE_FRACTION = 0.75
"""Tasks that must be done before any is executed again."""
PATIENCE = 1.5
"""Times the median of a task after which it counts as late."""


def copies(
    served: Times,
    ordered: Times,
    done: Times,
    *,
    plain: Times,
    again: Times,
    sending: float,
    travel: float,
) -> tuple[Times, Times]:
    """Give late tasks to idle workers; the first answer counts.

    Parameters
    ----------
    served, ordered, done : ndarray (rounds, tasks)
        When replies are there, orders arrive and tasks end, if nothing is executed again.
    plain : ndarray (tasks,)
        Seconds that each task takes without a delay.
    again : ndarray (rounds, tasks)
        Delays of the copies.
    sending : float
        Seconds in which the master sends one task's operands, one after the other.
    travel : float
        Seconds from the end of a copy to its reply's being there.

    Returns
    -------
    served, done : ndarray (rounds, tasks)
    """
    place = max(math.ceil(DONE_FRACTION * served.shape[1]) - 1, 0)
    ready = np.partition(served, place, axis=1)[:, place : place + 1]
    # Half of all tasks are done before three quarters are: the median over all is theirs.
    median = np.median(done - ordered, axis=1, keepdims=True)
    noticed = np.maximum(ordered + PATIENCE * median, ready)
    late = served > noticed
    copied = noticed + np.cumsum(late, axis=1) * sending + plain + again
    return (
        np.where(late, np.minimum(served, copied + travel), served),
        np.where(late, np.minimum(done, copied), done),
    )
