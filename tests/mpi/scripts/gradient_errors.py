"""Two gradients on one pool; one of them fails at times, NaN passes, a rank is lost in between."""

from __future__ import annotations

import os
import signal
import sys
import warnings

import numpy as np
from common import FOLDER, WORDS, write
from scipy.optimize import minimize

import codedla
from codedla.mpi import launch, program

KILL = WORDS[0] == "kill"
rank = launch.world_from_env()[0]
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))
RNG = np.random.default_rng(2719)
X = RNG.integers(-3, 4, (40, 4)).astype(np.float32)
Y = RNG.standard_normal(40).astype(np.float32)


def squares(theta, x, y):
    rest = x @ theta - y
    return 0.5 * float(rest @ rest), x.T @ rest


def fragile(theta, x):
    if theta[0] > 1 and len(x):
        raise ValueError("too far")
    return float(x.sum() * theta[0]), x.sum(axis=0) * theta[0]


def master(pool):
    warnings.simplefilter("ignore", codedla.CodedlaWarning)
    found = {"errors": []}
    ones = np.ones(4)
    with (
        codedla.CodedGradient(squares, (X, Y), pool=pool, stragglers=1) as one,
        codedla.CodedGradient(fragile, X[:2], pool=pool, scheme="uncoded") as two,
    ):
        for _ in range(3):
            one(ones)
            try:
                two(2 * ones)
            except codedla.WorkerError as error:
                found["errors"].append("too far" in str(error))
            found["nan"] = bool(np.isnan(two(np.nan * ones)[0]))
            found["two"] = abs(two(ones)[0] - float(X[:2].sum()))
        if KILL:
            os.kill(int((FOLDER / "pid2").read_text()), signal.SIGKILL)
        options = {"gtol": 1e-9, "ftol": 1e-15}
        best = minimize(one, np.zeros(4), jac=True, method="L-BFGS-B", options=options)
        found["two after"] = abs(two(ones)[0] - float(X[:2].sum()))
    exact = np.linalg.lstsq(X.astype(float), Y.astype(float), rcond=None)[0]
    found["best"] = float(np.abs(best.x - exact).max())
    write("result", found)
    return 0


sys.exit(program.run(master))
