"""Workers without work: what do they cost?"""

from __future__ import annotations

import time

import numpy as np
import psutil
from common import note_shared_memory, write
from mpi4py import MPI

import codedla

SECONDS = 3.0

with codedla.MPIPool(MPI.COMM_WORLD) as pool:
    if pool is not None:
        note_shared_memory()
        codedla.matmul(np.eye(50), np.eye(50), pool=pool)
        while not all(link.pid for link in pool._master.links):
            # A worker whose reply was not needed may not have greeted yet.
            pool._master.lines.poll()
        workers = [psutil.Process(link.pid) for link in pool._master.links]
        before = [sum(w.cpu_times()[:2]) for w in workers]
        time.sleep(SECONDS)
        shares = [
            (sum(w.cpu_times()[:2]) - then) / SECONDS
            for w, then in zip(workers, before, strict=True)
        ]
        write("result", shares)
