"""Measure how close encoding comes to one read of the operand and the writes of the shares.

Two parity shares of an operand cut into k blocks are written in one pass. Two limits are measured
in the same run, taking turns with the encoding:

* ``read + writes``: the time of one read of the operand (a BLAS dot product of it with itself),
  plus the bytes of the shares divided by the bandwidth of a copy. The copy is of the whole operand,
  with streaming stores; its bandwidth counts the bytes read and the bytes written.
* ``traffic``: all bytes, read and written, divided by that bandwidth. Stricter: a copy reads and
  writes at the same time, and an encoder with many blocks has little to write meanwhile.

``one by one`` is one pass for every share, into fresh memory, ``fresh`` one pass for both, into
fresh memory, whose pages the system must find and clear first, ``again`` the same into memory of
shares that have been sent. CPU times of the thread are used with one thread, so that other programs
on the machine disturb little, and elapsed times with two. The second table is what sums in double
precision cost and bring where operands are of single precision. The third is an MPI job that
stores a matrix from a file and multiplies it by one vector, encoded by the master or by the
workers: elapsed time, CPU time of the master, and bytes it sends.

    OPENBLAS_NUM_THREADS=1 python benchmarks/encode.py --json encode.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleave, medians, print_table, run_as_job, write_json
from threadpoolctl import threadpool_limits

from codedla import kernels
from codedla.blocks import Split
from codedla.engine import buffers
from codedla.engine.encoder import DenseEncoder

OPERAND_ROWS = 8192
COUNTS = (4, 8)
PARITIES = 2
SEED = 70079
METHODS = ("one by one", "fresh", "again")


def operand(rows: int) -> np.ndarray:
    """Square float64 matrix, its pages touched: 512 MiB with 8192 rows."""
    matrix = kernels.aligned_empty((rows, rows))
    rng = np.random.default_rng(SEED)
    for line in matrix:
        rng.random(out=line)
    return matrix


def to_limit(
    seconds: dict[str, list[float]], names: Sequence[str], read: int, written: int
) -> dict[str, dict[str, float]]:
    """Median over the turns of each method's time divided by the turn's own limit."""
    found: dict[str, dict[str, float]] = {"read + writes": {}, "traffic": {}}
    for name in names:
        strict, loose = [], []
        turns = zip(seconds[name], seconds["copy"], seconds["read"], strict=True)
        for took, copy, reading in turns:
            bandwidth = 2 * read / copy
            strict.append(took / ((read + written) / bandwidth))
            loose.append(took / (reading + written / bandwidth))
        found["traffic"][name] = statistics.median(strict)
        found["read + writes"][name] = statistics.median(loose)
    return found


def encode(
    matrix: np.ndarray, target: np.ndarray, k: int, cut: str, threads: int, repeats: int
) -> dict[str, Any]:
    """Encode two parity shares in each way, cutting rows or columns."""
    parts = (k, 1) if cut == "rows" else (1, k)
    rows, cols = Split(matrix.shape[0], parts[0]), Split(matrix.shape[1], parts[1])
    encoder = DenseEncoder(matrix, rows, cols, matrix.dtype)
    encoder.threads = threads
    weights = list(np.random.default_rng(SEED).standard_normal((PARITIES, 1, k)))
    flat = matrix.reshape(-1)

    def one_by_one() -> None:
        shares = []
        for each in weights:
            buffers.forget()
            shares.append(encoder.coded(each))
        del shares
        buffers.forget()

    def fresh() -> None:
        buffers.forget()
        encoder.coded_together(weights)
        buffers.forget()

    def again() -> None:
        encoder.coded_together(weights)

    cases = {
        "copy": partial(kernels.stream_copy, [flat], [target.reshape(-1)], threads=threads),
        "read": lambda: float(flat @ flat),
        "one by one": one_by_one,
        "fresh": fresh,
        # The first of these two fills the store of memory that the second takes from.
        "warm": again,
        "again": again,
    }
    clock = time.thread_time if threads == 1 else time.perf_counter
    with threadpool_limits(threads, user_api="blas"):
        seconds = interleave(cases, repeats=repeats, clock=clock)
    typical = medians(seconds)
    written = PARITIES * rows.size * cols.size * matrix.itemsize
    return {
        "k": k,
        "cut": cut,
        "threads": threads,
        "seconds": typical,
        "copy_GB_per_s": 2 * matrix.nbytes / typical["copy"] / 1e9,
        "to_limit": to_limit(seconds, METHODS, matrix.nbytes, written),
    }


def single(k: int, outputs: int, nbytes: int, repeats: int) -> dict[str, Any]:
    """Blocks of float32: sums in single and in double precision, their cost and their error."""
    rng = np.random.default_rng(SEED)
    ins = []
    for _ in range(k):
        ins.append(kernels.aligned_empty(nbytes // 4 // k, np.float32))
        rng.random(out=ins[-1], dtype=np.float32)
    outs = [kernels.aligned_empty(ins[0].size, np.float32) for _ in range(outputs)]
    weights = rng.standard_normal((outputs, k))
    cases = {
        "single": partial(kernels.combine, weights, ins, outs),
        "double": partial(kernels.combine, weights, ins, outs, wide=True),
    }
    seconds = interleave(cases, repeats=repeats, clock=time.thread_time)
    exact = sum(w * block.astype(np.float64) for w, block in zip(weights[0], ins, strict=True))
    errors = {}
    for name, case in cases.items():
        case()
        errors[name] = float(np.linalg.norm(outs[0] - exact) / np.linalg.norm(exact))
    ratio = [d / s for d, s in zip(seconds["double"], seconds["single"], strict=True)]
    return {
        "k": k,
        "outputs": outputs,
        "seconds": medians(seconds),
        "double_to_single": statistics.median(ratio),
        "errors": errors,
    }


def run_inside(args: argparse.Namespace) -> int:
    """The MPI job: place the shares of a file's matrix, encoded here or there, in turns."""
    from codedla.mpi import program

    def job(pool: Any) -> int:
        import codedla

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.npy"
            np.save(path, operand(args.rows))
            matrix = np.load(path, mmap_mode="r")
            x = np.random.default_rng(SEED).standard_normal(args.rows)
            expected = matrix @ x
            turns: dict[str, list[list[float]]] = {"master": [], "workers": []}
            worst = 0.0
            for turn in range(1 + args.repeats):
                for encode, kept in turns.items():
                    elapsed, cpu = time.perf_counter(), time.process_time()
                    with codedla.store(matrix, pool=pool, encode=encode) as stored:
                        y = stored @ x
                        report = stored.last_report
                    elapsed, cpu = time.perf_counter() - elapsed, time.process_time() - cpu
                    error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
                    worst = max(worst, error)
                    if turn:
                        kept.append([elapsed, cpu, report.bytes["sent"]])
        typical = {
            encode: [statistics.median(column) for column in zip(*rows, strict=True)]
            for encode, rows in turns.items()
        }
        result = {"seconds": typical["master"][0], "error": worst, "median": typical}
        Path(args.result).write_text(json.dumps(result))
        return 0

    return program.run(job)


def from_file(rows: int, ranks: int, repeats: int) -> dict[str, Any]:
    """Figures of the MPI job."""
    options = {"rows": rows, "repeats": repeats}
    inside, _ = run_as_job(os.path.abspath(__file__), options, ranks, largest_error=1e-10)
    names = ("seconds", "master_cpu_seconds", "bytes_sent")
    cases = {
        encode: dict(zip(names, values, strict=True)) for encode, values in inside["median"].items()
    }
    return {"rows": rows, "ranks": ranks, **cases}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=7, help="timed turns (default 7)")
    parser.add_argument("--quick", action="store_true", help="small operands: for tests")
    parser.add_argument("--no-mpi", action="store_true", help="leave the last table out")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        return run_inside(args)
    rows, counts, ranks = OPERAND_ROWS, COUNTS, (3, 9)
    if args.quick:
        rows, counts, args.repeats, ranks = 1024, (4,), 3, (3,)

    matrix = operand(rows)
    target = np.zeros_like(matrix)
    figures = [
        encode(matrix, target, k, cut, threads, args.repeats)
        for threads in (1, 2)
        for k in counts
        for cut in ("rows", "columns")
    ]
    print_table(
        f"{PARITIES} parity shares of {matrix.nbytes >> 20} MiB float64, times the limit "
        f"({kernels.instruction_set()})",
        [
            "k, cut, threads",
            "copy GB/s",
            *(f"{name} / {limit}" for limit in ("read + writes", "traffic") for name in METHODS),
        ],
        [
            [
                f"{row['k']}, {row['cut']}, {row['threads']}",
                f"{row['copy_GB_per_s']:.1f}",
                *(
                    f"{row['to_limit'][limit][name]:.2f}"
                    for limit in ("read + writes", "traffic")
                    for name in METHODS
                ),
            ]
            for row in figures
        ],
    )
    singles = [
        single(k, outputs, matrix.nbytes // 4, args.repeats)
        for k in (*counts, 16)
        for outputs in (1, 2, 8)
    ]
    print_table(
        f"sums of {matrix.nbytes >> 22} MiB float32 in double precision",
        ["k, outputs", "cost / single", "error single", "error double"],
        [
            [
                f"{row['k']}, {row['outputs']}",
                f"{row['double_to_single']:.2f}",
                f"{row['errors']['single']:.1e}",
                f"{row['errors']['double']:.1e}",
            ]
            for row in singles
        ],
    )
    jobs = [] if args.no_mpi else [from_file(rows // 2, n, args.repeats) for n in ranks]
    if jobs:
        print_table(
            f"a matrix of {matrix.nbytes >> 22} MiB in a file, stored and multiplied once",
            ["ranks, encoded by", "seconds", "master's CPU s", "MB sent"],
            [
                [
                    f"{row['ranks']}, {encode}",
                    f"{row[encode]['seconds']:.3f}",
                    f"{row[encode]['master_cpu_seconds']:.3f}",
                    f"{row[encode]['bytes_sent'] / 1e6:.2f}",
                ]
                for row in jobs
                for encode in ("master", "workers")
            ],
        )
    if args.json:
        write_json(
            args.json,
            {
                "benchmark": "encode",
                "operand_bytes": matrix.nbytes,
                "parities": PARITIES,
                "repeats": args.repeats,
                "instruction_set": kernels.instruction_set(),
                "encode": figures,
                "single": singles,
                "from_file": jobs,
            },
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
