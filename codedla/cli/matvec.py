"""``codedla matvec``: the product of a matrix and a vector in files."""

from __future__ import annotations

import argparse

from codedla.cli.matmul import FAULTS
from codedla.cli.options import add_product_options

NAME = "matvec"
HELP = "y = A @ x, from files to a file, on MPI ranks that may be slow or lost"
EPILOG = f"""\
A: .npy (memory-mapped), .npz (SciPy sparse), .mtx, .mtx.gz or FILE.h5:/dataset
x: the same, with one dimension or one column

examples:
  codedla matvec A.npz x.npy -o y.npy --ranks 5
  mpirun -n 9 codedla matvec A.mtx.gz x.npy -o y.npy --tolerate 2
  codedla matvec A.npy x.npy -o y.npy --ranks 5 --panel-rows 100000 --resume

{FAULTS}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", metavar="A", help="matrix")
    parser.add_argument("b", metavar="x", help="vector")
    add_product_options(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master or outside MPI."""
    from codedla.cli.product import run_product

    return run_product(args, "matvec")


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank."""
    from codedla.cli.product import serve_product

    return serve_product(args)
