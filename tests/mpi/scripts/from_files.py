"""Shares made by the workers, with every rank able to read the files and with rank 2 not."""

from __future__ import annotations

import os

import numpy as np
from common import FOLDER, note_shared_memory, write
from mpi4py import MPI

import codedla

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
# Every rank opens the path by its own working directory.
os.chdir(FOLDER)
values = np.random.default_rng(33029).standard_normal((640, 480))
if rank == 0:
    np.save("a.npy", values)
    np.save("b.npy", values.T)
comm.Barrier()


def figures(product, expected, report):
    return {
        "error": float(np.abs(product - expected).max()),
        "sent": report.bytes["sent"],
        "lost": sorted(report.lost.items()),
    }


for phase in ("all", "not rank 2", "rank 2 again"):
    os.chdir("/" if phase == "not rank 2" and rank == 2 else FOLDER)
    with codedla.MPIPool(comm) as pool:
        if pool is None:
            continue
        note_shared_memory()
        a, b = (np.load(f"/proc/self/cwd/{name}.npy", mmap_mode="r") for name in "ab")
        x = values[0]
        found = {}
        for tolerate in (1, 0):
            whole, report = codedla.matmul(
                a, b, pool=pool, tolerate=tolerate, encode="workers", return_report=True
            )
            found[f"matmul {tolerate}"] = figures(whole, values @ values.T, report)
        y, report = codedla.matvec(a, x, pool=pool, encode="workers", return_report=True)
        found["matvec"] = figures(y, values @ x, report)
        with codedla.store(a, pool=pool, encode="workers") as stored:
            for turn in range(3):
                y = stored @ x
                found[f"store {turn}"] = figures(y, values @ x, stored.last_report)
        here, report = codedla.matmul(a, b, pool=pool, tolerate=1, return_report=True)
        found["master"] = figures(here, values @ values.T, report)
        write(phase.replace(" ", "_"), found)
