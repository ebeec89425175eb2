"""What one product asks of master and workers: bytes, flops and replies, without any timing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.engine.ahead import MOST_TOGETHER
from codedla.engine.decoder import FOLD_BATCH
from codedla.planning.machine import Machine

__all__ = ["Workload", "workload_of"]

_LARGE = 512
"""From so many shares on the generators are not made: they would fill memory."""


@dataclass(frozen=True)
class Workload:
    """One product in one code, or one of its panels.

    Parameters
    ----------
    code : Code
    encoded : ndarray (shares,)
        Bytes that the master reads and writes to make each share.
    sent : ndarray (shares,)
        Bytes that the master sends for it.
    stored : ndarray (shares,)
        Bytes that the worker reads from a shared file for it.
    combined : ndarray (shares,)
        Bytes that the worker reads and writes to make it, where it encodes.
    flops : float
        Of one share's task.
    reply : float
        Bytes of a reply.
    spare : ndarray (shares,)
        Whether the reply is no block of the product, but a sum.
    fold : float
        Bytes that the master reads and writes for a reply while it waits for others, in
        systematic codes.
    finish : float
        Bytes that it reads and writes after the last needed reply, in other codes.
    before, after : float
        Bytes looked over before the first share is made, and when the product is complete.
    whole : float
        Bytes of both operands of a task, for a worker that holds neither.
    operation : {"product", "round"}
    panels : int
        Rounds that the product is cut into.
    resident : float
        Bytes sent to every worker once, for all panels.
    """

    code: Code
    encoded: NDArray[np.float64]
    sent: NDArray[np.float64]
    stored: NDArray[np.float64]
    combined: NDArray[np.float64]
    flops: float
    reply: float
    spare: NDArray[np.bool_]
    fold: float
    finish: float
    before: float
    after: float
    whole: float = 0.0
    operation: str = "product"
    panels: int = 1
    resident: float = 0.0

    def computing(self, machine: Machine) -> float:
        """Return the seconds of one share's task on a core of its own.

        A product with a vector takes as long as its matrix takes to be read.
        """
        return max(self.flops / machine.flops, (self.whole + self.reply) / machine.scan)


def workload_of(
    code: Code,
    shape: tuple[int, int, int],
    dtype: np.dtype,
    *,
    operation: str = "product",
    encoding: str = "master",
    panels: int = 1,
) -> Workload:
    """Count what a dense product needs.

    Parameters
    ----------
    code : Code
    shape : (int, int, int)
        Rows of A, inner dimension, columns of B.
    dtype : numpy.dtype
        Of shares and replies.
    operation : {"product", "round"}
        "round": the shares of A are on the workers already, only B's travel.
    encoding : {"master", "workers"}
        "workers": each reads the blocks of its share from a shared file and combines them.
    panels : int
        Rounds over ranges of rows of A; B's shares are sent once.

    Returns
    -------
    Workload
        Of one panel; ``before`` and ``after`` of all of them.
    """
    grid, (u, q, v) = code.grid, code.stack
    rows, inner, cols = shape
    rows = -(-rows // panels)
    size = float(dtype.itemsize)
    height, depth, width = -(-rows // grid.m), -(-inner // grid.p), -(-cols // grid.n)
    block_a, block_b = height * depth * size, depth * width * size
    share_a, share_b = u * q * block_a, q * v * block_b
    reply = u * v * height * width * size
    terms_a, terms_b = _terms(code)
    work_a = _made(terms_a, u * q, block_a)
    work_b = _made(terms_b, q * v, block_b)
    once = operation == "round"
    first = np.zeros_like(terms_a)
    apart = panels > 1
    made = (first if once else work_a) + (first if apart else work_b)
    moved = (first if once else first + share_a) + (first if apart else first + share_b)
    read = (first if once else terms_a * block_a) + terms_b * block_b
    # A worker makes its own share, and no other.
    alone_a = np.where(terms_a > 1, (terms_a + u * q) * block_a, 0.0)
    alone = (first if once else alone_a) + np.where(terms_b > 1, (terms_b + q * v) * block_b, 0.0)
    complex_factor = 4.0 if dtype.kind == "c" else 1.0
    by_workers = encoding == "workers"
    outputs = grid.outputs
    spare = (terms_a > 1) | (terms_b > 1)
    # Several replies are folded at a time: each is read, and the sums are read and written once.
    fold = (1.0 + 2.0 * float(spare.sum()) / FOLD_BATCH) * reply if spare.any() else 0.0
    late = (
        0.0 if code.systematic or not spare.any() else (code.threshold + outputs / (u * v)) * reply
    )
    return Workload(
        code=code,
        encoded=first if by_workers else made,
        sent=first if by_workers else moved,
        stored=read if by_workers else first,
        combined=alone if by_workers else first,
        flops=2.0 * u * q * v * height * depth * width * complex_factor,
        reply=reply,
        spare=spare,
        fold=fold if code.systematic else 0.0,
        finish=late,
        before=0.0
        if by_workers
        else (0.0 if once else shape[0] * inner * size) + inner * cols * size,
        after=shape[0] * cols * size,
        whole=share_a + share_b,
        operation=operation,
        panels=panels,
        resident=share_b if apart else 0.0,
    )


def _made(terms: NDArray[np.float64], rows: int, block: float) -> NDArray[np.float64]:
    """Return the bytes touched to make each share of an operand.

    Coded shares are made several in one pass over the operand, when the first of them is due.
    """
    bytes_touched = np.zeros(len(terms))
    coded = np.flatnonzero(terms > 1)
    together = max(MOST_TOGETHER // rows, 1)
    for first in range(0, len(coded), together):
        batch = coded[first : first + together]
        bytes_touched[batch[0]] = (terms[batch].max() + rows * len(batch)) * block
    return bytes_touched


def _terms(code: Code) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how many blocks of A, and of B, each share is made of."""
    grid = code.grid
    count = len(code.shares)
    all_a, all_b = grid.m * grid.p, grid.p * grid.n
    if code.name in ("uncoded", "replication"):
        return np.ones(count), np.ones(count)
    if count <= _LARGE:
        u, q, v = code.stack
        shares = np.array(code.shares)
        terms = []
        for generator, rows in ((code.generator_a, u * q), (code.generator_b, q * v)):
            blocks = (generator.reshape(-1, rows, generator.shape[1]) != 0).any(axis=1).sum(axis=1)
            terms.append(blocks[shares].astype(float))
        return terms[0], terms[1]
    plain = grid.outputs if code.systematic else 0
    # B is left in one piece by codes that cut A alone.
    numbers = np.arange(count)
    return (
        np.where(numbers < plain, 1.0, float(all_a)),
        np.where(numbers < plain, 1.0, float(all_b)),
    )
