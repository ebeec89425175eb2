"""``codedla demo``: the same product with two slow ranks, coded and uncoded."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedla.cli.messages import farewell, say
from codedla.cli.options import add_json
from codedla.errors import CodedlaError, UsageError, VerificationFailed
from codedla.mpi.launch import run_job, world_from_env

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "demo"
HELP = "multiply a real matrix on 9 ranks, two of them slow, with and without a code"
EPILOG = """\
The matrix holds 1797 handwritten digits; the product with its own transpose says how alike any
two of them are. Both runs are ordinary 'codedla matmul' jobs; -v prints their command lines.

examples:
  codedla demo
  codedla demo --ranks 6 --delay 10"""


@dataclass
class _Run:
    """One measured job."""

    name: str
    code: str
    threshold: int
    n_workers: int
    late: list[int]
    to_result: float
    to_exit: float
    largest_error: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--ranks", type=int, default=9, metavar="R", help="all ranks, master included (default 9)"
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how late the two slow ranks are (default 5)",
    )
    add_json(parser, "the measurements")


def run(args: argparse.Namespace) -> int:
    """Carry out the command."""
    import numpy as np

    if args.ranks < 4:
        raise UsageError(
            f"two slow ranks leave no worker in {args.ranks} ranks; got --ranks {args.ranks}; "
            "give 4 or more"
        )
    if world_from_env() is not None:
        raise UsageError(
            "the demo starts its own MPI jobs; got started by a launcher; run it without mpirun"
        )
    slow = _slow_ranks(args.ranks)
    with resources.files("codedla.data").joinpath("digits.npz").open("rb") as file:
        digits = np.load(file)
        images, labels = digits["images"].astype(np.float64), digits["labels"]
    expected = images @ images.T
    with tempfile.TemporaryDirectory(prefix="codedla-demo-") as name:
        folder = Path(name)
        np.save(folder / "A.npy", images)
        np.save(folder / "B.npy", np.ascontiguousarray(images.T))
        if not args.json and not args.quiet:
            print(
                f"{images.shape[0]} handwritten digits times their transpose on {args.ranks} ranks;"
                f"\nranks {slow[0]} and {slow[1]} are made {args.delay:g} s late.\n",
                flush=True,
            )
        runs = [
            _measure(args, folder, "coded", ["--tolerate", "2"], slow, expected),
            _measure(args, folder, "uncoded", ["--code", "uncoded"], slow, expected),
        ]
        likeness = np.load(folder / "coded.npy")
    right = _nearest_neighbour(likeness, labels)
    if args.json:
        print(json.dumps({"slow_ranks": slow, "runs": [vars(r) for r in runs]}, indent=2))
    else:
        print(_table(runs))
        print(
            f"\nBoth products agree with NumPy's. The digit most like another one has the same "
            f"label in {right:.1%} of cases."
        )
    return 0


def _slow_ranks(n_ranks: int) -> list[int]:
    """Two worker ranks, apart from each other."""
    return [2, n_ranks - 1]


def _measure(
    args: argparse.Namespace,
    folder: Path,
    name: str,
    options: list[str],
    slow: list[int],
    expected: NDArray[Any],
) -> _Run:
    import numpy as np

    report = folder / f"{name}.json"
    words = ["matmul", str(folder / "A.npy"), str(folder / "B.npy")]
    words += ["-o", str(folder / f"{name}.npy"), "--report", str(report), "-q", *options]
    for rank in slow:
        words += ["--inject", f"delay:{rank}:{args.delay:g}"]
    if args.verbose:
        say(f"mpirun -n {args.ranks} codedla {' '.join(words)}")
    result = run_job(
        [sys.executable, "-m", "codedla", *words],
        args.ranks,
        timeout=60 + 3 * args.delay,
        capture=True,
    )
    if result.signal is not None and result.code:
        say(farewell(result.signal))
        raise SystemExit(result.code)
    if result.code != 0:
        raise CodedlaError(
            f"the {name} run ended with code {result.code}: "
            f"{result.stderr.strip() or 'no message'}; try codedla doctor"
        )
    facts = json.loads(report.read_text())
    error = float(np.max(np.abs(np.load(folder / f"{name}.npy") - expected)))
    limit = 1e-9 * float(np.max(expected))
    if not error <= limit:
        raise VerificationFailed(
            f"the {name} product must agree with NumPy's; it is off by {error:.1e} "
            f"where {limit:.1e} is allowed"
        )
    return _Run(
        name=name,
        code=facts["code"],
        threshold=facts["threshold"],
        n_workers=facts["n_workers"],
        late=facts["stragglers"],
        to_result=facts["times"]["total"],
        to_exit=result.seconds,
        largest_error=error,
    )


def _nearest_neighbour(likeness: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of digits whose nearest other digit has the same label."""
    import numpy as np

    squares = np.diag(likeness)
    distance = squares[:, None] + squares[None, :] - 2 * likeness
    np.fill_diagonal(distance, np.inf)
    return float(np.mean(labels[np.argmin(distance, axis=1)] == labels))


def _table(runs: list[_Run]) -> str:
    heads = ("", "code", "needs", "not waited for", "result after", "job ended after")
    rows = [
        (
            run.name,
            run.code,
            f"{run.threshold} of {run.n_workers}",
            f"ranks {', '.join(map(str, run.late))}" if run.late else "nobody",
            f"{run.to_result:.2f} s",
            f"{run.to_exit:.2f} s",
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join(lines)
