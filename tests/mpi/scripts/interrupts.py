"""Interrupts at random moments, exceptions and products out of progress functions, threads."""

from __future__ import annotations

import os
import random
import signal
import threading

import numpy as np
from common import note_shared_memory, write
from mpi4py import MPI

import codedla

ROUNDS = 100
random.seed(5)
rng = np.random.default_rng(5)
A, B = rng.standard_normal((300, 400)), rng.standard_normal((400, 300))


def right(pool):
    return bool(np.allclose(codedla.matmul(A, B, pool=pool, tolerate=1), A @ B))


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def interrupted(pool):
    """Multiply until a signal comes; it comes anywhere, also while an order is being sent."""
    try:
        # Inside: the signal may come before start() has returned.
        threading.Timer(random.random() * 0.012, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in range(1000):
            codedla.matmul(A, B, pool=pool, tolerate=1)
    except KeyboardInterrupt:
        return True
    return False


def refuse(*_):
    raise RuntimeError("the caller's own")


with codedla.MPIPool(MPI.COMM_WORLD) as pool:
    if pool is not None:
        note_shared_memory()
        result = {}
        outcomes = [(interrupted(pool), right(pool)) for _ in range(ROUNDS)]
        result["interrupted"] = sum(hit for hit, _ in outcomes)
        result["right after"] = sum(good for _, good in outcomes)
        result["progress raises"] = [
            (error_of(lambda: codedla.matmul(A, B, pool=pool, progress=refuse)), right(pool))
            for _ in range(10)
        ]
        inner = error_of(lambda: codedla.matmul(A, B, pool=pool, progress=lambda *_: right(pool)))
        result["product inside"] = (inner, right(pool))
        inner = error_of(lambda: codedla.matmul(A, B, pool=pool, progress=lambda *_: pool.close()))
        result["close inside"] = (inner, right(pool))
        counted = []
        codedla.matmul(A, B, pool=pool, progress=lambda *numbers: counted.append(numbers))
        result["counted"] = counted
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(right(pool))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        result["threads"] = seen
        write("result", result)
