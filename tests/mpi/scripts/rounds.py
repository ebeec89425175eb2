"""Many rounds with a stored matrix. Words: rounds, rows, faults."""

from __future__ import annotations

import time

import numpy as np
import psutil
from common import WORDS, faults, note_shared_memory, write
from mpi4py import MPI

import codedla

rounds, rows, *specs = WORDS
rounds, rows = int(rounds), int(rows)

with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        note_shared_memory()
        rng = np.random.default_rng(90019)
        A = rng.standard_normal((rows, 20))
        worst, sends, memory, late = 0.0, 0, [], 0
        ranks = None
        with codedla.store(A, pool=pool) as stored:
            began = time.perf_counter()
            for i in range(rounds):
                x = rng.standard_normal(20)
                worst = max(worst, float(np.abs(stored @ x - A @ x).max()))
                late += len(stored.last_report.stragglers)
                if (i + 1) % 100 == 0:
                    links = pool._master.links
                    if ranks is None:
                        ranks = [psutil.Process()] + [psutil.Process(k.pid) for k in links]
                    memory.append([rank.memory_info().rss for rank in ranks])
                    sends = max(sends, max(len(k.sends) for k in links))
            seconds = time.perf_counter() - began
        write(
            "result",
            {"worst": worst, "seconds": seconds, "sends": sends, "memory": memory, "late": late},
        )
