"""What an MPI programmer writes: scatter rows, broadcast B, multiply, gather; buffers throughout.

Rank 0 is the master and does not compute, as in codedla.
"""

import os

import numpy as np
import report
from mpi4py import MPI

comm = MPI.COMM_WORLD


def layout(rows: int, width: int) -> tuple[list[int], list[int]]:
    """Elements and offsets of every rank's rows; the master has none."""
    cuts = report.bounds(rows, comm.Get_size() - 1)
    return [0] + [(stop - start) * width for start, stop in cuts], [0] + [
        start * width for start, _ in cuts
    ]


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The master's part."""
    comm.bcast((a.shape[0], *b.shape))
    c = np.empty((a.shape[0], b.shape[1]))
    comm.Scatterv([a, *layout(*a.shape), MPI.DOUBLE], MPI.IN_PLACE)
    comm.Bcast(b)
    comm.Gatherv(MPI.IN_PLACE, [c, *layout(*c.shape), MPI.DOUBLE])
    return c


def serve() -> None:
    """A worker's part, until there is nothing more to multiply."""
    while shape := comm.bcast(None):
        rows, inner, columns = shape
        start, stop = report.bounds(rows, comm.Get_size() - 1)[comm.Get_rank() - 1]
        part, b = np.empty((stop - start, inner)), np.empty((inner, columns))
        comm.Scatterv(None, part)
        comm.Bcast(b)
        comm.Gatherv(part @ b, None)


if __name__ == "__main__":
    pids = comm.gather(os.getpid())
    if pids is None:
        serve()
    else:
        report.measure(multiply, pids[1:])
        comm.bcast(None)
