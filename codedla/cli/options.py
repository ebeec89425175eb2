"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from codedla.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "add_checkpoint_options",
    "add_code_options",
    "add_job_options",
    "add_json",
    "add_master_memory",
    "add_product_options",
    "add_threads",
    "code_arguments",
    "count",
    "fraction",
    "parse_blocks",
    "parse_dtype",
    "parse_shape",
    "positive_number",
    "whole_number",
]


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_threads(group: argparse._ActionsContainer) -> None:
    """Add ``--threads``."""
    group.add_argument(
        "--threads",
        type=_threads,
        default=1,
        metavar="T",
        help="threads of BLAS and kernels per rank (default 1); auto: the cores a rank may use "
        "divided by the ranks that share them",
    )


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose and shape a code."""
    group = parser.add_argument_group("the code")
    group.add_argument(
        "--code",
        default="auto",
        metavar="NAME",
        help="a name from 'codedla codes' (default: chosen for you)",
    )
    group.add_argument(
        "--blocks",
        metavar="MxN",
        help="numbers of blocks: 4, 2x2 (rows of A x columns of B) or 2x3x2 (inner blocks between)",
    )
    group.add_argument(
        "--tolerate",
        type=whole_number,
        metavar="S",
        help="workers that may be slow or lost (default: 0 with 1 or 2 workers, 1 with 3 to 5, "
        "else 2; with --blocks, as many as fit)",
    )
    group.add_argument("--nodes", metavar="KIND", help="evaluation points, for codes with a choice")
    group.add_argument(
        "--tolerance",
        type=positive_number,
        metavar="E",
        help="largest relative error to expect from decoding (default 1e-9; single precision 1e-3)",
    )
    group.add_argument(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="what the shares and replies of one worker may take, e.g. 2GiB (default: no limit)",
    )
    group.add_argument(
        "--speculate",
        action="store_true",
        help="give the shares of late workers to idle ones, too, where more are late than the code "
        "tolerates (the code 'speculative' always does)",
    )


def add_checkpoint_options(
    group: argparse._ActionsContainer, what: str, removed: str, otherwise: str
) -> None:
    """Add ``--checkpoint``, ``--checkpoint-every`` and ``--resume``.

    Parameters
    ----------
    group : argument group
    what : str
        What is saved.
    removed, otherwise : str
        When the file is removed; where to begin when there is none.
    """
    group.add_argument(
        "--checkpoint",
        metavar="FILE",
        help=f"save {what} there from time to time; removed when {removed}",
    )
    group.add_argument(
        "--checkpoint-every",
        type=positive_number,
        metavar="SECONDS",
        help="how often, with --checkpoint (default 30)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help=f"begin with {what} in --checkpoint; {otherwise} when there is none",
    )


def add_master_memory(parser: Any) -> None:
    """Add ``--master-memory``."""
    parser.add_argument(
        "--master-memory",
        type=_bytes,
        metavar="SIZE",
        help="resident memory that the master may take; a larger product is computed in panels "
        "whose operands are read from the files as they are needed (default: half of what is "
        "free; a limit like ulimit -v is kept in any case)",
    )


def _bytes(text: str) -> float:
    """Read a size: a number of bytes, or one with K, M, G or T (powers of 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"must be a size like 512M or 2GiB, got {text!r}")
    return float(match[1]) * 1024.0 ** (" KMGT".index((match[2] or " ").upper()))


def add_product_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a product that is carried out."""
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="where the product goes: .npy or .h5:/dataset",
    )
    add_code_options(parser)
    run = parser.add_argument_group("the run")
    _add_ranks(run)
    run.add_argument(
        "--verify",
        nargs="?",
        const="locate",
        default="auto",
        choices=("off", "freivalds", "locate", "spares", "auto"),
        help="check at random: the product (freivalds), or every reply, so that wrong ones are "
        "replaced (locate, or plain --verify), or compare more replies than are needed with each "
        "other (spares); auto: locate where it costs little (default)",
    )
    _add_encode(run)
    run.add_argument(
        "--panel-rows",
        type=count,
        metavar="N",
        help="compute and save N rows of the product at a time (default: about 10 s of work, at "
        "most 64 panels; a small product is one panel)",
    )
    run.add_argument(
        "--panel-columns",
        type=count,
        metavar="N",
        help="of these rows, N columns at a time (default: all, or as many as fit into memory)",
    )
    add_master_memory(run)
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on where an earlier run of this command ended, with what it saved; from the "
        "beginning when there is nothing (a product that is finished needs --force, and is then "
        "computed again)",
    )
    run.add_argument("--report", metavar="FILE", help="write what happened as JSON")
    run.add_argument(
        "--trace", metavar="FILE", help="write what took how long on which rank, for Perfetto"
    )
    run.add_argument("--timeline", metavar="FILE", help="draw it: .png, .svg or .pdf")
    run.add_argument("--force", action="store_true", help="replace existing output files")
    run.add_argument(
        "--dry-run", action="store_true", help="check all but the entries, print the plan, stop"
    )
    _add_faults(run)
    add_json(parser, "the report (with --dry-run: the plan)")


def add_job_options(parser: argparse.ArgumentParser, *, encode: bool = True) -> None:
    """Add the options of other work that is carried out on MPI ranks, from files to a file.

    With ``--encode`` unless nothing is there for the workers to encode.
    """
    run = parser.add_argument_group("the run")
    _add_ranks(run)
    if encode:
        _add_encode(run)
    run.add_argument("--report", metavar="FILE", help="write what happened as JSON")
    run.add_argument("--force", action="store_true", help="replace existing output files")
    _add_faults(run)


def _add_ranks(run: argparse._ArgumentGroup) -> None:
    run.add_argument(
        "--ranks",
        type=count,
        metavar="R",
        help="start MPI with R ranks, master included (not needed under mpirun or srun)",
    )
    add_threads(run)
    run.add_argument(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="give up after this long (exit code 3)",
    )
    run.add_argument(
        "--deadline",
        type=positive_number,
        metavar="SECONDS",
        help="a worker that has not answered an order after this long has its share given to "
        "another (default: a living one has all the time it needs, a silent one two seconds)",
    )


def _add_encode(run: argparse._ArgumentGroup) -> None:
    run.add_argument(
        "--encode",
        choices=("master", "workers"),
        default="master",
        help="workers: they read the operands themselves, from .npy or contiguous .h5 files that "
        "all hosts see; the master sends next to nothing (default: the master encodes)",
    )


def _add_faults(run: argparse._ArgumentGroup) -> None:
    run.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="SPEC",
        help="make a fault on purpose; may be repeated (see below)",
    )
    run.add_argument(
        "--seed", type=whole_number, metavar="N", help="seed of the random faults of --inject"
    )


def code_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the code options as keyword arguments of the library's functions."""
    return {
        "code": args.code,
        "blocks": None if args.blocks is None else parse_blocks(args.blocks),
        "tolerate": args.tolerate,
        "nodes": args.nodes,
        "tolerance": args.tolerance,
        "memory": args.memory,
        "speculate": args.speculate,
    }


def parse_blocks(text: str) -> int | tuple[int, ...]:
    """Read ``4``, ``2x2`` or ``2x3x2``.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not re.fullmatch(r"\d+(x\d+){0,2}", text) or "0" in re.split("x", text):
        raise UsageError(
            f"--blocks must be positive numbers like 4, 2x2 or 2x3x2; got {text!r}; "
            "use x between them"
        )
    numbers = tuple(int(part) for part in text.split("x"))
    return numbers[0] if len(numbers) == 1 else numbers


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read ``ROWSxINNERxCOLUMNS``, or ``ROWSxINNER`` for a vector.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not re.fullmatch(r"\d+x\d+(x\d+)?", text):
        raise UsageError(
            f"--shape must be ROWSxINNERxCOLUMNS; got {text!r}; write it like 4000x4000x4000"
        )
    rows, inner, *columns = (int(part) for part in text.split("x"))
    return rows, inner, columns[0] if columns else 1


def parse_dtype(name: str) -> np.dtype:
    """Read a NumPy dtype.

    Raises
    ------
    UsageError
        There is no such dtype.
    """
    import numpy as np

    try:
        return np.dtype(name)
    except (TypeError, ValueError):
        raise UsageError(
            f"--dtype must be a NumPy type; got {name!r}; use float64, float32 or complex128"
        ) from None


def whole_number(text: str) -> int:
    """Read a whole number from 0 upwards."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text!r}")
    return number


def count(text: str) -> int:
    """Read a whole number from 1 upwards."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return number


def _threads(text: str) -> int | str:
    return "auto" if text == "auto" else count(text)


def positive_number(text: str) -> float:
    """Read a positive, finite number."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be positive, got {text!r}")
    return number


def fraction(text: str) -> float:
    """Read a number from 0 up to, not including, 1."""
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 up to, not including, 1, got {text!r}")
    return number


# argparse puts these names into its own messages: "invalid whole number value: 'x'".
whole_number.__name__ = "whole number"
count.__name__ = "whole number"
_threads.__name__ = "whole number"
positive_number.__name__ = "number"
fraction.__name__ = "number"
