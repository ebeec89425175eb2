"""Measure the machine that the model is asked about, in a few seconds.

Speeds of one core are measured here, on the master. With a pool, small rounds measure its messages
and what its workers do to each other: the figures are those that make the model's time of these
rounds the measured one.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid, Split
from codedla.codes.families.uncoded import Uncoded
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.delays import SEED
from codedla.engine.encoder import DenseEncoder
from codedla.engine.facts import scan
from codedla.engine.plan import make_plan
from codedla.engine.round import Operand, Pool, Round
from codedla.engine.work import multiply
from codedla.linalg.matmul import matmul
from codedla.linalg.matvec import store
from codedla.planning.machine import Machine
from codedla.planning.rounds import simulate
from codedla.planning.workload import workload_of

__all__ = ["calibrate"]

Array = NDArray[Any]

_REPEATS = 7
_SIDE = 768
"""Rows and columns of the matrices: far out of the caches nearest to a core."""
_PRODUCTS = 4
"""Products of them that a worker computes while all do."""
_EVENTS = 3
"""Times that a message's overhead counts in an empty round: order, receipt, reply."""
_MESSAGE = 8 << 20
"""Bytes of a message whose bandwidth is measured."""
_SHARE = (512, 1024)
"""Rows and columns of a worker's part of a matrix that is multiplied by vectors."""
_WHOLE = 1280
"""Rows and columns of the factors of a product that is measured as a whole."""
_SLOWEST = 16.0
"""Times by which copying may be slower among busy ranks than in one that is alone."""


def calibrate(
    pool: Pool | None = None, *, ranks_per_host: int = 0, assumed: Machine | None = None
) -> Machine:
    """Measure this machine.

    Parameters
    ----------
    pool : Pool, optional
        Of MPI ranks; without one, what concerns messages is assumed.
    ranks_per_host : int
        Ranks that share a host's cores; 0: each has a core of its own.
    assumed : Machine, optional
        What is not measured.

    Returns
    -------
    Machine
    """
    rng = np.random.default_rng(SEED)
    a, b = rng.standard_normal((2, _SIDE, _SIDE))
    large = rng.standard_normal((8 * 256, _MESSAGE // 8 // 1024))
    out = np.empty_like(a)
    encoder = DenseEncoder(large, Split(len(large), 8), Split(large.shape[1], 1), large.dtype)
    weights = np.linspace(0.5, 1.5, 8)[None, :]
    product = _seconds(lambda: multiply(a, b, out))
    machine = replace(
        Machine() if assumed is None else assumed,
        flops=2.0 * _SIDE**3 / product,
        copy=large.nbytes / _seconds(lambda: _received(large)),
        # Eight blocks are read and one is written.
        encode=large.nbytes * 9 / 8 / _seconds(lambda: encoder.coded(weights)),
        scan=large.nbytes / _seconds(lambda: scan(large)),
        cores=float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1),
        ranks_per_host=ranks_per_host,
        source="measured on one core, messages assumed",
    )
    return machine if pool is None else _with_messages(machine, pool, a)


def _with_messages(machine: Machine, pool: Pool, a: Array) -> Machine:
    """Measure what needs several ranks."""
    workers = pool.n_workers
    small, message = np.ones((1, 1)), np.ones((_MESSAGE // 8 // 1024, 1024))

    def work(matrix: Array) -> Array:
        for _ in range(_PRODUCTS):
            matrix @ matrix
        return np.ones((1, 1))

    def corner(matrix: Array) -> Array:
        return np.ones((1, 1))

    few = np.ones((workers, 2))
    alone = _seconds(lambda: work(a))
    # The first rounds open connections and load what workers need.
    empty = _seconds(lambda: _round(pool, small, None))
    called = _seconds(lambda: _round(pool, small, corner))
    loaded = _seconds(lambda: _round(pool, message, corner))
    worked = _seconds(lambda: _round(pool, a, work))
    product = _seconds(
        lambda: matmul(few, np.ones((2, 2)), pool=pool, code="uncoded", verify="off")
    )
    with store(few, pool=pool, code="uncoded") as stored:
        resident = _seconds(lambda: stored.matvec(few[0]))
    # Of one message's bytes to every worker.
    moving = max(loaded - called, 1e-6) / message.nbytes
    machine = replace(
        machine,
        overhead=empty / (_EVENTS * workers),
        setup=max(product - empty, 0.0),
        overhead_round=resident / (_EVENTS * workers),
        source=f"measured with {workers} workers",
    )
    if not machine.ranks_per_host:
        return replace(machine, bandwidth=workers / moving)
    # All copy, or compute, at the same time, each on its part of the cores.
    together = max(worked - called - moving * a.nbytes, 1e-6)
    cores = min(max(workers * alone / together, 1.0), float(workers))
    machine = replace(
        machine,
        cores=cores,
        bandwidth=math.inf,
        copy=min(machine.copy, workers / (min(machine.cores, workers) * moving)),
    )
    return _among_busy_ranks(machine, pool, resident)


def _among_busy_ranks(machine: Machine, pool: Pool, resident: float) -> Machine:
    """Correct the speeds of memory, which all ranks of a host share, by what rounds take.

    Parameters
    ----------
    machine : Machine
    pool : Pool
    resident : float
        Seconds of a round in which workers multiply next to nothing by a vector.
    """
    workers = pool.n_workers
    matrix = np.ones((workers * _SHARE[0], _SHARE[1]))
    with store(matrix, pool=pool, code="uncoded") as stored:
        vector = _seconds(lambda: stored.matvec(matrix[0]))
    reading = max(vector - resident, 1e-6)
    scan = matrix.nbytes / (reading * min(machine.cores, workers))
    machine = replace(machine, scan=min(machine.scan, scan))

    square = np.ones((_WHOLE, _WHOLE))
    options: dict[str, Any] = {"code": "uncoded", "verify": "off"}
    plan = make_plan(square.shape, square.shape, square.dtype, workers, code="uncoded")
    streams, pool.streams = pool.streams, False
    try:
        # The first products find and clear the pages of the ranks' memory.
        _seconds(lambda: matmul(square, square, pool=pool, **options))
        measured = _seconds(lambda: matmul(square, square, pool=pool, **options))
    finally:
        pool.streams = streams
    work = workload_of(plan.code, plan.shape, plan.compute)

    def excess(slower: float) -> float:
        slow = replace(machine, copy=machine.copy / slower)
        return float(simulate(work, slow).seconds[0]) - measured

    low, high = 1.0, _SLOWEST
    if excess(low) >= 0.0:
        return machine
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) >= 0.0 else (middle, high)
    return replace(machine, copy=machine.copy / low)


def _received(message: Array) -> Array:
    """Copy into memory that was not used before, as a message is received."""
    target = np.empty_like(message)
    target[...] = message
    return target


def _round(pool: Pool, matrix: Array, function: Callable[[Array], Array] | None) -> None:
    """Send a matrix to every worker, call the function there (or square it), take all replies."""
    code = Uncoded(pool.n_workers, Grid(pool.n_workers, 1, 1))
    out = np.empty((pool.n_workers, 1))
    operand = Operand(0, lambda: matrix)
    operands = (operand,) if function is not None else (operand, operand)
    job = Round(
        shares=code.shares,
        operands=lambda share: operands,
        collector=Collector(code, eps=0.0, tolerance=1.0, shares=code.shares),
        decoder=make_decoder(code, out, out.dtype),
        work="matmul" if function is None else "call",
        function=function,
    )
    pool.run(job)


def _seconds(case: Callable[[], Any]) -> float:
    """Return the median time of a case, after one that does not count."""
    case()
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        case()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
