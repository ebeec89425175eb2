"""Fixed points on real ranks, with one worker that sleeps in every task and one that is killed.

Words: faults. PageRank by exact and by substitute decoding in turns until well after the kill, then
a coded linear inverse by a deadline.
"""

from __future__ import annotations

import time

import numpy as np
from common import WORDS, faults, note_shared_memory, write

import codedla
from codedla.mpi import program

RNG = np.random.default_rng(70_601)
BEYOND = 1.5
"""Seconds of PageRank; the kill comes sooner."""


def run(pool):
    note_shared_memory()
    began = time.perf_counter()
    graph = np.stack([RNG.integers(0, 160, 900), RNG.integers(0, 200, 900)], axis=1)
    with codedla.SerialPool(1) as alone:
        expected = codedla.pagerank(graph, pool=alone, tol=1e-14).ranks
    turns = []
    while time.perf_counter() - began < BEYOND or len(turns) < 4:
        decode = ("exact", "substitute")[len(turns) % 2]
        started = time.perf_counter()
        found = codedla.pagerank(graph, pool=pool, decode=decode, tolerate=2, tol=1e-11)
        turns.append(
            {
                "decode": decode,
                "seconds": time.perf_counter() - started,
                "rounds": found.rounds,
                "error": float(np.abs(found.ranks - expected).sum()),
                "tally": found.tally.to_dict(),
            }
        )
    B = 0.9 * np.linalg.qr(RNG.standard_normal((80, 80)))[0]
    R = RNG.standard_normal((80, 6))
    started = time.perf_counter()
    inverse = codedla.linear_inverse(B, R, pool=pool, rate=0.9, seconds=0.2, tolerate=2, grace=1.0)
    write(
        "result",
        {
            "turns": turns,
            "inverse": {
                "seconds": time.perf_counter() - started,
                "iterations": inverse.iterations,
                "error": float(np.abs(inverse.x - np.linalg.solve(np.eye(80) - B, R)).max()),
            },
        },
    )
    return 0


raise SystemExit(program.run(run, faults=faults(WORDS)))
