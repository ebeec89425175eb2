"""Logistic regression while one worker is late in every step: nobody waits, nothing changes.

python examples/gradient_coding.py                 in this process
mpirun -n 7 python examples/gradient_coding.py     a master and six workers
"""

import time

import numpy as np
from _run import run
from scipy.optimize import minimize

import codedla
from codedla.mpi.launch import world_from_env

LATE_RANK, DELAY = 2, 0.05


def labelled_points(rows=1200, features=20, seed=70_141):
    """Return points and whether each is on one side of a plane, mostly."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, features))
    sides = X @ rng.standard_normal(features) + rng.standard_normal(rows)
    return X, (sides > 0).astype(float)


def logistic(theta, X, y):
    """Return the loss, summed over the rows, and its gradient."""
    scores = X @ theta
    loss = np.logaddexp(0.0, scores).sum() - y @ scores
    return loss, X.T @ (1 / (1 + np.exp(-scores)) - y)


def late_logistic(theta, X, y):
    """The same, on a rank that has other things to do first."""
    world = world_from_env()
    if world is not None and world[0] == LATE_RANK:
        time.sleep(DELAY)
    return logistic(theta, X, y)


def main(pool):
    """Minimize with the workers' gradients, and without workers; compare."""
    X, y = labelled_points()
    start = np.zeros(X.shape[1])
    began = time.perf_counter()
    with codedla.CodedGradient(late_logistic, (X, y), pool=pool, stragglers=1) as gradient:
        found = minimize(gradient, start, jac=True, method="L-BFGS-B")
        seconds = time.perf_counter() - began
        late = ", ".join(f"rank {rank}: {n}" for rank, n in sorted(gradient.stragglers.items()))
        print(f"coded: loss {found.fun:.9f} after {gradient.rounds} gradients in {seconds:.2f} s")
        print(f"gradients that went on without a rank: {late or 'none'}")
    plain = minimize(logistic, start, args=(X, y), jac=True, method="L-BFGS-B")
    print(f"plain: loss {plain.fun:.9f} after {plain.nfev} gradients")
    return bool(found.success and abs(found.fun / plain.fun - 1) < 1e-6)


if __name__ == "__main__":
    run(main, workers=6)
