"""``codedla solve``: a system of linear equations in files, by a Krylov method."""

from __future__ import annotations

import argparse

from codedla.cli.matmul import FAULTS
from codedla.cli.options import (
    add_checkpoint_options,
    add_code_options,
    add_job_options,
    add_json,
    count,
    positive_number,
)

NAME = "solve"
HELP = "solve A x = b, or least squares, from files to a file, on ranks that may be slow or lost"
EPILOG = f"""\
A: .npy (memory-mapped), .npz (SciPy sparse), .mtx, .mtx.gz or FILE.h5:/dataset
b: the same, with one dimension or one column

methods: cg for symmetric (Hermitian) positive definite A, minres for real symmetric A, gmres for
any square A, lsqr and lsmr for least squares. auto takes lsqr if A is not square, cg with --assume
spd, minres with --assume symmetric or a .mtx file that says so, else gmres.

A stays on the workers, only vectors travel. If the residual |b - A x| does not become small enough
in --maxiter iterations, x is written all the same and the exit code is 1. --resume may go on by
another method.

examples:
  codedla solve A.npy b.npy -o x.npy --ranks 9
  mpirun -n 9 codedla solve A.mtx.gz b.npy -o x.npy --assume spd --tolerate 2
  codedla solve A.npz b.npy -o x.npy --ranks 5 --method lsqr --checkpoint x.ckpt --resume

{FAULTS}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", metavar="A", help="matrix")
    parser.add_argument("b", metavar="b", help="right-hand side")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="where the solution goes: .npy or .h5:/dataset",
    )
    group = parser.add_argument_group("the method")
    group.add_argument(
        "--method",
        choices=("auto", "cg", "minres", "gmres", "lsqr", "lsmr"),
        default="auto",
        help="SciPy's solver (default: auto, see below)",
    )
    group.add_argument(
        "--assume",
        choices=("general", "symmetric", "spd"),
        help="what A is: symmetric (Hermitian), or also positive definite (default: what a .mtx "
        "file says, else general)",
    )
    group.add_argument(
        "--rtol",
        type=positive_number,
        metavar="E",
        help="residual to be reached, relative to |b|; of lsqr and lsmr, their atol and btol "
        "(default 1e-8; single precision 1e-4)",
    )
    group.add_argument(
        "--maxiter",
        type=count,
        metavar="N",
        help="iterations, at most (default: 10 times the unknowns)",
    )
    group.add_argument(
        "--restart",
        type=count,
        metavar="N",
        help="iterations of gmres between restarts (default 20)",
    )
    group.add_argument(
        "--adjoint",
        choices=("separate", "shared"),
        help="where lsqr and lsmr take A^H y from: a second set of shares on the workers, or the "
        "same one, with a code that serves both ways (default: separate)",
    )
    add_checkpoint_options(group, "the iterate", "x has been reached", "from zero")
    add_code_options(parser)
    add_job_options(parser)
    add_json(parser, "the report")


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master or outside MPI."""
    from codedla.cli.system import solve_system

    return solve_system(args)


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank."""
    from codedla.cli import jobs

    return jobs.serve(args)
