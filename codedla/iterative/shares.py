"""What a worker of coded gradient descent holds, and what it does with it when parameters come.

A share is two resident operands, both of bytes: the *head* (the function, which rows go with which
coefficient, everything that is no plain array), which a worker unpickles once, and the *body*, the
share's rows, which are used where they lie. With every round only the parameters travel.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.work import pack_function
from codedla.errors import UsageError

__all__ = ["Share", "combined", "make_share"]

Array = NDArray[Any]

_ALIGN = 64
"""Bytes: where arrays begin in a body, so that they are whole cache lines."""
_WIDTH = 4096
"""Bytes in a row of a body: messages are cut at rows."""


@dataclass(frozen=True)
class _Layout:
    """Where an array lies in a body."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Share:
    """The head of a share.

    Parameters
    ----------
    function : callable
        ``function(theta, *arrays)`` returns ``(loss, gradient)``, summed over the rows.
    terms : sequence of (float, int, int)
        Of every part: coefficient, first row and end among the share's rows.
    columns : sequence
        For every array of the data its layout in the body, or the share's rows themselves where
        they are no plain array (sparse matrices, objects).
    shape : tuple of int
        Of the parameters.
    """

    function: Callable[..., Any]
    terms: Sequence[tuple[float, int, int]]
    columns: Sequence[Any]
    shape: tuple[int, ...]

    def arrays(self, body: Array) -> list[Any]:
        """Return the rows of every array of the data."""
        data = body.reshape(-1)
        found = []
        for column in self.columns:
            if isinstance(column, _Layout):
                size = int(np.prod(column.shape)) * column.dtype.itemsize
                piece = data[column.start : column.start + size]
                column = piece.view(column.dtype).reshape(column.shape)
            found.append(column)
        return found

    def runs(self, batch: int, batches: int) -> list[tuple[float, int, int]]:
        """Return what a batch has of every part; of all rows, parts of equal coefficients at once.

        A batch must hold the same rows of a part whoever has it, and so it is cut part by part.
        """
        found: list[tuple[float, int, int]] = []
        for coefficient, first, end in self.terms:
            size = end - first
            begin, stop = first + size * batch // batches, first + size * (batch + 1) // batches
            if found and found[-1][0] == coefficient and found[-1][2] == begin:
                found[-1] = (coefficient, found[-1][1], stop)
            elif stop > begin:
                found.append((coefficient, begin, stop))
        return found


def make_share(
    function: Callable[..., Any],
    data: Sequence[Any],
    terms: Sequence[tuple[float, int, int]],
    shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Return a share's head and body, as the master sends them.

    Parameters
    ----------
    function, shape
        As of :class:`Share`.
    data : sequence of array_like with rows
    terms : sequence of (float, int, int)
        Of every part: coefficient, first row and end, in the whole data.

    Returns
    -------
    head : ndarray (1, bytes), uint8
    body : ndarray (rows, width), uint8

    Raises
    ------
    UsageError
        The function cannot be sent.
    """
    ordered = sorted((term for term in terms if term[2] > term[1]), key=lambda term: term[0])
    within: list[tuple[float, int, int]] = []
    at = 0
    for coefficient, first, end in ordered:
        within.append((coefficient, at, at + end - first))
        at += end - first
    columns: list[Any] = []
    laid: list[tuple[_Layout, Any]] = []
    end_of_body = 0
    for array in data:
        if isinstance(array, np.ndarray) and not array.dtype.hasobject:
            layout = _Layout(end_of_body, (at, *array.shape[1:]), array.dtype)
            size = int(np.prod(layout.shape)) * array.dtype.itemsize
            end_of_body += -(-size // _ALIGN) * _ALIGN
            laid.append((layout, array))
            columns.append(layout)
        else:
            columns.append(_rows_of(array, ordered))
    body = np.zeros((max(1, -(-end_of_body // _WIDTH)), _WIDTH), np.uint8)
    for layout, array in laid:
        size = int(np.prod(layout.shape)) * array.dtype.itemsize
        place = body.reshape(-1)[layout.start : layout.start + size]
        target, row = place.view(array.dtype).reshape(layout.shape), 0
        for _, first, end in ordered:
            target[row : row + end - first] = array[first:end]
            row += end - first
    try:
        head = pack_function(Share(function, within, columns, shape))  # type: ignore[arg-type]
    except UsageError:
        # Mostly it is the function, which the message had better name.
        pack_function(function)
        raise
    return head.copy(), body


def _rows_of(array: Any, terms: Sequence[tuple[float, int, int]]) -> Any:
    """Return rows of something that is no plain array."""
    places = np.concatenate([np.arange(first, end) for _, first, end in terms] or [np.arange(0)])
    return array[places]


# -- on the workers --------------------------------------------------------------------------------

_HEADS: dict[int, Share] = {}
"""Unpickled heads, by the memory that they came in, as long as that is there."""


def combined(theta: Array, head: Array, body: Array) -> NDArray[np.float64]:
    """Return a worker's reply: the combination of losses and gradients of its parts.

    Parameters
    ----------
    theta : ndarray (1, 2 + parameters), float64
        Which batch, of how many, and the parameters.
    head, body : ndarray
        Of :func:`make_share`.

    Returns
    -------
    ndarray (1, 1 + parameters)
        The loss, then the gradient.

    Raises
    ------
    TypeError
        The function returned something else than a loss and a gradient of the parameters' shape.
    """
    share = _unpickled(head)
    batch, batches = (int(number) for number in theta[0, :2])
    point = theta[0, 2:].reshape(share.shape)
    reply = np.zeros((1, 1 + point.size))
    arrays = share.arrays(body)
    for coefficient, first, end in share.runs(batch, batches):
        result = share.function(point, *(array[first:end] for array in arrays))
        loss, gradient = _checked(result, share.shape)
        reply[0, 0] += coefficient * loss
        reply[0, 1:] += coefficient * gradient.reshape(-1)
    return reply


def _checked(result: Any, shape: tuple[int, ...]) -> tuple[float, Array]:
    try:
        loss, gradient = result
        if gradient is None or np.iscomplexobj(gradient):
            # NumPy would make NaN of the one, and the real part of the other.
            raise TypeError(f"a gradient of real numbers is needed, not {gradient!r:.40}")
        gradient = np.asarray(gradient, dtype=np.float64)
        # Arrays of one number are taken, as by SciPy.
        loss = float(np.asarray(loss, dtype=np.float64).item())
    except (TypeError, ValueError) as error:
        raise TypeError(
            "loss_and_grad must return a number and an array, the loss and its gradient, both "
            f"real; got {result!r:.80}"
        ) from error
    if gradient.size != int(np.prod(shape)):
        raise TypeError(
            f"loss_and_grad must return a gradient as large as the parameters, {shape}; got "
            f"{gradient.shape}"
        )
    return loss, gradient


def _unpickled(head: Array) -> Share:
    # What a worker holds it is handed as a view.
    owner = head if head.base is None else head.base
    share = _HEADS.get(id(owner))
    if share is None:
        share = pickle.loads(head.tobytes())
        _HEADS[id(owner)] = share
        weakref.finalize(owner, _HEADS.pop, id(owner), None)
    return share
