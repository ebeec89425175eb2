"""Train a network whose weights stay on the workers, coded; only minibatches move.

python examples/coded_network.py                 in this process
mpirun -n 7 python examples/coded_network.py     a master and six workers
"""

from importlib.resources import files

import numpy as np
from _run import run

import codedla


def main(pool):
    """Learn to read handwritten digits of 8 x 8 pixels."""
    with np.load(files("codedla") / "data" / "digits.npz") as digits:
        X, y = digits["images"] / 16.0, digits["labels"]
    held_out = np.arange(len(X)) % 5 == 0
    with codedla.CodedNetwork((64, 40, 10), pool=pool, tolerate=1, rate=0.3) as network:
        losses = network.fit(X[~held_out], y[~held_out], epochs=6, batch=32)
        right = np.mean(network.predict(X[held_out]).argmax(axis=1) == y[held_out])
        stored = network.codes[0]["whole"].blocks
    print(f"loss {losses[0]:.2f} -> {np.mean(losses[-10:]):.2f} in {len(losses)} steps")
    print(f"{right:.1%} of the held-out digits are right; weights in {stored} blocks")
    return right > 0.92


if __name__ == "__main__":
    run(main, workers=6)
