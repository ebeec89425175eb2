"""Threads of BLAS before, while and after a rank serves. Word: what ``threads=`` is;
any second one: also of a library that a task imports."""

from __future__ import annotations

import os

import numpy as np
from common import WORDS, write
from mpi4py import MPI
from threadpoolctl import threadpool_info

import codedla
from codedla.engine import work

word = WORDS[0]
rank = MPI.COMM_WORLD.Get_rank()
inside = []


def blas() -> int:
    """Threads that BLAS would use now."""
    return next(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")


multiply = work.multiply


def watched(*arguments):
    inside.append(blas())
    return multiply(*arguments)


def late(share, x):
    """Import a library with threads of its own; tell the most that any would use."""
    import scipy.linalg

    scipy.linalg.inv(np.eye(2))
    pools = [info for info in threadpool_info() if info["user_api"] == "blas"]
    return np.array([len(pools), max(info["num_threads"] for info in pools)], float)


work.multiply = watched
before = blas()
imported = []
manager = codedla.MPIPool(MPI.COMM_WORLD, threads="auto" if word == "auto" else int(word))
early = manager.threads
with manager as pool:
    if pool is not None:
        A = np.ones((40, 30))
        codedla.matmul(A, A.T, pool=pool, code="uncoded", blocks=(2, 1))
        inside.append(blas())
        if len(WORDS) > 1:
            with codedla.AsyncMap(late, [np.ones(2)] * 2, pool=pool) as calls:
                for _ in range(2):
                    imported.append(np.array(calls(np.ones(2)).replies).tolist())
write(
    f"rank{rank}",
    {
        "before": before,
        "early": early,
        "inside": sorted(set(inside)),
        "after": blas(),
        "imported": imported,
        "threads": manager.threads,
        "cores": len(os.sched_getaffinity(0)),
    },
)
