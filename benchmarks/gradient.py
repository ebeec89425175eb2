"""Gradient descent with one worker late in every iteration, and with two killed midway.

Multinomial logistic regression on handwritten digits (MNIST as IDX files with ``--data FOLDER``,
made-up images of that size otherwise), double precision, by full-batch descent. One MPI job per
case:

* *uncoded* and *cyclic* (two stragglers tolerated), healthy and with one worker that sleeps 0.1 s
  in every iteration, within the function itself, so that it cannot be called off;
* cyclic with that worker, and in the middle of the descent two are killed by ``kill -9``: the late
  one and another, or two others. Then three of six are missing though two are tolerated, and the
  rest of the iterations wait for the late one.

*Loss* is the largest relative deviation of the loss of any iteration from that of the same descent
in one process. *Iterations* is the time of all, data sent to the workers and back, on the master;
*whole job* that of the whole command beyond *start-up*, which is the time of a job that starts MPI,
reads the data and ends. *Not waited for* are the iterations that went on without the late one.
Figures are medians over the repeats; cases take turns. Losses that deviate by more than 1e-9 end
the benchmark, as ``--perturb EPS`` shows, which changes one worker's gradients by that much.

    python benchmarks/gradient.py [--data FOLDER] [--images 2000] [--iterations 50] [--delay 0.1]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import _common
import numpy as np

STRAGGLERS = 2
LATE_RANK = 2
RATE = 0.5
CASES: dict[str, dict[str, Any]] = {
    "start-up": {},
    "uncoded": {"scheme": "uncoded"},
    "uncoded, one late": {"scheme": "uncoded", "late": True},
    "cyclic": {"scheme": "cyclic"},
    "cyclic, one late": {"scheme": "cyclic", "late": True},
    "cyclic, one late, it and another killed": {"scheme": "cyclic", "late": True, "kill": "2,4"},
    "cyclic, one late, two others killed": {"scheme": "cyclic", "late": True, "kill": "4,5"},
}
FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
LARGEST = 1e-9
SHARED = ("data", "images", "iterations", "delay", "perturb")


def read(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Images (rows, 784) from 0 to 1, and their labels."""
    if args.data is None:
        rng = np.random.default_rng(60029)
        labels = rng.integers(0, 10, args.images)
        strokes = rng.random((10, 784)) < 0.2
        return strokes[labels] * rng.random((args.images, 784)), labels
    from codedla.cli.datasets import load_data

    found = load_data(*(str(Path(args.data) / name) for name in FILES))
    return found.X[: args.images] / 255.0, found.y[: args.images]


class Late:
    """A perceptron whose gradients take longer on one rank, once for all parts of an iteration.

    Those of the next rank are off by ``perturb`` of themselves.
    """

    def __init__(self, net: Any, rank: int, delay: float, perturb: float) -> None:
        self.net, self.rank, self.delay, self.seen = net, rank, delay, None
        self.perturb = perturb

    def __call__(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Sleep if it is this rank's turn, then compute."""
        from codedla.mpi.launch import world_from_env

        # Not its sum, which the gradients of a softmax leave as it is.
        mark = theta.tobytes()
        world = world_from_env()
        if world is not None and world[0] == self.rank and mark != self.seen:
            self.seen = mark
            time.sleep(self.delay)
        loss, slope = self.net.loss_and_grad(theta, X, y)
        if world is not None and world[0] == self.rank + 1:
            slope *= 1 + self.perturb
        return loss, slope


def descend(function: Any, start: np.ndarray, rows: int, iterations: int, halfway: Any) -> list:
    """Losses of a plain descent."""
    theta, losses = start, []
    for step in range(iterations):
        if step == iterations // 2:
            halfway()
        loss, slope = function(theta)
        losses.append(loss)
        theta = theta - RATE / rows * slope
    return losses


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside."""
    from codedla.iterative.mlp import MLP
    from codedla.mpi import program
    from codedla.mpi.launch import world_from_env

    folder = Path(args.result).parent
    rank = world_from_env()[0]
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    case = CASES[args.case]

    def kill() -> None:
        for victim in case.get("kill", "").split(",") if "kill" in case else ():
            os.kill(int((folder / f"pid{victim}").read_text()), signal.SIGKILL)

    def job(pool: Any) -> int:
        import codedla

        warnings.simplefilter("ignore", codedla.CodedlaWarning)
        X, y = read(args)
        net = MLP((X.shape[1], 10))
        start = net.start(7)
        figures: dict[str, Any] = {"seconds": 0.0, "images": len(X), "error": 0.0, "late": 0}
        if case:
            late = {} if case["scheme"] == "uncoded" else {"stragglers": STRAGGLERS}
            delay = args.delay if case.get("late") else 0.0
            function = Late(net, LATE_RANK, delay, args.perturb)
            began = time.perf_counter()
            with codedla.CodedGradient(
                function, (X, y), pool=pool, scheme=case["scheme"], **late
            ) as gradient:
                losses = descend(gradient, start, len(X), args.iterations, kill)
                figures["seconds"] = time.perf_counter() - began
                figures |= {"late": gradient.stragglers[LATE_RANK], "lost": len(gradient.lost)}
                figures |= {"sent": gradient.bytes["sent"], "received": gradient.bytes["received"]}
            figures["losses"] = losses
        Path(args.result).write_text(json.dumps(figures))
        return 0

    return program.run(job)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="FOLDER", help=f"where {' and '.join(FILES)} are")
    parser.add_argument("--images", type=int, default=2000, help="how many of them")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds the late worker sleeps")
    parser.add_argument("--ranks", type=int, default=7, help="MPI ranks, master included")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--perturb", type=float, default=0.0, help="a fault on purpose")
    parser.add_argument("--cases", nargs="+", choices=list(CASES)[1:], help="only these")
    parser.add_argument("--quick", action="store_true", help="one repetition, few iterations")
    parser.add_argument("--json", default="gradient.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.iterations, args.repeats = min(args.iterations, 8), 1
        args.images, args.delay = min(args.images, 600), min(args.delay, 0.03)
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    from codedla.iterative.mlp import MLP
    from codedla.mpi.launch import find_launcher

    launcher = find_launcher()
    survives = launcher is not None and launcher.ulfm
    chosen = [name for name in CASES if not (args.cases and CASES[name]) or name in args.cases]
    cases = [name for name in chosen if survives or "kill" not in CASES[name]]
    X, y = read(args)
    net = MLP((X.shape[1], 10))

    def alone(theta: np.ndarray) -> tuple[float, np.ndarray]:
        return net.loss_and_grad(theta, X, y)

    expected = np.array(descend(alone, net.start(7), len(X), args.iterations, lambda: None))
    shared = {name: getattr(args, name) for name in SHARED}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(args.repeats):
        for name in cases:
            options = {"case": name, **shared}
            inside, leaving = _common.run_as_job(
                __file__, options, args.ranks, largest_error=LARGEST
            )
            losses = np.array(inside.pop("losses", expected))
            inside |= {"loss": float(np.abs(losses / expected - 1).max()), "exit": leaving}
            if not inside["loss"] <= LARGEST:
                raise SystemExit(f"{name}: losses deviate by {inside['loss']:.1e}")
            killed = len(CASES[name].get("kill", "").split(",")) if "kill" in CASES[name] else 0
            if inside.get("lost", 0) != killed:
                raise SystemExit(f"{name}: {inside['lost']} workers were lost, not {killed}")
            runs[name].append(inside)
    rows = []
    for name in cases[1:]:
        pairs = zip(runs[name], runs["start-up"], strict=True)
        beyond = statistics.median(one["exit"] - empty["exit"] for one, empty in pairs)
        rows.append(
            {
                "case": name,
                "loss": max(run["loss"] for run in runs[name]),
                "not_waited": statistics.median(run["late"] for run in runs[name]),
                "lost": runs[name][0]["lost"],
                "iterations": statistics.median(run["seconds"] for run in runs[name]),
                "beyond_start_up": beyond,
                "runs": runs[name],
            }
        )
    startup = statistics.median(run["exit"] for run in runs["start-up"])
    what = "MNIST" if args.data else "made-up"
    _common.print_table(
        f"{args.iterations} iterations on {len(X)} {what} images, {args.ranks - 1} workers, one "
        f"late by {args.delay:g} s; start-up {startup:.2f} s",
        ["case", "not waited for", "lost", "loss off by", "iterations s", "whole job s"],
        [
            [
                row["case"],
                f"{row['not_waited']:g}",
                str(row["lost"]),
                f"{row['loss']:.0e}",
                f"{row['iterations']:.3f}",
                f"{row['beyond_start_up']:.3f}",
            ]
            for row in rows
        ],
    )
    # What it was measured on, not where that lies.
    source = "made up" if args.data is None else "MNIST"
    settings = {
        **shared,
        "data": source,
        "images": len(X),
        "ranks": args.ranks,
        "stragglers": STRAGGLERS,
    }
    _common.write_json(args.json, {"settings": settings, "start_up": startup, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
