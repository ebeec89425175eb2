"""``codedla matmul``: the product of two matrices in files."""

from __future__ import annotations

import argparse

from codedla.cli.options import add_product_options

NAME = "matmul"
HELP = "C = A @ B, from files to a file, on MPI ranks that may be slow or lost"
FAULTS = """\
faults for --inject (RANK counts from 1; rank 0 is the master):
  slow:RANK:FACTOR         computes FACTOR times slower
  delay:RANK:SECONDS       sleeps inside every task
  kill:RANK:SECONDS        kills itself this long after the start
  hang:RANK:SECONDS        freezes this long after the start
  corrupt:RANK:PROB[:KIND] sometimes replies wrongly: entry, flip, nan, scale or stale
  raise:RANK:ROUND         its task raises an exception (round 1 is the product)
  random:DIST:PARAMS       every task sleeps a random time, e.g. random:exp:0.1"""
EPILOG = f"""\
A and B: .npy, .npz (SciPy sparse), .mtx, .mtx.gz or FILE.h5:/dataset

examples:
  codedla matmul A.npy B.npy -o C.npy --ranks 9
  mpirun -n 9 codedla matmul A.npy B.npy -o C.npy --tolerate 2 --report r.json
  codedla matmul A.npy B.npy -o C.npy --ranks 7 --code polynomial --blocks 2x2
  codedla matmul A.npz B.h5:/data/B -o C.h5:/C --ranks 5 --inject delay:2:10
  codedla matmul A.npy B.npy -o C.npy --ranks 9 --resume      goes on where it was ended
  codedla matmul A.npy B.npy -o C.npy --ranks 9 --dry-run

A large product is saved in panels of rows. When the job ends early (the end of its allocation, a
lost master, Ctrl-C), what is finished stays beside the output, and the same command with --resume
computes the rest, with another number of ranks if need be. In a job that may be started again by
itself, give --resume --force from the start.

Operands in .npy and HDF5 files may be larger than the memory of the master: the product is then
computed in panels of rows and columns, and of the operands only what these need is read. What the
master may take is half of the free memory, a limit of the system (ulimit -v), or --master-memory;
--dry-run and codedla plan say what the panels will take.

{FAULTS}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", metavar="A", help="left matrix")
    parser.add_argument("b", metavar="B", help="right matrix")
    add_product_options(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master or outside MPI."""
    from codedla.cli.product import run_product

    return run_product(args, "matmul")


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank."""
    from codedla.cli.product import serve_product

    return serve_product(args)
