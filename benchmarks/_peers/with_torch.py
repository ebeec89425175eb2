"""torch.distributed with gloo: rows sent to each worker, B broadcast, rows of C sent back.

The master starts the workers itself; it does not compute.
"""

import os
import subprocess
import sys

import numpy as np
import report
import torch
import torch.distributed as dist


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The master's part."""
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    c = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float64)
    dist.broadcast(torch.tensor([a.shape[0], *b.shape]), 0)
    cuts = list(enumerate(report.bounds(a.shape[0], report.WORKERS), 1))
    sends = [dist.isend(left[start:stop], rank) for rank, (start, stop) in cuts]
    dist.broadcast(right, 0)
    for work in sends + [dist.irecv(c[start:stop], rank) for rank, (start, stop) in cuts]:
        work.wait()
    return c.numpy()


def serve(rank: int) -> None:
    """A worker's part, until there is nothing more to multiply."""
    shape = torch.zeros(3, dtype=torch.int64)
    while True:
        dist.broadcast(shape, 0)
        rows, inner, columns = shape.tolist()
        if not rows:
            return
        start, stop = report.bounds(rows, report.WORKERS)[rank - 1]
        part = torch.empty((stop - start, inner), dtype=torch.float64)
        b = torch.empty((inner, columns), dtype=torch.float64)
        dist.recv(part, 0)
        dist.broadcast(b, 0)
        dist.send(part @ b, 0)


def main(rank: int) -> None:
    workers = []
    if rank == 0:
        for other in range(1, report.WORKERS + 1):
            workers.append(subprocess.Popen([sys.executable, __file__, str(other)]))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    meeting = (report.folder() / "meeting").as_uri()
    size = report.WORKERS + 1
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    if rank:
        serve(rank)
    else:
        report.measure(multiply, [worker.pid for worker in workers])
        dist.broadcast(torch.zeros(3, dtype=torch.int64), 0)
    dist.destroy_process_group()
    for worker in workers:
        worker.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
