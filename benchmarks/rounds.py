"""Cost of a matrix-vector round when one worker is late in every round.

The matrix stays on the workers, only vectors travel. One MPI job per case: coded (``mds``, two
losses tolerated) and uncoded, healthy and with one worker that sleeps in every task. The uncoded
late case waits for the sleeper in each round, so it gets fewer rounds. *Round* is the mean time of
a round on the master, *exit* the time of the whole command.

A second table compares a healthy coded round with a loop of the same messages that is written by
hand (``_by_hand.py``), waiting as the product does and in MPI's blocking calls: in one job, by
turns, on the same ranks. Figures are medians over the rounds of a turn, then over the turns; ratios
are taken turn by turn.

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
PAIR = "by hand"
LOSSES = CASES["mds"]["tolerate"]


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


def run_pair(args: argparse.Namespace) -> int:
    """One job, seen from inside: the coded rounds and those by hand, by turns, on all ranks."""
    import _by_hand
    from mpi4py import MPI

    import codedla

    comm = MPI.COMM_WORLD.Dup()
    needed = comm.Get_size() - 1 - LOSSES
    rng = np.random.default_rng(20177)
    matrix = rng.standard_normal((args.size, args.size))
    vectors = rng.standard_normal((8, args.size))
    rows = -(-args.size // needed)
    # A share has as many rows as a coded one: of those that recover a loss, any will do here.
    top = (comm.Get_rank() - 1) % needed * (args.size - rows) // max(needed - 1, 1)
    share = matrix[top : top + rows].copy()
    turns: dict[str, list[float]] = {"coded": [], **{wait: [] for wait in _by_hand.WAITS}}
    error = 0.0
    for _ in range(args.repeats):
        for wait in _by_hand.WAITS:
            comm.Barrier()
            if comm.Get_rank():
                _by_hand.serve(comm, share, wait)
                continue
            seconds, replies = _by_hand.drive(comm, vectors, rows, needed, args.rounds, wait)
            turns[wait].append(statistics.median(seconds))
            whole = matrix @ vectors[(args.rounds - 1) % 8]
            for worker in np.flatnonzero(np.isfinite(replies[:, 0])):
                start = worker % needed * (args.size - rows) // max(needed - 1, 1)
                wrong = np.linalg.norm(replies[worker] - whole[start : start + rows])
                error = max(error, float(wrong / np.linalg.norm(whole)))
        with codedla.MPIPool(MPI.COMM_WORLD) as pool:
            if pool is not None:
                with codedla.store(matrix, pool=pool, **CASES["mds"]) as stored:
                    seconds = []
                    for number in range(args.rounds):
                        began = time.perf_counter()
                        y = stored.matvec(vectors[number % 8])
                        seconds.append(time.perf_counter() - began)
                turns["coded"].append(statistics.median(seconds))
                wrong = np.linalg.norm(y - matrix @ vectors[(args.rounds - 1) % 8])
                error = max(error, float(wrong / np.linalg.norm(y)))
    comm.Barrier()
    if comm.Get_rank() == 0:
        Path(args.result).write_text(json.dumps({"seconds": 0.0, "error": error, "turns": turns}))
    return 0


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Coded rounds against those by hand; print and return the figures."""
    options = {"case": PAIR, "rounds": args.rounds, "size": args.size, "repeats": args.repeats}
    inside, _ = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-12)
    turns = inside["turns"]
    ratios = {name: _common.ratios(turns, name)["coded"] for name in turns if name != "coded"}
    medians = _common.medians(turns)
    names = {"coded": "coded", "sleep": "by hand", "mpi": "by hand, blocking calls"}
    _common.print_table(
        f"the same rounds by hand, tolerate {LOSSES}, medians of {args.repeats} turns "
        f"of {args.rounds} rounds",
        ["loop", "round ms", "coded is x"],
        [
            [names[name], f"{medians[name] * 1e3:.3f}", f"{ratios.get(name, 1.0):.2f}"]
            for name in names
        ],
    )
    return {"round": medians, "coded_over": ratios, "turns": turns}


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
    parser.add_argument("--only-by-hand", action="store_true", help="only the second table")
    parser.add_argument("--quick", action="store_true", help="one repetition, few rounds")
    parser.add_argument("--json", default="rounds.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=[*CASES, PAIR], help=argparse.SUPPRESS)
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
        return run_pair(args) if args.case == PAIR else run_inside(args)
    if args.only_by_hand:
        settings = {"size": args.size, "ranks": args.ranks, "tolerate": LOSSES}
        _common.write_json(args.json, {"settings": settings, "by_hand": compare(args)})
        return 0
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
    _common.write_json(args.json, {"settings": settings, "rows": rows, "by_hand": compare(args)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
