"""A few different products, each checked. Words: products, rows, seconds between, faults."""

from __future__ import annotations

import time

import numpy as np
from common import WORDS, faults, note_shared_memory, write
from mpi4py import MPI

import codedla

count, rows, pause, *specs = WORDS

with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        note_shared_memory()
        rng = np.random.default_rng(90023)
        worst, reports, began = 0.0, [], time.perf_counter()
        for _ in range(int(count)):
            a = rng.standard_normal((int(rows), 50))
            b = rng.standard_normal((50, int(rows)))
            product, report = codedla.matmul(a, b, pool=pool, tolerate=1, return_report=True)
            worst = max(worst, float(np.abs(product - a @ b).max()))
            reports.append({"stragglers": report.stragglers, "lost": sorted(report.lost)})
            time.sleep(float(pause))
        seconds = time.perf_counter() - began
        write("result", {"worst": worst, "reports": reports, "seconds": seconds})
