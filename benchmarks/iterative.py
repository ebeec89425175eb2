"""Iterations whose data stay on the workers: loss against time, and the cost of one round.

First part: one logistic regression by gradient descent with each scheme, an MPI job each, with 0 to
3 late workers (they sleep in every task) and with one worker killed midway. Schemes are prepared
for as many late workers as there are, and for one at least. Losses are those of all rows, computed
when the clock has stopped: what an approximate gradient is worth shows in them. *To target* is the
time until the loss has come within 1 % of the way that the uncoded scheme goes; *exit* the time of
the whole command. Runs take turns, and medians are reported.

Second part: a round of a stored matrix times a vector against a loop that is written by hand
(``rounds.py``), mpi4py.futures and dask.distributed.

    python benchmarks/iterative.py [--rows 6000] [--features 500] [--steps 50] [--delay 0.1]
        [--late 0 1 2 3] [--schemes NAME ...] [--size 1000] [--ranks 9] [--rounds 500]
        [--peers futures dask] [--repeats 5] [--only losses|rounds]
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
from _iterative import loops, picture
from _iterative.problem import Course, Problem
from _iterative.schemes import SCHEMES
from _peers.environments import default_folder

LATE_RANKS = (3, 1, 2)
VICTIM = 4
KILLED = "one killed"
BASE = "uncoded"
WITHIN = 0.01
"""Part of the uncoded scheme's way down that may be left at the target."""


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside: descend once, write what was measured."""
    import codedla
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import launch, program

    rank, _ = launch.world_from_env()
    folder = Path(args.result).parent
    (folder / f"pid{rank}").write_text(str(os.getpid()))

    def job(pool: Any) -> int:
        problem = Problem.draw(args.rows, args.features, args.steps)
        warnings.simplefilter("ignore", codedla.CodedlaWarning)

        def after(step: int) -> None:
            if args.killed and step == args.steps // 2:
                os.kill(int((folder / f"pid{VICTIM}").read_text()), signal.SIGKILL)

        found: dict[str, Any] = {"error": 0.0, "seconds": [], "losses": [], "bytes": {}}
        course = Course()
        try:
            scheme = SCHEMES[args.scheme]
            found["bytes"] = scheme.train(problem, pool, max(1, args.stragglers), course, after)
            found["seconds"] = course.seconds
            found["losses"] = [problem.loss(theta) for theta in course.thetas]
            found["start"] = problem.loss(0.0 * course.thetas[0])
        except codedla.UsageError as error:
            found["refused"] = str(error)
        Path(args.result).write_text(json.dumps(found))
        return 0

    late = [parse_fault(f"delay:{r}:{args.delay}") for r in LATE_RANKS[: args.stragglers]]
    return program.run(job, faults=late)


def measure(args: argparse.Namespace, scheme: str, condition: str) -> dict[str, Any]:
    """One run from outside."""
    killed = condition == KILLED
    options = {
        "scheme": scheme,
        "stragglers": 0 if killed else int(condition.split()[0]),
        "killed": killed,
        **{name: getattr(args, name) for name in ("rows", "features", "steps", "delay")},
    }
    inside, leaving = _common.run_as_job(__file__, options, args.workers + 1, largest_error=0.0)
    return {**inside, "exit": leaving}


def losses(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every scheme under every condition in turn; print a table and return its rows."""
    conditions = [f"{count} late" for count in args.late] + [KILLED] * args.kill
    cases = [(scheme, condition) for condition in conditions for scheme in args.schemes]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for turn in range(args.repeats):
        for case in cases:
            if not (runs[case] and "refused" in runs[case][0]):
                runs[case].append(measure(args, *case))
                print(f"{turn + 1}/{args.repeats} {case[1]:10} {case[0]}", file=sys.stderr)
    base = next(run for (scheme, _), found in runs.items() for run in found if scheme == BASE)
    target = base["losses"][-1] + WITHIN * (base["start"] - base["losses"][-1])
    rows = [_row(case, found, target) for case, found in runs.items()]
    _common.print_table(
        f"logistic regression, {args.rows} x {args.features}, {args.workers} workers, "
        f"{args.steps} steps, late workers sleep {args.delay:g} s in every task, medians of "
        f"{args.repeats}",
        ["condition", "scheme", "step ms", "all s", "to target s", "last loss", "MB", "exit s"],
        [_cells(row) for row in rows],
    )
    return rows


def _row(case: tuple[str, str], found: list[dict[str, Any]], target: float) -> dict[str, Any]:
    scheme, condition = case
    row = {"condition": condition, "scheme": scheme, "title": SCHEMES[scheme].title, "runs": found}
    if "refused" in found[0]:
        return {**row, "refused": found[0]["refused"], "seconds": [], "losses": []}
    all_seconds = [run["seconds"][-1] for run in found]
    middle = found[all_seconds.index(statistics.median_low(all_seconds))]
    reached = [
        next(
            (t for t, loss in zip(run["seconds"], run["losses"], strict=True) if loss <= target),
            float("inf"),
        )
        for run in found
    ]
    return {
        **row,
        "seconds": middle["seconds"],
        "losses": middle["losses"],
        "all": statistics.median(all_seconds),
        "to_target": statistics.median(reached),
        "last_loss": statistics.median(run["losses"][-1] for run in found),
        "bytes": middle["bytes"],
        "exit": statistics.median(run["exit"] for run in found),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    if "refused" in row:
        return [row["condition"], row["title"], *["-"] * 5, "no such code"]
    return [
        row["condition"],
        row["title"],
        f"{row['all'] / len(row['seconds']) * 1e3:.2f}",
        f"{row['all']:.3f}",
        f"{row['to_target']:.3f}",
        f"{row['last_loss']:.9f}",
        f"{sum(row['bytes'].values()) / 1e6:.2f}",
        f"{row['exit']:.2f}",
    ]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workers", type=int, default=6, help="workers of the first part")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds a late worker sleeps")
    parser.add_argument("--late", nargs="+", type=int, choices=range(4), default=[0, 1, 2, 3])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--size", type=int, default=1000, help="rows and columns in a round")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks of the second part")
    parser.add_argument("--rounds", type=int, default=500, help="peers do a tenth of them")
    parser.add_argument("--peers", nargs="*", choices=loops.PEERS, default=list(loops.PEERS))
    parser.add_argument("--venvs", type=Path, default=default_folder())
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--only", choices=("losses", "rounds"), help="only this part")
    parser.add_argument("--quick", action="store_true", help="one repetition of small problems")
    parser.add_argument("--json", default="iterative.json", help="where the figures go")
    parser.add_argument("--png", default="iterative.png", help="where the picture goes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--scheme", choices=SCHEMES, help=argparse.SUPPRESS)
    parser.add_argument("--stragglers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--killed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    # What the others are compared with is always there, and first.
    args.schemes = list(dict.fromkeys([BASE, *args.schemes]))
    if args.workers < VICTIM:
        parser.error(f"at least {VICTIM} workers are needed; got --workers {args.workers}")
    if args.quick and not args.inside:
        args.rows, args.features = min(args.rows, 600), min(args.features, 20)
        args.steps, args.rounds, args.repeats = min(args.steps, 12), min(args.rounds, 20), 1
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_inside(args)
    from codedla.mpi.launch import find_launcher

    # Elsewhere the job ends with the rank.
    args.kill = bool(getattr(find_launcher(), "tolerant", False))
    names = ("rows", "features", "steps", "workers", "delay", "size", "ranks", "rounds", "repeats")
    document: dict[str, Any] = {"settings": {name: getattr(args, name) for name in names}}
    if args.only != "rounds":
        rows = losses(args)
        for row in rows:
            document.setdefault(f"loss_{row['condition'].replace(' ', '_')}", []).append(row)
        try:
            picture.plot(Path(args.png), rows, args.delay)
        except ImportError:
            print("no picture: pip install 'codedla[plot]'", file=sys.stderr)
    if args.only != "losses":
        document["rounds"] = loops.compare(args)
    _common.write_json(args.json, document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
