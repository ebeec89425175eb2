"""How exactly gradient codes decode, over every set of survivors.

Of exact schemes the residual ``|B_S^T a - 1|`` must be rounding alone, whoever is missing; of
approximate ones its square must stay within the code's bound, and it is told how near it comes.
*Codes* are all numbers of workers up to ``--largest`` with all numbers of stragglers that the
scheme has a code for; *sets* all their survivor sets of that size. The residual is computed here,
from the weights and the assignment matrix.

That a fault would be seen: ``--perturb EPS`` changes the weights by so much of themselves.

    python benchmarks/gradient_codes.py [--largest 12]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import _common
import numpy as np

from codedla.codes.gradient import SCHEMES, GradientCode, make_gradient_code
from codedla.errors import UsageError

LARGEST_RESIDUAL = 1e-9
ROUNDING = 1e-12
"""By which the square of a residual may be above a bound that it attains."""


def codes(scheme: str, largest: int) -> list[GradientCode]:
    """Return the scheme's codes: of any number of workers, for any number of stragglers."""
    found = []
    for n in range(1, largest + 1):
        for s in range(n):
            more = {"speeds": [1.0 + w % 3 for w in range(n)]} if scheme == "heterogeneous" else {}
            try:
                found.append(make_gradient_code(scheme, n, s, seed=3, **more))
            except UsageError:
                # There is none for these numbers.
                continue
    return found


def judge(code: GradientCode, perturb: float) -> dict[str, Any]:
    """Return the worst of all survivor sets of a code."""
    n, s = code.n_workers, code.stragglers
    worst, gain, count = 0.0, 0.0, 0
    for survivors in itertools.combinations(range(n), n - s):
        weights = code.weights(survivors)[0] * (1 + perturb * np.cos(np.arange(n - s)))
        missed = weights @ code.B[list(survivors)] - 1.0
        worst = max(worst, float(np.linalg.norm(missed)))
        gain = max(gain, float(code.amplification(survivors)))
        count += 1
    return {"n": n, "s": s, "sets": count, "residual": worst, "gain": gain, "bound": code.bound()}


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All schemes; print and return the figures."""
    rows = []
    for scheme, family in SCHEMES.items():
        judged = [judge(code, args.perturb) for code in codes(scheme, args.largest)]
        slack = [one["bound"] + ROUNDING - one["residual"] ** 2 for one in judged]
        near = [one["residual"] ** 2 / one["bound"] for one in judged if one["bound"] > ROUNDING]
        exact = not family.approximate
        worst = max(one["residual"] for one in judged)
        rows.append(
            {
                "scheme": scheme,
                "exact": exact,
                "codes": len(judged),
                "sets": sum(one["sets"] for one in judged),
                "residual": worst,
                "gain": max(one["gain"] for one in judged),
                "nearest": max(near, default=None),
                "kept": worst < LARGEST_RESIDUAL if exact else min(slack) >= 0,
                "judged": judged,
            }
        )
    _common.print_table(
        f"all survivor sets of codes of up to {args.largest} workers; due: exact residuals below "
        f"{LARGEST_RESIDUAL:.0e}, squares of others within their bound",
        ["scheme", "codes", "sets", "worst residual", "worst gain", "of the bound", "kept"],
        [
            [
                row["scheme"],
                str(row["codes"]),
                str(row["sets"]),
                f"{row['residual']:.1e}",
                f"{row['gain']:.1f}",
                "exact" if row["exact"] else f"{row['nearest']:.3f}",
                "yes" if row["kept"] else "NO",
            ]
            for row in rows
        ],
    )
    return rows


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=12, help="most workers")
    parser.add_argument("--perturb", type=float, default=0.0, help="a fault on purpose")
    parser.add_argument("--quick", action="store_true", help="at most seven workers")
    parser.add_argument("--json", default="gradient_codes.json", help="where the figures go")
    args = parser.parse_args()
    if args.quick:
        args.largest = min(args.largest, 7)
    return args


def main() -> int:
    """Measure, print, write; 1 if a scheme misses what is due."""
    args = parse()
    rows = compare(args)
    _common.write_json(args.json, {"largest": args.largest, "rows": rows})
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
