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
from _iterative.problem import Course, Problem, gradient, loss_and_gradient

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
        ) as coded:
            problem.descend(lambda theta: coded(theta)[1], course, after)
            return dict(coded.bytes)

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

        def by_products(theta: np.ndarray) -> np.ndarray:
            scores = multiply(rows, theta)
            return multiply(columns, 0.5 + 0.5 * np.tanh(0.5 * scores) - problem.y)

        problem.descend(by_products, course, after)
    return count


def _stale(problem: Problem, pool: Any, s: int, course: Course, after: After) -> dict[str, int]:
    """All but ``s`` fresh gradients of parts; of the others the newest that has come (DSAG)."""
    parts = zip(
        np.array_split(problem.X, pool.n_workers),
        np.array_split(problem.y, pool.n_workers),
        strict=True,
    )
    with codedla.AsyncMap(gradient, list(parts), pool=pool) as newest:

        def by_parts(theta: np.ndarray) -> np.ndarray:
            epoch = newest(theta, nwait=pool.n_workers - s)
            gone = newest.report.lost
            there = [
                reply
                for worker, reply in enumerate(epoch.replies)
                if reply is not None and worker + 1 not in gone
            ]
            # Parts that nobody has answered for are taken to be like the others.
            return sum(there) * (pool.n_workers / len(there))

        problem.descend(by_parts, course, after)
        return dict(newest.report.bytes)


SCHEMES = {
    "uncoded": Scheme("uncoded", _coded("uncoded")),
    "ignore": Scheme("ignore stragglers", _coded("ignore"), exact=False),
    "cyclic": Scheme("cyclic", _coded("cyclic")),
    "fractional": Scheme("fractional repetition", _coded("fractional")),
    "expander": Scheme("approximate, regular graph", _coded("expander"), exact=False),
    "stochastic": Scheme("approximate, stochastic block", _coded("stochastic"), exact=False),
    "products": Scheme("MDS, two products", _products),
    "stale": Scheme("uncoded, stale parts used", _stale, exact=False),
}
