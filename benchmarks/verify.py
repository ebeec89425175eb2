"""Measure what checking every reply costs, and whether it names the liars and nobody else.

The first table sets the work of ``verify="locate"`` on the master (what can be done while it waits,
and what each arrival adds) against the plain product on one core and against the whole run in one
process. The second corrupts one to three workers per product, on random shapes, codes and dtypes
in the simulated pool, and compares every result with NumPy's. The last rows leave no spare worker:
the missing share is computed by somebody else then.

    OPENBLAS_NUM_THREADS=1 python benchmarks/verify.py --json verify.json
    python benchmarks/verify.py --products 200 --sizes 600
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from _common import interleave, medians, print_table, ratios, write_json

import codedla
from codedla.blocks import Split
from codedla.engine.encoder import make_encoder
from codedla.engine.plan import Plan
from codedla.engine.stragglers import CORRUPTIONS, Delays, Fault
from codedla.errors import CodedlaWarning, VerificationFailed
from codedla.linalg.operands import Checked, as_operand, plan_product
from codedla.linalg.verify import ReplyCheck, verification_seconds, worthwhile

SIZES = (600, 1000, 1500, 2000, 3000)
CODES = {"khatri-rao": (3, 2), "mds": (6, 1), "polynomial": (3, 2)}
WORKERS = 8
SEED = 40093
ALLOWED_ERROR = 1e-9
ROUNDS_PER_POOL = 4


def replies(plan: Plan, a: Checked, b: Checked) -> dict[int, np.ndarray]:
    """What the workers answer."""
    m, inner, n = plan.shape
    rows, between, cols = (
        Split(m, plan.grid.m),
        Split(inner, plan.grid.p),
        Split(n, plan.grid.n),
    )
    encoder_a = make_encoder(a.matrix, rows, between, plan.compute)
    encoder_b = make_encoder(b.matrix, between, cols, plan.compute)
    return {
        share: encoder_a.coded(plan.code.generator_a[share])
        @ encoder_b.coded(plan.code.generator_b[share])
        for share in range(plan.code.active)
    }


def cost_of(size: int, code: str, args: argparse.Namespace) -> dict[str, Any]:
    """One size and code: product, preparation, checks, and the run with and without them."""
    rng = np.random.default_rng([SEED, size])
    A, B = rng.standard_normal((size, size)), rng.standard_normal((size, size))
    a, b = as_operand(A, "A"), as_operand(B, "B")
    with codedla.SerialPool(WORKERS) as pool:
        plan = plan_product(a, b, pool, operation="matmul", code=code, blocks=CODES[code])
    answers = replies(plan, a, b)
    ready = ReplyCheck(plan, a, b)
    steps: list[float] = []

    def prepare() -> None:
        check = ReplyCheck(plan, a, b)
        began = time.perf_counter()
        while check.prepare():
            steps.append(time.perf_counter() - began)
            began = time.perf_counter()

    def checks() -> None:
        for share, reply in answers.items():
            if not ready.check(share, reply):
                raise SystemExit(f"size {size}, code {code}: an honest reply was refused")

    def run(verify: str) -> None:
        with codedla.SerialPool(WORKERS) as pool:
            codedla.matmul(A, B, pool=pool, code=code, blocks=CODES[code], verify=verify)

    cases: dict[str, Callable[[], Any]] = {
        "product": lambda: A @ B,
        "prepare": prepare,
        "checks": checks,
        "off": partial(run, "off"),
        "locate": partial(run, "locate"),
    }
    seconds = interleave(cases, repeats=args.repeats)
    typical, relative = medians(seconds), ratios(seconds, "product")
    return {
        "size": size,
        "code": code,
        "seconds": typical,
        "longest_step": max(steps),
        "check_of_one": typical["checks"] / len(answers),
        "to_product": relative["prepare"] + relative["checks"],
        "locate_to_off": ratios(seconds, "off")["locate"],
        "predicted": verification_seconds(plan),
        "auto": worthwhile(plan, a, b),
    }


class Tally:
    """What became of products with corrupted replies."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def run(self, rng: np.random.Generator, kind: str, tolerate: int) -> None:
        """Run some products in one pool, compare them with NumPy, and look who was named."""
        liars = self._choose(rng, max(tolerate, 1))
        faults = [Fault("corrupt", worker, 1.0, corruption=kind) for worker in liars]
        shape = [int(x) for x in rng.integers(6, 90, 3)]
        dtype = str(rng.choice(["f8", "f8", "c16", "i4"]))
        code, blocks, workers = self._code(rng, tolerate)
        # Random delays: any worker may be among the first.
        with codedla.SimulatedPool(
            workers, Delays("exp", (1e-3,)), faults, seed=int(rng.integers(2**31))
        ) as pool:
            said = [self._listen(pool, worker) for worker in range(workers)]
            for _ in range(ROUNDS_PER_POOL):
                A, B = matrix(rng, shape[:2], dtype), matrix(rng, shape[1:], dtype)
                for words in said:
                    words.clear()
                try:
                    C, report = codedla.matmul(
                        A,
                        B,
                        pool=pool,
                        code=code,
                        blocks=blocks,
                        verify="locate",
                        return_report=True,
                    )
                except VerificationFailed:
                    self.counts.update(products=1, refused=1)
                    continue
                self._count(A, B, C, set(report.wrong), {w + 1 for w in range(workers) if said[w]})

    def _count(
        self, A: np.ndarray, B: np.ndarray, C: np.ndarray, named: set[int], lied: set[int]
    ) -> None:
        expected = A @ B
        if expected.dtype.kind == "i":
            right = np.array_equal(C, expected)
        else:
            scale = np.linalg.norm(A) * np.linalg.norm(B)
            right = bool(np.linalg.norm(C - expected) <= ALLOWED_ERROR * scale)
        self.counts.update(
            products=1,
            wrong=not right,
            liars=len(lied),
            named=len(named & lied),
            unnoticed=len(lied - named),
            accused=len(named - lied),
        )

    @staticmethod
    def _choose(rng: np.random.Generator, most: int) -> list[int]:
        count = int(rng.integers(1, min(most, 3) + 1))
        return [int(w) for w in rng.choice(6, count, replace=False)]

    @staticmethod
    def _code(rng: np.random.Generator, spares: int) -> tuple[str, tuple[int, ...], int]:
        if spares == 0:
            return "uncoded", (3, 2), 6
        name = str(rng.choice(["khatri-rao", "mds", "polynomial", "matdot", "replication"]))
        if name == "matdot":
            return name, (1, 2, 1), 3 + spares
        if name == "replication":
            return name, (2, 1), 2 * (spares + 1)
        return name, (4, 1) if name == "mds" else (2, 2), 4 + spares

    @staticmethod
    def _listen(pool: Any, worker: int) -> list[str]:
        """Note whenever this worker's reply was changed."""
        plan, said = pool.plans[worker], []
        corrupt = plan.corrupt

        def noted(reply: np.ndarray) -> str:
            kind = corrupt(reply)
            if kind:
                said.append(kind)
            return kind

        plan.corrupt = noted
        return said


def matrix(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    if dtype == "i4":
        return rng.integers(-1000, 1000, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if dtype == "c16":
        values = values + 1j * rng.standard_normal(shape)
    return values


def liars(products: int, seed: int) -> list[dict[str, Any]]:
    """Run this many products with spare workers, and a fifth as many without."""
    rows = []
    for spares in (3, 0):
        share = products if spares else max(products // 5, len(CORRUPTIONS) * ROUNDS_PER_POOL)
        turns = -(-share // (len(CORRUPTIONS) * ROUNDS_PER_POOL))
        for index, kind in enumerate(CORRUPTIONS):
            tally = Tally()
            rng = np.random.default_rng([seed, spares, index])
            for _ in range(turns):
                tally.run(rng, kind, spares)
            rows.append({"spares": spares, "kind": kind, **tally.counts})
    return rows


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=7, help="timed turns (default 7)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="square sizes")
    parser.add_argument("--products", type=int, default=2000, help="with liars (default 2000)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--quick", action="store_true", help="small and few: for tests")
    args = parser.parse_args(argv)
    if args.quick:
        args.sizes, args.repeats, args.products = (100,), 2, 20

    costs = [cost_of(size, code, args) for size in args.sizes for code in CODES]
    print_table(
        f"verify='locate' on the master, float64, {WORKERS} workers, milliseconds",
        [
            "size",
            "code",
            "A @ B",
            "prepare",
            "longest",
            "a reply",
            "all/A @ B",
            "locate/off",
            "auto",
        ],
        [
            [
                str(row["size"]),
                row["code"],
                milliseconds(row["seconds"]["product"]),
                milliseconds(row["seconds"]["prepare"]),
                milliseconds(row["longest_step"]),
                milliseconds(row["check_of_one"]),
                f"{row['to_product']:.1%}",
                f"{row['locate_to_off']:.3f}",
                "locate" if row["auto"] else "off",
            ]
            for row in costs
        ],
    )
    # Products with lost or lying workers warn, which is the point here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodedlaWarning)
        found = liars(args.products, args.seed)
    columns = ["products", "liars", "named", "unnoticed", "accused", "wrong", "refused"]
    print_table(
        "corrupted replies (unnoticed: a change no larger than rounding; accused: honest ranks)",
        ["spares", "corruption", *columns],
        [
            [str(row["spares"]), row["kind"], *(str(row.get(name, 0)) for name in columns)]
            for row in found
        ],
    )
    wrong = sum(row.get("wrong", 0) for row in found)
    accused = sum(row.get("accused", 0) for row in found)
    total = sum(row["products"] for row in found)
    print(f"\n{total} products: {wrong} wrong results, {accused} honest workers accused")
    if args.json:
        write_json(
            args.json,
            {
                "benchmark": "verify",
                "workers": WORKERS,
                "repeats": args.repeats,
                "seed": args.seed,
                "cost": costs,
                "liars": found,
            },
        )
    return 1 if wrong or accused else 0


if __name__ == "__main__":
    raise SystemExit(main())
