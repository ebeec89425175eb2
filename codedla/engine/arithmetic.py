"""Block arithmetic by dtype: the compiled kernels for floats, wrap-around NumPy for integers.

Integers stay exact when every weight is an integer (all-ones parity): sums wrap modulo 2**64
exactly as NumPy's own integer product does, so encoding and decoding lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import kernels

__all__ = ["accumulating", "combine", "empty", "fold", "new_blocks"]

Array = NDArray[Any]

_SINGLE = {
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}
_BAND_BYTES = 1 << 20
"""Double-precision copies of this size are made at a time: they stay in a core's cache."""


def empty(shape: tuple[int, int], dtype: np.dtype) -> Array:
    """Return an uninitialised, cache-line-aligned C-ordered matrix."""
    return kernels.aligned_empty(shape, dtype)


def new_blocks(count: int, shape: tuple[int, int], dtype: np.dtype) -> list[Array]:
    """Return ``count`` zeroed matrices."""
    blocks = [empty(shape, dtype) for _ in range(count)]
    for block in blocks:
        block[...] = 0
    return blocks


def combine(
    weights: Array,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    *,
    accumulate: bool = False,
    wide: bool = False,
    threads: int = 1,
) -> None:
    """Write ``outputs[i] (+)= sum_j weights[i, j] * inputs[j]``, of float or integer blocks.

    With ``wide``, and where precisions differ, weights and sums are in double precision. Results
    do not depend on the number of threads.
    """
    if not outputs or outputs[0].size == 0:
        return
    if outputs[0].dtype.kind not in "iu":
        if inputs and inputs[0].dtype != outputs[0].dtype:
            _combine_mixed(weights, inputs, outputs, accumulate=accumulate, threads=threads)
        else:
            kernels.combine(
                weights,
                list(inputs),
                list(outputs),
                accumulate=accumulate,
                wide=wide,
                threads=threads,
            )
        return
    whole = _integers(weights, outputs[0].dtype)
    for row, out in zip(whole, outputs, strict=True):
        if not accumulate:
            out[...] = 0
        for weight, block in zip(row, inputs, strict=True):
            if weight:
                out += weight * block


def accumulating(dtype: np.dtype) -> np.dtype:
    """Return the dtype to sum replies of ``dtype`` in: double precision for single."""
    return _SINGLE.get(np.dtype(dtype), np.dtype(dtype))


def _combine_mixed(
    weights: Array,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    *,
    accumulate: bool,
    threads: int = 1,
) -> None:
    """Combine blocks of which only some are in double precision, in double, band by band.

    The copies make it four to six times slower than blocks of one precision. Only sums of replies
    are kept in double precision: weights are large there and of either sign, and every rounding of
    a sum is amplified.
    """
    rows, cols = outputs[0].shape
    wide = accumulating(outputs[0].dtype)
    size = wide.itemsize * max(cols, 1) * (len(inputs) + len(outputs))
    band = min(max(1, _BAND_BYTES // size), rows)
    ins = [empty((band, cols), wide) for _ in inputs]
    outs = [empty((band, cols), wide) for _ in outputs]
    for top in range(0, rows, band):
        height = min(band, rows - top)
        for scratch, block in zip(ins, inputs, strict=True):
            scratch[:height] = block[top : top + height]
        if accumulate:
            for scratch, block in zip(outs, outputs, strict=True):
                scratch[:height] = block[top : top + height]
        kernels.combine(
            weights,
            [scratch[:height] for scratch in ins],
            [scratch[:height] for scratch in outs],
            accumulate=accumulate,
            threads=threads,
        )
        # What does not fit into single precision becomes Inf, as it would in its own arithmetic.
        with np.errstate(over="ignore"):
            for scratch, block in zip(outs, outputs, strict=True):
                block[top : top + height] = scratch[:height]


def fold(accumulators: Sequence[Array], weights: Array, block: Array, *, threads: int = 1) -> None:
    """Add ``weights[r] * block`` to every accumulator, in one pass over ``block``."""
    if not accumulators or block.size == 0:
        return
    if block.dtype.kind not in "iu":
        if block.dtype == accumulators[0].dtype:
            kernels.fold(list(accumulators), weights, block, threads=threads)
        else:
            column = np.asarray(weights)[:, None]
            _combine_mixed(column, [block], accumulators, accumulate=True, threads=threads)
        return
    for weight, out in zip(_integers(weights, block.dtype), accumulators, strict=True):
        out += weight * block


def _integers(weights: Array, dtype: np.dtype) -> Array:
    """Return weights as integers; those that are integers already keep all of their bits."""
    array = np.asarray(weights)
    return (array if array.dtype.kind in "iu" else np.rint(array.real)).astype(dtype)
