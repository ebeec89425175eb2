"""``codedla plan``: what a product would do and cost, without MPI."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from codedla.cli.options import (
    add_code_options,
    add_json,
    add_master_memory,
    code_arguments,
    parse_dtype,
    parse_shape,
)
from codedla.errors import UsageError

NAME = "plan"
HELP = "say which code a product would use and what it costs in flops, bytes and accuracy"
EPILOG = """\
examples:
  codedla plan A.npy B.npy --ranks 9
  codedla plan --shape 4000x4000x4000 --workers 8
  codedla plan --shape 20000x20000x20000 --ranks 25 --explain --memory 2GiB
  codedla plan --shape 100000x2000 --operation matvec --ranks 17 --tolerate 3 --json

Planned from shapes and types alone. A product also looks at the entries: NaN, Inf and integers
beyond 2**53 may make it choose another code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", nargs="?", metavar="A", help="left operand")
    parser.add_argument("b", nargs="?", metavar="B", help="right operand")
    parser.add_argument(
        "--shape", metavar="MxLxN", help="(M x L) @ (L x N), instead of files; MxL: N = 1"
    )
    parser.add_argument("--dtype", default="float64", help="with --shape (default float64)")
    parser.add_argument(
        "--operation", choices=("matmul", "matvec"), default="matmul", help="default: matmul"
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--ranks", type=int, metavar="R", help="all ranks, master included")
    size.add_argument("--workers", type=int, metavar="W", help="workers: ranks less the master")
    add_code_options(parser)
    add_master_memory(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show every candidate with what it costs, and why the chosen one won",
    )
    add_json(parser, "the plan")


def run(args: argparse.Namespace) -> int:
    """Carry out the command."""
    from codedla.cli.layout import Stored, lay_out
    from codedla.cli.product import layout_for, plan_for, print_plan

    n_workers = args.workers if args.workers is not None else args.ranks - 1
    if args.shape is not None:
        if args.a is not None:
            raise UsageError(
                f"operands are files or --shape, not both; got {args.a} and --shape {args.shape}; "
                "leave one out"
            )
        from codedla.engine.plan import make_plan

        rows, inner, columns = parse_shape(args.shape)
        made = make_plan(
            (rows, inner),
            (inner, columns),
            parse_dtype(args.dtype),
            n_workers,
            operation=args.operation,
            **code_arguments(args),
        )
        layout = lay_out(args, made, Stored(made.dtype), Stored(made.dtype))
    elif args.a is not None and args.b is not None:
        made, a, b = plan_for(args, args.operation, n_workers)
        layout = layout_for(args, made, a, b)
    else:
        raise UsageError("a plan needs two operands or --shape; got neither; see codedla plan -h")
    if not args.explain:
        print_plan(made, layout if layout.out_of_core else None, as_json=args.json)
        return 0
    offered = made.explain()
    if args.json:
        print(json.dumps({**made.to_dict(), "candidates": offered}, indent=2))
    else:
        print(made, _candidates(offered), sep="\n\n")
    return 0


def _candidates(rows: list[dict[str, Any]]) -> str:
    """Return the candidates as text: a line of numbers each, and below it what became of it."""
    from codedla.engine.cost import in_bytes, in_flops

    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "grid": ("grid", str),
        "threshold": ("needs", str),
        "tolerates": ("tolerates", str),
        "flops_worker": ("flops/worker", in_flops),
        "memory_worker": ("memory/worker", in_bytes),
        "bytes": ("moved", in_bytes),
        "seconds": ("seconds", "{:.3g}".format),
    }
    heads = ("code", *(head for head, _ in columns.values()), "amplification")
    cells = []
    for row in rows:
        alpha = row["worst_amplification"]
        known = row["grid"] is not None
        cells.append(
            [
                row["code"],
                *(
                    "-" if row[key] is None else text(row[key])
                    for key, (_, text) in columns.items()
                ),
                ("singular" if alpha is None else f"{alpha:.1e}") if known else "-",
            ]
        )
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = ["  ".join(map(str.ljust, heads, widths)).rstrip()]
    for row, line in zip(rows, cells, strict=True):
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip(), f"    {row['verdict']}"]
    return "\n".join(lines)
