r"""Coded linear inverse: many fixed points at once, by a deadline, with what each worker got done.

The fixed points of :math:`X = R + B X` for ``k`` right-hand sides are linear in them. So worker
``i`` iterates on a mixture :math:`s_i = \sum_j G_{ji} r_j`, with orthonormal rows of ``G`` (k, N),
until the deadline; after :math:`l_i` iterations its iterate :math:`y_i` errs by
:math:`B^{l_i} x_i`, of mean square in proportion to
:math:`\lambda_i = \rho^{2 l_i}` where ``B`` contracts by ``rho``. Weighted least squares,

.. math:: \hat X^T = (G \Lambda^{-1} G^T)^{-1} G \Lambda^{-1} Y^T,

uses everybody's result as far as it is good: when at most ``N - k`` workers are slow, the answer is
as good as if nobody were (:mod:`codedla.iterative.inverse_codes` has the mathematics).

**Any k of N workers decode.**

References
----------
Y. Yang, P. Grover, S. Kar, "Coded distributed computing for inverse problems", NeurIPS 2017,
arXiv:1706.00163.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.engine.arguments import check_pool, fraction, positive, whole_number
from codedla.engine.collector import Collector
from codedla.engine.decoder import DenseDecoder
from codedla.engine.plan import Plan, compute_dtype
from codedla.engine.report import Report
from codedla.engine.round import Operand, Pool, Round
from codedla.errors import PoolClosed, UsageError
from codedla.iterative.inverse_codes import decoding_weights, orthonormal_rows
from codedla.linalg.forgotten import hold
from codedla.linalg.operands import as_array, as_operand
from codedla.linalg.reporting import complete_report, new_report, tell_losses

__all__ = ["Inverse", "LinearInverse", "linear_inverse"]

Array = NDArray[Any]

SEED = 1706_00163
_MOST = 10**9
"""Iterations of a worker that only the clock ends."""
_BANDWIDTH = 5e7
"""Bytes a second that sending a matrix is allowed to take before a deadline counts as missed."""


@dataclass
class Inverse:
    """What :func:`linear_inverse` found.

    Parameters
    ----------
    x : ndarray, as the right-hand sides
        Estimates of the fixed points.
    iterations : dict of int to int
        By rank (worker index + 1), the iterations of each worker whose reply came in time.
    report : Report
    """

    x: Array
    iterations: dict[int, int]
    report: Report = field(repr=False)


def linear_inverse(
    B: Any,
    R: ArrayLike,
    *,
    pool: Pool,
    rate: float,
    iterations: int | Sequence[int] | None = None,
    seconds: float | None = None,
    tolerate: int | None = None,
    grace: float | None = None,
    start: ArrayLike | None = None,
    seed: int = SEED,
) -> Inverse:
    """Solve ``X = R + B X`` for many right-hand sides, as well as workers can by a deadline.

    Parameters
    ----------
    B : array_like or scipy.sparse (n, n)
        Real; ``x = r + B x`` is iterated. It is sent whole to every worker, once.
    R : array_like (n,) or (n, k)
        Right-hand sides. They are dealt to ``N - tolerate`` workers' worth of mixtures.
    pool : Pool
    rate : float
        By what an iteration reduces the error, about: the spectral radius of ``B``, the damping in
        PageRank. Between 0 and 1.
    iterations : int or sequence of int, optional
        Largest number of iterations of each worker.
    seconds : float, optional
        How long each worker iterates. One of the two, or both.
    tolerate : int, optional
        Workers that may be slow or lost; a quarter of all by default.
    grace : float, optional
        Seconds beyond ``seconds`` after which who has not replied is not waited for any more.
    start : array_like, as R, optional
        Where to begin; zeros by default.
    seed : int
        Of the generator.

    Returns
    -------
    Inverse

    Raises
    ------
    UsageError
        An argument breaks its rule.
    NotDecodable, WorkerError
        Too few workers replied, or one's task raised.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> B, R = np.array([[0.0, 0.5], [0.5, 0.0]]), np.eye(2)
    >>> with codedla.SerialPool(4) as pool:
    ...     found = codedla.linear_inverse(B, R, pool=pool, rate=0.5, iterations=60)
    >>> bool(np.allclose(found.x, np.linalg.inv(np.eye(2) - B)))
    True
    """
    with LinearInverse(B, pool=pool, rate=rate, tolerate=tolerate, seed=seed) as solver:
        return solver.solve(R, iterations=iterations, seconds=seconds, grace=grace, start=start)


class LinearInverse:
    """A matrix that stays on the workers, for :meth:`solve` again and again.

    A context manager; parameters as of :func:`linear_inverse`.
    """

    def __init__(
        self,
        B: Any,
        *,
        pool: Pool,
        rate: float,
        tolerate: int | None = None,
        seed: int = SEED,
    ) -> None:
        check_pool(pool)
        checked = as_operand(B, "B")
        rows, columns = checked.shape
        if rows != columns or rows == 0 or checked.dtype.kind == "c" or not checked.facts.finite:
            raise UsageError(
                f"B must be square, real and finite; got {checked.dtype} of shape "
                f"{checked.shape}; see that x = r + B x makes sense"
            )
        rate = fraction(rate, "rate", zero=False, cure="give the spectral radius of B, about")
        workers = pool.n_workers
        spare = whole_number(workers // 4 if tolerate is None else tolerate, "tolerate", least=0)
        if spare >= workers:
            raise UsageError(
                f"tolerate is below the {workers} workers; got {spare}; use a smaller one"
            )
        self.size, self.rate = rows, rate
        self._code = _AnyK(orthonormal_rows(workers - spare, workers, seed))
        dtype = np.float64 if checked.dtype.kind in "iub" else compute_dtype(checked.dtype)
        self._matrix = checked.matrix.astype(dtype)
        self._bytes = sum(array.nbytes for array in checked.arrays)
        self._pool, self._key = pool, pool.new_key()
        self._settle = hold(self, pool, [self._key])
        self._sent = self._closed = False

    def solve(
        self,
        R: ArrayLike,
        *,
        iterations: int | Sequence[int] | None = None,
        seconds: float | None = None,
        grace: float | None = None,
        start: ArrayLike | None = None,
    ) -> Inverse:
        """Solve for some right-hand sides; parameters and errors as of :func:`linear_inverse`."""
        if self._closed:
            raise PoolClosed("this matrix is closed; make another")
        right = self._columns(R, "R")
        begin = np.zeros_like(right) if start is None else self._columns(start, "start")
        if begin.shape != right.shape:
            raise UsageError(
                f"start must have the shape of R; got {begin.shape} for {right.shape}; reshape it"
            )
        limits = self._limits(iterations, seconds)
        code = self._code
        # k mixtures at a time: what does not fill the last of them is padded with zeros.
        deep = -(-right.shape[1] // code.grid.m)
        packed = [_dealt(each, code.grid.m, deep) for each in (right, begin)]
        output = np.empty((code.grid.m * (self.size + 1), deep))
        decoder = _Decoder(code, output, self.rate)
        collector = Collector(
            code,
            eps=0.0,
            tolerance=1.0,
            workers=range(self._pool.n_workers),
            # All have the same deadline: everybody's result is on its way.
            agree=lambda responders: False,
        )

        def operands(share: int) -> tuple[Operand, ...]:
            mixed = [np.tensordot(code.generator_a[share], each, 1) for each in packed]
            limit = np.array([[limits[share], math.inf if seconds is None else seconds]])
            return (
                Operand(self._key, lambda: self._matrix),
                *(Operand(0, partial(_same, each)) for each in (*mixed, limit)),
            )

        outcome = self._pool.run(
            Round(
                shares=code.shares,
                operands=operands,
                collector=collector,
                decoder=decoder,
                timeout=None if seconds is None else seconds + self._patience(seconds, grace),
                work="call",
                function=_iterate,
            )
        )
        self._sent = True
        plan = self._plan(deep)
        report = new_report(plan)
        complete_report(report, plan, collector, outcome)
        tell_losses(report, outcome)
        blocks = output.reshape(code.grid.m, self.size + 1, deep)[:, :-1]
        x = blocks.transpose(1, 0, 2).reshape(self.size, -1)[:, : right.shape[1]]
        done = {
            collector.computed_by[share] + 1: count for share, count in decoder.iterations.items()
        }
        shaped = np.ascontiguousarray(x[:, 0] if np.ndim(R) == 1 else x)
        return Inverse(shaped, dict(sorted(done.items())), report)

    def close(self) -> None:
        """Free the workers' memory; idempotent."""
        if not self._closed:
            self._closed = True
            self._settle()
            self._pool.drop([self._key])

    def __enter__(self) -> LinearInverse:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _columns(self, values: ArrayLike, name: str) -> NDArray[np.float64]:
        array = as_array(values, name)
        fits = array.ndim in (1, 2) and array.shape[0] == self.size and 0 not in array.shape
        if not fits or array.dtype.kind not in "iubf" or not np.isfinite(array).all():
            raise UsageError(
                f"{name} must be real, finite columns of {self.size} entries; got {array.dtype} "
                f"of shape {array.shape}; check it"
            )
        return array.astype(np.float64).reshape(self.size, -1)

    def _limits(self, iterations: int | Sequence[int] | None, seconds: float | None) -> list[int]:
        """Return the largest number of iterations of every worker."""
        if iterations is None and seconds is None:
            raise UsageError(
                "workers iterate until a deadline; got neither iterations nor seconds; give one"
            )
        if seconds is not None:
            positive(seconds, "seconds")
        workers = self._code.n_workers
        if iterations is None:
            return [_MOST] * workers
        given = np.atleast_1d(np.asarray(iterations)).tolist()
        counts = [whole_number(count, "iterations", least=0) for count in given]
        if len(counts) not in (1, workers):
            raise UsageError(
                f"iterations are one number, or one for each of {workers} workers; got "
                f"{len(counts)}; give one"
            )
        return counts if len(counts) == workers else counts * workers

    def _patience(self, seconds: float, grace: float | None) -> float:
        """Return how long after the deadline replies are waited for."""
        if grace is not None:
            return positive(grace, "grace")
        sending = 0.0 if self._sent else self._code.n_workers * self._bytes / _BANDWIDTH
        return max(1.0, seconds) + sending

    def _plan(self, deep: int) -> Plan:
        double = np.dtype(np.float64)
        return Plan(
            operation="inverse",
            code=self._code,
            shape=(self.size, self.size, deep * self._code.grid.m),
            dtype=double,
            compute=double,
            pool_workers=self._pool.n_workers,
            tolerance=math.inf,
            reason=f"mixtures of {self._code.grid.m} right-hand sides",
        )


class _AnyK(Code):
    """Mixtures of right-hand sides by a given generator; any ``k`` replies decode."""

    name = "linear-inverse"
    splits = ("m",)
    threshold_formula = "k"
    citation = "Yang, Grover, Kar, NeurIPS 2017, arXiv:1706.00163"
    weakness = "needs to know about how fast the iteration converges"
    approximate = True

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._mixtures = np.ascontiguousarray(rows.T)
        super().__init__(rows.shape[1], Grid(rows.shape[0], 1, 1))

    def _generators(self) -> tuple[Array, Array]:
        return self._mixtures, np.ones((self.n_workers, 1))


class _Decoder(DenseDecoder):
    """Decode by weights that depend on how far everybody got.

    A reply has a row more than an iterate: the number of iterations.
    """

    def __init__(self, code: _AnyK, output: Array, rate: float) -> None:
        super().__init__(code, output, output.dtype)
        self._rate = rate
        self.iterations: dict[int, int] = {}

    def finish(self, responders: Iterable[int]) -> None:
        """Combine the replies; see :class:`codedla.engine.decoder.Decoder`."""
        survivors = sorted(set(responders) & self._present)
        replies = [self.target(share) for share in survivors]
        self.iterations = {s: int(y[-1, 0]) for s, y in zip(survivors, replies, strict=True)}
        weights = decoding_weights(
            self.code.generator_a[survivors].T, list(self.iterations.values()), self._rate
        )
        self._combine_outputs(weights, replies, range(self.code.grid.outputs))


def _dealt(columns: Array, k: int, deep: int) -> Array:
    """Return columns as (k, n, deep): column ``j`` is in mixture ``j // deep``."""
    padded = np.zeros((columns.shape[0], k * deep))
    padded[:, : columns.shape[1]] = columns
    return np.ascontiguousarray(padded.reshape(-1, k, deep).transpose(1, 0, 2))


def _same(value: Array) -> Array:
    return value


def _iterate(matrix: Any, right: Array, start: Array, limit: Array) -> Array:
    """Iterate on a worker until its time or its number of iterations is up, or nothing changes.

    Returns
    -------
    ndarray (n + 1, deep)
        The iterate, and below it the number of iterations.
    """
    most, seconds = limit[0]
    end = time.monotonic() + seconds
    x = np.array(start, np.float64)
    done = 0
    while done < most and time.monotonic() < end:
        fresh = right + matrix @ x
        done += 1
        if np.array_equal(fresh, x):
            # A fixed point in these digits: the rest of the time would change nothing.
            break
        x = fresh
    return np.concatenate([x, np.full((1, x.shape[1]), float(done))])
