"""``codedla simulate``: how long products take on many workers that are late at random."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedla.cli.messages import fail, say
from codedla.cli.options import add_json, parse_dtype, parse_shape
from codedla.errors import UsageError

if TYPE_CHECKING:
    from codedla.planning.machine import Machine
    from codedla.planning.study import Scheme, Study

NAME = "simulate"
HELP = "say how long a product takes on 10 to 10,000 workers that are late at random"
EPILOG = """\
examples:
  codedla simulate --shape 20000x20000x2000 --workers 100 --delays exp:0.5
  codedla simulate A.npy B.npy --ranks 9 33 129 --delays gilbert:0.02:0.2:30 --tolerate 5%
  codedla simulate --shape 100000x10000 --workers 1000 10000 --codes uncoded mds@1% mds@5% \\
      --delays pareto:1.5:0.01 --png times.png
  codedla simulate --shape 8000x8000x8000 --workers 8 --delays trace:report.json
  codedla simulate --calibrate here.json                  measure one core
  mpirun -n 9 codedla simulate --calibrate here.json      and the messages of these ranks
  codedla simulate --shape 8000x8000x8000 --ranks 9 --machine here.json

delays (what follows "random:" in --inject, too):
  exp:MEAN                          weibull:SHAPE:SCALE
  shifted-exp:SHIFT:MEAN            pareto:SHAPE:SCALE
  bimodal:PROBABILITY:SECONDS       trace:FILE (CSV, JSON or reports)
  gilbert:P_SLOW:P_RECOVER:SECONDS  slow nodes stay slow for 1/P_RECOVER rounds
  fritchman:P_SLOW:P_RECOVER:SECONDS  the same in two steps, so at least two rounds

schemes are codes, with NAME@LOSSES or NAME@PERCENT% tolerated, or 'speculative': uncoded, and when
75 % are done, tasks that take 1.5 times their median (0.1 s at least) go to idle workers, too."""

DEFAULT_MATMUL = ("uncoded", "replication@1", "speculative", "khatri-rao")
DEFAULT_MATVEC = ("uncoded", "replication@1", "speculative", "mds")
_FEW, _MANY = 2, 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", nargs="?", metavar="A", help="left operand: its shape is used")
    parser.add_argument("b", nargs="?", metavar="B", help="right operand")
    parser.add_argument(
        "--shape", metavar="MxLxN", help="(M x L) @ (L x N), instead of files; MxL: N = 1"
    )
    parser.add_argument("--dtype", default="float64", help="with --shape (default float64)")
    parser.add_argument(
        "--resident",
        action="store_true",
        help="A's shares are on the workers already: a round of an iterative method",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ranks", nargs="+", type=int, metavar="R", help="all ranks, one or more")
    size.add_argument("--workers", nargs="+", type=int, metavar="W", help="ranks less the master")
    parser.add_argument(
        "--codes",
        nargs="+",
        metavar="NAME",
        help="what to compare (default: uncoded, replication, speculative and a code)",
    )
    parser.add_argument(
        "--tolerate", metavar="S", help="workers that may be late, or a part like 5%% (default: 2)"
    )
    parser.add_argument(
        "--delays", metavar="SPEC", help="by which workers are late; see below (default: none)"
    )
    parser.add_argument(
        "--rounds", type=int, default=1000, metavar="N", help="random products (default 1000)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the delays")
    parser.add_argument(
        "--panels", type=int, metavar="P", help="panels of a product (default: as it would have)"
    )
    parser.add_argument(
        "--machine", metavar="FILE", help="measured speeds (default: assumed, a core per rank)"
    )
    parser.add_argument(
        "--calibrate", metavar="FILE", help="measure this machine, write FILE and stop"
    )
    parser.add_argument("--png", metavar="FILE", help="draw the times")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    add_json(parser, "the figures")


def run(args: argparse.Namespace) -> int:
    """Carry out the command."""
    if args.calibrate is not None:
        return _calibrate(args)
    study, schemes, workers = _read(args)
    rows = []
    with _bar(len(schemes) * len(workers) * study.rounds, quiet=args.quiet) as advance:
        for count in workers:
            rows += [study.run(scheme, count, advance) for scheme in schemes]
    if args.json:
        print(json.dumps(_document(args, study, rows), indent=2))
    else:
        print(_table(rows, study))
    if args.png is not None:
        from codedla.writing import write_bytes

        write_bytes(Path(args.png), _picture(rows, args.delays))
    return 0


def serve(args: argparse.Namespace) -> int:
    """Take part in a measurement as a worker rank."""
    return 0 if args.calibrate is None else _join(args)


# -- measuring -------------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    from codedla.mpi.launch import world_from_env

    if world_from_env() is not None:
        return _join(args)
    _check_file(args.calibrate, args)
    from codedla.planning.calibration import calibrate

    _keep(calibrate(), args)
    return 0


def _join(args: argparse.Namespace) -> int:
    from codedla.mpi.program import run as run_program
    from codedla.mpi.world import only_host

    def master(pool: Any) -> int:
        from codedla.planning.calibration import calibrate

        try:
            _check_file(args.calibrate, args)
            # Ranks of several hosts are taken to have a core each.
            ranks = pool.n_workers + 1 if only_host() else 0
            _keep(calibrate(pool, ranks_per_host=ranks), args)
        except Exception as error:
            return fail(error)
        return 0

    return int(run_program(master))


def _keep(machine: Machine, args: argparse.Namespace) -> None:
    machine.save(args.calibrate)
    if args.json:
        print(Path(args.calibrate).read_text(), end="")
    elif not args.quiet:
        say(
            f"{machine.flops / 1e9:.3g} Gflop/s, {machine.copy / 1e9:.3g} GB/s received, "
            f"{machine.overhead * 1e6:.3g} us per message ({machine.source}); in {args.calibrate}"
        )


# -- reading ---------------------------------------------------------------------------------------


def _read(args: argparse.Namespace) -> tuple[Study, list[Scheme], list[int]]:
    """Turn the arguments into what is simulated.

    Raises
    ------
    UsageError
    """
    from codedla.engine.delays import SEED, parse_delays
    from codedla.planning.machine import Machine
    from codedla.planning.study import Study, parse_losses, parse_scheme

    shape, dtype = _sizes(args)
    if args.ranks is None and args.workers is None:
        raise UsageError("a simulation needs --ranks or --workers; got neither; use --workers 100")
    workers = args.workers if args.workers is not None else [rank - 1 for rank in args.ranks]
    for count in workers:
        if not _FEW <= count <= _MANY:
            raise UsageError(
                f"workers must be {_FEW} to {_MANY:,}; got {count}; ranks are one more"
            )
    for name, value in (("rounds", args.rounds), ("panels", args.panels)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be 1 or more; got {value}")
    if args.seed is not None and args.seed < 0:
        raise UsageError(f"--seed must be 0 or more; got {args.seed}")
    if args.png is not None:
        if not args.png.lower().endswith(".png"):
            raise UsageError(f"--png must end in .png; got {args.png!r}; choose such a name")
        _check_file(args.png, args)
        _matplotlib()
    delays, seed = None, SEED
    if args.delays is not None:
        delays, seed = parse_delays(args.delays.removeprefix("random:"))
    tolerate = None if args.tolerate is None else parse_losses(args.tolerate)
    vector = shape[2] == 1 or args.resident
    names = args.codes or (DEFAULT_MATVEC if vector else DEFAULT_MATMUL)
    study = Study(
        shape,
        dtype,
        Machine() if args.machine is None else Machine.load(args.machine),
        delays,
        rounds=args.rounds,
        seed=seed if args.seed is None else args.seed,
        operation="round" if args.resident else "product",
        panels=args.panels,
    )
    schemes = [parse_scheme(name, tolerate) for name in dict.fromkeys(names)]
    return study, schemes, list(dict.fromkeys(workers))


def _sizes(args: argparse.Namespace) -> tuple[tuple[int, int, int], Any]:
    import numpy as np

    from codedla.engine.plan import compute_dtype

    if args.shape is not None:
        if args.a is not None:
            raise UsageError(
                f"operands are files or --shape, not both; got {args.a} and --shape {args.shape}; "
                "leave one out"
            )
        shape = parse_shape(args.shape)
        if min(shape) < 1:
            raise UsageError(f"--shape must be positive numbers; got {args.shape}")
        return shape, compute_dtype(parse_dtype(args.dtype))
    if args.a is None or args.b is None:
        raise UsageError(
            "a simulation needs two operands or --shape; got neither; see codedla simulate -h"
        )
    from codedla.cli.files import inspect

    a, b = inspect(args.a, "A"), inspect(args.b, "B")
    fitting = len(a.shape) == 2 and len(b.shape) in (1, 2) and a.shape[1] == b.shape[0]
    if not fitting or 0 in (*a.shape, *b.shape):
        raise UsageError(
            "operands must be a matrix and a matrix or vector with as many rows as it has columns, "
            f"not empty; got {a.shape} in {a.spec} and {b.shape} in {b.spec}; check the files"
        )
    columns = b.shape[1] if len(b.shape) == 2 else 1
    return (a.shape[0], a.shape[1], columns), compute_dtype(np.result_type(a.dtype, b.dtype))


def _check_file(name: str, args: argparse.Namespace) -> None:
    from codedla.cli.output import check_text

    check_text(Path(name), force=args.force)


@contextmanager
def _bar(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Lend a function that is told of rounds that are done."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds", total=total)
        yield lambda count: bar.advance(task, count)


# -- showing ---------------------------------------------------------------------------------------


def _table(rows: Sequence[dict[str, Any]], study: Study) -> str:
    heads = ("workers", "scheme", "grid", "p50 s", "p90 s", "p99 s", "max s", "mean s", "worker-s")
    keys = ("p50", "p90", "p99", "max", "mean", "worker_seconds")
    cells = [
        [str(row["workers"]), row["scheme"], row["grid"], *(_seconds(row[key]) for key in keys)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = []
    for line in (heads, *cells):
        left = [text.ljust(width) for text, width in zip(line[:3], widths, strict=False)]
        right = [text.rjust(width) for text, width in zip(line[3:], widths[3:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    m, inner, n = study.shape
    about = f"{m}x{inner} @ {inner}x{n}, {study.rounds} rounds, machine: {study.machine.source}"
    return "\n".join([*lines, "", about])


def _seconds(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "never"


def _document(
    args: argparse.Namespace, study: Study, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    # JSON has no infinity: null is a time that never comes.
    plain = [
        {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in row.items()}
        for row in rows
    ]
    machine = vars(replace(study.machine))
    return {
        "schema": "codedla.simulation/1",
        "shape": list(study.shape),
        "dtype": str(study.dtype),
        "operation": study.operation,
        "rounds": study.rounds,
        "seed": study.seed,
        "delays": args.delays,
        "panels": study.panels,
        "machine": {k: None if v == math.inf else v for k, v in machine.items()},
        "rows": plain,
    }


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "a picture needs matplotlib, which is not installed; pip install 'codedla[plot]', or "
            "leave out --png"
        ) from None
    matplotlib.use("Agg")
    return matplotlib


def _picture(rows: Sequence[dict[str, Any]], delays: str | None) -> bytes:
    """Draw median and 99 % of every scheme: over the workers, or as bars for one number of them."""
    _matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    counts = list(dict.fromkeys(row["workers"] for row in rows))
    for number, scheme in enumerate(schemes):
        own = sorted((r for r in rows if r["scheme"] == scheme), key=lambda r: r["workers"])
        colour = f"C{number}"
        if len(counts) == 1:
            for width, key in ((0.7, "p99"), (0.45, "p90"), (0.2, "p50")):
                alpha = {"p99": 0.3, "p90": 0.6, "p50": 1.0}[key]
                height = own[0][key] if math.isfinite(own[0][key]) else 0.0
                axes.bar(number, height, width, color=colour, alpha=alpha)
            continue
        workers = [row["workers"] for row in own]
        axes.plot(workers, [row["p50"] for row in own], "o-", color=colour, label=scheme)
        axes.plot(workers, [row["p99"] for row in own], "--", color=colour)
    if len(counts) == 1:
        axes.set_xticks(range(len(schemes)), schemes)
        axes.set_title(f"{counts[0]} workers: 50, 90 and 99 % of the rounds (narrow to wide)")
    else:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("workers")
        axes.legend()
        axes.set_title("median (line) and 99 % (dashed)")
    axes.set_ylabel("seconds of a product")
    if delays is not None:
        figure.suptitle(f"delays {delays}", fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()
