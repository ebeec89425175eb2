"""Twelve rounds at once on shares of B that stay. Words: scenarios, one after the other; faults."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from common import FOLDER, WORDS, faults, note_shared_memory, write

from codedla.blocks import Grid
from codedla.codes import registry
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.round import Operand, Round
from codedla.errors import CodedlaError
from codedla.mpi import launch, program

scenarios = [word for word in WORDS if ":" not in word]
rank, n_ranks = launch.world_from_env()
ROUNDS, WORKERS, BLOCKS, VICTIM = 12, n_ranks - 1, 3, 2
RNG = np.random.default_rng(50021)
A, B = RNG.standard_normal((ROUNDS * 240, 600)), RNG.standard_normal((600, 800))
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))
PAUSE = 2.0


def make_job(index, keys, out, checked):
    code = registry.get("mds")(WORKERS, Grid(BLOCKS, 1, 1))
    rows = slice(index * 240, (index + 1) * 240)
    parts = A[rows].reshape(BLOCKS, 240 // BLOCKS, -1)

    def operands(share):
        encoded = Operand(0, lambda: np.tensordot(code.generator_a[share], parts, 1))
        return encoded, Operand(keys[share], lambda: B)

    def check(share, reply):
        return bool(np.allclose(reply, operands(share)[0].supply() @ B))

    return Round(
        shares=code.shares,
        operands=operands,
        collector=Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(WORKERS)),
        decoder=make_decoder(code, out[rows], np.dtype(float)),
        check=check if checked else None,
    )


def signal_to(rank, number):
    os.kill(int((FOLDER / f"pid{rank}").read_text()), number)


def disturb(scenario):
    """Do what the scenario says, when a few rounds are done."""
    if scenario == "killed":
        signal_to(VICTIM, signal.SIGKILL)
    elif scenario == "paused":
        signal_to(VICTIM, signal.SIGSTOP)
    elif scenario == "raise":
        raise KeyError("done")


def stream(pool, scenario):
    """Run all rounds once; return what there is to say of them."""
    out, jobs, rounds, events = np.full((len(A), B.shape[1]), np.nan), [], {}, []
    sent = 0
    keys = [pool.new_key() for _ in range(WORKERS)]

    def draw():
        for index in range(ROUNDS):
            jobs.append(make_job(index, keys, out, scenario == "wrong"))
            yield jobs[-1]

    def done(index, outcome):
        nonlocal sent
        assert index not in rounds
        computed_by = jobs[index].collector.computed_by
        rounds[index] = sorted(worker + 1 for worker in computed_by.values())
        events.extend((e.kind, e.worker + 1) for e in outcome.events if e.kind != "reply")
        sent += outcome.sent
        if len(rounds) == 3:
            disturb(scenario)

    began, raised = time.perf_counter(), ""
    try:
        pool.run_all(draw(), done)
    except (KeyError, CodedlaError) as error:
        raised = str(error)
    seconds = time.perf_counter() - began
    pool.drop(keys)
    # Of a round that was not decoded in its place, the decoder knows where.
    complete = [jobs[index] for index in rounds if not raised]
    whole = [job.decoder.output for job in complete]
    expected = [A[index * 240 : (index + 1) * 240] @ B for index in rounds if not raised]
    errors = [float(np.abs(c - e).max()) for c, e in zip(whole, expected, strict=True)]
    return {
        "rounds": list(rounds.values()),
        "events": events,
        "sent": sent,
        "seconds": seconds,
        "raised": raised,
        "worst": max(errors, default=0.0),
    }


def work(pool):
    note_shared_memory()
    results = []
    for scenario in scenarios:
        results.append(stream(pool, scenario))
        if scenario == "paused":
            time.sleep(max(0.0, PAUSE - results[-1]["seconds"]))
            signal_to(VICTIM, signal.SIGCONT)
    write("results", results)
    return 0


sys.exit(program.run(work, faults=faults([word for word in WORDS if ":" in word])))
