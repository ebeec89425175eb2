"""What a job survives: workers are killed or frozen at random moments, many times.

Each run is a whole command, ``codedla matmul A.npy B.npy -o C.npy --ranks R``, and each product is
compared with NumPy's. Moments are counted from the start of the command (``--origin start``: many
strikes then hit the start-up, when MPI itself cannot go on without a rank), or from the moment
when all ranks have met (``--origin met``: computing, and shutting down).

The cases take turns, so that a busy machine is busy for all of them; "working" are the seconds from
when all ranks had met (or one was struck) to the end, median and largest: on a busy machine Python
takes long to start. A run is as promised when its code, its product and its traces are, and when
it works no longer than 15 s (all workers killed: 10 s); "late" are those above that in all.

    python benchmarks/survival.py [--runs 20] [--cases kill freeze redispatch none-left]
                                  [--origin met] [--ranks 9] [--size 600] [--seed 20177]
"""

from __future__ import annotations

import argparse
import collections
import math
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.chaos_jobs import Ended, Strike, compare, run_command

CASES = {
    "nobody": "nobody struck",
    "kill": "1 or 2 workers killed",
    "freeze": "1 or 2 workers frozen",
    "redispatch": "3 workers killed",
    "none-left": "all workers killed",
}
BOUND = {"none-left": 10.0}
USUAL_BOUND = 15.0


def strikes_for(case: str, args: argparse.Namespace, rng: np.random.Generator) -> list[Strike]:
    """Choose whom to strike and when."""
    workers = args.ranks - 1
    if case == "nobody":
        return []
    count = {"redispatch": 3, "none-left": workers}.get(case, int(rng.integers(1, 3)))
    number = signal.SIGSTOP if case == "freeze" else signal.SIGKILL
    # With nobody left at the end there is a result if the product was done before.
    ranks = sorted(int(r) + 1 for r in rng.choice(workers, count, replace=False))
    window = args.window if case != "none-left" else args.window / 5
    return [
        Strike(rank, number, float(after), args.origin)
        for rank, after in zip(ranks, rng.uniform(0, window, count), strict=True)
    ]


def one_run(
    case: str, args: argparse.Namespace, rng: np.random.Generator, folder: Path, product: Any
) -> tuple[Ended, bool | None]:
    """Run once, from the start to the last trace; return how it ended and whether C is right."""
    strikes = strikes_for(case, args, rng)
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", args.ranks, "--tolerate", 2]
    if case == "none-left":
        # Slow enough that the workers are needed when they die.
        words += [w for r in range(1, args.ranks) for w in ("--inject", f"delay:{r}:3")]
    ended = run_command(words, folder, strikes, kept=["C.npy"])
    right = compare(folder / "C.npy", product)
    (folder / "C.npy").unlink(missing_ok=True)
    for path in folder.glob(".C.npy*"):
        path.unlink()
    return ended, right


def faults_of(case: str, ended: Ended, right: bool | None) -> list[str]:
    """What is wrong with one run; empty when it is as promised."""
    wrong = []
    if case == "none-left":
        # Whoever is struck in the shutdown was not needed any more.
        allowed = {3} if "shutdown" not in ended.phases() else {0, 3}
        if ended.code == 3 and not ("rank 1" in ended.err and "threshold" in ended.err):
            wrong.append("ranks or threshold not named")
    else:
        allowed = {0}
    if ended.code not in allowed:
        wrong.append(f"exit code {ended.code}")
    if right is False or (ended.code == 0 and not right):
        wrong.append("the product is wrong or missing")
    if ended.hung or ended.working > BOUND.get(case, USUAL_BOUND):
        wrong.append(f"{ended.seconds:.1f} s")
    wrong += [f"left: {what}" for what in ended.left]
    return wrong


class Tally:
    """The runs of one case so far."""

    def __init__(self, case: str, seed: int) -> None:
        self.case = case
        self.rng = np.random.default_rng([seed, list(CASES).index(case)])
        self.seconds: list[float] = []
        self.working: list[float] = []
        self.codes: collections.Counter[int] = collections.Counter()
        self.phases: collections.Counter[str] = collections.Counter()
        self.correct = self.left = self.late = 0
        self.failures: list[dict[str, Any]] = []

    def run(self, args: argparse.Namespace, folder: Path, product: Any) -> None:
        """Run once more."""
        ended, right = one_run(self.case, args, self.rng, folder, product)
        self.seconds.append(ended.seconds)
        self.working.append(ended.working)
        self.codes[ended.code] += 1
        self.phases.update(s.phase for s in ended.struck)
        self.correct += right is True
        self.left += bool(ended.left)
        self.late += ended.seconds > BOUND.get(self.case, USUAL_BOUND)
        wrong = faults_of(self.case, ended, right)
        name = f"{self.case} run {len(self.seconds) - 1}"
        struck = [str(s) for s in ended.struck]
        if wrong:
            self.failures.append(
                {"run": name, "wrong": wrong, "struck": struck, "stderr": ended.err}
            )
            lines = [f"{name}: {'; '.join(wrong)}", *struck, *ended.err.splitlines()[-6:]]
            print("\n  ".join(lines), file=sys.stderr, flush=True)
        elif args.verbose:
            text = f"{name}: {ended.code}, {ended.seconds:.1f} s; {'; '.join(struck)}"
            print(text, file=sys.stderr, flush=True)

    def row(self) -> dict[str, Any]:
        """The figures."""
        return {
            "case": self.case,
            "runs": len(self.seconds),
            "correct": self.correct,
            "as promised": len(self.seconds) - len(self.failures),
            "codes": {str(code): count for code, count in sorted(self.codes.items())},
            "phases": dict(self.phases),
            "median": statistics.median(self.seconds),
            "max": max(self.seconds),
            "median working": statistics.median(self.working),
            "max working": max(self.working),
            "late": self.late,
            "left": self.left,
            "failures": self.failures,
        }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="runs of every case")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--origin", choices=("start", "met"), default="met")
    parser.add_argument("--window", type=float, default=1.0, help="seconds after the origin")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks, master included")
    parser.add_argument("--size", type=int, default=600, help="rows and columns")
    parser.add_argument("--seed", type=int, default=20177)
    parser.add_argument("--seconds", type=float, help="start no further run after this long")
    parser.add_argument("--quick", action="store_true", help="two runs of every case")
    parser.add_argument("--json", default="survival.json", help="where the figures go")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every run")
    args = parser.parse_args()
    if args.quick:
        args.runs = min(args.runs, 2)
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    rng = np.random.default_rng(args.seed)
    a, b = rng.standard_normal((2, args.size, args.size))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "A.npy", a)
        np.save(folder / "B.npy", b)
        tallies = [Tally(case, args.seed) for case in args.cases]
        end = time.monotonic() + (math.inf if args.seconds is None else args.seconds)
        for run in range(args.runs):
            if run and time.monotonic() > end:
                break
            for tally in tallies:
                tally.run(args, folder, a @ b)
        rows = [tally.row() for tally in tallies]
    _common.print_table(
        f"{args.size}x{args.size} float64, {args.ranks} ranks, --tolerate 2, strikes within "
        f"{args.window:g} s of {'the start' if args.origin == 'start' else 'the meeting'}",
        [
            "case",
            "runs",
            "correct",
            "exit codes",
            "median s",
            "max s",
            "working",
            "late",
            "left",
            "as promised",
        ],
        [
            [
                CASES[row["case"]],
                str(row["runs"]),
                str(row["correct"]),
                ", ".join(f"{code}: {count}" for code, count in row["codes"].items()),
                f"{row['median']:.2f}",
                f"{row['max']:.2f}",
                f"{row['median working']:.2f} to {row['max working']:.2f}",
                str(row["late"]),
                str(row["left"]),
                str(row["as promised"]),
            ]
            for row in rows
        ],
    )
    settings = {k: getattr(args, k) for k in ("size", "ranks", "origin", "window", "seed")}
    _common.write_json(args.json, {"settings": settings, "rows": rows})
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
