"""The same product by codedla and by what a user would take instead, healthy and with faults.

``C = A @ B`` from the root's memory to the root's memory. Every run is a job of its own; peers,
conditions and repetitions take turns, and medians are reported. The faults come from outside, in
the same way for every peer: signals to one worker process.

===========  =====================================================================================
``healthy``  nothing happens
``paused``   one worker is stopped for 5 s (SIGSTOP, then SIGCONT)
``slow``     one worker is 5 times slower throughout: it runs 20 ms, is stopped 80 ms, and so on
``killed``   one worker is killed (SIGKILL)
``frozen``   one worker is stopped for ever; what has not ended a minute later is given up
===========  =====================================================================================

A fault strikes when 40 % of the peer's own healthy time are over. *Exit* is the time of the whole
command, from its start to its end. Every product is compared with NumPy's. The peers have
``--workers`` workers and a master that does not compute; codedla that tolerates s has s more.
Peers that need packages of their own get them on first use, in environments in the user's cache
(``--venvs``); one that cannot be had is a row that says why. What failed once is not tried again.

    python benchmarks/peers.py [--size 4000] [--workers 2] [--repeats 5] [--peers NAME ...]
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import _common
from _peers import catalogue, environments, harness
from _peers.faults import FAULTS, RUNS, STOPPED, Moments

from codedla.mpi.leftovers import scratch_folder

LIMIT = "numpy"
HAND = "by-hand"
HEALTHY = "healthy"
CONDITIONS = (HEALTHY, *FAULTS)
QUICK = (LIMIT, HAND, "codedla-0", "codedla-1")
TRIES = 4
"""Runs at most until a fault comes before the product; each strikes in half the time."""

Runs = dict[tuple[str, str], list[dict[str, Any] | None]]


def measure(
    args: argparse.Namespace, starts: dict[str, catalogue.Start], problem: harness.Problem
) -> Runs:
    """Run everything in turn; for each peer and condition one entry a turn, None if left out."""
    runs: Runs = {
        (peer, condition): []
        for peer, start in starts.items()
        for condition in args.conditions
        if condition == HEALTHY or start.workers
    }
    for turn in range(args.repeats):
        for condition in args.conditions:
            for peer in starts:
                done = runs.get((peer, condition))
                if done is None:
                    continue
                healthy = [run["seconds"] for run in runs[peer, HEALTHY] if run and good(run)]
                if (done and final(done[-1])) or (condition != HEALTHY and not healthy):
                    done.append(None)
                    continue
                typical = statistics.median(healthy) if healthy else 0.0
                done.append(one(args, starts[peer], problem, condition, typical))
                print(
                    f"{turn + 1}/{args.repeats} {condition:8}{peer:10} {cell(done[-1])}",
                    file=sys.stderr,
                )
    return runs


def one(
    args: argparse.Namespace,
    start: catalogue.Start,
    problem: harness.Problem,
    condition: str,
    healthy: float,
) -> dict[str, Any]:
    """One run whose fault, if there is any, comes before the product is there."""
    strike = args.at * healthy
    for _ in range(TRIES):
        moments = Moments(strike, args.pause)
        run = harness.run(start, problem, condition, moments, bound=args.bound)
        if run["outcome"] != "missed":
            break
        strike /= 2
    return run


def final(run: dict[str, Any] | None) -> bool:
    """Whether a peer has failed in a way that it would fail again, perhaps for a minute each."""
    return run is None or run["outcome"] in ("died", "hangs", "wrong")


def good(run: dict[str, Any] | None) -> bool:
    """Whether a run gave the right product under its fault."""
    return run is not None and run["outcome"] == "ok"


def summary(runs: Runs) -> list[dict[str, Any]]:
    """Medians and ratios; ratios turn by turn, so that what drifts in time cancels out."""
    rows = []
    for (peer, condition), done in runs.items():
        right = [run for run in done if run and good(run)]
        # One that did not start, or was too quick to be struck, says nothing if others did.
        failed = [run for run in done if run and (final(run) or not (good(run) or right))]
        row = {
            "peer": peer,
            "condition": condition,
            "outcome": failed[0]["outcome"] if failed else "ok" if right else "not run",
            "code": failed[0]["code"] if failed else 0,
            "said": failed[0].get("said", "") if failed else "",
            "seconds": median(run["seconds"] for run in right),
            "exit": median(run["exit"] for run in right),
            "error": max((run["error"] for run in right), default=None),
            "left": max((run["left"] or 0 for run in right + failed), default=0),
            "right": len(right),
            "runs": [run for run in done if run],
        }
        for name, base in (
            ("numpy", (LIMIT, HEALTHY)),
            ("by_hand", (HAND, HEALTHY)),
            ("healthy", (peer, HEALTHY)),
        ):
            row[f"to_{name}"] = ratio(done, runs.get(base, []))
        rows.append(row)
    return rows


def median(values: Any) -> float | None:
    """Median of what was measured, None if nothing was or a job did not end."""
    values = list(values)
    return statistics.median(values) if values and None not in values else None


def ratio(done: list[Any], base: list[Any]) -> float | None:
    """Median of the ratios of turns in which both were right."""
    pairs = [
        run["seconds"] / other["seconds"]
        for run, other in zip(done, base, strict=False)
        if good(run) and good(other)
    ]
    return median(pairs)


def cell(row: dict[str, Any] | None) -> str:
    """Seconds to the result and to the exit, or what went wrong, in a few characters."""
    if row is None:
        return "-"
    if row["outcome"] == "died":
        return f"died ({row['code']})"
    if row["outcome"] != "ok":
        return str(row["outcome"])
    leaving = "no exit" if row["exit"] is None else f"{row['exit']:.1f}"
    return f"{row['seconds']:.2f} / {leaving}"


def table(args: argparse.Namespace, rows: list[dict[str, Any]], missing: dict[str, str]) -> None:
    """Print the peers, one a line."""
    lines = []
    for peer in args.peers:
        title = catalogue.PEERS[peer].title
        mine = {row["condition"]: row for row in rows if row["peer"] == peer}
        if peer in missing:
            lines.append([title, "not here", *[""] * len(args.conditions)])
            continue
        healthy = mine[HEALTHY]["to_numpy"]
        line = [title, "" if healthy is None else f"{healthy:.2f}"]
        lines.append([*line, *(cell(mine.get(condition)) for condition in args.conditions)])
    _common.print_table(
        f"{args.size}^3 float64, {args.workers} workers, seconds to the result / to the exit, "
        f"medians of {args.repeats}",
        ["peer", "x NumPy", *args.conditions],
        lines,
    )
    for peer, reason in missing.items():
        print(f"{catalogue.PEERS[peer].title}: not here: {reason}")


def plot(path: str, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Bars: seconds to the result by peer and condition; words where there is none."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["peer"] for row in rows))
    figure, axis = plt.subplots(figsize=(12, 5), layout="constrained")
    width = 0.85 / len(args.conditions)
    for number, condition in enumerate(args.conditions):
        shift = (number - (len(args.conditions) - 1) / 2) * width
        cases = [row for row in rows if row["condition"] == condition]
        places = [names.index(row["peer"]) + shift for row in cases]
        right = [row["outcome"] == "ok" for row in cases]
        heights = [row["seconds"] if ok else 0.0 for row, ok in zip(cases, right, strict=True)]
        axis.bar(places, heights, width, label=condition, color=f"C{number}")
        for row, place, ok in zip(cases, places, right, strict=True):
            if not ok:
                words = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8}
                axis.text(place, 0, f" {row['outcome']}", color=f"C{number}", **words)
    titles = [catalogue.PEERS[name].title for name in names]
    axis.set_xticks(range(len(names)), titles, rotation=20, ha="right")
    axis.set_ylabel("seconds to the result (median)")
    axis.set_title(f"{args.size}^3 float64, {args.workers} workers; one of them is struck")
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4000, help="rows and columns of both factors")
    parser.add_argument("--workers", type=int, default=2, help="processes that compute")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--peers", nargs="+", choices=catalogue.PEERS, metavar="NAME", help=NAMES)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--pause", type=float, default=5.0, help="seconds of a paused worker")
    parser.add_argument("--bound", type=float, default=60.0, help="seconds until a run is given up")
    parser.add_argument("--at", type=float, default=0.4, help="part of the healthy time to a fault")
    parser.add_argument("--coretype", help="OPENBLAS_CORETYPE for ScaLAPACK; NumPy's by default")
    parser.add_argument("--venvs", type=Path, default=environments.default_folder())
    parser.add_argument("--install", action="store_true", help="make the environments, no more")
    parser.add_argument("--quick", action="store_true", help="once, small, nothing installed")
    parser.add_argument("--json", default="peers.json", help="where the figures go")
    parser.add_argument("--png", default="peers.png", help="where the picture goes")
    args = parser.parse_args()
    if args.size < 1 or args.workers < 1 or args.repeats < 1:
        parser.error("--size, --workers and --repeats are at least 1")
    if args.bound <= args.pause:
        parser.error(f"--bound must be more than the pause of {args.pause:g} s")
    if args.quick:
        args.size, args.repeats, args.pause = min(args.size, 1200), 1, min(args.pause, 1.0)
    args.peers = args.peers or list(QUICK if args.quick else catalogue.PEERS)
    # Always there, and first: they say when to strike, and what to compare with.
    args.peers = list(dict.fromkeys([LIMIT, *args.peers]))
    args.conditions = list(dict.fromkeys([HEALTHY, *args.conditions]))
    return args


NAMES = f"of {', '.join(catalogue.PEERS)}; all by default"


def end(number: int, _: FrameType | None) -> NoReturn:
    """Leave by way of everything that clears up."""
    raise SystemExit(128 + number)


def main() -> int:
    """Install, measure, print, write."""
    args = parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    kernel = args.coretype or catalogue.kernel()
    setting = catalogue.Setting(args.workers, args.venvs, kernel)
    starts: dict[str, catalogue.Start] = {}
    missing: dict[str, str] = {}
    for name in args.peers:
        try:
            starts[name] = catalogue.PEERS[name].start(setting)
        except environments.Unavailable as error:
            missing[name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
    if args.install:
        return 0
    with scratch_folder() as folder:
        runs = measure(args, starts, harness.Problem.draw(folder, args.size))
    rows = summary(runs)
    table(args, rows, missing)
    names = ("size", "workers", "repeats", "pause", "bound", "at", "conditions")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"slow": {"runs": RUNS, "stopped": STOPPED}, "numpy_kernel": catalogue.kernel()}
    peers = {
        name: {
            "title": catalogue.PEERS[name].title,
            "workers": starts[name].workers if name in starts else None,
            "note": starts[name].note if name in starts else "",
            "missing": missing.get(name),
        }
        for name in args.peers
    }
    _common.write_json(args.json, {"settings": settings, "peers": peers, "rows": rows})
    plot(args.png, args, rows)
    # A peer may well fail; codedla must not, and NumPy's product is what is compared with.
    ours = [row for row in rows if row["peer"].startswith(("codedla", LIMIT))]
    return int(any(row["outcome"] not in ("ok", "not run") for row in ours))


if __name__ == "__main__":
    sys.exit(main())
