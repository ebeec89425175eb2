"""Lightweight projective derivative codes: what they know, and networks trained by them.

First, without workers: eigenvalues of the codes' frames, and the errors of decoders after some of
the replies, beside those of the prototype they were taken from.

Then softmax regression and a network with two hidden layers (MNIST as IDX files with
``--data FOLDER``, made-up images of that size otherwise) are trained, an MPI job each, by every
method for the same time: with a quarter of the workers late (they sleep in every task, and hear a
cancellation), and with one worker killed (``kill -9``) when a quarter of the time is over.

* *uncoded* waits for everybody; *gradient coding* (cyclic) and *MDS of blocks* (any six of eight
  codewords) wait for six, and cancel the others: their gradients are exact.
* *asynchronous copies* and *LWPD, immediate*, wait for nobody: each reply makes a step of its own.
* *LWPD, peel*, waits until peeling knows all blocks, and cancels the others.

Test accuracy is computed when the clock has stopped. *To target* is the time until it is 91 %
(softmax) or 96 % three times in a row; data are sent within it, and *accuracy* is that of the last
parameters, which scatter with constant steps. *Steps* are changes of the parameters; of *immediate*
ones, a reply each, k make a whole gradient step. A worker of LWPD or MDS goes forward and back over
the whole batch, and saves only the last product of each layer and most of the reply; one of
gradient coding does three eighths of the batch.

    python benchmarks/lwpd.py [--data FOLDER] [--seconds 6 16] [--delay 0.1] [--methods NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _lwpd import codes
from _lwpd.methods import METHODS, Course, Task

from codedla.iterative.mlp import MLP

NETWORKS: dict[str, dict[str, Any]] = {
    "softmax": {"sizes": (784, 10), "target": 0.91, "rate": 0.3, "batch": 256},
    "deep": {"sizes": (784, 200, 100, 10), "target": 0.96, "rate": 0.2, "batch": 128},
}
LATE, KILLED = "quarter late", "one killed"
LATE_RANKS = (3, 6)
VICTIM = 2
FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST_FILES = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
SNAPSHOTS = 60
"""Times at which the parameters are kept."""
IN_A_ROW = 3
"""Of these times, at which the accuracy must be at the target: chance comes to it now and then."""


def read(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images in bytes and labels, for training and for the test."""
    if args.data is None:
        rng = np.random.default_rng(60029)
        labels = rng.integers(0, 10, args.images + args.images // 6)
        strokes = rng.random((10, 784)) < 0.2
        images = (strokes[labels] * rng.integers(0, 256, (len(labels), 784))).astype(np.uint8)
        n = args.images
        return images[:n], labels[:n], images[n:], labels[n:]
    from codedla.cli.datasets import load_data

    train, test = (
        load_data(*(str(Path(args.data) / name) for name in names)) for names in (FILES, TEST_FILES)
    )
    return train.X[: args.images], train.y[: args.images], test.X, test.y


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside: train by one method, write what was measured."""
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import launch, program

    folder = Path(args.result).parent
    rank = launch.world_from_env()[0]
    (folder / f"pid{rank}").write_text(str(os.getpid()))

    def job(pool: Any) -> int:
        import codedla

        warnings.simplefilter("ignore", codedla.CodedlaWarning)
        X, y, test_X, test_y = read(args)
        network = NETWORKS[args.network]
        alive = args.condition == KILLED

        def after(seconds: float) -> None:
            nonlocal alive
            if alive and seconds >= args.budget / 4:
                alive = False
                os.kill(int((folder / f"pid{VICTIM}").read_text()), signal.SIGKILL)

        task = Task(network["sizes"], X, y, network["rate"], network["batch"], args.budget)
        course = Course(args.budget / SNAPSHOTS, after)
        found = METHODS[args.method].train(task, pool, course)
        net, images = MLP(task.sizes), test_X.astype(np.float32) / 255
        accuracy, losses = [], []
        for theta in course.thetas:
            scores = net.forward(theta, images)[1]
            accuracy.append(float(np.mean(scores.argmax(axis=1) == test_y)))
            losses.append(net.errors(scores, test_y)[0] / len(test_y))
        found |= {"error": 0.0, "seconds": course.seconds, "accuracy": accuracy, "losses": losses}
        Path(args.result).write_text(json.dumps(found))
        return 0

    late = LATE_RANKS if args.condition == LATE else ()
    return program.run(job, faults=[parse_fault(f"delay:{r}:{args.delay}") for r in late])


def reached(seconds: list[float], accuracy: list[float], target: float) -> float:
    """When the accuracy is first at the target three times in a row; infinite if it never is."""
    above = [each >= target for each in accuracy]
    starts = range(len(above) - IN_A_ROW + 1)
    return next((seconds[i] for i in starts if all(above[i : i + IN_A_ROW])), float("inf"))


def train(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all methods in turn, print tables, return their rows."""
    from codedla.mpi.launch import find_launcher

    conditions = [LATE]
    if getattr(find_launcher(), "tolerant", False):
        # Elsewhere the job ends with the rank.
        conditions.append(KILLED)
    budgets = dict(zip(NETWORKS, args.seconds, strict=True))
    cases = [(n, c, m) for n in NETWORKS for c in conditions for m in args.methods]
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(args.repeats):
        for case in cases:
            network, condition, method = case
            options = {"network": network, "condition": condition, "method": method}
            options |= {name: getattr(args, name) for name in ("data", "images", "delay")}
            options |= {"budget": budgets[network]}
            inside, leaving = _common.run_as_job(__file__, options, args.ranks, largest_error=0.0)
            inside |= {"exit": leaving}
            runs[case].append(inside)
            print(f"{case}: {inside['accuracy'][-1]:.4f}", file=sys.stderr)
    rows = [_row(case, found, args.ranks - 1) for case, found in runs.items()]
    for network in NETWORKS:
        for condition in conditions:
            some = [r for r in rows if (r["network"], r["condition"]) == (network, condition)]
            _common.print_table(
                f"{'-'.join(map(str, NETWORKS[network]['sizes']))}, {condition}, "
                f"{args.ranks - 1} workers, {budgets[network]:g} s, "
                f"{'MNIST' if args.data else 'made-up images'}, medians of {args.repeats}",
                ("method", "to target s", "accuracy", "loss", "steps", "MB", "exit s"),
                [_cells(row) for row in some],
            )
    return rows


def _row(case: tuple[str, str, str], found: list[dict[str, Any]], n: int) -> dict[str, Any]:
    network, condition, method = case
    target = NETWORKS[network]["target"]
    times = [reached(run["seconds"], run["accuracy"], target) for run in found]
    middle = found[times.index(statistics.median_low(times))]
    return {
        "network": network,
        "condition": condition,
        "method": METHODS[method].title,
        "target": target,
        "to_target": statistics.median_low(times),
        "met": statistics.median_low(times) < float("inf"),
        "accuracy": statistics.median(run["accuracy"][-1] for run in found),
        "loss": statistics.median(run["losses"][-1] for run in found),
        "steps": statistics.median(run["steps"] for run in found),
        "replies": statistics.median(run["replies"] for run in found),
        "sent": middle["sent"],
        "received": middle["received"],
        "exit": statistics.median(run["exit"] for run in found),
        "course": {name: middle[name] for name in ("seconds", "accuracy", "losses")},
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["method"],
        f"{row['to_target']:.2f}" if row["met"] else "not met",
        f"{row['accuracy']:.4f}",
        f"{row['loss']:.4f}",
        f"{row['steps']:.0f}",
        f"{(row['sent'] + row['received']) / 1e6:.0f}",
        f"{row['exit']:.2f}",
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    files = ", ".join((*FILES, *TEST_FILES))
    parser.add_argument("--data", metavar="FOLDER", help=f"where {files} are")
    parser.add_argument("--images", type=int, default=60000, help="how many to train with")
    parser.add_argument(
        "--seconds",
        nargs=2,
        type=float,
        default=[6.0, 16.0],
        metavar=("SOFTMAX", "DEEP"),
        help="how long each method trains",
    )
    parser.add_argument("--delay", type=float, default=0.1, help="seconds a late worker sleeps")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks, master included")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--trials", type=int, default=2000, help="gradients for the codes' errors")
    parser.add_argument("--repeats", type=int, default=1, help="runs of every case")
    parser.add_argument("--quick", action="store_true", help="a moment's training, on little data")
    parser.add_argument("--json", default="lwpd.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--network", choices=list(NETWORKS), help=argparse.SUPPRESS)
    parser.add_argument("--condition", choices=(LATE, KILLED), help=argparse.SUPPRESS)
    parser.add_argument("--method", choices=list(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks <= max(LATE_RANKS):
        parser.error(f"rank {max(LATE_RANKS)} is to be late; got --ranks {args.ranks}")
    if args.quick and not args.inside:
        args.images, args.trials, args.repeats = min(args.images, 1200), 300, 1
        args.seconds = [min(seconds, 1.0) for seconds in args.seconds]
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    names = ("images", "seconds", "delay", "ranks", "repeats")
    document = {
        "settings": {name: getattr(args, name) for name in names},
        "frames": codes.frames(),
        "errors": codes.errors(args.trials),
        "training": train(args),
    }
    _common.write_json(args.json, document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
