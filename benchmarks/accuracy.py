"""Measure how many digits each code costs, and whether its error estimate tells the truth.

For every code, number of blocks ``k`` and number of losses ``s``: random operands, products of the
workers in single and double precision, decoded from the worst survivor set the code knows of and
from random ones, and compared with a product in long double.

* *worst*, *random*: relative Frobenius error of ``C`` (random: the median of the sets).
* *alpha*: predicted amplification of the worst set.
* *est/err*: the estimate ``sqrt(1 + alpha^2) eps ||A|| ||B|| / ||C||`` over the true error, least
  and greatest of all sets tried. Promised: between 0.1 and 10,000.

    python benchmarks/accuracy.py [--quick] [--json accuracy.json] [--code NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from typing import Any

import _common
import numpy as np
from numpy.typing import DTypeLike

from codedla.blocks import Grid
from codedla.codes import Code, error_estimate, get
from codedla.errors import NotDecodable

SEED = 86_311
INNER, SIDE = 100, 6  # inner dimension (of the whole product) and side of an output block

# Name in the table -> code, nodes, grid of k blocks.
CASES: dict[str, tuple[str, str | None, str]] = {
    "uncoded": ("uncoded", None, "square"),
    "khatri-rao": ("khatri-rao", None, "square"),
    "mds": ("mds", None, "rows"),
    "polynomial": ("polynomial", "unity", "square"),
    "polynomial/chebyshev": ("polynomial", "chebyshev", "square"),
    "polynomial/equispaced": ("polynomial", "equispaced", "square"),
    "mds/chebyshev": ("mds", "chebyshev", "rows"),
    "mds/unity": ("mds", "unity", "rows"),
    "mds/equispaced": ("mds", "equispaced", "rows"),
    "matdot": ("matdot", "chebyshev", "inner"),
    "matdot/unity": ("matdot", "unity", "inner"),
    "matdot/equispaced": ("matdot", "equispaced", "inner"),
}
DEFAULTS = ("khatri-rao", "mds")
GOAL = 1e-12  # defaults, k = 64, s = 2, float64: no more than three digits lost
ESTIMATE_RANGE = (0.1, 1e4)


class Trial:
    """One coded product of random operands, computed once and decoded from many survivor sets.

    Parameters
    ----------
    code : Code
        The code under test.
    dtype : float32 or float64
        Precision of the workers.
    seed : int, optional
        Seed of the operands.
    """

    def __init__(self, code: Code, dtype: DTypeLike = np.float64, seed: int = SEED) -> None:
        self.code, self.dtype = code, np.dtype(dtype)
        grid, rng = code.grid, np.random.default_rng(seed)
        inner = -(-INNER // grid.p)
        blocks_a = rng.standard_normal((grid.m, grid.p, SIDE, inner)).astype(self.dtype)
        blocks_b = rng.standard_normal((grid.p, grid.n, inner, SIDE)).astype(self.dtype)
        self.reference = _long_product(blocks_a, blocks_b)
        norms = [float(np.linalg.norm(x.ravel())) for x in (blocks_a, blocks_b)]
        self.norm = float(np.sqrt((self.reference**2).sum()))
        self.scale = norms[0] * norms[1] / self.norm
        share_a = _encode(code.generator_a, blocks_a.reshape(-1, SIDE, inner), self.dtype)
        share_b = _encode(code.generator_b, blocks_b.reshape(-1, inner, SIDE), self.dtype)
        self.replies = share_a @ share_b

    def error(self, survivors: tuple[int, ...]) -> float:
        """Relative Frobenius error of the product decoded from these replies."""
        weights = self.code.weights(survivors)
        decoded = np.tensordot(weights, self.replies[list(survivors)], axes=1)
        # A real product is wanted; codes on complex points leave rounding errors in the imaginary.
        difference = np.real(decoded).astype(np.longdouble) - self.reference
        return float(np.sqrt((difference**2).sum())) / self.norm

    def estimate(self, survivors: tuple[int, ...]) -> float:
        """What the package predicts for :meth:`error`."""
        eps = float(np.finfo(self.dtype).eps)
        return error_estimate(self.code.amplification(survivors), eps, self.scale)


def _long_product(blocks_a: np.ndarray, blocks_b: np.ndarray) -> np.ndarray:
    """Output blocks (m * n, SIDE, SIDE) in long double, from the rounded operands."""
    a = blocks_a.astype(np.longdouble).transpose(0, 2, 1, 3)
    b = blocks_b.astype(np.longdouble).transpose(0, 2, 1, 3)
    m, n = a.shape[0], b.shape[2]
    product = a.reshape(m * SIDE, -1) @ b.reshape(-1, n * SIDE)
    return product.reshape(m, SIDE, n, SIDE).transpose(0, 2, 1, 3).reshape(-1, SIDE, SIDE)


def _encode(generator: np.ndarray, blocks: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Shares in the workers' precision (complex if the code is)."""
    kind = np.result_type(dtype, np.complex64) if np.iscomplexobj(generator) else dtype
    return np.tensordot(generator.astype(kind), blocks, axes=1)


def make(case: str, k: int, losses: int) -> Code | None:
    """The code of a case with about ``k`` unknown blocks, None where the case does not exist."""
    name, nodes, shape = CASES[case]
    side = math.isqrt(k)
    grid = {
        "square": Grid(side, 1, k // side),
        "rows": Grid(k, 1, 1),
        "inner": Grid(1, k // 2 + 1, 1),  # threshold 2 p - 1 = k or k + 1
    }[shape]
    family = get(name)
    if name == "uncoded":
        return family(grid.outputs, grid) if losses == 1 else None
    return family(family.needs(grid) + losses, grid, nodes=nodes)


def survivor_sets(code: Code, samples: int) -> Iterator[tuple[int, ...]]:
    """The worst set known, then random ones of ``K`` replies, and all replies."""
    yield code.worst_amplification()[1]
    rng = np.random.default_rng([SEED, code.n_workers, code.threshold])
    for _ in range(samples):
        yield tuple(sorted(rng.choice(code.active, code.threshold, replace=False).tolist()))
    yield tuple(range(code.n_workers))


def measure(case: str, k: int, losses: int, dtype: DTypeLike, samples: int) -> dict[str, Any]:
    """One row of the table."""
    code = make(case, k, losses)
    assert code is not None
    trial = Trial(code, dtype)
    row: dict[str, Any] = {"case": case, "k": k, "s": losses, "dtype": np.dtype(dtype).name}
    row["alpha"] = code.worst_amplification()[0]
    errors, quotients = [], []
    for survivors in survivor_sets(code, samples):
        try:
            error, estimate = trial.error(survivors), trial.estimate(survivors)
        except NotDecodable:
            # Refused as singular: infinitely many digits lost, and nothing wrong handed out.
            errors.append(math.inf)
            continue
        errors.append(error)
        quotients.append(estimate / error if error else math.nan)
    row["worst"] = errors[0]
    row["random"] = float(np.median(errors[1:-1]))
    row["quotients"] = (min(quotients), max(quotients)) if quotients else None
    return row


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """The promises that do not hold."""
    broken = []
    for row in rows:
        what = f"{row['case']} k={row['k']} s={row['s']} {row['dtype']}"
        default = row["case"] in DEFAULTS and row["dtype"] == "float64"
        if default and row["k"] <= 64 and row["s"] <= 2 and not row["worst"] < GOAL:
            broken.append(f"{what}: worst error {row['worst']:.1e} is not below {GOAL:g}")
        low, high = row["quotients"] or ESTIMATE_RANGE
        if low < ESTIMATE_RANGE[0] or high > ESTIMATE_RANGE[1]:
            broken.append(f"{what}: estimate / error between {low:.1e} and {high:.1e}")
    return broken


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and survivor sets")
    parser.add_argument("--json", default="accuracy.json", help="where the figures go")
    parser.add_argument("--code", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 if a promise is broken."""
    args = parse()
    sizes = (4, 16, 64) if args.quick else (4, 9, 16, 25, 36, 49, 64, 100)
    losses = (1, 2, 5) if args.quick else (1, 2, 3, 4, 5)
    samples = 10 if args.quick else 40
    rows = [
        measure(case, k, s, dtype, samples)
        for case, k, s, dtype in itertools.product(
            args.code, sizes, losses, (np.float64, np.float32)
        )
        if make(case, k, s) is not None
    ]
    _common.print_table(
        f"relative error of C, {samples} random survivor sets, inner dimension {INNER}",
        ["code", "k", "s", "dtype", "alpha", "worst", "random", "est/err min", "max"],
        [
            [
                row["case"],
                str(row["k"]),
                str(row["s"]),
                row["dtype"],
                *(f"{row[key]:.1e}" for key in ("alpha", "worst", "random")),
                *(f"{q:.2g}" for q in row["quotients"] or (math.nan, math.nan)),
            ]
            for row in rows
        ],
    )
    broken = judge(rows)
    _common.write_json(args.json, {"rows": rows, "goal": GOAL, "broken": broken})
    for line in broken:
        print(f"BROKEN {line}")
    print(f"{len(rows)} cases, {len(broken)} broken promises")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
