"""The schemes that are compared: how each finds the gradient of the sum over all rows.

Every scheme is prepared for ``s`` late workers; those that cannot be (the uncoded one, and codes
that do not exist for the numbers) say so or wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import codedla
from _iterative.problem import Course, Problem, loss_and_gradient

__all__ = ["SCHEMES", "Scheme"]

After = Callable[[int], None]
Train = Callable[[Problem, Any, int, Course, After], dict[str, int]]


@dataclass(frozen=True)
class Scheme:
    """One way to find gradients.

    Parameters
    ----------
    title : str
    train : callable
        ``train(problem, pool, s, course, after)`` takes all steps, notes the parameters in
        ``course`` and calls ``after(step)`` after each; returns the bytes "sent" and "received".
    exact : bool
        Whether its gradients are those of one process, up to rounding.
    """

    title: str
    train: Train
    exact: bool = True


def _coded(scheme: str) -> Train:
    def train(problem: Problem, pool: Any, s: int, course: Course, after: After) -> dict[str, int]:
        late = None if scheme == "uncoded" else s
        with codedla.CodedGradient(
            loss_and_gradient, (problem.X, problem.y), pool=pool, scheme=scheme, stragglers=late
        ) as gradient:
            problem.descend(lambda theta: gradient(theta)[1], course, after)
            return dict(gradient.bytes)

    return train


def _products(problem: Problem, pool: Any, s: int, course: Course, after: After) -> dict[str, int]:
    """Two coded products for each gradient: the scores, and what they are off times the rows."""
    count = {"sent": 0, "received": 0}
    with (
        codedla.store(problem.X, pool=pool, code="mds", tolerate=s) as rows,
        codedla.store(problem.X.T, pool=pool, code="mds", tolerate=s) as columns,
    ):

        def multiply(stored: Any, vector: np.ndarray) -> np.ndarray:
            product = stored.matvec(vector)
            for name in count:
                count[name] += stored.last_report.bytes[name]
            return product

        def gradient(theta: np.ndarray) -> np.ndarray:
            scores = multiply(rows, theta)
            return multiply(columns, 0.5 + 0.5 * np.tanh(0.5 * scores) - problem.y)

        problem.descend(gradient, course, after)
    return count


SCHEMES = {
    "uncoded": Scheme("uncoded", _coded("uncoded")),
    "ignore": Scheme("ignore stragglers", _coded("ignore"), exact=False),
    "cyclic": Scheme("cyclic", _coded("cyclic")),
    "fractional": Scheme("fractional repetition", _coded("fractional")),
    "expander": Scheme("approximate, regular graph", _coded("expander"), exact=False),
    "stochastic": Scheme("approximate, stochastic block", _coded("stochastic"), exact=False),
    "products": Scheme("MDS, two products", _products),
}
