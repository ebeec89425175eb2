"""A product in panels against hand-written MPI: healthy, one worker slow, paused, killed, frozen.

*hand-written* is what one would write with mpi4py on the same cores: scatter the rows of A, send B
to everybody, multiply, gather, all with buffers; the root computes, too. It has no answer to any
fault. codedla's master does not compute, so its products have one rank more, and those that
tolerate a late worker two: any two of the three workers suffice for every panel.

Every run is its own MPI job; the cases take turns. Times are from the call to the product on the
root, medians; *x* is the median of the ratios within a turn. A fault strikes when a third of the
time has passed that the healthy product takes.

    python benchmarks/pipeline.py [--size 4000] [--repeats 5] [--pause 5]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

HAND_WRITTEN, HEALTHY = "hand-written", "tolerate 1"
VICTIM = 2
CASES: dict[str, dict[str, Any]] = {
    HAND_WRITTEN: {"ranks": 2},
    "tolerate 0": {"ranks": 3, "tolerate": 0, "base": HAND_WRITTEN},
    HEALTHY: {"ranks": 4, "tolerate": 1, "base": HAND_WRITTEN},
    "one 5x slower": {"ranks": 4, "tolerate": 1, "base": HEALTHY, "faults": [f"slow:{VICTIM}:5"]},
    "one paused": {"ranks": 4, "tolerate": 1, "base": HEALTHY, "signal": "pause"},
    "one killed": {"ranks": 4, "tolerate": 1, "base": HEALTHY, "signal": "kill"},
    "one frozen": {"ranks": 4, "tolerate": 1, "base": HEALTHY, "signal": "freeze"},
    "in one piece": {"ranks": 4, "tolerate": 1, "base": HEALTHY, "streams": False},
}


def operands(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The two factors, the same on every run."""
    rng = np.random.default_rng(50077)
    return rng.standard_normal((size, size)), rng.standard_normal((size, size))


# -- one job, seen from inside -----------------------------------------------------------------


def run_inside(args: argparse.Namespace) -> int:
    """Multiply twice, the first time to warm up; write what the second took."""
    case = CASES[args.case]
    if args.case == HAND_WRITTEN:
        return hand_written(args)
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program, world

    pids = world.import_mpi(finalize=False).COMM_WORLD.gather(os.getpid())

    def job(pool: Any) -> int:
        import codedla

        pool.streams = case.get("streams", True)
        a, b = operands(args.size)
        small = operands(min(args.size, 200))
        codedla.matmul(*small, pool=pool, tolerate=case["tolerate"])
        if "signal" in case:
            disturb(case["signal"], pids[VICTIM], args.after, args.pause)
        began = time.perf_counter()
        c, report = codedla.matmul(
            a, b, pool=pool, tolerate=case["tolerate"], verify="off", return_report=True
        )
        seconds = time.perf_counter() - began
        late = report.times["after_threshold"]
        write(args.result, seconds, a, b, c, after_threshold=late, responders=report.responders)
        return 0

    return program.run(job, faults=[parse_fault(word) for word in case.get("faults", [])])


def disturb(how: str, pid: int, after: float, pause: float) -> None:
    """Kill, freeze or pause a rank a little later."""
    first = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    steps = [(after, first), *([(after + pause, signal.SIGCONT)] if how == "pause" else [])]
    for seconds, number in steps:
        timer = threading.Timer(seconds, strike, (pid, number))
        timer.daemon = True
        timer.start()


def strike(pid: int, number: int) -> None:
    """Signal a rank that may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        print(f"rank {VICTIM} had ended", flush=True)


def hand_written(args: argparse.Namespace) -> int:
    """Scatter, broadcast, multiply, gather."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    size = args.size
    rows = [size // ranks + (k < size % ranks) for k in range(ranks)]
    a, b = operands(size) if rank == 0 else (None, np.empty((size, size)))
    c = np.empty((size, size)) if rank == 0 else None
    comm.Barrier()
    began = time.perf_counter()
    part = np.empty((rows[rank], size))
    counts = [height * size for height in rows]
    comm.Scatterv([a, counts] if rank == 0 else None, part)
    comm.Bcast(b)
    comm.Gatherv(part @ b, [c, counts] if rank == 0 else None)
    seconds = time.perf_counter() - began
    if rank == 0:
        write(args.result, seconds, a, b, c)
    return 0


def write(
    path: str, seconds: float, a: np.ndarray, b: np.ndarray, c: np.ndarray, **more: Any
) -> None:
    """Leave the time, and the error as seen through a random vector."""
    x = np.random.default_rng(50087).standard_normal(b.shape[1])
    expected = a @ (b @ x)
    error = float(np.linalg.norm(c @ x - expected) / np.linalg.norm(expected))
    Path(path).write_text(json.dumps({"seconds": seconds, "error": error, **more}))


# -- from outside ------------------------------------------------------------------------------


def measure(args: argparse.Namespace, name: str, healthy: float) -> dict[str, Any]:
    """Run one job."""
    options = {"case": name, "size": args.size, "pause": args.pause, "after": healthy / 3}
    inside, _ = _common.run_as_job(__file__, options, CASES[name]["ranks"], largest_error=1e-10)
    return inside


def summary(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a case: medians, and ratios within turns to its base."""
    rows = []
    for name, results in runs.items():
        base = CASES[name].get("base", HAND_WRITTEN)
        ratios = [
            mine["seconds"] / other["seconds"]
            for mine, other in zip(results, runs[base], strict=True)
        ]
        late = [result["after_threshold"] for result in results if "after_threshold" in result]
        rows.append(
            {
                "case": name,
                "seconds": statistics.median(result["seconds"] for result in results),
                "base": base,
                "ratio": statistics.median(ratios),
                "after_threshold": statistics.median(late) if late else None,
            }
        )
    return rows


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4000, help="rows and columns of both factors")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds a paused worker stops")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--quick", action="store_true", help="one repetition of a small product")
    parser.add_argument("--json", default="pipeline.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--after", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    # What the ratios need is always there, and first.
    args.cases = list(dict.fromkeys([HAND_WRITTEN, HEALTHY, *args.cases]))
    if args.quick:
        args.size, args.repeats, args.pause = min(args.size, 600), 1, min(args.pause, 1.0)
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.cases}
    for _ in range(args.repeats):
        for name in args.cases:
            healthy = runs[HEALTHY][-1]["seconds"] if runs[HEALTHY] else 0.0
            runs[name].append(measure(args, name, healthy))
    rows = summary(runs)
    _common.print_table(
        f"{args.size}^3 float64, medians of {args.repeats}",
        ["case", "ranks", "seconds", "x", "of", "after the last reply"],
        [
            [
                row["case"],
                str(CASES[row["case"]]["ranks"]),
                f"{row['seconds']:.3f}",
                f"{row['ratio']:.2f}",
                row["base"],
                "" if row["after_threshold"] is None else f"{row['after_threshold'] * 1e3:.1f} ms",
            ]
            for row in rows
        ],
    )
    settings = {"size": args.size, "pause": args.pause, "repeats": args.repeats}
    _common.write_json(args.json, {"settings": settings, "rows": rows, "runs": runs})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
