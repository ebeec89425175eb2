"""``program.run``, as the command line uses it. Words: products, losses tolerated, faults."""

from __future__ import annotations

import logging
import sys
import time

import numpy as np
from common import WORDS, faults, note_shared_memory, write

import codedla
from codedla.mpi import program

count, tolerate, *specs = WORDS
logging.basicConfig(level=logging.WARNING)


def job(pool):
    note_shared_memory()
    rng = np.random.default_rng(90031)
    worst, lost, seconds = 0.0, {}, []
    for _ in range(int(count)):
        a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 260))
        began = time.perf_counter()
        product, report = codedla.matmul(
            a, b, pool=pool, code="mds", blocks=(2, 1), tolerate=int(tolerate), return_report=True
        )
        seconds.append(time.perf_counter() - began)
        worst = max(worst, float(np.abs(product - a @ b).max()))
        lost.update({str(k): why for k, why in report.lost.items()})
        write("result", {"worst": worst, "lost": lost, "seconds": seconds})
        time.sleep(0.1)
    return 0


sys.exit(program.run(job, faults=faults(specs)))
