"""Time of one product, and of the job around it, when 0, 1 or 2 of the workers are late.

Every run is its own MPI job. *Result* is the time from the call to the finished product on the
master, *exit* the time of the whole command, from starting ``mpirun`` until nothing of it is left.
Schemes, straggler counts and repetitions are interleaved; medians are reported. All schemes use the
same ranks and cores; the late workers sleep inside their task. *hand-written* is the baseline of
``speculative.py``, without codedla; *speculative* is codedla's own, *mds+spec* a code that
tolerates one late worker and speculates on further ones.

    python benchmarks/stragglers.py [--size 1500] [--ranks 9] [--delay 3] [--repeats 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

HAND_WRITTEN = "hand-written"
SCHEMES: dict[str, dict[str, Any]] = {
    "uncoded": {"code": "uncoded"},
    HAND_WRITTEN: {},
    "speculative": {"code": "speculative"},
    "replication": {"code": "replication", "tolerate": 2},
    "mds": {"code": "mds", "tolerate": 2},
    "mds+spec": {"code": "mds", "tolerate": 1, "speculate": True},
    "khatri-rao": {"code": "khatri-rao", "tolerate": 2},
    "polynomial": {"code": "polynomial", "tolerate": 2},
}
BASELINE = "uncoded"
LATE_RANKS = (3, 5)


def operands(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The two factors, the same on every run."""
    rng = np.random.default_rng(20177)
    return rng.standard_normal((size, size)), rng.standard_normal((size, size))


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside: multiply once, write what was measured."""
    late = LATE_RANKS[: args.stragglers]
    if args.scheme == HAND_WRITTEN:
        return _hand_written(args, late)
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program

    def job(pool: Any) -> int:
        import codedla

        multiply = codedla.matmul  # modules are imported before the clock starts
        a, b = operands(args.size)
        began = time.perf_counter()
        c = multiply(a, b, pool=pool, **SCHEMES[args.scheme])
        _write(args.result, time.perf_counter() - began, a, b, c)
        return 0

    return program.run(job, faults=[parse_fault(f"delay:{r}:{args.delay}") for r in late])


def _hand_written(args: argparse.Namespace, late: tuple[int, ...]) -> int:
    import speculative
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.Get_rank():
        speculative.serve(comm, args.delay if comm.Get_rank() in late else 0.0)
        return 0
    a, b = operands(args.size)
    began = time.perf_counter()
    c = speculative.multiply(comm, a, b)
    _write(args.result, time.perf_counter() - began, a, b, c)
    speculative.finish(comm)
    return 0


def _write(path: str, seconds: float, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    expected = a @ b
    error = float(np.linalg.norm(c - expected) / np.linalg.norm(expected))
    Path(path).write_text(json.dumps({"seconds": seconds, "error": error}))


def measure(args: argparse.Namespace, scheme: str, stragglers: int) -> tuple[float, float]:
    """One run from outside: (time to result, time to exit)."""
    options = {"scheme": scheme, "stragglers": stragglers, "size": args.size, "delay": args.delay}
    inside, leaving = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-10)
    return inside["seconds"], leaving


def plot(path: Path, rows: list[dict[str, Any]], delay: float) -> None:
    """Bars: time to result and to exit of every scheme, by number of late workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["scheme"] for row in rows))
    counts = sorted({row["stragglers"] for row in rows})
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for axis, key, title in zip(
        axes, ("result", "exit"), ("time to result", "time to exit (whole command)"), strict=True
    ):
        for shift, count in enumerate(counts):
            heights = [
                row[key]
                for name in names
                for row in rows
                if (row["scheme"], row["stragglers"]) == (name, count)
            ]
            place = np.arange(len(names)) + (shift - (len(counts) - 1) / 2) * 0.27
            axis.bar(place, heights, 0.25, label=f"{count} late")
        axis.set_xticks(np.arange(len(names)), names, rotation=25)
        axis.set_title(title)
        axis.axhline(delay, linestyle=":", color="grey")
    axes[0].set_ylabel("seconds (median)")
    axes[0].legend(title=f"workers that sleep {delay:g} s")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1500, help="rows and columns of both factors")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks, master included")
    parser.add_argument("--delay", type=float, default=3.0, help="seconds a late worker sleeps")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--late", nargs="+", type=int, choices=(0, 1, 2), default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--quick", action="store_true", help="one repetition of a small product")
    parser.add_argument("--json", default="stragglers.json", help="where the figures go")
    parser.add_argument("--png", default="stragglers.png", help="where the picture goes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--scheme", choices=SCHEMES, help=argparse.SUPPRESS)
    parser.add_argument("--stragglers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    # The baseline is always there, because the ratios need it.
    args.schemes = list(dict.fromkeys([BASELINE, *args.schemes]))
    if args.quick:
        args.size, args.repeats, args.delay = min(args.size, 300), 1, min(args.delay, 1.0)
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    cases = list(itertools.product(args.schemes, args.late))
    times: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(args.repeats):
        for case in cases:
            times[case].append(measure(args, *case))
    rows = []
    for (scheme, stragglers), pairs in times.items():
        result, leaving = (statistics.median(column) for column in zip(*pairs, strict=True))
        rows.append({"scheme": scheme, "stragglers": stragglers, "result": result, "exit": leaving})
    base = {row["stragglers"]: row for row in rows if row["scheme"] == BASELINE}
    for row in rows:
        row["result_ratio"] = row["result"] / base[row["stragglers"]]["result"]
        row["exit_ratio"] = row["exit"] / base[row["stragglers"]]["exit"]
    _common.print_table(
        f"{args.size}^3 float64, {args.ranks} ranks, late workers sleep {args.delay:g} s, "
        f"medians of {args.repeats}",
        ["scheme", "late", "result s", "x uncoded", "exit s", "x uncoded"],
        [
            [
                row["scheme"],
                str(row["stragglers"]),
                f"{row['result']:.3f}",
                f"{row['result_ratio']:.2f}",
                f"{row['exit']:.2f}",
                f"{row['exit_ratio']:.2f}",
            ]
            for row in rows
        ],
    )
    settings = {"size": args.size, "ranks": args.ranks, "delay": args.delay}
    _common.write_json(args.json, {"settings": settings, "rows": rows})
    try:
        plot(Path(args.png), rows, args.delay)
    except ImportError:
        print("no picture: pip install 'codedla[plot]'", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
