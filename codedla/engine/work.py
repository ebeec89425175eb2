"""What workers compute: named operations, most of all the product of two shares, in panels.

Every operation has a name, which a :class:`~codedla.engine.round.Round` states, and a number, which
travels. It takes the operands of one share and returns the reply; see :class:`Work`.

Between panels the worker looks for newer orders. A panel is as large as BLAS needs to run near its
full speed (small panels pack the same operand again and again: at an inner dimension of 4000,
256 x 2000 costs 7 %, 125 x 2000 costs 17 %, 256 x 500 costs 15 %), yet takes about a tenth of a
second, so that a late worker is never deaf for long.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine import spectral, updates
from codedla.engine.attend import CarryOn, always, attend
from codedla.errors import UsageError

__all__ = ["PANEL_FLOPS", "Work", "by_name", "by_number", "multiply", "pack_function"]

Array = NDArray[Any]

PANEL_FLOPS = 4e9
"""Target size of a panel: 80 ms on one core at 50 GF/s."""
MIN_ROWS, MIN_COLS = 256, 512
SPARSE_COST = 20.0
"""A sparse product runs at about this fraction of the dense speed; integers have no BLAS at all."""
COST = {"f": 1.0, "c": 4.0, "i": 100.0, "u": 100.0}


def multiply(
    a: Any,
    b: Any,
    out: NDArray[np.generic],
    carry_on: CarryOn = always,
) -> bool:
    """Write ``a @ b`` into ``out``; stop early when ``carry_on()`` says no.

    Parameters
    ----------
    a : ndarray or scipy.sparse (r, l)
    b : ndarray or scipy.sparse (l, c)
    out : ndarray (r, c)
    carry_on : callable
        Asked before every panel.

    Returns
    -------
    bool
        Whether the product is complete.
    """
    rows, cols = out.shape
    inner = a.shape[1]
    dense = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    flops = PANEL_FLOPS / COST[out.dtype.kind]
    if dense:
        # Only BLAS packs operands, and so only there are small panels dear.
        smallest = (MIN_ROWS, MIN_COLS) if out.dtype.kind in "fc" else (1, 64)
        height, width = _panel(rows, inner, cols, flops, smallest)
    else:
        height, width = _sparse_panel(a, b, rows, cols, flops / SPARSE_COST)
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            if not carry_on():
                return False
            piece = out[top : top + height, left : left + width]
            right = b if width >= cols else b[:, left : left + width]
            left_rows = a if height >= rows else a[top : top + height]
            if dense:
                # NaN and overflow are the caller's data, to be handed back as NumPy would.
                with np.errstate(all="ignore"):
                    np.matmul(left_rows, right, out=piece)
            else:
                product = left_rows @ right
                piece[...] = product if isinstance(product, np.ndarray) else product.toarray()
    return True


def _panel(
    rows: int, inner: int, cols: int, flops: float, smallest: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of one dense panel: whole rows first, narrower only when they are long."""
    per_row = 2.0 * max(inner, 1) * max(cols, 1)
    height = max(int(flops / per_row), smallest[0])
    width = cols
    if height * per_row > 1.5 * flops:
        width = max(int(flops / (2.0 * max(inner, 1) * height)), smallest[1])
    return max(min(height, rows), 1), max(width, 1)


def _sparse_panel(a: Any, b: Any, rows: int, cols: int, flops: float) -> tuple[int, int]:
    """Rows of one panel when an operand is sparse; columns are not cut (CSR slices by rows)."""
    if isinstance(a, np.ndarray):
        per_row = 2.0 * b.nnz
    else:
        per_row = 2.0 * a.nnz / max(rows, 1) * max(cols, 1)
    return max(min(int(flops / max(per_row, 1.0)), rows), 1), max(cols, 1)


# -- the operations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One operation.

    Parameters
    ----------
    name : str
    number : int
        Never given to another operation: ranks tell each other by it what to do.
    perform : callable
        ``perform(operands, out, carry_on)`` returns the reply, a C-ordered matrix, or None when
        ``carry_on`` said no. It is written into ``out`` unless that is None.
    """

    name: str
    number: int
    perform: Callable[[Sequence[Any], Array | None, CarryOn], Array | None]


def _matmul(
    operands: Sequence[Any], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    a, b = operands
    if out is None:
        out = np.empty((a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype))
    return out if multiply(a, b, out, carry_on) else None


def _call(
    operands: Sequence[Any], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Call a function of the shares; it is the last operand, itself or as :func:`pack_function`."""
    *shares, function = operands
    if isinstance(function, np.ndarray):
        function = pickle.loads(function.tobytes())
    # A plain share may be the caller's own memory, a resident one is needed again.
    shares = [_read_only(share) for share in shares]
    results = attend(lambda: function(*shares), carry_on)
    if not results:
        return None
    reply = _checked_reply(results[0])
    if out is None:
        reply = np.ascontiguousarray(reply)
        kept = any(isinstance(s, np.ndarray) and np.may_share_memory(s, reply) for s in shares)
        return reply.copy() if kept or not reply.flags.writeable else reply
    if (reply.shape, reply.dtype) != (out.shape, out.dtype):
        raise TypeError(wrong_reply(reply.shape, reply.dtype, out))
    out[...] = reply
    return out


def wrong_reply(shape: tuple[int, ...], dtype: np.dtype, due: Array) -> str:
    """Say that a function's result is not the matrix that the code decodes from."""
    return (
        f"the function of a coded computation must return {due.dtype} of shape {due.shape} for "
        f"these shares; got {dtype} of shape {shape}"
    )


def _checked_reply(result: Any) -> Array:
    if not isinstance(result, np.ndarray) or result.ndim != 2 or result.dtype not in _TRAVELLING:
        got = type(result).__name__
        if isinstance(result, np.ndarray):
            got = f"{result.dtype} of shape {result.shape}"
        names = ", ".join(str(dtype) for dtype in _TRAVELLING)
        raise TypeError(
            f"the function of a coded computation must return a matrix of one of {names}; got {got}"
        )
    return result


def _read_only(share: Any) -> Any:
    if isinstance(share, np.ndarray):
        share = share.view()
        share.flags.writeable = False
    return share


def pack_function(function: Callable[..., Any]) -> Array:
    """Return a function as bytes that another rank can call, a matrix of one row.

    Raises
    ------
    UsageError
        It, or something it refers to, cannot be sent.
    """
    import cloudpickle

    try:
        data = cloudpickle.dumps(function)
    except Exception as error:
        raise UsageError(
            "a function must be one that can be sent to other ranks (open files, locks and pools "
            f"cannot); got {function!r}: {type(error).__name__}: {error}; pass what it needs as "
            "plain values"
        ) from error
    return np.frombuffer(data, np.uint8)[None, :]


_TRAVELLING = tuple(np.dtype(t) for t in ("f4", "f8", "c8", "c16", "i4", "i8"))
_ALL = (
    Work("matmul", 0, _matmul),
    Work("call", 1, _call),
    Work("fft", 2, spectral.fft),
    Work("rfft", 3, spectral.rfft),
    Work("convolve", 4, spectral.convolve),
    Work("convolve-direct", 5, partial(spectral.convolve, method="direct")),
    Work("convolve-fft", 6, partial(spectral.convolve, method="fft")),
    Work("update-forward", 7, updates.forward),
    Work("update-backward", 8, updates.backward),
    Work("update-read", 9, updates.read),
)
_BY_NAME = {work.name: work for work in _ALL}
_BY_NUMBER = {work.number: work for work in _ALL}


def by_name(name: str) -> Work:
    """Return the operation of this name.

    Raises
    ------
    UsageError
        There is none.
    """
    if name not in _BY_NAME:
        known = ", ".join(map(repr, _BY_NAME))
        raise UsageError(f"workers can do {known}; got work={name!r}; use one of these")
    return _BY_NAME[name]


def by_number(number: int) -> Work:
    """Return the operation of this number.

    Raises
    ------
    RuntimeError
        There is none: the order was made by another version of this program.
    """
    if number not in _BY_NUMBER:
        raise RuntimeError(
            f"operation {number} is not known on this rank, whose codedla is of another version "
            "than the master's; install one version on all ranks"
        )
    return _BY_NUMBER[number]
