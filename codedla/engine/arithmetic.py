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

__all__ = ["combine", "empty", "fold", "new_blocks"]

Array = NDArray[Any]


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
    weights: Array, inputs: Sequence[Array], outputs: Sequence[Array], *, accumulate: bool = False
) -> None:
    """Write ``outputs[i] (+)= sum_j weights[i, j] * inputs[j]``, of float or integer blocks."""
    if not outputs or outputs[0].size == 0:
        return
    if outputs[0].dtype.kind not in "iu":
        kernels.combine(weights, list(inputs), list(outputs), accumulate=accumulate)
        return
    whole = _integers(weights, outputs[0].dtype)
    for row, out in zip(whole, outputs, strict=True):
        if not accumulate:
            out[...] = 0
        for weight, block in zip(row, inputs, strict=True):
            if weight:
                out += weight * block


def fold(accumulators: Sequence[Array], weights: Array, block: Array) -> None:
    """Add ``weights[r] * block`` to every accumulator, in one pass over ``block``."""
    if not accumulators or block.size == 0:
        return
    if block.dtype.kind not in "iu":
        kernels.fold(list(accumulators), weights, block)
        return
    for weight, out in zip(_integers(weights, block.dtype), accumulators, strict=True):
        out += weight * block


def _integers(weights: Array, dtype: np.dtype) -> Array:
    """Return weights as integers; those that are integers already keep all of their bits."""
    array = np.asarray(weights)
    return (array if array.dtype.kind in "iu" else np.rint(array.real)).astype(dtype)
