"""What memory the kernels can use: shapes, dtypes, layouts and overlaps of blocks.

The kernels read and write raw memory and check nothing; :mod:`codedla.kernels` asks here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.errors import UsageError

__all__ = [
    "as_list",
    "check_blocks",
    "check_outputs",
    "check_weights",
    "prepare",
    "refuse_overlap",
]

Array = NDArray[Any]

_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", "complex128"))


def check_blocks(role: str, blocks: Sequence[Array], like: Array) -> None:
    """Refuse blocks that differ from ``like`` in shape or dtype, and kinds no kernel knows.

    Raises
    ------
    UsageError
        Names the block by ``role`` and number.
    """
    for index, block in enumerate(blocks):
        if not isinstance(block, np.ndarray):
            raise UsageError(
                f"{role}[{index}] must be a NumPy array, got {type(block).__name__}; "
                "wrap it with numpy.asarray"
            )
        if block.dtype != like.dtype or block.shape != like.shape:
            raise UsageError(
                f"all blocks must have one shape and one dtype: {role}[{index}] is "
                f"{block.shape} {block.dtype}, expected {like.shape} {like.dtype}; "
                "pad or convert the blocks"
            )
    if like.dtype not in _DTYPES:
        raise UsageError(
            f"blocks must be float32, float64, complex64 or complex128, got {like.dtype}; "
            "convert them with astype"
        )
    if like.ndim not in (1, 2):
        raise UsageError(f"blocks must be 1-D or 2-D, got {like.ndim}-D; reshape them")


def as_list(role: str, blocks: Any) -> list[Array]:
    """Return the blocks as a list; refuse a single vector, whose numbers are no blocks.

    Raises
    ------
    UsageError
    """
    if isinstance(blocks, np.ndarray) and blocks.ndim < 2:
        raise UsageError(
            f"{role} must be a list of separate arrays, got one {blocks.ndim}-D array; "
            "write [array]"
        )
    return list(blocks)


def check_weights(name: str, weights: ArrayLike, shape: tuple[int, ...], complex_ok: bool) -> Array:
    """Return the weights as C-ordered float64 or complex128 of the given shape.

    Raises
    ------
    UsageError
        Not numbers, another shape, or complex for real blocks (``complex_ok`` False).
    """
    array = np.asarray(weights)
    if array.dtype.kind not in "biufc":
        raise UsageError(f"{name} must hold real or complex numbers, got dtype {array.dtype}")
    if array.shape != shape:
        raise UsageError(
            f"{name} must have shape {shape} (one row per output, one column per input), "
            f"got {array.shape}"
        )
    if array.dtype.kind != "c":
        return np.ascontiguousarray(array, dtype=np.float64)
    if not complex_ok:
        raise UsageError(
            f"complex {name} needs complex blocks, got real ones; convert the blocks to complex, "
            f"or pass {name}.real if its imaginary part is zero"
        )
    return np.ascontiguousarray(array, dtype=np.complex128)


def _kernel_layout(block: Array, output: bool) -> bool:
    """True if the kernels can use the memory as it is: contiguous rows, any row stride."""
    if not block.flags.aligned:
        return False
    if block.flags.c_contiguous:
        return True
    if block.ndim == 1:
        return bool(block.strides[0] == block.itemsize)
    if block.shape[1] > 1 and block.strides[1] != block.itemsize:
        return False
    smallest = block.shape[1] * block.itemsize if output else 0
    return bool(block.shape[0] <= 1 or block.strides[0] >= smallest)


def prepare(
    ins: Sequence[Array], outs: Sequence[Array], fresh: bool
) -> tuple[list[Array], list[Array], list[tuple[Array, Array]]]:
    """Return blocks the kernels can use, copied where the layout asks for it.

    Contiguous matrices become vectors: long rows suit the kernels, and threads, better than many
    short ones.

    Parameters
    ----------
    ins, outs : sequences of ndarrays of one shape and dtype
    fresh : bool
        The old contents of the outputs are not read.

    Returns
    -------
    ins, outs : list of ndarray
    copy_back : list of (ndarray, ndarray)
        Pairs (caller's output, stand-in) to copy at the end.
    """
    ready_ins = [b if _kernel_layout(b, False) else np.ascontiguousarray(b) for b in ins]
    ready_outs, copy_back = [], []
    for out in outs:
        if _kernel_layout(out, True):
            ready_outs.append(out)
            continue
        stand_in = np.empty(out.shape, out.dtype) if fresh else np.array(out, order="C")
        ready_outs.append(stand_in)
        copy_back.append((out, stand_in))
    if outs[0].ndim == 2 and all(b.flags.c_contiguous for b in (*ready_ins, *ready_outs)):
        ready_ins = [block.reshape(-1) for block in ready_ins]
        ready_outs = [out.reshape(-1) for out in ready_outs]
    return ready_ins, ready_outs, copy_back


def _extents(
    blocks: Sequence[Array], addresses: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First addresses of the blocks, and the first addresses after their last bytes."""
    lows, highs = [], []
    for block, low in zip(blocks, addresses, strict=True):
        if block.flags.c_contiguous:
            high = low + block.nbytes
        else:
            low, high = np.lib.array_utils.byte_bounds(block)
        lows.append(low)
        highs.append(high)
    return np.array(lows, np.int64), np.array(highs, np.int64)


def _pitches(blocks: Sequence[Array]) -> NDArray[np.int64]:
    """Row stride of matrices whose contiguous rows do not overlap, 0 for all other blocks."""
    return np.array(
        [
            block.strides[0]
            if block.ndim == 2
            and block.strides[1] == block.itemsize
            and block.strides[0] >= block.shape[1] * block.itemsize
            else 0
            for block in blocks
        ],
        np.int64,
    )


def refuse_overlap(
    ins: Sequence[Array], outs: Sequence[Array], addresses: Sequence[int], in_place: bool
) -> None:
    """Refuse outputs that share memory with an input or with each other.

    Parameters
    ----------
    ins, outs : sequences of ndarrays of one shape and dtype
    addresses : sequence of int
        Where the outputs, then the inputs begin.
    in_place : bool
        An output that is exactly an input is harmless.

    Raises
    ------
    UsageError
    """
    blocks = [*outs, *ins]
    n_out = len(outs)
    lows, highs = _extents(blocks, addresses)
    meet = (lows[:n_out, None] < highs) & (lows < highs[:n_out, None])
    meet[:, :n_out] = np.triu(meet[:, :n_out], 1)
    if not meet.any():
        return
    # Column blocks of one matrix: the bounds overlap although no element does.
    pitches = _pitches(blocks)
    comparable = (pitches[:n_out, None] == pitches) & (pitches > 0)
    rows, width = outs[0].shape[0], outs[0].shape[-1] * outs[0].itemsize
    down, right = np.divmod(lows - lows[:n_out, None], np.maximum(pitches, 1))
    same_row = (abs(down) < rows) & (right < width)
    next_row = (abs(down + 1) < rows) & (right + width > pitches)
    meet &= ~comparable | same_row | next_row
    for first, second in np.argwhere(meet).tolist():
        out, other = outs[first], blocks[second]
        if in_place and lows[first] == lows[second] and out.strides == other.strides:
            continue
        if not comparable[first, second] and not np.shares_memory(out, other):
            continue
        if second < n_out:
            raise UsageError(
                f"outputs must not share memory: outs[{first}] and outs[{second}] overlap; "
                "give each output its own buffer"
            )
        raise UsageError(
            f"inputs and outputs must not share memory: ins[{second - n_out}] and outs[{first}] "
            "overlap; write into a separate buffer"
        )


def check_outputs(outs: Sequence[Array]) -> None:
    """Refuse read-only outputs.

    Raises
    ------
    UsageError
    """
    for index, out in enumerate(outs):
        if not out.flags.writeable:
            raise UsageError(f"outs[{index}] is read-only; pass a writable array")
