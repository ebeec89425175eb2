r"""A product in panels, several of them under way: what any worker has finished counts.

Every panel needs ``K`` replies of different workers, and free workers take what is needed most
(:mod:`codedla.engine.schedule`). So ``P`` panels are done about when the workers have finished
``K P`` tasks in all, none of them more than ``P``:

.. math:: \min t: \quad \sum_i \min(P, \lfloor (t - s_i) / c_i \rfloor) \ge K P

where worker ``i`` begins at ``s_i`` and needs ``c_i`` for a task. A worker that never answers
holds nothing up. That is found by bisection, for all rounds at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.planning.machine import Machine
from codedla.planning.workload import Workload

__all__ = ["counted", "run"]

Times = NDArray[np.float64]

_HALVINGS = 50
"""Steps of the bisection: as many as double precision has digits, roughly."""
_SWEEPS = 20
"""Steps towards the part of a core that ranks have and the time for which they then need it; each
halves what is wrong."""


def run(
    workload: Workload, machine: Machine, delays: Times, slow: Times, *, together: bool
) -> tuple[Times, Times]:
    """Return when the product is complete, and the seconds that workers were held, (rounds,) each.

    Parameters
    ----------
    workload : Workload
        Of one panel, in a code in which any ``K`` replies decode, one share for each worker.
    machine : Machine
    delays : ndarray (rounds, workers)
        Of every task of a worker in this round.
    slow : ndarray (workers,)
    together : bool
        All ranks share the cores of one host.
    """
    code, o = workload.code, machine.overhead
    shares = np.array(code.shares)
    delays, slow = delays[:, shares], slow[shares]
    many, needed = workload.panels, code.threshold
    first = np.cumsum(o + np.full(len(shares), workload.resident) / machine.bandwidth)
    begin = first + machine.latency
    cpu = o + workload.sent / machine.copy + workload.combined / machine.encode
    cpu = cpu + workload.computing(machine)
    # A slow worker sleeps for a multiple of the time it has computed, whoever shared its core.
    dragging = (slow - 1.0) * workload.computing(machine)
    # The spare shares are made for panels in which they are needed, one in N / K.
    order = o + (workload.encoded / machine.encode).mean()
    taken = o + workload.reply / machine.copy
    # Replies are folded while others are waited for.
    own = needed * many * (order + taken)
    wire = max(float(workload.sent.mean()), workload.reply) * needed * many / machine.bandwidth
    once = workload.resident / machine.copy
    rate = np.ones(len(delays))
    if machine.ranks_per_host and not together:
        rate *= machine.share_of_core(machine.ranks_per_host)
    for _ in range(_SWEEPS if together else 1):
        each = (cpu + dragging) / rate[:, None] + delays
        starts = begin + once / rate[:, None]
        ends = counted(starts, each, many, needed * many)
        ends = np.maximum(ends, np.maximum(own, wire) + begin[0])
        if together:
            with np.errstate(invalid="ignore"):
                busy = np.where(np.isfinite(each), cpu / rate[:, None] / each, 0.0).sum(axis=1)
                busy = busy + np.where(np.isfinite(ends), np.minimum(own / ends, 1.0), 0.0)
            rate = 0.5 * (rate + np.minimum(1.0, machine.cores / np.maximum(busy, 1.0)))
    held = np.clip(ends[:, None] - begin, 0.0, None).sum(axis=1)
    # Only the last panel is still to be decoded then.
    lost = min(code.tolerates, code.grid.outputs) if workload.fold else 0
    last = (lost * (lost + 1.0) * workload.reply + workload.finish) / machine.encode
    return ends + machine.latency + taken + last, np.where(np.isfinite(ends), held, 0.0)


def counted(starts: Times, each: Times, most: int, needed: int) -> Times:
    """Return when workers have finished ``needed`` tasks in all, at most ``most`` each.

    Parameters
    ----------
    starts : ndarray (rounds, workers)
        When each begins.
    each : ndarray (rounds, workers)
        Seconds of a task.
    most, needed : int

    Returns
    -------
    ndarray (rounds,)
        ``inf`` where that never happens.
    """
    finite = np.isfinite(each)
    last = np.where(finite, starts + most * np.where(finite, each, 0.0), -np.inf)
    enough = most * finite.sum(axis=1) >= needed
    low, high = np.zeros(len(each)), np.where(enough, last.max(axis=1), np.inf)
    period = np.where(finite, each, np.inf)
    for _ in range(_HALVINGS):
        middle = np.where(enough, (low + np.where(enough, high, 0.0)) / 2, 0.0)
        # Rounding must not take away a task that ends exactly now.
        with np.errstate(invalid="ignore"):
            finished = np.floor((middle[:, None] - starts) / period * (1 + 1e-12))
        reached = np.clip(finished, 0, most).sum(axis=1) >= needed
        high = np.where(enough & reached, middle, high)
        low = np.where(enough & ~reached, middle, low)
    return high
