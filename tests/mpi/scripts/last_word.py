"""A worker is frozen; the master still has something to do when its pool is closed."""

from __future__ import annotations

import time

import numpy as np
from common import faults, note_shared_memory, write
from mpi4py import MPI

import codedla

with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(["hang:2:0.3"])) as pool:
    if pool is not None:
        note_shared_memory()
        a = np.random.default_rng(66260).standard_normal((300, 200))
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            c = codedla.matmul(a, a.T, code="mds", blocks=(2, 1), pool=pool)
            time.sleep(0.05)
if MPI.COMM_WORLD.Get_rank() == 0:
    time.sleep(2)
    write("worst", float(np.abs(c - a @ a.T).max()))
