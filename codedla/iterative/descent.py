"""Training a perceptron by coded gradient descent, step by step, so that it can be gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.iterative.gradient import CodedGradient
from codedla.iterative.mlp import MLP

__all__ = ["Descent", "ScaledNet"]

Array = NDArray[Any]

MOMENTUM = 0.9


@dataclass(frozen=True)
class ScaledNet:
    """A perceptron in single precision over data of any scale, which are scaled where they are.

    So images travel and are kept as bytes.

    Parameters
    ----------
    net : MLP
    shift, scale : ndarray (inputs,)
        The network sees ``(X - shift) / scale``.
    """

    net: MLP
    shift: Array
    scale: Array

    def inputs(self, X: Array) -> NDArray[np.float32]:
        """Return what the network sees, (rows, inputs)."""
        # In double precision where that matters: large numbers that differ little.
        if X.dtype.itemsize > 2:
            return ((X - self.shift) / self.scale).astype(np.float32)
        found: NDArray[np.float32] = X.astype(np.float32)
        found -= self.shift.astype(np.float32)
        found *= (1.0 / self.scale).astype(np.float32)
        return found

    def __call__(self, theta: Array, X: Array, y: Array) -> tuple[float, Array]:
        """Return the loss summed over the rows and its gradient."""
        return self.net.loss_and_grad(theta.astype(np.float32), self.inputs(X), y)

    def accuracy(self, theta: Array, X: Array, y: Array) -> float:
        """Return the fraction of rows whose class is found."""
        found = self.net.predict(theta.astype(np.float32), self.inputs(X))
        return float(np.mean(found == y))


@dataclass
class Descent:
    """Gradient descent with momentum; its attributes are its state.

    Parameters
    ----------
    theta : ndarray (n_parameters,)
    rate : float
        Learning rate, of the mean loss.
    batches : int
        Rounds in an epoch; their order is drawn anew for every one.
    seed : int
    velocity : ndarray (n_parameters,), optional
    rounds : int
        Rounds done before.
    losses : list of float
        Mean loss of each round done here.
    """

    theta: Array
    rate: float
    batches: int = 1
    seed: int = 0
    velocity: Array | None = None
    rounds: int = 0
    losses: list[float] = field(default_factory=list)

    def run(self, gradient: CodedGradient, rounds: int) -> Iterator[bool]:
        """Go on until so many rounds are done; yield after each whether an epoch has ended."""
        if self.velocity is None:
            self.velocity = np.zeros_like(self.theta)
        while self.rounds < rounds:
            epoch, place = divmod(self.rounds, self.batches)
            # Of its epoch alone, so that an interrupted run is gone on with as it would have gone.
            order = np.random.default_rng([self.seed, epoch]).permutation(self.batches)
            batch = (int(order[place]), self.batches)
            loss, slope = gradient(self.theta, batch=batch)
            rows = max(1, gradient.rows(batch))
            self.velocity = MOMENTUM * self.velocity - self.rate / rows * slope
            self.theta = self.theta + self.velocity
            self.losses.append(loss / rows)
            self.rounds += 1
            yield self.rounds % self.batches == 0
