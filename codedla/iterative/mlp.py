r"""A multi-layer perceptron in NumPy: ReLU between layers, softmax cross-entropy above.

Layer ``l`` computes :math:`Z_l = H_l W_l + b_l` from :math:`H_0 = X` and
:math:`H_{l+1} = \max(Z_l, 0)`. With :math:`\Delta_L = \mathrm{softmax}(Z_L) - Y` and
:math:`\Delta_l = (\Delta_{l+1} W_{l+1}^T) \odot [Z_l > 0]` the gradients of the loss, summed over
the rows, are products of two thin matrices,

.. math:: \nabla W_l = H_l^T \Delta_l, \qquad \nabla b_l = 1^T \Delta_l,

which is why methods that code the factors ask for these (:meth:`MLP.backward_factors`). Without
hidden layers this is softmax regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = ["MLP"]

Array = NDArray[Any]

_NARROW = 32
"""Columns up to which a product is better computed as that of the transposes."""


class MLP:
    """The network's shape; its parameters are one vector, which is handed in.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, hidden units layer by layer, classes: ``(784, 200, 100, 10)``.

    Attributes
    ----------
    n_parameters : int
        Length of the parameter vector: of every layer ``W`` (row-major), then ``b``.
    layers_shapes : list of (int, int, bool)
        Inputs and outputs of every layer, and whether it has a bias: all have.

    Raises
    ------
    UsageError
        Fewer than two sizes, or one below 1.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise UsageError(
                "a network needs inputs and outputs, at least 1 of each; got sizes "
                f"{list(sizes)}; give for instance (784, 100, 10)"
            )
        self._shapes = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        self.n_parameters = sum(rows * cols + cols for rows, cols in self._shapes)
        self.layers_shapes = [(rows, cols, True) for rows, cols in self._shapes]

    def start(self, seed: int = 0, dtype: Any = np.float64) -> Array:
        """Return starting parameters: He's normal weights, biases of zero (n_parameters,)."""
        rng = np.random.default_rng(seed)
        theta = np.zeros(self.n_parameters, dtype)
        for weights, _ in self.layers(theta):
            weights[...] = rng.standard_normal(weights.shape) * np.sqrt(2.0 / weights.shape[0])
        return theta

    def layers(self, theta: Array) -> list[tuple[Array, Array]]:
        """Return ``(W, b)`` of every layer as views of the parameters, (in, out) and (out,)."""
        found, at = [], 0
        for rows, cols in self._shapes:
            middle, end = at + rows * cols, at + rows * cols + cols
            found.append((theta[at:middle].reshape(rows, cols), theta[middle:end]))
            at = end
        return found

    def forward(self, theta: Array, X: Array) -> tuple[list[Array], Array]:
        """Return what every layer is given, and the scores.

        Parameters
        ----------
        theta : ndarray (n_parameters,)
        X : ndarray (rows, inputs)

        Returns
        -------
        activations : list of ndarray (rows, in)
            ``H_l`` of every layer, the first is ``X``.
        scores : ndarray (rows, classes)
            Before the softmax.
        """
        activations, current = [], X
        layers = self.layers(theta)
        for place, (weights, bias) in enumerate(layers):
            activations.append(current)
            current = _product(current, weights)
            current += bias
            if place < len(layers) - 1:
                np.maximum(current, 0, out=current)
        return activations, current

    def errors(self, scores: Array, y: Array) -> tuple[float, Array]:
        """Return the cross-entropy summed over the rows, and its derivative by the scores.

        Parameters
        ----------
        scores : ndarray (rows, classes)
        y : ndarray (rows,) of int
            Classes, counted from 0.

        Returns
        -------
        loss : float
        delta : ndarray (rows, classes)
        """
        delta = scores - scores.max(axis=1, keepdims=True, initial=-np.inf)
        rows = np.arange(len(y))
        right = delta[rows, y]
        np.exp(delta, out=delta)
        sums = delta.sum(axis=1, keepdims=True)
        loss = float(np.sum(np.log(sums)) - np.sum(right))
        delta /= sums
        delta[rows, y] -= 1
        return loss, delta

    def backward_factors(self, theta: Array, X: Array, y: Array) -> tuple[float, list[Any]]:
        """Return the loss and of every layer the two factors of its gradient.

        Returns
        -------
        loss : float
            Summed over the rows.
        factors : list of (H, Delta)
            ndarray (rows, in) and (rows, out): ``H.T @ Delta`` is the gradient by ``W``, the
            column sums of ``Delta`` are that by ``b``.
        """
        activations, scores = self.forward(theta, X)
        loss, delta = self.errors(scores, y)
        layers = self.layers(theta)
        factors = [(activations[-1], delta)]
        for place in range(len(layers) - 1, 0, -1):
            delta = delta @ layers[place][0].T
            delta *= activations[place] > 0
            factors.append((activations[place - 1], delta))
        return loss, factors[::-1]

    def loss_and_grad(self, theta: Array, X: Array, y: Array) -> tuple[float, Array]:
        """Return the loss summed over the rows and its gradient (n_parameters,)."""
        loss, factors = self.backward_factors(theta, X, y)
        gradient = np.empty_like(theta)
        for (weights, bias), (given, delta) in zip(self.layers(gradient), factors, strict=True):
            if delta.shape[1] <= _NARROW:
                weights[...] = (delta.T @ given).T
            else:
                np.matmul(given.T, delta, out=weights)
            delta.sum(axis=0, out=bias)
        return loss, gradient

    def predict(self, theta: Array, X: Array) -> NDArray[np.int64]:
        """Return the likeliest class of every row, (rows,)."""
        return np.argmax(self.forward(theta, X)[1], axis=1)


def _product(a: Array, b: Array) -> Array:
    """Return ``a @ b``, of a narrow ``b`` by its transpose: BLAS is up to twice as fast so."""
    found: Array = (b.T @ a.T).T if b.shape[1] <= _NARROW else a @ b
    return found
