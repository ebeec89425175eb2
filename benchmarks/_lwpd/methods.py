"""The methods that are compared: each trains one network for a given time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import codedla
from codedla.iterative.mlp import MLP

__all__ = ["METHODS", "Course", "Method", "Task"]

TOLERATE = 2
"""Late workers, of eight: the methods that wait are made for so many."""


@dataclass(frozen=True)
class Task:
    """A network, its data and how it is trained.

    Parameters
    ----------
    sizes : tuple of int
    X : ndarray of uint8 (rows, inputs)
    y : ndarray of int64 (rows,)
    rate : float
    batch : int
    seconds : float
        Training ends then.
    """

    sizes: tuple[int, ...]
    X: np.ndarray
    y: np.ndarray
    rate: float
    batch: int
    seconds: float


@dataclass
class Course:
    """Parameters at some times, whose accuracy is computed when the clock has stopped.

    Parameters
    ----------
    every : float
        Seconds between two of them.
    after : callable
        ``after(seconds)`` is called after each step.
    """

    every: float
    after: Callable[[float], None]
    seconds: list[float] = field(default_factory=list)
    thetas: list[np.ndarray] = field(default_factory=list)

    def note(self, seconds: float, theta: np.ndarray, *, last: bool = False) -> None:
        """Keep a copy of the parameters if it is time to."""
        self.after(seconds)
        if last or not self.seconds or seconds >= self.seconds[-1] + self.every:
            self.seconds.append(seconds)
            self.thetas.append(theta.astype(np.float32))


@dataclass(frozen=True)
class Method:
    """One way to train.

    Parameters
    ----------
    title : str
    train : callable
        ``train(task, pool, course)`` returns ``steps``, ``replies`` that were used, and bytes
        ``sent`` and ``received``.
    """

    title: str
    train: Callable[[Task, Any, Course], dict[str, int]]


def _derivatives(blocks: Callable[[int], int], **options: Any) -> Any:
    def train(task: Task, pool: Any, course: Course) -> dict[str, int]:
        used = 0
        with codedla.LWPD(
            task.sizes,
            task.X,
            task.y,
            pool=pool,
            blocks=blocks(pool.n_workers),
            rate=task.rate,
            batch=task.batch,
            seed=1,
            **options,
        ) as training:

            def watch(step: Any) -> bool:
                nonlocal used
                used += len(step.workers)
                over = step.seconds >= task.seconds
                course.note(step.seconds, step.theta, last=over)
                return over

            training.run(10**9, watch)
            return {"steps": training.version, "replies": used, **training.report.bytes}

    return train


def _gradients(scheme: str, stragglers: int | None) -> Any:
    def train(task: Task, pool: Any, course: Course) -> dict[str, int]:
        net = MLP(task.sizes)
        theta = net.start(1, np.float32)
        count, used = len(task.X) // task.batch, 0
        rng = np.random.default_rng(1)
        with codedla.CodedGradient(
            _Single(net), (task.X, task.y), pool=pool, scheme=scheme, stragglers=stragglers
        ) as coded:
            began = time.perf_counter()
            while True:
                for k in rng.permutation(count):
                    _, slope = coded(theta, batch=(int(k), count))
                    theta -= (task.rate / coded.rows((int(k), count)) * slope).astype(np.float32)
                    used += len(coded.last_report.responders)
                    seconds = time.perf_counter() - began
                    over = seconds >= task.seconds
                    course.note(seconds, theta, last=over)
                    if over:
                        return {"steps": coded.rounds, "replies": used, **coded.bytes}

    return train


class _Single:
    """The gradient in single precision, of images in bytes, as LWPD computes it."""

    def __init__(self, net: MLP) -> None:
        self.net = net

    def __call__(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
        """Return loss and gradient summed over the rows."""
        images = X.astype(np.float32) * np.float32(1 / 255)
        return self.net.loss_and_grad(theta.astype(np.float32), images, y)


def _half(n: int) -> int:
    return n // 2


METHODS = {
    "uncoded": Method("uncoded, all waited for", _gradients("uncoded", None)),
    "gradient": Method("gradient coding, late cancelled", _gradients("cyclic", TOLERATE)),
    "mds": Method(
        "MDS of blocks, late cancelled",
        _derivatives(lambda n: n - TOLERATE, code="dense", update="least-squares", late="cancel"),
    ),
    "copies": Method("asynchronous copies", _derivatives(_half, code="replication")),
    "lwpd": Method("LWPD, immediate, ring", _derivatives(_half, code="ring")),
    "greedy": Method("LWPD, immediate, greedy", _derivatives(_half, code="greedy")),
    "peel": Method("LWPD, peel, late cancelled", _derivatives(_half, update="peel", late="cancel")),
}
