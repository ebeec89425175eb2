"""Cost of a matrix-vector round when one worker is late in every round.

The matrix stays on the workers, only vectors travel. One MPI job per case: coded (``mds``, two
losses tolerated) and uncoded, healthy and with one worker that sleeps in every task. The uncoded
late case waits for the sleeper in each round, so it gets fewer rounds. *Round* is the mean time of
a round on the master, *exit* the time of the whole command.

    python benchmarks/rounds.py [--rounds 500] [--delay 0.1] [--size 1000] [--ranks 9]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

CASES = {
    "mds": {"code": "mds", "tolerate": 2},
    "uncoded": {"code": "uncoded"},
}
LATE_RANK = 3


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside."""
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program

    def job(pool: Any) -> int:
        import codedla

        rng = np.random.default_rng(20177)
        matrix = rng.standard_normal((args.size, args.size))
        vectors = rng.standard_normal((8, args.size))
        with codedla.store(matrix, pool=pool, **CASES[args.case]) as stored:
            # The first round also sends the shares.
            stored.matvec(vectors[0])
            began = time.perf_counter()
            for index in range(args.rounds):
                y = stored.matvec(vectors[index % 8])
            seconds = time.perf_counter() - began
        expected = matrix @ vectors[(args.rounds - 1) % 8]
        error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
        Path(args.result).write_text(json.dumps({"seconds": seconds, "error": error}))
        return 0

    late = [parse_fault(f"delay:{LATE_RANK}:{args.delay}")] if args.late else []
    return program.run(job, faults=late)


def measure(args: argparse.Namespace, case: str, late: bool, rounds: int) -> tuple[float, float]:
    """One run from outside: (seconds of all rounds, seconds of the whole command)."""
    options = {"case": case, "late": late, "rounds": rounds, "delay": args.delay, "size": args.size}
    inside, leaving = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-12)
    return inside["seconds"], leaving


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds the late worker sleeps")
    parser.add_argument("--size", type=int, default=1000, help="rows and columns of the matrix")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks, master included")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--quick", action="store_true", help="one repetition, few rounds")
    parser.add_argument("--json", default="rounds.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--late", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.repeats = min(args.rounds, 20), 1
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    rounds = {(case, late): args.rounds for case in CASES for late in (False, True)}
    rounds["uncoded", True] = max(1, args.rounds // 25)
    times: dict[tuple[str, bool], list[tuple[float, float]]] = {key: [] for key in rounds}
    for _ in range(args.repeats):
        for (case, late), count in rounds.items():
            times[case, late].append(measure(args, case, late, count))
    rows = []
    for (case, late), pairs in times.items():
        inside, leaving = (statistics.median(column) for column in zip(*pairs, strict=True))
        count = rounds[case, late]
        rows.append(
            {
                "case": case,
                "late": late,
                "rounds": count,
                "all_rounds": inside,
                "round": inside / count,
                "exit": leaving,
            }
        )
    base = next(row["round"] for row in rows if row["case"] == "uncoded" and not row["late"])
    for row in rows:
        row["ratio"] = row["round"] / base
    _common.print_table(
        f"{args.size}x{args.size} float64 @ vector, {args.ranks} ranks, "
        f"the late worker sleeps {args.delay:g} s in every task, medians of {args.repeats}",
        ["code", "late", "rounds", "all s", "round ms", "x uncoded healthy", "exit s"],
        [
            [
                row["case"],
                "1" if row["late"] else "0",
                str(row["rounds"]),
                f"{row['all_rounds']:.2f}",
                f"{row['round'] * 1e3:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['exit']:.2f}",
            ]
            for row in rows
        ],
    )
    settings = {"size": args.size, "ranks": args.ranks, "delay": args.delay}
    _common.write_json(args.json, {"settings": settings, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
