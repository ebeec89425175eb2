"""How near codes come to the ideal time when workers have different speeds, on a virtual clock.

Every worker has its own constant speed, drawn from 1 to 5 times the slowest possible one. Ideal is
the number of rows by the sum of the speeds: nobody idle, nothing computed in vain. The products are
really computed, in a simulated pool, and checked; only the clock is virtual. Decoding and messages
take no time on it, so that the figures show what the codes waste and nothing else.

    python benchmarks/rateless.py [--workers 20] [--blocks 1000] [--trials 10]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import _common
import numpy as np

import codedla
from codedla.blocks import Grid, Split
from codedla.codes import get
from codedla.engine.stragglers import parse_fault


def schemes(workers: int, blocks: int, losses: int) -> dict[str, tuple[str, int]]:
    """Return the code and the number of blocks of every scheme."""
    mds = workers - losses
    return {
        "lt": ("lt", blocks),
        "batch": ("batch", mds),
        "partial": ("partial", mds),
        "convolutional": ("convolutional", mds),
        "mds": ("mds", mds),
        # A slow worker is waited for only if all that hold the same block are slow.
        "replication": ("replication", max(workers // 2, 1)),
        "uncoded": ("uncoded", workers),
    }


def run(
    code: str, blocks: int, a: np.ndarray, x: np.ndarray, speeds: np.ndarray
) -> tuple[float, float]:
    """Return the virtual time of one product, in rows by speed, and its error."""
    fastest = float(speeds.max())
    faults = [parse_fault(f"slow:{w + 1}:{fastest / v!r}") for w, v in enumerate(speeds.tolist())]
    made = get(code)(len(speeds), Grid(blocks, 1, 1))
    rows = Split(len(a), made.grid.m).size
    with codedla.SimulatedPool(len(speeds), faults=faults, task_seconds=rows / fastest) as pool:
        y, report = codedla.matvec(a, x, pool=pool, code=code, blocks=blocks, return_report=True)
    exact = a @ x
    return report.times["total"], float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=1000, help="row blocks of the rateless code")
    parser.add_argument("--losses", type=int, default=2, help="losses that the MDS codes survive")
    parser.add_argument("--rows", type=int, default=9000, help="rows of the matrix")
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--slowest", type=float, default=1.0, help="smallest speed")
    parser.add_argument("--fastest", type=float, default=5.0, help="largest speed")
    parser.add_argument("--trials", type=int, default=10, help="draws of all speeds")
    parser.add_argument("--seed", type=int, default=20177)
    parser.add_argument("--quick", action="store_true", help="two trials")
    parser.add_argument("--json", default="rateless.json", help="where the figures go")
    args = parser.parse_args()
    if args.quick:
        args.trials = min(args.trials, 2)
    return args


def main() -> int:
    """Simulate, print, write."""
    args = parse()
    rng = np.random.default_rng(args.seed)
    a, x = rng.standard_normal((args.rows, args.columns)), rng.standard_normal(args.columns)
    chosen = schemes(args.workers, args.blocks, args.losses)
    ratios: dict[str, list[float]] = {name: [] for name in chosen}
    errors = dict.fromkeys(chosen, 0.0)
    for _ in range(args.trials):
        speeds = rng.uniform(args.slowest, args.fastest, args.workers)
        ideal = args.rows / speeds.sum()
        for name, (code, blocks) in chosen.items():
            seconds, error = run(code, blocks, a, x, speeds)
            ratios[name].append(seconds / ideal)
            errors[name] = max(errors[name], error)
    rows: list[dict[str, Any]] = [
        {
            "scheme": name,
            "blocks": chosen[name][1],
            "mean": statistics.mean(values),
            "largest": max(values),
            "error": errors[name],
        }
        for name, values in ratios.items()
    ]
    _common.print_table(
        f"{args.workers} workers of speed {args.slowest:g} to {args.fastest:g}: time by the ideal "
        f"time, {args.trials} draws",
        ["scheme", "blocks", "mean", "largest", "error"],
        [
            [
                row["scheme"],
                str(row["blocks"]),
                f"{row['mean']:.3f}",
                f"{row['largest']:.3f}",
                f"{row['error']:.0e}",
            ]
            for row in rows
        ],
    )
    settings = {key: value for key, value in vars(args).items() if key != "json"}
    _common.write_json(args.json, {"settings": settings, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
