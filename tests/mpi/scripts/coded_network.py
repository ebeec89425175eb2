"""Train a coded network, with one rank killed in the middle, beside the same one in plain NumPy."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings

import numpy as np
from common import FOLDER, WORDS, faults, note_shared_memory, write

import codedla
from codedla.mpi import launch, program

rank, _ = launch.world_from_env()
VICTIM, STEPS, RATE, BATCH = 4, 60, 0.05, 16
SIZES = (300, 41, 5)
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))


def plain_step(weights, x, y):
    """One step of the same network in NumPy; changes the weights."""
    (w, b), (v, c) = weights
    h = np.tanh(w @ x + b[:, None])
    s = v @ h + c[:, None]
    p = np.exp(s) / np.exp(s).sum(axis=0)
    d = p - np.eye(SIZES[-1])[:, y]
    e = (v.T @ d) * (1 - h**2)
    for matrix, offset, delta, below in ((v, c, d, h), (w, b, e, x)):
        matrix -= RATE / BATCH * delta @ below.T
        offset -= RATE / BATCH * delta.sum(axis=1)


def work(pool):
    note_shared_memory()
    warnings.simplefilter("ignore", codedla.CodedlaWarning)
    rng = np.random.default_rng(20177)
    X = rng.standard_normal((400, SIZES[0]))
    y = np.argmax(X @ rng.standard_normal((SIZES[0], SIZES[-1])), axis=1)
    net = codedla.CodedNetwork(
        SIZES, pool=pool, blocks=(2, 1), activation="tanh", rate=RATE, checkpoint=10, correct=0
    )
    with net:
        weights = net.weights()
        began = time.perf_counter()
        for step in range(STEPS):
            if step == STEPS // 2:
                os.kill(int((FOLDER / f"pid{VICTIM}").read_text()), signal.SIGKILL)
            rows = rng.choice(len(X), BATCH, replace=False)
            net.step(X[rows], y[rows])
            plain_step(weights, X[rows].T, y[rows])
        seconds = time.perf_counter() - began
        pairs = zip(sum(net.weights(), ()), sum(weights, ()), strict=True)
        error = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)
        tally = net.tally
    write(
        "results",
        {
            "error": error,
            "seconds": seconds,
            "lost": sorted(tally.lost),
            "caught_up": tally.replayed + tally.regenerated,
            "sent": tally.sent,
        },
    )
    return 0


sys.exit(program.run(work, faults=faults(WORDS)))
