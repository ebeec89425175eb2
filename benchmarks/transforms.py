"""Coded Fourier transforms and convolutions: how accurate, and how long with a late worker.

*Accuracy*: error relative to the norm of the result, against SciPy's transform in long double
precision; in a simulated pool, the worst over patterns of late workers. *scipy* is SciPy's own
error in the same precision.

*Time*: one MPI job per case, with and without a worker that sleeps in every task, coded and
uncoded; *plain* is NumPy's transform, or SciPy's convolution, in one process. Median of a few
rounds, seconds on the master.

    python benchmarks/transforms.py [--quick] [--accuracy] [--json FILE] [--ranks 5] [--delay 1]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np
import scipy.fft
import scipy.signal

WORKERS, LOSSES = 8, 2
LATE_RANK = 2
CODES: dict[str, dict[str, Any]] = {
    "mds": {"code": "mds"},
    "mds unity": {"code": "mds", "nodes": "unity"},
    "polynomial": {"code": "polynomial"},
    "replication": {"code": "replication"},
}
CONVOLVERS = {"khatri-rao": {"code": "khatri-rao"}, **CODES}


# -- accuracy --------------------------------------------------------------------------------------


def transform_rows(lengths: list[int], patterns: int) -> list[dict[str, Any]]:
    """Errors of transforms: every code, precision and length, the worst pattern."""
    rows = []
    for length, dtype in itertools.product(lengths, ("f8", "c16", "f4")):
        x = _numbers(length, dtype)
        wide = x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
        expected = scipy.fft.fft(wide)

        def coded(pool: Any, options: dict[str, Any], x: Any = x) -> Any:
            return _module().fft(x, pool=pool, return_report=True, **options)

        row = {"operation": "fft", "size": length, "dtype": dtype}
        plain = _error(scipy.fft.fft(x), expected)
        for name, options in CODES.items():
            blocks = 3 if name == "replication" else WORKERS - LOSSES
            row_of = _worst(coded, {**options, "parts": blocks}, expected, patterns)
            rows.append({**row, "code": name, "scipy": plain, **row_of})
    return rows


def convolution_rows(lengths: list[tuple[int, int]], patterns: int) -> list[dict[str, Any]]:
    """Errors of convolutions, as :func:`transform_rows`."""
    rows = []
    for (long, short), dtype in itertools.product(lengths, ("f8", "f4")):
        a, b = _numbers(long, dtype), _numbers(short, dtype)
        points = long + short - 1
        spectra = [scipy.fft.rfft(x.astype(np.longdouble), points) for x in (a, b)]
        expected = scipy.fft.irfft(spectra[0] * spectra[1], points)

        def coded(pool: Any, options: dict[str, Any], a: Any = a, b: Any = b) -> Any:
            return _module().convolve(a, b, pool=pool, return_report=True, **options)

        row = {"operation": "convolve", "size": f"{long}*{short}", "dtype": dtype}
        plain = _error(scipy.signal.fftconvolve(a, b), expected)
        for name, options in CONVOLVERS.items():
            one_sided = name.startswith("mds")
            blocks = (6, 1) if one_sided else (2, 1) if name == "replication" else (3, 2)
            row_of = _worst(coded, {**options, "blocks": blocks}, expected, patterns)
            rows.append({**row, "code": name, "scipy": plain, **row_of})
    return rows


def _worst(
    coded: Callable[[Any, dict[str, Any]], Any],
    options: dict[str, Any],
    expected: Any,
    patterns: int,
) -> dict[str, float]:
    errors, ratios = [], []
    pairs = list(itertools.combinations(range(WORKERS), LOSSES))
    rng = np.random.default_rng(20177)
    for index in rng.permutation(len(pairs))[:patterns]:
        late = np.zeros(WORKERS)
        late[list(pairs[index])] = 9.0
        with _module().SimulatedPool(WORKERS, delays=lambda rng, n, late=late: late) as pool:
            result, report = coded(pool, options)
        errors.append(_error(result, expected))
        ratios.append(report.error_estimate / errors[-1])
    return {"error": max(errors), "estimate_least": min(ratios), "estimate_most": max(ratios)}


def _numbers(length: int, dtype: str) -> Any:
    rng = np.random.default_rng(length)
    x = rng.standard_normal(length)
    return (x + 1j * rng.standard_normal(length) if dtype[0] == "c" else x).astype(dtype)


def _error(got: Any, expected: Any) -> float:
    difference = np.abs(got - expected)
    return float(np.sqrt((difference**2).sum() / (np.abs(expected) ** 2).sum()))


def _module() -> Any:
    import codedla

    return codedla


# -- time ------------------------------------------------------------------------------------------


def run_inside(args: argparse.Namespace) -> int:
    """One job, seen from inside: both operations, each a few times."""
    from codedla.engine.stragglers import parse_fault
    from codedla.mpi import program

    def job(pool: Any) -> int:
        import codedla

        workers = args.ranks - 1
        x, kernel = _numbers(args.points, "f8"), _numbers(args.points // 8, "f8")
        coded = args.case == "coded"
        parts = workers - 1 if coded else workers
        codes = {"fft": "mds", "convolve": "mds"} if coded else dict.fromkeys(_PLAIN, "uncoded")
        more = {"tolerate": 1} if coded else {}
        cases = {
            "fft": lambda: codedla.fft(
                x, pool=pool, code=codes["fft"], parts=parts, return_report=True, **more
            ),
            "convolve": lambda: codedla.convolve(
                x,
                kernel,
                pool=pool,
                code=codes["convolve"],
                blocks=(parts, 1),
                return_report=True,
                **more,
            ),
        }
        seconds, error = {}, 0.0
        for name, case in cases.items():
            result, _ = case()
            error = max(error, _error(result, _PLAIN[name](x, kernel)))
            seconds[name] = [case()[1].times["total"] for _ in range(args.repeats)]
            began = time.perf_counter()
            _PLAIN[name](x, kernel)
            seconds[f"plain {name}"] = [time.perf_counter() - began]
        Path(args.result).write_text(json.dumps({"seconds": seconds, "error": error}))
        return 0

    late = [parse_fault(f"delay:{LATE_RANK}:{args.delay}")] if args.late else []
    return program.run(job, faults=late)


_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "fft": lambda x, kernel: np.fft.fft(x),
    "convolve": lambda x, kernel: scipy.signal.oaconvolve(x, kernel),
}


def time_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Median seconds of every case, from four jobs."""
    rows = []
    # A multiple of every number of parts that occurs.
    workers = args.ranks - 1
    points = args.points - args.points % (workers * (workers - 1))
    for late, case in itertools.product((False, True), ("coded", "uncoded")):
        options = {
            "case": case,
            "late": late,
            "delay": args.delay,
            "points": points,
            "repeats": args.repeats,
            "ranks": args.ranks,
        }
        inside, _ = _common.run_as_job(__file__, options, args.ranks, largest_error=1e-13)
        for name in _PLAIN:
            rows.append(
                {
                    "operation": name,
                    "case": case,
                    "late": late,
                    "points": points,
                    "seconds": statistics.median(inside["seconds"][name]),
                    "plain": inside["seconds"][f"plain {name}"][0],
                }
            )
    return rows


# -- the program -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few patterns")
    parser.add_argument("--accuracy", action="store_true", help="only that: start no MPI jobs")
    parser.add_argument("--json", default="transforms.json", help="file for the figures")
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument(
        "--delay", type=float, default=1.0, help="seconds that the late rank sleeps"
    )
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    for name in ("--inside", "--late"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    for name in ("--result", "--case"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return run_inside(args)
    args.points = args.points or (60_000 if args.quick else 1_500_000)
    patterns = 3 if args.quick else 28
    lengths = [720] if args.quick else [720, 30_030, 3 * 2**16]
    pairs = [(600, 200)] if args.quick else [(600, 200), (40_000, 10_000)]
    accuracy = transform_rows(lengths, patterns) + convolution_rows(pairs, patterns)
    _common.print_table(
        f"Accuracy: worst of {patterns} patterns of {LOSSES} late among {WORKERS} workers",
        ["operation", "size", "dtype", "code", "error", "scipy", "estimate / error"],
        [
            [
                row["operation"],
                str(row["size"]),
                row["dtype"],
                row["code"],
                f"{row['error']:.1e}",
                f"{row['scipy']:.1e}",
                f"{row['estimate_least']:.1f} .. {row['estimate_most']:.1f}",
            ]
            for row in accuracy
        ],
    )
    seconds = [] if args.accuracy else time_rows(args)
    if seconds:
        _common.print_table(
            f"Time on {args.ranks} ranks, {seconds[0]['points']} points; the late rank sleeps "
            f"{args.delay:g} s in every task",
            ["operation", "case", "late", "seconds", "plain"],
            [
                [
                    row["operation"],
                    row["case"],
                    "one" if row["late"] else "none",
                    f"{row['seconds']:.3f}",
                    f"{row['plain']:.3f}",
                ]
                for row in seconds
            ],
        )
    settings = {"ranks": args.ranks, "delay": args.delay, "workers": WORKERS, "losses": LOSSES}
    document = {"settings": settings, "accuracy": accuracy, "time": seconds}
    _common.write_json(args.json, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
