"""The problem of all schemes: logistic regression by gradient descent, the same on each run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Course", "Problem", "gradient", "loss_and_gradient"]


def gradient(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """The gradient alone."""
    return loss_and_gradient(theta, X, y)[1]


def loss_and_gradient(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Sums over these rows, for labels 0 and 1; runs on workers."""
    scores = X @ theta
    loss = float(np.logaddexp(0.0, scores).sum() - y @ scores)
    return loss, X.T @ (0.5 + 0.5 * np.tanh(0.5 * scores) - y)


@dataclass(frozen=True)
class Problem:
    """Data, step length and number of steps.

    Parameters
    ----------
    X : ndarray (rows, features + 1)
        The last column is ones.
    y : ndarray (rows,)
        0 or 1.
    rate : float
        Of gradient descent on the mean loss.
    steps : int
    """

    X: np.ndarray
    y: np.ndarray
    rate: float
    steps: int

    @classmethod
    def draw(cls, rows: int, features: int, steps: int) -> Problem:
        """Random features, labels that they explain mostly."""
        rng = np.random.default_rng(20177)
        X = rng.standard_normal((rows, features))
        scores = X @ rng.standard_normal(features) * (3.0 / math.sqrt(features))
        y = (rng.random(rows) < 0.5 + 0.5 * np.tanh(0.5 * scores)).astype(float)
        # One over the curvature, which is at most a quarter of the largest eigenvalue.
        X = np.hstack([X, np.ones((rows, 1))])
        rate = 4.0 * rows / float(np.linalg.norm(X, 2)) ** 2
        return cls(X, y, rate, steps)

    def loss(self, theta: np.ndarray) -> float:
        """Mean loss over all rows."""
        return loss_and_gradient(theta, self.X, self.y)[0] / len(self.y)

    def descend(
        self,
        gradient: Callable[[np.ndarray], np.ndarray],
        course: Course,
        after: Callable[[int], None],
    ) -> None:
        """Take all steps, each from the gradient of the sum over the rows."""
        theta = np.zeros(self.X.shape[1])
        for step in range(self.steps):
            theta = theta - self.rate / len(self.y) * gradient(theta)
            course.note(theta)
            after(step + 1)


@dataclass
class Course:
    """Parameters on their way; their losses are computed when the clock has stopped."""

    began: float = field(default_factory=time.perf_counter)
    seconds: list[float] = field(default_factory=list)
    thetas: list[np.ndarray] = field(default_factory=list)

    def note(self, theta: np.ndarray) -> None:
        """Note the parameters of now."""
        self.seconds.append(time.perf_counter() - self.began)
        self.thetas.append(theta.copy())
