"""Threads of BLAS before, while and after a rank serves. Word: what ``threads=`` is."""

from __future__ import annotations

import os

import numpy as np
from common import WORDS, write
from mpi4py import MPI
from threadpoolctl import threadpool_info

import codedla
from codedla.engine import work

(word,) = WORDS
rank = MPI.COMM_WORLD.Get_rank()
inside = []


def blas() -> int:
    """Threads that BLAS would use now."""
    return next(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")


multiply = work.multiply


def watched(*arguments):
    inside.append(blas())
    return multiply(*arguments)


work.multiply = watched
before = blas()
manager = codedla.MPIPool(MPI.COMM_WORLD, threads="auto" if word == "auto" else int(word))
early = manager.threads
with manager as pool:
    if pool is not None:
        A = np.ones((40, 30))
        codedla.matmul(A, A.T, pool=pool, code="uncoded", blocks=(2, 1))
        inside.append(blas())
write(
    f"rank{rank}",
    {
        "before": before,
        "early": early,
        "inside": sorted(set(inside)),
        "after": blas(),
        "threads": manager.threads,
        "cores": len(os.sched_getaffinity(0)),
    },
)
