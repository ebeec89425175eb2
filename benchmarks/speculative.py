"""Baseline: an uncoded product with speculative re-execution, as task schedulers do it.

``C`` is cut into one row block per worker. When three quarters of the blocks are done and a block
has been under way for one and a half times the median, an idle worker gets a copy of it; the first
copy counts. Hand-written on mpi4py, independent of codedla's engine: it is the thing to beat, so
it also cancels between panels and leaves without waiting for stragglers.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

ORDER, OPERAND, DONE, REPLY = 1, 2, 3, 4
STOP, CANCEL = -1, -2
DONE_FRACTION, PATIENCE = 0.75, 1.5
PANEL_ROWS = 32


def serve(comm: MPI.Comm, delay: float) -> None:
    """Worker: multiply the ordered row blocks; every task sleeps ``delay`` seconds first."""
    shape = np.empty(3, np.int64)
    order = np.empty(1, np.int64)
    comm.Bcast(shape, 0)
    rows, inner, cols = shape.tolist()
    b = np.empty((inner, cols))
    comm.Bcast(b, 0)
    while True:
        _wait(comm.Irecv(order, 0, ORDER))
        if order[0] == STOP:
            return
        if order[0] == CANCEL:
            continue
        block = int(order[0])
        a = np.empty((_rows(rows, comm.Get_size() - 1, block), inner))
        _wait(comm.Irecv(a, 0, OPERAND))
        out = np.empty((a.shape[0], cols))
        if _sleep(comm, delay) and _compute(comm, a, b, out):
            comm.Send(np.array([block]), 0, DONE)
            _wait(comm.Isend(out, 0, REPLY))


def multiply(comm: MPI.Comm, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Master: return ``a @ b``; call :func:`finish` afterwards."""
    workers = comm.Get_size() - 1
    (rows, inner), cols = a.shape, b.shape[1]
    comm.Bcast(np.array([rows, inner, cols]), 0)
    comm.Bcast(b, 0)
    c = np.empty((rows, cols))
    edges = [_start(rows, workers, block) for block in range(workers + 1)]
    began: dict[int, float] = {}
    taken: list[float] = []
    running: dict[int, int] = {}
    missing, doubled = set(range(workers)), set()
    sends: list[MPI.Request] = []

    def order(worker: int, block: int) -> None:
        running[worker] = block
        began.setdefault(block, time.perf_counter())
        sends.append(comm.Isend(np.array([block]), worker + 1, ORDER))
        sends.append(comm.Isend(a[edges[block] : edges[block + 1]], worker + 1, OPERAND))

    for worker in range(workers):
        order(worker, worker)
    idle: list[int] = []
    status = MPI.Status()
    finished = np.empty(1, np.int64)
    while missing:
        if comm.Iprobe(MPI.ANY_SOURCE, DONE, status):
            source = status.Get_source()
            comm.Recv(finished, source, DONE)
            block = int(finished[0])
            into = c[edges[block] : edges[block + 1]]
            _wait(comm.Irecv(into if block in missing else np.empty_like(into), source, REPLY))
            if block in missing:
                missing.discard(block)
                taken.append(time.perf_counter() - began[block])
                for other, its in running.items():
                    if its == block and other != source - 1:
                        sends.append(comm.Isend(np.array([CANCEL]), other + 1, ORDER))
            running.pop(source - 1, None)
            idle.append(source - 1)
            continue
        late = len(taken) >= DONE_FRACTION * workers and idle
        patience = PATIENCE * float(np.median(taken)) if late else 0.0
        for block in sorted(missing - doubled) if late else ():
            if idle and time.perf_counter() - began[block] > patience:
                doubled.add(block)
                order(idle.pop(), block)
        time.sleep(2e-4)
    return c


def finish(comm: MPI.Comm) -> None:
    """Master: send everybody home."""
    for rank in range(1, comm.Get_size()):
        _wait(comm.Isend(np.array([STOP]), rank, ORDER))


def _start(rows: int, parts: int, block: int) -> int:
    quotient, longer = divmod(rows, parts)
    return block * quotient + min(block, longer)


def _rows(rows: int, parts: int, block: int) -> int:
    return _start(rows, parts, block + 1) - _start(rows, parts, block)


def _wait(request: MPI.Request) -> None:
    while not request.Test():
        time.sleep(1e-4)


def _told_to_end(comm: MPI.Comm) -> bool:
    # Left in the queue: the main loop reads it.
    return comm.Iprobe(0, ORDER)


def _sleep(comm: MPI.Comm, seconds: float) -> bool:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if _told_to_end(comm):
            return False
        time.sleep(2e-3)
    return True


def _compute(comm: MPI.Comm, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    for top in range(0, a.shape[0], PANEL_ROWS):
        if _told_to_end(comm):
            return False
        np.matmul(a[top : top + PANEL_ROWS], b, out=out[top : top + PANEL_ROWS])
    return True
