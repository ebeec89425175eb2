"""A second pool on a communicator one of whose ranks was lost in the first."""

from __future__ import annotations

import os
import signal

import numpy as np
from common import note_shared_memory, write
from mpi4py import MPI

import codedla

world = MPI.COMM_WORLD
pids = world.allgather(os.getpid())
survivors = world.Create_group(world.Get_group().Excl([2])) if world.rank != 2 else None
A, B = np.arange(600.0).reshape(30, 20), np.arange(500.0).reshape(20, 25)


def product_is_right(pool):
    return bool(np.allclose(codedla.matmul(A, B, pool=pool, tolerate=1), A @ B))


result = {}
with codedla.MPIPool(world) as pool:
    if pool is not None:
        note_shared_memory()
        os.kill(pids[2], signal.SIGKILL)
        result["first"] = product_is_right(pool)
try:
    with codedla.MPIPool(world) as pool:
        result["second"] = "began"
except codedla.UsageError as error:
    result["second"] = str(error)
with codedla.MPIPool(survivors) as pool:
    if pool is not None:
        result["others"] = product_is_right(pool)
        write("result", result)
