"""Late tasks given to idle workers as well, by the rule of :mod:`codedla.engine.speculation`.

There the limit follows every reply that comes; here it is the one when anybody can first be called
late. Replies that come later lengthen it a little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.engine.speculation import LEAST, PATIENCE, enough

__all__ = ["copies"]

Times = NDArray[np.float64]


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
    first = enough(served.shape[1])
    ready = np.partition(served, first - 1, axis=1)[:, first - 1 : first]
    # In ascending order, those that have not come by then last.
    taken = np.sort(np.where(served <= ready, served - ordered, np.inf), axis=1)
    middle = first // 2
    median = (taken[:, middle, None] + taken[:, first - 1 - middle, None]) / 2
    limit = np.maximum(PATIENCE * median, LEAST)
    noticed = np.maximum(ordered + limit, ready)
    late = served > noticed
    copied = noticed + np.cumsum(late, axis=1) * sending + plain + again
    return (
        np.where(late, np.minimum(served, copied + travel), served),
        np.where(late, np.minimum(done, copied), done),
    )
