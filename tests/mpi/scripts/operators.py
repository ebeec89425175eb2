"""SciPy's solvers on coded operators, with ranks that are late in every round. Words: scenario."""

from __future__ import annotations

import time

import numpy as np
import psutil
import scipy.sparse.linalg as sla
from common import WORDS, faults, write
from mpi4py import MPI

import codedla

(scenario,) = WORDS
RNG = np.random.default_rng(41213)
result = {}


def relative(got, expected):
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def solvers(pool):
    """All kinds of products, by solvers, with one rank that sleeps in each."""
    noise = RNG.standard_normal((300, 300)) / 17
    a, b = noise @ noise.T + np.eye(300), RNG.standard_normal(300)
    start, tall = RNG.standard_normal(300), RNG.standard_normal((300, 60))
    began = time.monotonic()
    with codedla.aslinearoperator(a, pool=pool, adjoint="hermitian") as op:
        x = sla.cg(op, b, rtol=1e-12)[0]
        result["cg"] = relative(x, sla.cg(a, b, rtol=1e-12)[0])
        values = sla.eigsh(op, k=3, v0=start, return_eigenvectors=False)
        result["eigsh"] = relative(values, sla.eigsh(a, k=3, v0=start, return_eigenvectors=False))
        result["rounds"] = op.totals.rounds
        result["late"] = op.totals.stragglers[2]
    for adjoint in ("separate", "shared"):
        with codedla.aslinearoperator(tall, pool=pool, adjoint=adjoint) as op:
            values = sla.svds(op, k=3, v0=start[:60])[1]
            result[f"svds {adjoint}"] = relative(values, sla.svds(tall, k=3, v0=start[:60])[1])
            x = sla.lsqr(op, b, atol=1e-13, btol=1e-13)[0]
            expected = sla.lsqr(tall, b, atol=1e-13, btol=1e-13)[0]
            result[f"lsqr {adjoint}"] = relative(x, expected)
            result["rounds"] += op.totals.rounds
            try:
                codedla.aslinearoperator(tall, pool=pool, adjoint="hermitian")
            except codedla.UsageError as error:
                result["refused"] = str(error)
    result["seconds"] = time.monotonic() - began


def memory(pool):
    """What workers hold is free after close, and rounds leave nothing behind."""
    links = pool._master.links
    a, y = RNG.standard_normal((2000, 1500)), RNG.standard_normal(2000)

    def held():
        # Workers say who they are with their first replies.
        return sum(psutil.Process(link.pid).memory_info().rss for link in links)

    def rounds(op, count):
        for _ in range(count):
            op.rmatvec(y)

    for adjoint in ("separate", "shared"):
        with codedla.aslinearoperator(a, pool=pool, adjoint=adjoint) as op:
            rounds(op, 60)
            full = result[f"held {adjoint}"] = held()
            rounds(op, 300)
            result[f"growth {adjoint}"] = held() - full
        result[f"keys {adjoint}"] = sum(len(link.holds) for link in links)
        result[f"open {adjoint}"] = max(len(k.sends) + len(k.orders) for k in links)


spoilt = ["delay:2:0.1"] if scenario == "solvers" else []
with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(spoilt)) as pool:
    if pool is not None:
        {function.__name__: function for function in (solvers, memory)}[scenario](pool)
        write("result", result)
