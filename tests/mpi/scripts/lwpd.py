"""Training on coded derivatives on real ranks. Words: update, network, what happens, faults."""

from __future__ import annotations

import os
import signal

import numpy as np
from common import FOLDER, WORDS, faults, write
from mpi4py import MPI

import codedla
from codedla.iterative.lwpd_blocks import batch_rows
from codedla.iterative.mlp import MLP

update, network, event, *specs = WORDS
if network == "module":
    # It may take so long that ranks are taken for silent ones, and steps are made without them.
    import torch
RANK = MPI.COMM_WORLD.Get_rank()
(FOLDER / f"pid{RANK}").write_text(str(os.getpid()))
SIZES, RATE, BATCH = (6, 7, 4), 0.3, 60
STEPS = 800 if update == "immediate" else 200
VICTIM = 4


def data():
    """Four classes that a small network can tell apart."""
    rng = np.random.default_rng(90313)
    y = rng.integers(0, 4, 240)
    return (3 * rng.standard_normal((4, 6))[y] + rng.standard_normal((240, 6))), y


def module():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4))


def plain(theta, X, y):
    """Descent in one process on the same batches, if the network is a perceptron."""
    model = MLP(SIZES)
    for version in range(STEPS):
        rows = batch_rows(version, len(X), BATCH, 0)
        theta = theta - RATE * model.loss_and_grad(theta, X[rows], y[rows])[1] / BATCH
    return theta


def main(pool):
    X, y = data()
    trained = SIZES if network == "perceptron" else module()
    options = {"update": update, "rate": RATE, "batch": BATCH, "dtype": np.float64}
    times, used, after = [], set(), set()

    def watch(step):
        times.append(step.seconds)
        used.update(step.workers)
        if step.version > STEPS * 3 // 4:
            after.update(step.workers)
        if event == "kill" and step.version == STEPS // 2:
            os.kill(int((FOLDER / f"pid{VICTIM}").read_text()), signal.SIGKILL)

    with codedla.LWPD(trained, X, y, pool=pool, **options) as lwpd:
        start = lwpd.theta.copy()
        lwpd.run(STEPS, watch)
        report = lwpd.report
        result = {
            "accuracy": lwpd.accuracy(X, y),
            "off": float(np.abs(lwpd.theta - plain(start, X, y)).max()),
            "seconds": times[-1],
            "lost": sorted(report.lost),
            "used": sorted(int(w) + 1 for w in used),
            "after": sorted(int(w) + 1 for w in after),
            "ages": {str(rank): sorted(ages) for rank, ages in report.staleness.items()},
        }
    write("result", result)


with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        main(pool)
