"""Something goes wrong. Word: what."""

from __future__ import annotations

import time

import numpy as np
from common import WORDS, faults, note_shared_memory, write
from mpi4py import MPI

import codedla

(what,) = WORDS
rank = MPI.COMM_WORLD.Get_rank()
if what == "worker outside" and rank == 2:
    raise RuntimeError("a worker fails before the pool")
specs = {"task": ["raise:2:2"]}.get(what, [])
with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        note_shared_memory()
        A = np.ones((400, 300))
        with codedla.store(A, pool=pool, tolerate=0) as stored:
            stored @ np.ones(300)
            write("started", True)
            if what == "master":
                raise RuntimeError("the master fails inside the pool")
            if what == "sleep":
                time.sleep(60)
            if what == "caught":
                try:
                    raise RuntimeError("the caller handles this")
                except RuntimeError:
                    pass
            stored @ np.ones(300)
if what in ("worker last", "master last"):
    time.sleep(0.5 * (rank in (0, 2)))  # the others are in MPI_Finalize by then
if what in ("worker after", "worker last") and rank == 2:
    raise RuntimeError("a worker fails after the pool")
if what == "master last" and rank == 0:
    raise RuntimeError("the master fails after the pool")
if what == "worker after":
    MPI.COMM_WORLD.Barrier()
write(f"end{rank}", True)
