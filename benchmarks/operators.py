"""SciPy's solvers on a coded operator while two workers are late in every round.

``eigsh``, ``cg`` and ``svds`` on a sparse stiffness matrix (``--matrix``, scaled to a unit
diagonal; its rows are left out where there is no such file) and on a dense matrix. One MPI job per
case: with nobody late, and with two workers that sleep in every task. *Difference* is relative to
the same solver on the plain matrix, with the same start; *ratio* is that of the solver's times,
late over healthy, turn by turn; *exit* the seconds from the end of the solver, in the late case,
to the end of the command.

The iteration counts of ``cg`` are fixed (``--steps``), so that rounding cannot make one run longer.
A difference of zero is right where the code repeats plain blocks (*replication*, which keeps sparse
matrices sparse): then every reply is the plain product's own bits.

A second job makes many rounds: by how much the memory of any rank grows (resident, and unique where
the system tells), how many MPI requests it has before and after, and how many messages are ever
open on the master. That both tables would show a fault is seen with faults made on purpose:
``--perturb EPS`` changes the operator's products by that much, ``--leak RANK`` makes a rank keep
memory and requests in every moment.

    python benchmarks/operators.py --matrix bcsstk15.mtx.gz [--size 4000] [--rounds 10000]
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import _common
import numpy as np

SOLVERS = ("eigsh", "cg", "svds")
KINDS = ("sparse", "dense")
LATE_RANKS = (3, 6)
PAIRS = 3
DUE = {"difference": 1e-10, "ratio": 1.3, "growth": 5e6}
USAGE = "usage"
SETTLING = 500
"""Rounds before memory is looked at for the first time."""


def matrix(args: argparse.Namespace) -> Any:
    """Symmetric positive definite, sparse from a file or dense."""
    if args.kind == "sparse":
        import scipy.io
        import scipy.sparse as sp

        whole = sp.csr_array(scipy.io.mmread(args.matrix), dtype=float)
        scale = sp.diags_array(1 / np.sqrt(whole.diagonal()))
        return sp.csr_array(scale @ whole @ scale)
    rng = np.random.default_rng(61637)
    noise = rng.standard_normal((args.size, args.size)) / np.sqrt(args.size)
    # A few values stand out, so that the largest are well apart.
    spread = rng.standard_normal((args.size, 2 * PAIRS)) / np.sqrt(args.size)
    return (noise + noise.T) / 2 + 3 * np.eye(args.size) + 9 * spread @ spread.T


def perturbed(a: Any, size: float) -> Any:
    """Return an operator whose products are off by that much of themselves, entry by entry."""
    import scipy.sparse.linalg as sla

    plain = sla.aslinearoperator(a)
    wrong = 1 + size * np.cos(np.arange(a.shape[0]))

    def multiply(x: np.ndarray) -> np.ndarray:
        return wrong * plain.matvec(x).ravel()

    return sla.LinearOperator(a.shape, multiply, rmatvec=multiply, dtype=float)


def call(args: argparse.Namespace, a: Any, start: np.ndarray) -> np.ndarray:
    """Run the solver; return what is to be compared."""
    import scipy.sparse.linalg as sla

    if args.solver == "cg":
        # As many iterations as are asked for: the tolerance is never met.
        return sla.cg(a, start, rtol=0.0, atol=0.0, maxiter=args.steps)[0]
    if args.solver == "eigsh":
        return sla.eigsh(a, k=PAIRS, v0=start, return_eigenvectors=False)
    return sla.svds(a, k=PAIRS, v0=start, return_singular_vectors=False)


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside."""
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program

    def job(pool: Any) -> int:
        import codedla

        a = matrix(args)
        start = np.random.default_rng(90523).standard_normal(a.shape[0])
        with codedla.aslinearoperator(a, pool=pool, tolerate=len(LATE_RANKS)) as op:
            # The shares are sent in the first rounds.
            for _ in range(3):
                op.matvec(start)
                if args.solver == "svds":
                    op.rmatvec(start)
            before = op.totals.rounds
            began = time.perf_counter()
            found = call(args, perturbed(op, args.perturb) if args.perturb else op, start)
            seconds = time.perf_counter() - began
            rounds = op.totals.rounds - before
            late = {rank: op.totals.stragglers[rank] for rank in sorted(op.totals.stragglers)}
            code = op.last_report.code
        expected = call(args, a, start)
        error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        result = {"seconds": seconds, "error": error, "rounds": rounds, "late": late}
        result["code"] = code
        Path(args.result).write_text(json.dumps({**result, "ended": time.time()}))
        return 0

    specs = [f"delay:{rank}:{args.delay}" for rank in LATE_RANKS] if args.late else []
    return program.run(job, faults=[parse_fault(spec) for spec in specs])


def run_usage(args: argparse.Namespace) -> int:
    """Many rounds, seen from inside: memory of every rank and open messages."""
    from codedla.mpi import program
    from codedla.mpi.launch import world_from_env

    folder = Path(args.result).parent
    rank = world_from_env()[0]
    # Every rank counts its own requests when it is asked to.
    signal.signal(signal.SIGUSR1, lambda *_: _count_requests(folder, rank))
    if rank == args.leak:
        threading.Thread(target=_leak, daemon=True).start()

    def job(pool: Any) -> int:
        import psutil

        import codedla

        rng = np.random.default_rng(20177)
        a, x = rng.standard_normal((1000, 1000)), rng.standard_normal(1000)
        links = pool._master.links
        with codedla.aslinearoperator(a, pool=pool, tolerate=len(LATE_RANKS)) as op:
            for _ in range(SETTLING):
                op.matvec(x)
            processes = [psutil.Process(), *(psutil.Process(link.pid) for link in links)]
            requests = [_requests(folder, processes)]
            before = [_memory(process) for process in processes]
            most, began = 0, time.perf_counter()
            for number in range(args.rounds):
                y = op.matvec(x)
                if number % 100 == 0:
                    most = max(
                        most, *(len(k.sends) + len(k.orders) + len(k.receipts) for k in links)
                    )
            seconds = time.perf_counter() - began
            after = [_memory(process) for process in processes]
            requests.append(_requests(folder, processes))
        growth = [
            {name: now[name] - was[name] for name in now}
            for now, was in zip(after, before, strict=True)
        ]
        error = float(np.linalg.norm(y - a @ x) / np.linalg.norm(y))
        result = {"seconds": seconds, "error": error, "growth": growth, "open": most}
        result["requests"] = requests
        Path(args.result).write_text(json.dumps(result))
        return 0

    return program.run(job)


def _memory(process: Any) -> dict[str, int]:
    """Resident and unique bytes of a rank."""
    whole = process.memory_full_info()
    return {"rss": whole.rss, "uss": whole.uss}


def _count_requests(folder: Path, rank: int) -> None:
    """Write how many MPI requests this rank has that are not done."""
    from mpi4py import MPI

    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, MPI.Request)]
    count = sum(each != MPI.REQUEST_NULL for each in found)
    draft = folder / f"requests{rank}.draft"
    draft.write_text(str(count))
    draft.rename(folder / f"requests{rank}")


def _requests(folder: Path, processes: list[Any]) -> list[int]:
    """Ask all ranks for the number of their requests."""
    files = [folder / f"requests{rank}" for rank in range(len(processes))]
    for process in processes:
        process.send_signal(signal.SIGUSR1)
    end = time.monotonic() + 30
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise SystemExit("a rank did not say how many requests it has")
        time.sleep(0.01)
    counts = [int(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return counts


def _leak() -> None:
    """Keep more and more, until the process ends."""
    from mpi4py import MPI

    kept = []
    while True:
        # A receive that nobody sends to, from nobody but this rank.
        memory = np.ones(50_000)
        kept.append((memory, MPI.COMM_SELF.Irecv(memory, 0, 1)))
        time.sleep(0.01)


def measure(args: argparse.Namespace, kind: str, solver: str, late: bool) -> dict[str, Any]:
    """One run from outside."""
    options = {
        "case": "solver",
        "kind": kind,
        "solver": solver,
        "late": late,
        "matrix": args.matrix,
        "size": args.size,
        "steps": args.steps,
        "delay": args.delay,
        "perturb": args.perturb,
    }
    # What misses the target is shown, what is plainly wrong is refused.
    inside, _ = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-4)
    return {**inside, "exit": time.time() - inside["ended"]}


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All solvers on all matrices; print and return the figures."""
    kinds = [kind for kind in KINDS if kind != "sparse" or args.matrix]
    rows = []
    for kind in kinds:
        for solver in args.solvers:
            runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
            for _ in range(args.repeats):
                for late, done in runs.items():
                    done.append(measure(args, kind, solver, late))
            seconds = {str(late): [run["seconds"] for run in done] for late, done in runs.items()}
            rows.append(
                {
                    "matrix": kind,
                    "solver": solver,
                    "code": runs[True][0]["code"],
                    "rounds": runs[True][0]["rounds"],
                    "seconds": _common.medians(seconds),
                    "ratio": _common.ratios(seconds, "False")["True"],
                    "difference": max(run["error"] for done in runs.values() for run in done),
                    "exit": statistics.median(run["exit"] for run in runs[True]),
                    "late": runs[True][0]["late"],
                    "turns": seconds,
                }
            )
    _common.print_table(
        f"solvers on {args.ranks} ranks, workers {' and '.join(map(str, LATE_RANKS))} late by "
        f"{args.delay:g} s in every round, medians of {args.repeats}; due: ratio {DUE['ratio']}, "
        f"difference {DUE['difference']:.0e}",
        [
            "matrix",
            "solver",
            "code",
            "rounds",
            "healthy s",
            "late s",
            "ratio",
            "difference",
            "exit s",
        ],
        [
            [
                row["matrix"],
                row["solver"],
                row["code"],
                str(row["rounds"]),
                f"{row['seconds']['False']:.3f}",
                f"{row['seconds']['True']:.3f}",
                f"{row['ratio']:.2f}",
                f"{row['difference']:.1e}",
                f"{row['exit']:.2f}",
            ]
            for row in rows
        ],
    )
    return rows


def usage(args: argparse.Namespace) -> dict[str, Any]:
    """Memory and open messages over many rounds; print and return the figures."""
    options = {"case": USAGE, "rounds": args.rounds, "leak": args.leak}
    inside, _ = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-12)
    _common.print_table(
        f"{args.rounds} rounds of a 1000x1000 operator, {args.rounds / inside['seconds']:.0f} a "
        f"second, at most {inside['open']} messages open with a worker; due: growth below "
        f"{DUE['growth'] / 1e6:g} MB, no more requests",
        ["rank", "resident MB", "unique MB", "requests before", "after"],
        [
            [str(rank), f"{grown['rss'] / 1e6:.2f}", f"{grown['uss'] / 1e6:.2f}", str(b), str(a)]
            for rank, (grown, b, a) in enumerate(
                zip(inside["growth"], *inside["requests"], strict=True)
            )
        ],
    )
    return inside


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", help="a symmetric positive definite matrix, .mtx or .mtx.gz")
    parser.add_argument("--size", type=int, default=4000, help="rows of the dense matrix")
    parser.add_argument("--steps", type=int, default=300, help="iterations of cg")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds the late workers sleep")
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds of the second table")
    parser.add_argument("--ranks", type=int, default=9, help="MPI ranks, master included")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case")
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=SOLVERS)
    parser.add_argument("--perturb", type=float, help="a fault on purpose: relative, of products")
    parser.add_argument("--leak", type=int, metavar="RANK", help="a fault on purpose")
    parser.add_argument("--quick", action="store_true", help="one repetition, small and short")
    parser.add_argument("--json", default="operators.json", help="where the figures go")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=["solver", USAGE], help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--solver", choices=SOLVERS, help=argparse.SUPPRESS)
    parser.add_argument("--late", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.size, args.steps = min(args.size, 400), min(args.steps, 50)
        args.rounds, args.repeats = min(args.rounds, 500), 1
    if args.ranks <= max(LATE_RANKS):
        parser.error(f"--ranks must be above {max(LATE_RANKS)}, the last rank that is late")
    return args


def main() -> int:
    """Measure, print, write."""
    args = parse()
    if args.inside:
        return run_usage(args) if args.case == USAGE else run_inside(args)
    if args.matrix is None or not Path(args.matrix).exists():
        print("no --matrix: the sparse rows are left out")
        args.matrix = None
    rows, used = compare(args), usage(args)
    settings = {name: getattr(args, name) for name in ("size", "steps", "delay", "ranks", "matrix")}
    settings["matrix"] = None if args.matrix is None else Path(args.matrix).name
    _common.write_json(args.json, {"settings": settings, "due": DUE, "rows": rows, "usage": used})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
