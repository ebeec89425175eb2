"""Late workers on real ranks, whose shares idle ones compute.

Words: code, blocks, tolerate, whether to speculate (yes or no), faults.

Every scenario runs twice in one pool: the second product meets the workers that are still late.
"""

from __future__ import annotations

import time

import numpy as np
from common import WORDS, faults, note_shared_memory, write

import codedla
from codedla.mpi import program

code, blocks, tolerate, speculate, *specs = WORDS
RNG = np.random.default_rng(18_047)


def run(pool):
    note_shared_memory()
    pool.trace = True
    reports = []
    for _ in range(2):
        a, b = RNG.standard_normal((120, 80)), RNG.standard_normal((80, 90))
        began = time.perf_counter()
        c, report = codedla.matmul(
            a,
            b,
            pool=pool,
            code=code,
            blocks=(int(blocks), 1),
            tolerate=int(tolerate),
            speculate=speculate == "yes",
            return_report=True,
        )
        entry = report.to_dict()
        entry["seconds"] = time.perf_counter() - began
        entry["error"] = float(np.abs(c - a @ b).max())
        reports.append(entry)
    write("result", reports)
    return 0


raise SystemExit(program.run(run, faults=faults(specs)))
