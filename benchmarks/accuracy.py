"""Measure how many digits each code costs, and whether its error estimate tells the truth.

For every registered code and choice of nodes, number of blocks ``k`` and number of losses ``s``:
random operands, products of the workers in single and double precision, decoded from the worst
survivor set the code knows of and from random ones (where workers have several shares: what has
come of workers of random paces when it suffices), and compared with a product in long double.
Grids are as square as the code cuts, with a threshold near ``k`` (``p = 2`` where the inner
dimension is cut among others).

* *worst*, *random*: relative Frobenius error of ``C`` (random: the median of the sets).
* *alpha*: predicted amplification of the worst set.
* *est/err*: the estimate ``sqrt(1 + alpha^2) eps ||A|| ||B|| / ||C||`` over the true error, least
  and greatest of all sets tried. Promised: between 0.1 and 10,000; of approximate codes, whose
  estimate has the error of the method, too, at least 0.1.

A second table holds the codes against reference figures (``_reference.py``): at most ten times the
error of any of them, over the same kind of patterns. Condition numbers are in ``anchors.py``.

    python benchmarks/accuracy.py [--quick] [--json accuracy.json] [--code NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import _common
import _reference
import numpy as np
from numpy.typing import DTypeLike

from codedla.blocks import Grid
from codedla.codes import Code, available, error_estimate, get, registry
from codedla.errors import NotDecodable, UsageError

SEED = 86_311
INNER, SIDE = 100, 6  # inner dimension (of the whole product) and side of an output block
SIZES = (4, 9, 16, 36, 64, 100)

DEFAULTS = ("khatri-rao", "mds")
GOAL = 1e-12  # defaults, k = 64, s = 2, float64: no more than three digits lost
ESTIMATE_RANGE = (0.1, 1e4)
FACTOR = 10.0  # reference errors may be exceeded by this: other data, other patterns
REFERENCE_PATTERNS = 100  # random ones behind reference figures, besides runs of neighbours
SAMPLED = 6000  # random patterns that are rated here
CHOICE = 3  # grids tried before a code is taken not to exist at a size

Survivors = tuple[int, ...]


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
        u, q, v = code.stack
        share_a = _encode(code.generator_a, blocks_a.reshape(-1, SIDE, inner), self.dtype)
        share_b = _encode(code.generator_b, blocks_b.reshape(-1, inner, SIDE), self.dtype)
        share_a = share_a.reshape(-1, u, 1, q, SIDE, inner)
        share_b = share_b.reshape(-1, q, 1, v, inner, SIDE).transpose(0, 2, 3, 1, 4, 5)
        # Sub-block (a, b) of a reply is the sum over c of the products of (a, c) and (c, b).
        self.replies = (share_a @ share_b).sum(axis=3).reshape(-1, u * v, SIDE, SIDE)

    def error(self, survivors: Survivors) -> float:
        """Relative Frobenius error of the product decoded from these replies."""
        weights = self.code.weights(survivors)
        parts = self.replies[list(survivors)].reshape(-1, SIDE, SIDE)
        decoded = np.tensordot(weights, parts, axes=1)
        # A real product is wanted; codes on complex points leave rounding errors in the imaginary.
        difference = np.real(decoded).astype(np.longdouble) - self.reference
        return float(np.sqrt((difference**2).sum())) / self.norm

    def estimate(self, survivors: Survivors) -> float:
        """What the package predicts for :meth:`error`."""
        eps = float(np.finfo(self.dtype).eps)
        rounding = error_estimate(self.code.amplification(survivors), eps, self.scale)
        return rounding + self.code.method_error * self.scale


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


def cases() -> dict[str, tuple[str, str | None]]:
    """Name in the tables -> code and nodes: every registered code, its default nodes unnamed."""
    found = {}
    for name in available():
        for i, nodes in enumerate(get(name).node_choices or (None,)):
            found[name if i == 0 else f"{name}/{nodes}"] = (name, nodes)
    return found


def case_of(code: str, nodes: str | None) -> str | None:
    """The case of a code and its nodes (None: the default), None if there is no such code."""
    found = (case for case, (name, its) in cases().items() if name == code and nodes in (None, its))
    return next(found, None)


def inexact(name: str) -> bool:
    """Tell whether a code computes in floating-point numbers."""
    return registry.example(get(name)).field in ("real", "complex")


def grids_near(family: type[Code], k: int) -> list[Grid]:
    """The grids, as square as the family cuts, whose thresholds are nearest to ``k``."""
    cut = family.splits

    def grid(size: int) -> Grid:
        inner = (size if cut == ("p",) else 2) if "p" in cut else 1
        return Grid(size if "m" in cut else 1, inner, size if "n" in cut else 1)

    # The larger of two that are equally near: no easier than the size asked for.
    nearest = {grid(size): family.needs(grid(size)) for size in range(1, k + 2)}
    return sorted(nearest, key=lambda g: (abs(nearest[g] - k), -nearest[g]))[:CHOICE]


def fewest(family: type[Code], grid: Grid, losses: int) -> int | None:
    """The fewest workers that survive ``losses`` losses on ``grid``; None if no number does."""
    most = (losses + 1) * family.needs(grid) + 2 * losses
    return next((n for n in range(1, most + 1) if family.survives(n, grid) >= losses), None)


@lru_cache(maxsize=4)
def make(case: str, k: int, losses: int) -> Code | None:
    """The code of a case with a threshold of about ``k``, None where the case does not exist."""
    name, nodes = cases()[case]
    family = get(name)
    for grid in grids_near(family, k):
        workers = fewest(family, grid, losses)
        if workers is None and losses == 1:
            # What survives nothing has a line, too, as the measure for the others.
            workers = fewest(family, grid, 0)
        if workers is None:
            continue
        try:
            return family(workers, grid, nodes=nodes)
        except UsageError:
            continue  # these nodes do not go with this grid
    return None


def survivor_sets(code: Code, samples: int) -> Iterator[Survivors]:
    """The worst set known; random ones, from losses or from paces; and all replies."""
    yield code.worst_amplification()[1]
    rng = np.random.default_rng([SEED, code.n_workers, code.threshold])
    for _ in range(samples):
        if code.load > 1:
            yield first_to_suffice(code, rng.uniform(1, 5, code.n_workers))
            continue
        lost = rng.choice(code.active, max(0, code.tolerates), replace=False)
        yield code.shares_without(lost.tolist())
    yield code.shares


def first_to_suffice(code: Code, pace: np.ndarray) -> Survivors:
    """The shares that have been answered, by workers of these paces, when they first suffice."""

    def finished(share: int) -> float:
        return (share // code.n_workers + 1) / pace[code.home(share)]

    suffice, told = code.watch(), []
    for share in sorted(code.shares, key=finished):
        told.append(share)
        if suffice(share):
            break
    return tuple(sorted(told))


def measure(case: str, k: int, losses: int, dtype: DTypeLike, samples: int) -> dict[str, Any]:
    """One row of the table."""
    code = make(case, k, losses)
    if code is None:
        raise ValueError(f"there is no {case} for k={k} and {losses} losses")
    trial = Trial(code, dtype)
    row: dict[str, Any] = {"case": case, "code": code.name, "nodes": code.nodes}
    row |= {"k": k, "s": losses, "dtype": np.dtype(dtype).name, "approximate": code.approximate}
    row |= {"blocks": str(code.blocks), "workers": code.n_workers, "threshold": code.threshold}
    row["needs"] = type(code).needs(code.blocks)
    errors, alphas, quotients = [], [], []
    for survivors in survivor_sets(code, samples):
        try:
            error, estimate = trial.error(survivors), trial.estimate(survivors)
            alphas.append(code.amplification(survivors))
        except NotDecodable:
            if not code.decodable(survivors):
                raise
            # Refused as singular: infinitely many digits lost, and nothing wrong handed out.
            errors.append(math.inf)
            alphas.append(math.inf)
            continue
        errors.append(error)
        if min(error, estimate) <= 1:  # else both say that nothing is left
            quotients.append(estimate / error if error else math.nan)
    # Losses are the worst case where workers have one share; where more, few replies may be.
    worst = 0 if code.load == 1 else int(np.argmax(errors))
    row["worst"], row["alpha"] = errors[worst], alphas[worst]
    row["random"] = float(np.median(errors[1:-1]))
    row["quotients"] = (min(quotients), max(quotients)) if quotients else None
    return row


def judge(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The promises that do not hold."""
    broken = []
    for row in rows:
        what = f"{row['case']} k={row['k']} s={row['s']} {row['dtype']}"
        default = row["case"] in DEFAULTS and row["dtype"] == "float64"
        if default and row["k"] <= 64 and row["s"] <= 2 and not row["worst"] < GOAL:
            broken.append(f"{what}: worst error {row['worst']:.1e} is not below {GOAL:g}")
        low, high = row["quotients"] or ESTIMATE_RANGE
        if row["approximate"]:
            high = min(high, ESTIMATE_RANGE[1])  # a bound on every error there can be
        if low < ESTIMATE_RANGE[0] or high > ESTIMATE_RANGE[1]:
            broken.append(f"{what}: estimate / error between {low:.1e} and {high:.1e}")
    return broken


def compare(
    chosen: Sequence[str], known: Sequence[dict[str, Any]], sizes: Sequence[int], samples: int
) -> list[dict[str, Any]]:
    """Worst errors beside reference ones, for the schemes that the chosen cases stand for.

    Parameters
    ----------
    chosen : sequence of str
        Cases.
    known : sequence of dict
        Rows that are measured already.
    sizes : sequence of int
        Figures of other sizes are left out.
    samples : int
        Random survivor sets of a row.
    """
    measured = {(x["case"], x["k"], x["s"]): x for x in known if x["dtype"] == "float64"}
    rows = []
    for scheme in _reference.ERRORS:
        found = [case_of(*code) for code in scheme.codes]
        for case, k, losses in itertools.product(found, _reference.SIZES, _reference.LOSSES):
            reference = scheme.error(k, losses)
            if case not in chosen or k not in sizes or reference is None:
                continue
            if make(case, k, losses) is None:
                continue
            row = measured.get((case, k, losses)) or measure(case, k, losses, "float64", samples)
            row = {**row, "scheme": scheme.name, "setting": scheme.setting, "reference": reference}
            row["like"] = row["worst"]
            if scheme.draws:
                row["like"] = _worst_sampled(case, k, losses, scheme.draws)
            row["kept"] = reference >= _reference.LOST or row["like"] <= FACTOR * reference
            rows.append(row)
    return rows


def _worst_sampled(case: str, k: int, losses: int, draws: int) -> float:
    """The worst error of as many patterns as reference figures are from, in the best of draws."""
    code = make(case, k, losses)
    assert code is not None
    workers, lost = code.active, code.tolerates
    rng = np.random.default_rng([SEED, workers, lost])
    patterns = np.array([rng.choice(workers, lost, replace=False) for _ in range(SAMPLED)])
    ordered = patterns[np.argsort(code.solver.rate(patterns))]
    # The worst of n patterns is below x with odds p where one is with odds p ** (1 / n), and the
    # best of d draws with even odds where one is with odds 1 - 0.5 ** (1 / d).
    odds = (1 - 0.5 ** (1 / draws)) ** (1 / (REFERENCE_PATTERNS + 3 * workers))
    place = int(odds * SAMPLED)
    trial = Trial(code)
    near = ordered[place - 2 : place + 3].tolist()
    return float(np.median([trial.error(code.shares_without(pattern)) for pattern in near]))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and survivor sets")
    parser.add_argument("--json", default="accuracy.json", help="where the figures go")
    parser.add_argument(
        "--code",
        nargs="+",
        choices=sorted({*available(), *cases()}),
        default=available(),
        metavar="NAME",
        help="only these: NAME (all its nodes) or NAME/NODES",
    )
    return parser.parse_args(argv)


def print_errors(rows: Sequence[dict[str, Any]], samples: int) -> None:
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


def print_comparison(rows: Sequence[dict[str, Any]]) -> None:
    _common.print_table(
        "worst error beside reference figures (float64)",
        ["scheme", "setting", "code", "K", "s", "reference", "here", "ratio", "worst known", ""],
        [
            [
                row["scheme"],
                row["setting"],
                row["case"],
                *(str(row[key]) for key in ("threshold", "s")),
                "all lost" if row["reference"] >= _reference.LOST else f"{row['reference']:.1e}",
                f"{row['like']:.1e}",
                f"{row['like'] / row['reference']:.2g}",
                f"{row['worst']:.1e}",
                "" if row["kept"] else "BROKEN",
            ]
            for row in rows
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if a promise is broken."""
    args = parse(argv)
    sizes = (4, 16, 64) if args.quick else SIZES
    losses = (1, 2, 5) if args.quick else (1, 2, 3, 5)
    samples = 10 if args.quick else 40
    chosen = [case for case, (name, _) in cases().items() if {case, name} & set(args.code)]
    exact = sorted({name for name in (cases()[case][0] for case in chosen) if not inexact(name)})
    chosen = [case for case in chosen if inexact(cases()[case][0])]
    rows = [
        measure(case, k, s, dtype, samples)
        for case, k, s in itertools.product(chosen, sizes, losses)
        if make(case, k, s) is not None
        for dtype in (np.float64, np.float32)
    ]
    print_errors(rows, samples)
    compared = compare(chosen, rows, sizes, samples)
    if compared:
        print_comparison(compared)
    broken = judge(rows)
    for row in compared:
        if not row["kept"]:
            broken.append(
                f"{row['case']} {row['blocks']}: worse than the reference, {row['scheme']}"
            )
    document = {"rows": rows, "reference": compared, "exact": exact}
    _common.write_json(args.json, {**document, "goal": GOAL, "broken": broken})
    if exact:
        print(f"\nexact, nothing to measure: {', '.join(exact)}")
    for line in broken:
        print(f"BROKEN {line}")
    print(f"{len(rows)} cases, {len(broken)} broken promises")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
