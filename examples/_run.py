"""Run an example's ``main(pool)`` under MPI where a launcher started us, else in this process."""

import sys

import codedla
from codedla.mpi.launch import world_from_env


def run(main, workers):
    """Call ``main`` with a pool; exit with 0 if it returned True."""
    if world_from_env() is None:
        with codedla.SerialPool(workers) as pool:
            sys.exit(0 if main(pool) else 1)
    from mpi4py import MPI

    good = True
    with codedla.MPIPool(MPI.COMM_WORLD) as pool:
        if pool is not None:  # None on worker ranks
            good = main(pool)
    sys.exit(0 if good else 1)
