"""Shares and replies of every size from nothing to 64 MiB, both ways."""

from __future__ import annotations

import numpy as np
from common import note_shared_memory, write
from mpi4py import MPI

import codedla

BYTES = (0, 8, 4096, 16 * 1024, 64 * 1024, 2**20, 64 * 2**20)

with codedla.MPIPool(MPI.COMM_WORLD) as pool:
    if pool is not None:
        note_shared_memory()
        done = {}
        for size in BYTES:
            for count in sorted({max(size // 8 + extra, 0) for extra in (-1, 0, 1)}):
                if size > 2**20 and count != size // 8:
                    continue
                options = {"pool": pool, "code": "khatri-rao", "blocks": (2, 1)}
                column = np.arange(2.0 * count)[:, None]
                got = codedla.matmul(column, np.full((1, 1), 3.0), **options)
                right = np.array_equal(got, 3.0 * column)
                row = np.ones((2, count))
                dot = codedla.matmul(row, np.ones((count, 1)), **options)
                done[str(8 * count)] = right and np.array_equal(dot, np.full((2, 1), float(count)))
        write("result", done)
