"""What one round of a code costs: flops, bytes, memory, and from them a predicted time.

The time of a round is modelled as the longest worker's flops, all bytes through the master, and
what is left to decode when the last needed reply is there, at the speeds that were measured or are
assumed (:mod:`codedla.measured.speeds`). Sparse operands fill up when blocks are
added: a share of ``w`` blocks of density ``d`` has up to ``w d`` of its entries stored, and from
:data:`~codedla.engine.encoder.DENSE_SHARE_FROM` on it is dense.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.exact import ModularCode
from codedla.engine.encoder import DENSE_SHARE_FROM
from codedla.engine.work import COST, SPARSE_COST
from codedla.measured.speeds import Speeds, speeds

__all__ = ["Cost", "in_bytes", "in_flops", "predict"]


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one round.

    Parameters
    ----------
    flops_worker : float
        Of the worker with most to do, all of its shares.
    sent, received : float
        Bytes from the master, nothing resident yet; bytes of the replies that are needed.
    memory_worker : float
        Bytes of the largest shares of one worker, and of its reply (two buffers).
    compute, transfer, decode : float
        Seconds of the slowest worker that is needed, of all messages, and after the last of them.
    """

    flops_worker: float
    sent: float
    received: float
    memory_worker: float
    compute: float
    transfer: float
    decode: float

    @property
    def seconds(self) -> float:
        """All of it, one after the other."""
        return self.compute + self.transfer + self.decode


def in_bytes(count: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def in_flops(count: float) -> str:
    """Return a number of floating-point operations as a person reads it."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}flop"
        count /= 1000
    return f"{count:.3g} Pflop"


def predict(
    code: Code,
    shape: tuple[int, int, int],
    density: tuple[float, float],
    dtype: np.dtype,
    largest: int | None = None,
    *,
    resident: bool = False,
) -> Cost:
    """Predict what a product costs in this code.

    Parameters
    ----------
    code : Code
    shape : (int, int, int)
        Rows of A, inner dimension, columns of B.
    density : (float, float)
        Of A and B; 1.0 for dense operands.
    dtype : numpy.dtype
        dtype of shares and replies.
    largest : int, optional
        Bound on the entries of an integer product: codes over GF(p) need a round for each prime.
    resident : bool
        The shares of A stay on the workers for many rounds: sending them is not part of one.

    Returns
    -------
    Cost
    """
    (rows, inner, cols), grid, (u, q, v) = shape, code.grid, code.stack
    rate = speeds()
    height, depth, width = -(-rows // grid.m), -(-inner // grid.p), -(-cols // grid.n)
    shares = np.array(code.shares)
    stored_a = _stored(code.generator_a, u * q, density[0])[shares]
    stored_b = _stored(code.generator_b, q * v, density[1])[shares]
    bytes_a = stored_a * (u * q * height * depth * dtype.itemsize)
    bytes_b = stored_b * (q * v * depth * width * dtype.itemsize)
    reply = float(u * v * height * width * dtype.itemsize)
    products = 2.0 * u * q * v * height * depth * width * (4.0 if dtype.kind == "c" else 1.0)
    flops = products * stored_a * stored_b
    sparse = (stored_a < 1.0) | (stored_b < 1.0)
    # The flops of complex numbers count fourfold already.
    slowness = 1.0 if dtype.kind == "c" else COST[dtype.kind]
    seconds = flops * np.where(sparse, max(slowness, SPARSE_COST), slowness) / rate.flops
    sent = float((bytes_a + bytes_b).sum())
    held = code.load
    if code.load > 1 and not resident:
        # Shares are sent when they are asked for, what those of one worker have in common once.
        sent = float(code.threshold * bytes_a.mean() + code.active * bytes_b.max())
        held = 1
    received = code.threshold * reply
    moved = float(bytes_b.sum() if resident else sent) + received
    rounds = len(code.primes(depth * q, largest or 0)) if isinstance(code, ModularCode) else 1
    return Cost(
        flops_worker=rounds * float(flops.max()) * code.load,
        sent=rounds * sent,
        received=rounds * received,
        memory_worker=float((bytes_a + bytes_b).max()) * held + 2 * reply,
        compute=rounds * float(seconds.max()) * _shares_of_one(code),
        transfer=rounds * moved / rate.bandwidth,
        decode=rounds * _decode_seconds(code, reply, rate),
    )


def _stored(generator: NDArray[np.generic], rows: int, density: float) -> NDArray[np.float64]:
    """Return the part of each share's entries that is stored; 1.0 for a dense share."""
    if density >= 1.0:
        return np.ones(len(generator) // rows)
    blocks = np.count_nonzero(generator, axis=1).reshape(-1, rows).mean(axis=1)
    filled = np.minimum(density * blocks, 1.0)
    return np.where(filled > DENSE_SHARE_FROM, 1.0, filled)


def _shares_of_one(code: Code) -> int:
    """Return how many of its shares a worker computes when as many are lost as may be."""
    if code.load == 1:
        return 1
    return min(code.load, -(-code.threshold // max(code.active - code.tolerates, 1)))


def _decode_seconds(code: Code, reply: float, rate: Speeds) -> float:
    """Predict what is left to do when the last needed reply is there."""
    if code.only_plain:
        return 0.0
    outputs, parts = code.grid.outputs, code.stack[0] * code.stack[2]
    if code.systematic:
        # Replies were folded while waiting: what is left is a combination per lost block.
        lost = min(code.tolerates, outputs)
        return lost * (lost + 1) * reply / rate.bandwidth
    block = reply / parts
    traffic = (code.threshold * parts + outputs) * block / rate.bandwidth
    # Two flops for every entry of eight bytes, and weight.
    arithmetic = 2.0 * outputs * code.threshold * parts * block / 8.0 / rate.flops
    return max(traffic, arithmetic)
