"""Multiply thousands of random integer matrices, lose workers, and compare with NumPy bit by bit.

Every product draws its dtype, its block grid (4 to 100 blocks), one to three lost workers and its
entries: any of the dtype, extremes included, or small ones. ``base3`` takes what its bits suffice
for, ``galois`` whatever comes, also what base3 takes. Most are encoded and decoded by the codes
alone; the last few hundred run through a pool. The second table sets the processor time of whole
products in one process against NumPy's own integer product.

    OPENBLAS_NUM_THREADS=1 python benchmarks/integers.py --json integers.json
    python benchmarks/integers.py --quick
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from _common import interleave, print_table, ratios, write_json

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.exact import ExactCode, ModularCode, WrapCode
from codedla.engine.stragglers import Fault
from codedla.errors import CodedlaWarning
from codedla.remainders import crt

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIZES = (256, 512, 1024)
MOST_BLOCKS = 100
SEED = 70_529


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parse(arguments)
    # Workers are lost all the time here.
    warnings.simplefilter("ignore", CodedlaWarning)
    began = time.perf_counter()
    rows = compare(args.products, args.through_pools)
    _show_products(rows, time.perf_counter() - began)
    speed = [speed_of(size, bits, args.repeats) for size in args.sizes for bits in (20, 31, 62)]
    _show_speed(speed)
    if args.json:
        write_json(args.json, {"products": rows, "speed": speed})
    wrong = sum(row["different"] for row in rows)
    if wrong:
        raise SystemExit(f"{wrong} products differ from NumPy's")


def compare(products: int, through_pools: int) -> list[dict[str, Any]]:
    """Multiply ``products`` random pairs, the last ones through a pool; count by dtype and code."""
    rng = np.random.default_rng(SEED)
    counts: Counter[tuple[str, str, str]] = Counter()
    for index in range(products):
        dtype = str(rng.choice(DTYPES))
        grid, losses = _random_grid(rng), int(rng.integers(1, 4))
        A, B = _random_operands(rng, grid, dtype)
        name = "base3" if rng.random() < 0.5 and _suffice(grid, losses, A, B) else "galois"
        workers = grid.outputs + losses
        lost = [int(w) for w in rng.choice(workers, losses, replace=False)]
        pooled = index >= products - through_pools
        multiply = by_pool if pooled else by_hand
        C = multiply(name, grid, losses, lost, A, B)
        expected = A @ B
        same = C.dtype == expected.dtype and np.array_equal(C, expected)
        counts[dtype, name, "products"] += 1
        counts[dtype, name, "pooled"] += pooled
        counts[dtype, name, "erasures"] += losses
        counts[dtype, name, "different"] += not same
    cases = sorted({(dtype, name) for dtype, name, _ in counts}, key=_by_type)
    figures = ("products", "pooled", "erasures", "different")
    return [
        {"dtype": dtype, "code": name, **{f: counts[dtype, name, f] for f in figures}}
        for dtype, name in cases
    ]


def _by_type(case: tuple[str, str]) -> tuple[int, str]:
    return DTYPES.index(case[0]), case[1]


def by_hand(
    name: str, grid: Grid, losses: int, lost: list[int], A: np.ndarray, B: np.ndarray
) -> np.ndarray:
    """Encode, multiply, lose workers and decode, with the code's own matrices."""
    code = _code(name, grid, losses)
    replied = [w for w in range(code.n_workers) if w not in lost]
    if isinstance(code, WrapCode):
        blocks = _decoded(code, replied, A, B)
        blocks >>= code.shifts(replied)[:, None, None]
    else:
        assert isinstance(code, ModularCode)
        primes = code.primes(A.shape[1], _largest(A, B))
        fields = [_code(name, grid, losses, p) for p in primes]
        blocks = crt([_decoded(field, replied, A, B) for field in fields], primes)
    rows, cols = A.shape[0] // grid.m, B.shape[1] // grid.n
    tiled = blocks.reshape(grid.m, grid.n, rows, cols).transpose(0, 2, 1, 3)
    return tiled.reshape(A.shape[0], B.shape[1]).astype(np.result_type(A, B))


def _decoded(code: ExactCode, replied: list[int], A: np.ndarray, B: np.ndarray) -> np.ndarray:
    grid = code.grid
    blocks_a = A.reshape(grid.m, -1, A.shape[1])
    blocks_b = B.reshape(B.shape[0], grid.n, -1).transpose(1, 0, 2)
    share_a = _combined(code, code.generator_a[replied], blocks_a)
    share_b = _combined(code, code.generator_b[replied], blocks_b)
    if isinstance(code, ModularCode):
        # What workers are sent: balanced residues in float64, whose product is exact.
        share_a, share_b = code.galois.balanced(share_a), code.galois.balanced(share_b)
    return _combined(code, code.weights(replied), share_a @ share_b)


def _combined(code: ExactCode, weights: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    flat = code.multiplied(weights, code.reduced(blocks.reshape(len(blocks), -1)))
    return flat.reshape(len(weights), *blocks.shape[1:])


def by_pool(
    name: str, grid: Grid, losses: int, lost: list[int], A: np.ndarray, B: np.ndarray
) -> np.ndarray:
    """Multiply as users do, on a pool whose lost workers never answer."""
    faults = [Fault("kill", worker, 0.0) for worker in lost]
    with codedla.SerialPool(grid.outputs + losses, faults=faults) as pool:
        return codedla.matmul(A, B, pool=pool, code=name, blocks=(grid.m, grid.n))


@lru_cache(maxsize=20_000)
def _code(name: str, grid: Grid, losses: int, prime: int | None = None) -> ExactCode:
    if prime is not None:
        return _code(name, grid, losses).modulo(prime)
    return get(name)(grid.outputs + losses, grid)


def _random_grid(rng: np.random.Generator) -> Grid:
    while True:
        m, n = (int(x) for x in np.exp(rng.uniform(0, np.log(MOST_BLOCKS + 1), 2)))
        if 4 <= m * n <= MOST_BLOCKS:
            return Grid(m, 1, n)


def _random_operands(
    rng: np.random.Generator, grid: Grid, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    rows, inner, cols = grid.m * int(rng.integers(1, 4)), int(rng.integers(1, 9)), grid.n * 2
    info = np.iinfo(dtype)
    shapes = (rows, inner), (inner, cols)
    if rng.random() < 0.5:
        whole = [
            rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True) for shape in shapes
        ]
        for matrix in whole:
            matrix.flat[0], matrix.flat[-1] = info.min, info.max
    else:
        size = 2 ** int(rng.integers(1, 30))
        low, high = max(-size, int(info.min)), min(size, int(info.max))
        whole = [rng.integers(low, high, shape).astype(dtype) for shape in shapes]
    return whole[0], whole[1]


def _largest(A: np.ndarray, B: np.ndarray) -> int:
    sizes = [max(int(matrix.max()), -int(matrix.min())) for matrix in (A, B)]
    return sizes[0] * sizes[1] * A.shape[1]


def _suffice(grid: Grid, losses: int, A: np.ndarray, B: np.ndarray) -> bool:
    """Tell whether base 3 has bits enough: for the product, or for its dtype, which wraps."""
    lost_bits = get("base3")(grid.outputs + losses, grid).lost_bits
    narrow = 8 * np.result_type(A, B).itemsize <= 64 - lost_bits
    return narrow or _largest(A, B) < 2 ** (63 - lost_bits)


def speed_of(size: int, bits: int, repeats: int) -> dict[str, Any]:
    """Processor time of whole products in one process, relative to NumPy's integer product."""
    rng = np.random.default_rng([SEED, size, bits])
    A, B = (rng.integers(-(2**bits), 2**bits, (size, size)) for _ in range(2))
    expected = A @ B
    lost = [Fault("kill", 1, 0.0), Fault("kill", 2, 0.0)]
    pools = {"galois": codedla.SerialPool(6), "galois, 2 lost": codedla.SerialPool(6, faults=lost)}

    def coded(pool: codedla.SerialPool) -> None:
        C = codedla.matmul(A, B, pool=pool, code="galois", blocks=(2, 2), verify="off")
        if not np.array_equal(C, expected):
            raise SystemExit(f"wrong product of size {size} with {bits} bits")

    cases = {name: (lambda pool=pool: coded(pool)) for name, pool in pools.items()}
    seconds = interleave(
        {"numpy": lambda: A @ B, **cases}, repeats=repeats, warmups=0, clock=time.process_time
    )
    primes = _code("galois", Grid(2, 1, 2), 2).primes(size, _largest(A, B))
    relative = ratios(seconds, "numpy")
    return {
        "size": size,
        "bits": bits,
        "primes": len(primes),
        "numpy_seconds": min(seconds["numpy"]),
        **{name: relative[name] for name in cases},
    }


def _show_products(rows: list[dict[str, Any]], seconds: float) -> None:
    figures = ("products", "pooled", "erasures", "different")
    print_table(
        "Random products",
        ("dtype", "code", "products", "by pools", "lost workers", "different"),
        [(row["dtype"], row["code"], *(f"{row[f]:,}" for f in figures)) for row in rows],
    )
    total = {f: sum(row[f] for row in rows) for f in figures}
    print(
        f"{total['products']:,} products, {total['pooled']:,} of them by pools, "
        f"{total['erasures']:,} lost workers, {total['different']} different from NumPy's; "
        f"{seconds:.0f} s"
    )


def _show_speed(rows: list[dict[str, Any]]) -> None:
    print_table(
        "Processor time relative to NumPy's int64 product (below 1: faster)",
        ("size", "bits", "primes", "numpy s", "galois", "galois, 2 lost"),
        [
            (
                str(row["size"]),
                str(row["bits"]),
                str(row["primes"]),
                f"{row['numpy_seconds']:.3f}",
                f"{row['galois']:.3f}",
                f"{row['galois, 2 lost']:.3f}",
            )
            for row in rows
        ],
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--products", type=int, default=10_000)
    parser.add_argument("--through-pools", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few seconds only")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    if args.quick:
        args.products, args.through_pools, args.sizes, args.repeats = 200, 20, (128,), 1
    return args


if __name__ == "__main__":
    main()
