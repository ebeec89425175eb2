"""Gradient descent on ranks that are late, killed or wrong. Words: how many are killed."""

from __future__ import annotations

import os
import signal
import time
import warnings

import numpy as np
from common import FOLDER, WORDS, write

import codedla
from codedla.iterative.mlp import MLP
from codedla.mpi import launch, program

KILLED = int(WORDS[0])
rank, n_ranks = launch.world_from_env()
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))
RNG = np.random.default_rng(4127)
NET = MLP((20, 4))
X, Y = RNG.standard_normal((600, 20)), RNG.integers(0, 4, 600)


def loss_and_grad(theta, X, y):
    """Rank 2 is late in every round."""
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMIX_RANK")) == "2":
        time.sleep(0.05)
    return NET.loss_and_grad(theta, X, y)


def descend(gradient, kill=None):
    theta, losses = NET.start(3), []
    for step in range(16):
        if step == 6 and kill is not None:
            kill()
        loss, slope = gradient(theta)
        losses.append(loss)
        theta = theta - 0.5 / len(X) * slope
    return losses


def kill():
    for victim in range(3, 3 + KILLED):
        os.kill(int((FOLDER / f"pid{victim}").read_text()), signal.SIGKILL)


def master(pool):
    warnings.simplefilter("ignore", codedla.CodedlaWarning)
    expected = descend(lambda theta: NET.loss_and_grad(theta, X, Y))
    with codedla.CodedGradient(loss_and_grad, (X, Y), pool=pool, stragglers=2) as cg:
        cg(NET.start(3))
        began, sent = time.perf_counter(), cg.bytes["sent"]
        losses = descend(cg, kill)
        seconds = time.perf_counter() - began
        write(
            "result",
            {
                "worst": float(np.abs(np.array(losses) / expected - 1).max()),
                "seconds": seconds,
                "stragglers": cg.stragglers,
                "lost": sorted(cg.last_report.lost),
                "redispatched": cg.last_report.redispatched,
                "sent": cg.bytes["sent"] - sent,
                "parameters": 8 * NET.n_parameters,
                "data": X.nbytes + Y.nbytes,
            },
        )
    return 0


raise SystemExit(program.run(master))
