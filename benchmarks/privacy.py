"""Test whether workers that put their shares together learn anything about the operands.

Blocks are single residues over small fields, where everything can be counted. *Exactly*: with all
possible masks, the shares of every set of ``T`` workers take every value equally often, whatever
the data (chi-square 0); those of ``T + 1`` do not. *As drawn*: with masks from the system's random
source, as in real products, chi-square tests of uniformity and of independence of two data sets,
for every set of ``T`` workers; the smallest p-value of so many tests is no surprise. As a check of
the tests themselves, the same is done for ``T + 1`` workers, where both must fail.

At last real products are repeated, and the shares of one worker compared: none must come twice.

    python benchmarks/privacy.py --json privacy.json
    python benchmarks/privacy.py --draws 20000 --products 200
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any

import numpy as np
import scipy.stats
from _common import print_table, write_json

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.exact import ModularCode
from codedla.engine.round import Round
from codedla.linalg.masks import uniform_residues

SEED = 73_019
SMALL = (
    ("gasp", Grid(1, 1, 1), 5),
    ("gasp", Grid(2, 1, 2), 11),
    ("gasp:2", Grid(1, 1, 1), 7),
    ("gasp:2", Grid(2, 1, 1), 11),
    ("secure-matdot", Grid(1, 2, 1), 7),
    ("secure-matdot:2", Grid(1, 2, 1), 11),
    ("lagrange", Grid(1, 1, 1), 5),
    ("lagrange", Grid(1, 2, 1), 11),
    ("lagrange:2", Grid(1, 1, 1), 11),
)
PRODUCTS = {
    "gasp": (2, 1, 2),
    "gasp:2": (2, 1, 2),
    "secure-matdot": (1, 2, 1),
    "secure-matdot:2": (1, 2, 1),
    "lagrange": (1, 2, 1),
}
DATA_SETS = 3


def histogram(shares: np.ndarray, p: int) -> np.ndarray:
    """Count the combinations of values that some workers see together, (p ** workers,)."""
    cells = shares @ (p ** np.arange(shares.shape[1]))
    return np.bincount(cells, minlength=p ** shares.shape[1])


def chi_square(counts: np.ndarray) -> float:
    """Chi-square of counts against equally many in every cell."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def smallest(
    code: ModularCode, masks: np.ndarray, size: int, most: int | None = None
) -> dict[str, float]:
    """Test sets of workers of one size; return the largest chi-square and least p-values.

    A worker sees its shares of both operands.
    """
    blocks = (code.grid.m * code.grid.p, code.grid.p * code.grid.n)
    pairs = list(zip((code.generator_a, code.generator_b), blocks, strict=True))
    rng = np.random.default_rng([SEED, code.prime, *blocks])
    data = [[np.zeros(count, int) for count in blocks]]
    for _ in range(DATA_SETS - 1):
        data.append([rng.integers(1, code.prime, count) for count in blocks])
    # All masks are for every data set; drawn ones are shared out, or tests would depend.
    whole = len(masks) == code.prime ** (2 * code.colluders)
    parts = [masks] * DATA_SETS if whole else np.array_split(masks, DATA_SETS)
    found = {"chi2": 0.0, "uniform": 1.0, "independent": 1.0}
    for workers in itertools.islice(itertools.combinations(range(code.n_workers), size), most):
        rows = list(workers)
        tables = []
        for index, values in enumerate(data):
            hidden = np.split(parts[index], 2, axis=1)
            shares = [
                (known @ matrix[rows, :count].T + mask @ matrix[rows, count:].T) % code.prime
                for known, mask, (matrix, count) in zip(values, hidden, pairs, strict=True)
            ]
            counts = histogram(np.hstack(shares), code.prime)
            statistic = chi_square(counts)
            tables.append(counts)
            found["chi2"] = max(found["chi2"], statistic)
            p_value = float(scipy.stats.chi2.sf(statistic, counts.size - 1))
            found["uniform"] = min(found["uniform"], p_value)
        used = np.array(tables)[:, np.sum(tables, axis=0) > 0]
        independence = scipy.stats.chi2_contingency(used).pvalue
        found["independent"] = min(found["independent"], float(independence))
    return found


def small_fields(draws: int) -> list[dict[str, Any]]:
    """Test every code over its small field, with all masks and with drawn ones."""
    rows = []
    for name, grid, p in SMALL:
        family = get(name)
        code = family(family.needs(grid), grid, prime=p)
        hidden = family.colluders
        every = np.array(list(itertools.product(range(p), repeat=2 * hidden)))
        drawn = uniform_residues(p, (draws * DATA_SETS, 2 * hidden))
        exact = smallest(code, every, hidden)
        seen = smallest(code, drawn, hidden)
        more = smallest(code, drawn, hidden + 1, most=3)
        rows.append(
            {
                "code": name,
                "blocks": str(grid),
                "p": p,
                "T": hidden,
                "sets": math.comb(code.n_workers, hidden),
                "chi2_all_masks": exact["chi2"],
                "uniform": seen["uniform"],
                "independent": seen["independent"],
                "uniform_T+1": more["uniform"],
                "independent_T+1": more["independent"],
            }
        )
    return rows


class RecordingPool(codedla.SerialPool):
    """A pool that keeps what the first worker is sent."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers)
        self.sent: list[bytes] = []

    def compute(self, job: Round, share: int, worker: int, matrices: tuple[Any, Any]) -> None:
        """Compute, and keep the first worker's operands."""
        if worker == 0:
            self.sent += [np.ascontiguousarray(matrix).tobytes() for matrix in matrices]
        super().compute(job, share, worker, matrices)


def repeated(products: int) -> list[dict[str, Any]]:
    """Multiply the same matrices again and again; count shares that come twice."""
    rng = np.random.default_rng(SEED)
    A, B = rng.integers(-9, 9, (4, 4)), rng.integers(-9, 9, (4, 4))
    rows = []
    for name, blocks in PRODUCTS.items():
        with RecordingPool(get(name).needs(Grid(*blocks))) as pool:
            for _ in range(products):
                C = codedla.matmul(A, B, pool=pool, code=name, blocks=blocks)
                assert np.array_equal(C, A @ B), f"code {name} is wrong"
            shares = pool.sent
        twice = len(shares) - len(set(shares))
        rows.append({"code": name, "products": products, "shares": len(shares), "twice": twice})
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=20_000, help="drawn masks of every data set")
    parser.add_argument("--products", type=int, default=200, help="repetitions of a product")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    args = parser.parse_args()
    rows, again = small_fields(args.draws), repeated(args.products)
    headers = ("code", "blocks", "p", "T", "sets", "chi2", "p unif.", "p indep.", "T+1 unif.")
    print_table(
        "what T workers see, over small fields (chi2: all masks; p-values: drawn masks, least)",
        headers,
        [
            [
                row["code"],
                row["blocks"],
                str(row["p"]),
                str(row["T"]),
                str(row["sets"]),
                f"{row['chi2_all_masks']:g}",
                f"{row['uniform']:.1e}",
                f"{row['independent']:.1e}",
                f"{row['uniform_T+1']:.0e}",
            ]
            for row in rows
        ],
    )
    print_table(
        "the same product again",
        ("code", "products", "shares", "twice"),
        [[str(value) for value in row.values()] for row in again],
    )
    tests = sum(row["sets"] * (DATA_SETS + 1) for row in rows)
    least = min(min(row["uniform"], row["independent"]) for row in rows)
    exact = max(row["chi2_all_masks"] for row in rows)
    twice = sum(row["twice"] for row in again)
    print(
        f"\nall masks: largest chi-square {exact:g}; drawn masks: least p-value {least:.1e} in "
        f"{tests} tests; {twice} shares came twice"
    )
    if args.json:
        write_json(args.json, {"draws": args.draws, "small_fields": rows, "repeated": again})
    if exact or twice or least * tests < 1e-6:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
