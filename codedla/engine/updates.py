r"""Update a share where it stays, ``W += D X^T``, and multiply by it.

Operands are read-only everywhere else; these operations write to the first two of theirs:

======  =================  =========================================================================
place   operand            what it is
======  =================  =========================================================================
0       share (r, c)       resident, under a key of its own; changed in place
1       age (1, 1), int64  resident beside it; columns of updates that the share has seen so far
2, 3    D (r, q), X (c, q) columns number ``first .. first + q - 1`` of all updates ever made
4       B                  what the updated share is multiplied by; unused by "update-read"
5       first (1, 1)       int64
======  =================  =========================================================================

A worker may have missed orders, or have obeyed one whose answer nobody waited for, and the master
does not know which. So orders repeat what *may* be missing, and the age says which columns are new:
applying an order twice, or several with overlapping updates, changes nothing. Only a gap cannot be
bridged, and raises :class:`~codedla.views.Unreadable`: the pool takes the worker for lost in this
round and sends it the share anew in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.attend import CarryOn, always
from codedla.views import Unreadable

__all__ = ["backward", "catch_up", "forward", "read"]

Array = NDArray[Any]

_PANEL_ENTRIES = 1 << 20
"""Entries of a share that are updated, or multiplied, between two looks for messages."""


def catch_up(
    share: Array, age: NDArray[np.int64], d: Array, x: Array, first: int, carry_on: CarryOn
) -> None:
    """Apply to a share, in place, the columns of updates that it has not seen.

    Parameters
    ----------
    share : ndarray (r, c)
    age : ndarray (1, 1) of int64
        Counted on.
    d, x : ndarray (r, q), (c, q)
    first : int
        Number of their first column.
    carry_on : callable
        Asked between panels so that messages are heard; the update is completed all the same,
        because half of one could not be told from none.

    Raises
    ------
    Unreadable
        Columns between the share's age and ``first`` are missing.
    """
    seen = int(age[0, 0])
    last = first + d.shape[1]
    if seen < first:
        raise Unreadable(
            f"a share that has seen {seen} columns of updates cannot take those from {first} on"
        )
    if seen >= last:
        return
    new_d, new_x = d[:, seen - first :], x[:, seen - first :]
    rows = max(1, _PANEL_ENTRIES // max(share.shape[1], 1))
    for top in range(0, share.shape[0], rows):
        with np.errstate(all="ignore"):
            share[top : top + rows] += new_d[top : top + rows] @ new_x.T
        carry_on(False)
    age[0, 0] = last


def _updated(operands: Sequence[Any], carry_on: CarryOn) -> tuple[Array, Array]:
    share, age, d, x, b, first = operands
    catch_up(share, age, d, x, int(first[0, 0]), carry_on)
    return share, b


def _product(a: Array, b: Array, out: Array | None, carry_on: CarryOn) -> Array | None:
    """Return ``a @ b`` by panels of rows, or None when ``carry_on`` says no between two."""
    if out is None:
        out = np.empty((a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype))
    rows = max(1, _PANEL_ENTRIES // max(a.shape[1], 1))
    for top in range(0, a.shape[0], rows):
        if not carry_on():
            return None
        with np.errstate(all="ignore"):
            np.matmul(a[top : top + rows], b, out=out[top : top + rows])
    return out


def forward(
    operands: Sequence[Any], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Update the share, and return ``share @ B``."""
    share, b = _updated(operands, carry_on)
    return _product(share, b, out, carry_on)


def backward(
    operands: Sequence[Any], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Update the share, and return ``share.T @ B`` (not conjugated)."""
    share, b = _updated(operands, carry_on)
    return _product(share.T, b, out, carry_on)


def read(
    operands: Sequence[Any], out: Array | None = None, carry_on: CarryOn = always
) -> Array | None:
    """Update the share, and return a copy of it."""
    share, _ = _updated(operands, carry_on)
    if out is None:
        return share.copy()
    out[...] = share
    return out
