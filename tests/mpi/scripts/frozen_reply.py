"""A rank freezes in the middle of a large reply; the caller's array is used again. Word: map."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
from common import FOLDER, WORDS, note_shared_memory, write
from mpi4py import MPI

import codedla

TRIALS = 8
comm = MPI.COMM_WORLD
pids = comm.gather(os.getpid())
random.seed(7)
rng = np.random.default_rng(7)
with codedla.MPIPool(comm) as pool:
    if pool is not None:
        note_shared_memory()
        A, B = rng.standard_normal((2400, 100)), rng.standard_normal((100, 2400))
        expected = -(A @ B)
        if "map" in WORDS:
            out = np.memmap(FOLDER / "out", np.float64, "w+", shape=expected.shape)
        else:
            out = np.empty(expected.shape)
        result = {"failed": 0, "refused": 0, "right": 0, "wrong": 0}
        for trial in range(TRIALS):
            victim = pids[1 + trial % 3]
            freeze = threading.Timer(random.random() * 0.1, os.kill, (victim, signal.SIGSTOP))
            freeze.start()
            try:
                codedla.matmul(A, B, pool=pool, out=out, code="uncoded", blocks=(1, 3), timeout=0.4)
            except codedla.NotDecodable:
                result["failed"] += 1
            freeze.join()
            try:
                # Two workers suffice, in another partition: what still comes in would spoil it.
                codedla.matmul(-A, B, pool=pool, out=out, code="mds", blocks=(2, 1), tolerate=1)
                os.kill(victim, signal.SIGCONT)
                time.sleep(0.1)
                codedla.matvec(A, B[:, 0], pool=pool)
                right = bool(np.allclose(out, expected))
                result["right" if right else "wrong"] += 1
            except codedla.UsageError:
                result["refused"] += 1
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.05)
        write("result", result)
