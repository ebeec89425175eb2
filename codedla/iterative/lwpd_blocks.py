r"""The gradient of a network in `k` equal blocks, and coded combinations of them.

A layer's gradient is :math:`H^T \Delta`, the activations that it was given times the errors that
were propagated back to it. Cut the columns of :math:`H` into `k` groups, padded to equal width, and
the coded derivative :math:`\sum_j c_j H_j^T \Delta = (\sum_j c_j H_j)^T \Delta` costs one product
of `1/k` of the size, and travels as `1/k` of the numbers, whatever the weight of `c`. The columns
of :math:`\Delta` are cut instead where that pads less. Each layer is coded by the same codeword, so
that one reply tells of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["CodedDerivative", "Layout", "Network", "batch_rows"]

Array = NDArray[Any]


class Network(Protocol):
    """What is trained, as :class:`codedla.iterative.mlp.MLP` is: layers, one after the other.

    Attributes
    ----------
    layers_shapes : list of (int, int, bool)
        Inputs and outputs of every layer, and whether it has a bias. The parameter vector has of
        every layer the weights (inputs, outputs), row-major, then the bias.
    """

    @property
    def layers_shapes(self) -> list[tuple[int, int, bool]]:
        """Inputs, outputs and bias of every layer."""

    def backward_factors(self, theta: Array, X: Array, y: Array) -> tuple[float, list[Any]]:
        """Return the summed loss, and of every layer what it was given and its errors."""


class Layout:
    """How the parameters of a network are cut into `k` blocks.

    Parameters
    ----------
    shapes : sequence of (int, int, bool)
        Of the layers; see :class:`Network`.
    k : int

    Attributes
    ----------
    size : int
        Numbers in a block, padding included.
    places : ndarray of int64 (k, size)
        Where each of them is in the parameter vector; its length for padding.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, bool]], k: int) -> None:
        self.k = k
        self._n_parameters = sum((rows + biased) * cols for rows, cols, biased in shapes)
        self._cuts: list[_Cut] = []
        pieces, at = [], 0
        for inputs, cols, biased in shapes:
            # The bias is the weight of one more activation, which is always 1.
            rows = inputs + biased
            own = np.arange(at, at + rows * cols).reshape(rows, cols)
            at += own.size
            by_rows, by_cols = ceil(rows / k), ceil(cols / k)
            down = by_rows * cols <= by_cols * rows
            self._cuts.append(_Cut(down, by_rows if down else by_cols, biased))
            pieces.append(_cut(own if down else own.T, k, self._n_parameters))
        self.places: NDArray[np.int64] = np.hstack(pieces)
        self.size = self.places.shape[1]

    def gather(self, vector: Array) -> Array:
        """Return the blocks (k, size) of a parameter vector; padding is zero."""
        return np.append(vector, np.zeros(1, vector.dtype))[self.places]

    def scatter(self, blocks: Array) -> Array:
        """Return the parameter vector of which these are the blocks."""
        vector = np.zeros(self._n_parameters + 1, blocks.dtype)
        vector[self.places] = blocks
        return vector[:-1]

    def add(self, theta: Array, block: int, step: Array) -> None:
        """Add to one block of the parameters, in place."""
        places = self.places[block]
        real = places < len(theta)
        theta[places[real]] += step[real]

    def combine(self, codeword: Array, factors: Sequence[tuple[Array, Array]]) -> Array:
        r"""Return :math:`\sum_j c_j g_j` (size,) without forming any block :math:`g_j`.

        Parameters
        ----------
        codeword : ndarray (k,)
        factors : sequence of (H, Delta)
            Of every layer, ndarray (rows, in) and (rows, out).
        """
        pieces = []
        for cut, (given, delta) in zip(self._cuts, factors, strict=True):
            if cut.down:
                mixed = _mix(given, codeword, cut.width, ones=cut.biased)
                pieces.append((mixed.T @ delta).ravel())
            else:
                mixed = _mix(delta, codeword, cut.width, ones=False)
                products = [given.T @ mixed]
                if cut.biased:
                    products.append(mixed.sum(axis=0, keepdims=True))
                # One row for each column of the errors, as the blocks are cut.
                pieces.append(np.vstack(products).T.ravel())
        return np.concatenate(pieces)


class _Cut(NamedTuple):
    """How one layer is cut: between its inputs or its outputs, into groups of which width."""

    down: bool
    width: int
    biased: bool


def _cut(matrix: Array, k: int, padding: int) -> Array:
    """Cut a matrix into `k` groups of as many rows, one a row of the result."""
    height = ceil(matrix.shape[0] / k)
    padded = np.full((k * height, matrix.shape[1]), padding, np.int64)
    padded[: matrix.shape[0]] = matrix
    return padded.reshape(k, -1)


def _mix(factor: Array, codeword: Array, width: int, *, ones: bool) -> Array:
    """Return the sum of groups of columns (rows, width), weighted by a codeword's entries."""
    rows, cols = factor.shape
    mixed = np.zeros((rows, width), factor.dtype)
    for j in np.flatnonzero(codeword):
        weight = factor.dtype.type(codeword[j])
        group = factor[:, j * width : (j + 1) * width]
        mixed[:, : group.shape[1]] += weight * group
        if ones and j * width <= cols < (j + 1) * width:
            mixed[:, cols - j * width] += weight
    return mixed


def batch_rows(version: int, rows: int, batch: int, seed: int) -> NDArray[np.int64]:
    """Return which rows version 0, 1, ... is about: each once in every pass over the data."""
    per_pass = max(rows // batch, 1)
    turn, number = divmod(version, per_pass)
    return _shuffled(rows, seed, turn)[number * batch : (number + 1) * batch]


@lru_cache(maxsize=4)
def _shuffled(rows: int, seed: int, turn: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, turn]).permutation(rows)


class CodedDerivative:
    """What a worker computes: a coded derivative of the loss on the batch of a version.

    Parameters
    ----------
    network : Network
    k, batch, seed : int
    scale : float
        The data are multiplied by it: images may stay in bytes.
    """

    def __init__(self, network: Network, k: int, batch: int, seed: int, scale: float) -> None:
        self.network, self.k, self.batch, self.seed, self.scale = network, k, batch, seed, scale

    def __call__(self, codeword: Array, X: Array, y: Array, iterate: Array) -> Array:
        """Return the coded derivative of the mean loss.

        Parameters
        ----------
        codeword : ndarray (1, k)
        X : ndarray (rows, inputs)
        y : ndarray of int64 (1, rows)
        iterate : ndarray of float32 or float64 (1, n_parameters + 1)
            The parameters, and last the number of their version.

        Returns
        -------
        ndarray (1, size)
        """
        theta, version = iterate[0, :-1], int(iterate[0, -1])
        rows = batch_rows(version, len(X), self.batch, self.seed)
        given = X[rows].astype(theta.dtype) * theta.dtype.type(self.scale)
        _, factors = self.network.backward_factors(theta, given, y[0, rows])
        # This object may be made anew for every task; the layout is worth keeping.
        layout = _layout(tuple(self.network.layers_shapes), self.k)
        combined = layout.combine(codeword[0], factors)
        return (combined / theta.dtype.type(len(rows)))[None, :]


@lru_cache(maxsize=4)
def _layout(shapes: tuple[tuple[int, int, bool], ...], k: int) -> Layout:
    return Layout(shapes, k)
