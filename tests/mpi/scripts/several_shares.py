"""Codes with several shares a worker: rank 1 is slow in every task, rank 3 is killed half-way."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
from common import FOLDER, faults, note_shared_memory, write

import codedla
from codedla.mpi import launch, program

rank, _ = launch.world_from_env()
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))

CASES = {
    "lt": {"code": "lt", "blocks": 60},
    "batch": {"code": "batch", "blocks": 2},
    "convolutional": {"code": "convolutional", "blocks": 3},
    "bivariate": {"code": "bivariate", "blocks": (4, 2)},
}


def work(pool):
    note_shared_memory()
    rng = np.random.default_rng(5150)
    a, b = rng.standard_normal((1200, 500)), rng.standard_normal((500, 400))
    expected = a @ b
    result = {"a": a.nbytes, "b": b.nbytes}
    for killed in (False, True):
        if killed:
            os.kill(int((FOLDER / "pid3").read_text()), signal.SIGKILL)
        for name, options in CASES.items():
            seen = []
            multiply = codedla.matmul if name == "bivariate" else codedla.matvec
            c, report = multiply(
                a,
                b,
                pool=pool,
                return_report=True,
                progress=lambda *numbers, seen=seen: seen.append(numbers),
                **options,
            )
            result[f"{name} {killed}"] = {
                "error": float(np.abs(c - expected).max()),
                "progress": seen,
                "report": json.loads(report.to_json()),
            }
    write("result", result)
    return 0


# Rank 1 is three times as slow as the others, whatever the machine is doing besides.
DELAYS = [f"delay:{worker}:{0.06 if worker == 1 else 0.02}" for worker in range(1, 5)]
sys.exit(program.run(work, faults=faults(DELAYS)))
