"""What a product costs per worker when both grow, and from how many workers the master is too slow.

Every worker has the same work at every size: a block of A times a block of B. *master* encodes and
sends all shares; with *workers* each worker reads the blocks of its share from a shared file and
combines them. Replies come back through the master either way. Nothing is measured: the figures are
simulated on the machine given, or on the assumed one.

    python benchmarks/growth.py [--workers 64 256 1024 4096] [--machine here.json]
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import _common
import numpy as np

ENCODINGS = ("master", "workers")
SCHEMES = ("uncoded", "khatri-rao@2")
LARGEST = 1 << 20


def shape_for(workers: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    """A product of so many blocks, as square as can be."""
    rows, inner, columns = block
    side = math.sqrt(workers)
    return round(side * rows), inner, round(side * columns)


def study_for(args: argparse.Namespace, workers: int, encoding: str) -> Any:
    """What is simulated on so many workers."""
    from codedla.engine.delays import parse_delays
    from codedla.planning import Machine
    from codedla.planning.study import Study

    machine = Machine() if args.machine is None else Machine.load(args.machine)
    delays = None if args.delays == "none" else parse_delays(args.delays)[0]
    return Study(
        shape_for(workers, args.block),
        np.dtype(float),
        # Ranks of a cluster: each has a core of its own.
        replace(machine, ranks_per_host=0),
        delays,
        rounds=args.rounds,
        encoding=encoding,
    )


def saturation(args: argparse.Namespace, encoding: str) -> int:
    """Return the fewest workers with which the master is busy longer than a worker computes.

    The master's work is as good as proportional to the workers, so that a few steps suffice.
    """
    rows, inner, columns = args.block

    def busy(workers: int) -> float:
        return master(args, workers, encoding)

    computing = 2.0 * rows * inner * columns / study_for(args, 2, encoding).machine.flops
    low, high = 1, 2
    while high < LARGEST and busy(high) <= computing:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if busy(middle) > computing else (middle, high)
    return high


def master(args: argparse.Namespace, workers: int, encoding: str) -> float:
    """Return the seconds in which the master sends the shares of an uncoded product and receives.

    Uncoded: what coding adds on the master is a few shares, whatever the number of workers.
    """
    machine = study_for(args, 2, encoding).machine
    rows, inner, columns = args.block
    share, reply = 8.0 * inner * (rows + columns), 8.0 * rows * columns
    sending = share / machine.bandwidth if encoding == "master" else 0.0
    receiving = max(reply / machine.bandwidth, machine.overhead + reply / machine.copy)
    return workers * (machine.overhead + sending + receiving)


def plot(path: Path, rows: list[dict[str, Any]], points: dict[str, int]) -> None:
    """Seconds over workers; the points from which the master is too slow as vertical lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, encoding in enumerate(ENCODINGS):
        for scheme, style in zip(SCHEMES, ("--", "-"), strict=True):
            own = [r for r in rows if (r["encoding"], r["scheme"]) == (encoding, scheme)]
            axes.plot(
                [row["workers"] for row in own],
                [row["p50"] for row in own],
                "o" + style,
                color=f"C{number}",
                label=f"{scheme}, encoded by {'the master' if number == 0 else 'workers'}",
            )
        axes.axvline(points[encoding], color=f"C{number}", linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("workers, each with the same work")
    axes.set_ylabel("seconds of a product (median)")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[64, 256, 1024, 4096])
    parser.add_argument(
        "--block",
        nargs=3,
        type=int,
        default=(4000, 4000, 4000),
        metavar=("M", "L", "N"),
        help="a worker's work: (M x L) @ (L x N)",
    )
    parser.add_argument("--delays", default="exp:0.2", help="of every task, or none")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--machine", help="JSON of codedla simulate --calibrate")
    parser.add_argument("--quick", action="store_true", help="few workers, few rounds")
    parser.add_argument("--json", default="growth.json", help="where the figures go")
    parser.add_argument("--png", default="growth.png", help="where the picture goes")
    args = parser.parse_args()
    args.block = tuple(args.block)
    if args.quick:
        args.workers, args.rounds = [16, 64], 5
    return args


def main() -> int:
    """Simulate, print, write."""
    from codedla.planning.study import parse_scheme

    args = parse()
    rows: list[dict[str, Any]] = []
    for encoding in ENCODINGS:
        for text in SCHEMES:
            for workers in args.workers:
                study = study_for(args, workers, encoding)
                row = study.run(parse_scheme(text), workers)
                m, inner, n = study.shape
                ideal = 2.0 * m * inner * n / study.machine.flops / workers
                row.update(
                    encoding=encoding,
                    shape=list(study.shape),
                    held=row["worker_seconds"] / workers,
                    ideal=ideal,
                    efficiency=ideal / row["p50"],
                )
                rows.append(row)
    points = {encoding: saturation(args, encoding) for encoding in ENCODINGS}
    _common.print_table(
        f"every worker: {'x'.join(map(str, args.block))} float64, delays {args.delays}, "
        f"machine: {study_for(args, 2, 'master').machine.source}",
        ["encoded by", "scheme", "workers", "median s", "p99 s", "held s/worker", "efficiency"],
        [
            [
                row["encoding"],
                row["scheme"],
                str(row["workers"]),
                f"{row['p50']:.2f}",
                f"{row['p99']:.2f}",
                f"{row['held']:.2f}",
                f"{row['efficiency']:.0%}",
            ]
            for row in rows
        ],
    )
    for encoding, workers in points.items():
        print(
            f"encoded by {encoding}: from {workers} workers on the master is busy longer than a "
            "worker computes"
        )
    settings = {"block": args.block, "delays": args.delays, "rounds": args.rounds}
    _common.write_json(args.json, {"settings": settings, "saturation": points, "rows": rows})
    try:
        plot(Path(args.png), rows, points)
    except ImportError:
        print("no picture: pip install 'codedla[plot]'", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
