"""Measure how close decoding comes to a plain copy of the replies.

A decode reads k blocks and writes k blocks at least once, so its limit is a copy of k blocks with
streaming stores (``x copy``). It also needs 2 k^2 operations per column: where the processor
cannot do those in the time of the copy, the same kernel on a few columns that stay in the cache
shows the other limit (``x bound``: against the larger of the two). Against it stand NumPy and
SciPy, on replies already stacked and on replies as they arrive, and the Bjorck-Pereyra solver. The
last table is what remains to be done after the last arrival. Thread times are used, so that other
programs on the machine disturb little; set OPENBLAS_NUM_THREADS=1 to compare one thread with one.

    OPENBLAS_NUM_THREADS=1 python benchmarks/decode.py --json decode.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from _common import interleave, medians, print_table, ratios, write_json

from codedla import kernels
from codedla import vandermonde as vm

COUNTS = (4, 9, 16, 36, 64)
BLOCK_BYTES = 8 << 20
# 2 x 64 pieces of this size stay in a second-level cache; whole chunks of every instruction set.
CACHED_BYTES = 4608
SEED = 97103

Times = dict[str, list[float]]


def blocks(count: int, nbytes: int, dtype: str, seed: int = SEED) -> list[np.ndarray]:
    """Random aligned blocks; their pages are touched."""
    rng = np.random.default_rng(seed)
    real = np.float32 if np.dtype(dtype) in (np.float32, np.complex64) else np.float64
    made = []
    for _ in range(count):
        block = kernels.aligned_empty(nbytes // np.dtype(dtype).itemsize, dtype)
        rng.random(out=block.view(real), dtype=real)
        made.append(block)
    return made


def zeros(count: int, like: np.ndarray) -> list[np.ndarray]:
    """Aligned blocks for results."""
    made = []
    for _ in range(count):
        made.append(kernels.aligned_empty(like.shape, like.dtype))
        made[-1][...] = 0
    return made


def generator(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev nodes and their Vandermonde matrix in the Chebyshev basis (well conditioned)."""
    nodes = np.cos((np.arange(k) + 0.5) * np.pi / k)
    return nodes, vm.matrix(nodes, basis="chebyshev")


def multiply_bound(W: np.ndarray, replies: Sequence[np.ndarray]) -> float:
    """Seconds the multiplications of a decode take when the columns come from the cache.

    The kernel is called without its checks, whose cost does not depend on the number of columns.
    """
    columns = CACHED_BYTES // replies[0].itemsize
    ins = [reply[:columns].copy() for reply in replies]
    outs = [np.empty_like(block) for block in ins]
    isa, calls = kernels._isa(), 20

    def call() -> None:
        for _ in range(calls):
            kernels._blocks.combine(W, ins, outs, False, isa, 0, columns)

    best = min(interleave({"cached": call}, repeats=9, clock=time.thread_time)["cached"])
    return best / calls * replies[0].size / columns


def decode_once(k: int, args: argparse.Namespace) -> dict[str, Any]:
    """All methods on k replies of one float64 block each."""
    nodes, G = generator(k)
    W = np.linalg.inv(G)
    replies = blocks(k, args.block_bytes, "float64")
    outs = zeros(k, replies[0])
    fast: dict[str, Callable[[], Any]] = {
        "copy": partial(kernels.stream_copy, replies, outs),
        "combine": partial(kernels.combine, W, replies, outs),
    }
    seconds = interleave(fast, repeats=args.repeats, clock=time.thread_time)
    stacked = np.stack(replies)
    slow: dict[str, Callable[[], Any]] = {
        "copy": fast["copy"],
        "combine": fast["combine"],
        "W @ stacked": lambda: W @ stacked,
        "stack, W @": lambda: W @ np.stack(replies),
        "numpy solve": lambda: np.linalg.solve(G, stacked),
        "stack, numpy solve": lambda: np.linalg.solve(G, np.stack(replies)),
        "scipy solve": lambda: scipy.linalg.solve(G, stacked, check_finite=False),
        "Bjorck-Pereyra": lambda: vm.solve(nodes, stacked),
    }
    compared = interleave(slow, repeats=max(1, args.repeats // 3), clock=time.thread_time)
    columns = replies[0].size
    bound = multiply_bound(W, replies)
    to_copy, typical = ratios(seconds, "copy"), medians(seconds)
    to_combine = ratios(compared, "combine")
    limit = max(typical["copy"], bound)
    return {
        "k": k,
        "seconds": {**medians(compared), **typical},
        "copy_GB_per_s": 2 * k * args.block_bytes / typical["copy"] / 1e9,
        "multiply_bound": bound,
        "gflops": 2 * k * k * columns / typical["combine"] / 1e9,
        "combine_to_copy": to_copy["combine"],
        "combine_to_bound": typical["combine"] / limit,
        "speedup_over": {
            name: ratio for name, ratio in to_combine.items() if name not in ("copy", "combine")
        },
    }


def by_type(k: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Blocks of equal bytes in every type; complex ones with real and with complex weights."""
    _, G = generator(k)
    W = np.linalg.inv(G)
    found = []
    for dtype, weights in (
        ("float64", W),
        ("float32", W),
        ("complex128", W),
        ("complex128", W + 1j * W.T),
        ("complex64", W),
        ("complex64", W + 1j * W.T),
    ):
        replies = blocks(k, args.block_bytes, dtype)
        outs = zeros(k, replies[0])
        seconds = interleave(
            {
                "copy": partial(kernels.stream_copy, replies, outs),
                "combine": partial(kernels.combine, weights, replies, outs),
            },
            repeats=args.repeats,
            clock=time.thread_time,
        )
        bound = multiply_bound(weights, replies)
        typical = medians(seconds)
        found.append(
            {
                "k": k,
                "dtype": dtype,
                "weights": "complex" if np.iscomplexobj(weights) else "real",
                "seconds": typical,
                "combine_to_copy": ratios(seconds, "copy")["combine"],
                "combine_to_bound": typical["combine"] / max(typical["copy"], bound),
            }
        )
    return found


def by_instruction_set(k: int, args: argparse.Namespace) -> dict[str, Any]:
    """The same decode with every instruction set of this machine, against one copy."""
    _, G = generator(k)
    W = np.linalg.inv(G)
    replies = blocks(k, args.block_bytes, "float64")
    outs = zeros(k, replies[0])

    def decode(name: str) -> None:
        with kernels.using_instruction_set(name):
            kernels.combine(W, replies, outs)

    names = kernels.available_instruction_sets()
    cases: dict[str, Callable[[], Any]] = {"copy": partial(kernels.stream_copy, replies, outs)}
    cases |= {name: partial(decode, name) for name in names}
    seconds = interleave(cases, repeats=args.repeats, clock=time.thread_time)
    return {"k": k, "seconds": medians(seconds), "to_copy": ratios(seconds, "copy")}


def after_last_arrival(k: int, erased: int, args: argparse.Namespace) -> dict[str, Any]:
    """Systematic code, ``erased`` data blocks missing: what the last needed reply leaves to do.

    Progressive: the parity residuals already hold every earlier block. The last one, a plain
    block, and the residuals give the missing blocks in one pass. One shot: all k replies are
    combined when the last has come. ``systematic, at once`` starts as late but computes the missing
    blocks only.
    """
    _, G = generator(k)
    parity = np.random.default_rng(SEED).standard_normal((erased, k)) / np.sqrt(k)
    data = blocks(k - erased, args.block_bytes, "float64")
    residuals = blocks(erased, args.block_bytes, "float64", SEED + 2)
    outs = zeros(k, data[0])
    missing, last = list(range(erased)), k - 1
    inverse = np.linalg.inv(parity[:, missing])
    finish = np.hstack([inverse, -inverse @ parity[:, [last]]])
    whole = np.hstack([inverse, -inverse @ parity[:, erased:]])
    one_shot = np.linalg.inv(G)
    cases = {
        "one shot": partial(kernels.combine, one_shot, residuals + data, outs),
        "systematic, at once": partial(kernels.combine, whole, residuals + data, outs[:erased]),
        "systematic, progressive": partial(
            kernels.combine, finish, [*residuals, data[-1]], outs[:erased]
        ),
        "fold of one arrival": partial(kernels.fold, residuals, parity[:, last] * 1e-9, data[-1]),
        "copy of one block": partial(kernels.stream_copy, data[-1:], outs[:1]),
    }
    seconds = interleave(cases, repeats=args.repeats, clock=time.thread_time)
    return {
        "k": k,
        "erased": erased,
        "seconds": medians(seconds),
        "to_one_shot": ratios(seconds, "one shot"),
    }


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns (default 9)")
    parser.add_argument("--quick", action="store_true", help="small blocks, few turns: for tests")
    args = parser.parse_args(argv)
    args.block_bytes = BLOCK_BYTES
    counts, details = COUNTS, (16, 64)
    if args.quick:
        args.block_bytes, args.repeats, counts, details = 1 << 17, 3, (4, 16), (16,)

    decodes = [decode_once(k, args) for k in counts]
    print_table(
        f"decode k blocks of {args.block_bytes >> 10} KiB float64, milliseconds "
        f"({kernels.instruction_set()}, one thread)",
        ["k", "copy", "multiply", "combine", "GF/s", "x copy", "x bound"],
        [
            [
                str(row["k"]),
                milliseconds(row["seconds"]["copy"]),
                milliseconds(row["multiply_bound"]),
                milliseconds(row["seconds"]["combine"]),
                f"{row['gflops']:.1f}",
                f"{row['combine_to_copy']:.2f}",
                f"{row['combine_to_bound']:.2f}",
            ]
            for row in decodes
        ],
    )
    others = list(decodes[0]["speedup_over"])
    print_table(
        "the same, how many times as long as combine",
        ["k", *others],
        [[str(row["k"]), *(f"{row['speedup_over'][o]:.1f}" for o in others)] for row in decodes],
    )
    types = [row for k in details for row in by_type(k, args)]
    print_table(
        "other types, blocks of the same bytes",
        ["type", "weights", "k", "copy", "combine", "x copy", "x bound"],
        [
            [
                row["dtype"],
                row["weights"],
                str(row["k"]),
                milliseconds(row["seconds"]["copy"]),
                milliseconds(row["seconds"]["combine"]),
                f"{row['combine_to_copy']:.2f}",
                f"{row['combine_to_bound']:.2f}",
            ]
            for row in types
        ],
    )
    sets = [by_instruction_set(k, args) for k in counts]
    names = kernels.available_instruction_sets()
    print_table(
        "instruction sets, x copy",
        ["k", *names],
        [[str(row["k"]), *(f"{row['to_copy'][name]:.2f}" for name in names)] for row in sets],
    )
    finishes = [after_last_arrival(counts[-1], erased, args) for erased in (1, 2, 4)]
    print_table(
        f"after the last arrival, k = {counts[-1]}, e data blocks missing",
        ["", *(f"e={row['erased']} ms" for row in finishes), "e=2 / one shot"],
        [
            [
                name,
                *(milliseconds(row["seconds"][name]) for row in finishes),
                f"{finishes[1]['to_one_shot'][name]:.2%}",
            ]
            for name in finishes[0]["seconds"]
        ],
    )
    if args.json:
        write_json(
            args.json,
            {
                "benchmark": "decode",
                "block_bytes": args.block_bytes,
                "repeats": args.repeats,
                "instruction_set": kernels.instruction_set(),
                "decode": decodes,
                "types": types,
                "instruction_sets": sets,
                "after_last_arrival": finishes,
            },
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
