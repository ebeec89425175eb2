"""A polynomial function of many blocks, or many products: Lagrange coded computing."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.blocks import Grid, Split
from codedla.codes.base import Code
from codedla.codes.exact import ModularCode
from codedla.codes.interpolate import batch_family
from codedla.engine.arguments import check_pool, check_progress, positive, whole_number
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.encoder import DenseEncoder
from codedla.engine.exact_encoder import DenseModularEncoder
from codedla.engine.plan import DEFAULT_TOLERANCE, Plan
from codedla.engine.report import Report
from codedla.engine.round import Operand, Pool, Progress, Round
from codedla.errors import CodedlaWarning, UsageError
from codedla.linalg.exact import check_residues
from codedla.linalg.masks import draw_masks
from codedla.linalg.merge import merge_reports, shifted, time_left
from codedla.linalg.operands import COMBINATION_GROWTH, as_array
from codedla.linalg.polynomial import Trace, over_field, over_reals, trace
from codedla.linalg.reporting import complete_report, new_report, tell_losses
from codedla.linalg.spares import ModularSpares, SpareDecoder
from codedla.remainders import crt

__all__ = ["batch_matmul", "lagrange_map"]

Array = NDArray[Any]

_EPS = float(np.finfo(np.float64).eps)
_ROUNDINGS = 16
"""Assumed roundings in an entry of a real reply, each as large as the largest entry may be."""
_TERMS = 8192
"""Sums of so many products over GF(p) are exact in one piece."""


def lagrange_map(
    f: Callable[..., Any],
    *blocks: Sequence[ArrayLike] | ArrayLike,
    pool: Pool,
    degree: int | None = None,
    colluders: int = 0,
    stragglers: int | None = None,
    errors: int = 0,
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    r"""Apply a polynomial function to many matrices; slow, wrong and curious workers are no harm.

    ``f`` of degree ``d`` is applied to coded matrices, values of a polynomial through the ``K``
    blocks (and ``T`` random ones); the results are values of a polynomial of degree ``d (K + T -
    1)``, which is interpolated. With ``S`` stragglers, ``A`` wrong workers and ``T`` colluding ones

    .. math:: N \ge (K + T - 1) \, d + S + 2 A + 1

    workers are needed. Integers are exact, over as many prime fields as the results need; floating
    point is interpolated at Chebyshev points, and cannot be hidden.

    Parameters
    ----------
    f : callable
        A polynomial of its arguments built from ``+ - * @ **`` and ``.T``; its constants must be
        integers where the data are. Workers see it and them.
    *blocks : sequence of array_like
        For every argument of ``f``: ``K`` matrices of one shape, of integers or real numbers.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    degree : int, optional
        An upper bound of the degree; found from ``f`` by default.
    colluders : int
        ``T``: any so many workers together learn nothing about the integers in ``blocks``, except
        sizes and, from the number of rounds, roughly the magnitude of the results.
    stragglers : int, optional
        ``S``: workers that may be late or lost. By default all that are left over; when more are
        lost, others compute their shares unless something is to be hidden.
    errors : int
        ``A``: workers that answer wrongly are named and left out (``report.wrong``), up to so many.
    return_report : bool
        Return ``(results, report)``.
    timeout : float, optional
        Seconds after which the operation fails with :class:`NotDecodable`.
    progress : callable, optional
        ``progress(done, needed, total)`` after every reply.

    Returns
    -------
    results : ndarray (K, M, N)
        float64; of integers int64 where all results surely fit, else Python integers.
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError
        Too few workers, ``f`` is no polynomial, or floating-point numbers are to be hidden.
    NotDecodable, WorkerError
        As in :func:`codedla.matmul`.
    VerificationFailed
        With ``errors``: replies do not fit together, and it is not known whose are wrong.

    References
    ----------
    Q. Yu, S. Li, N. Raviv, S. Kalan, M. Soltanolkotabi, S. Avestimehr, "Lagrange coded computing:
    optimal design for resiliency, security, and privacy", AISTATS 2019, PMLR 89.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> blocks = [np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]])]
    >>> with codedla.SerialPool(8) as pool:
    ...     squares = codedla.lagrange_map(
    ...         lambda X: X @ X + X, blocks, pool=pool, colluders=1, errors=1
    ...     )
    >>> squares[1].tolist()
    [[72, 84], [98, 114]]
    """
    batches = [_batch(values, f"argument {place + 1}") for place, values in enumerate(blocks)]
    job = _Job(f, batches, pool, degree, colluders, stragglers, errors, timeout, progress)
    results, report = job.run()
    return (results, report) if return_report else results


def batch_matmul(
    As: Sequence[ArrayLike] | ArrayLike,
    Bs: Sequence[ArrayLike] | ArrayLike,
    *,
    pool: Pool,
    colluders: int = 0,
    stragglers: int | None = None,
    errors: int = 0,
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    """Compute ``K`` products ``A_i @ B_i`` of matrices of one shape, by Lagrange coded computing.

    Parameters
    ----------
    As, Bs : sequence of array_like
        ``K`` matrices (M, L), and ``K`` matrices (L, N); integers or real numbers.
    pool, colluders, stragglers, errors, return_report, timeout, progress
        As in :func:`lagrange_map`.

    Returns
    -------
    products : ndarray (K, M, N)
        float64; of integers int64 where all products surely fit, else Python integers.
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
        As in :func:`lagrange_map`.
    """
    batches = [_batch(As, "As"), _batch(Bs, "Bs")]
    (rows, inner), (due, cols) = (batch.shape[1:] for batch in batches)
    if inner != due:
        raise UsageError(
            f"As must have as many columns as Bs have rows; got {rows} x {inner} and "
            f"{due} x {cols}; transpose one"
        )
    job = _Job(operator.matmul, batches, pool, 2, colluders, stragglers, errors, timeout, progress)
    results, report = job.run()
    return (results, report) if return_report else results


class _Job:
    """One call, from checked arguments to results; parameters as of :func:`lagrange_map`."""

    def __init__(
        self,
        function: Callable[..., Any],
        batches: list[Array],
        pool: Pool,
        degree: int | None,
        colluders: int,
        stragglers: int | None,
        errors: int,
        timeout: float | None,
        progress: Progress | None,
    ) -> None:
        check_pool(pool)
        check_progress(progress)
        if not batches or len({len(batch) for batch in batches}) != 1:
            raise UsageError(
                f"every argument needs as many blocks; got {[len(batch) for batch in batches]}; "
                "give each argument of f the same number of matrices"
            )
        self.function, self.batches, self.pool, self.progress = function, batches, pool, progress
        self.errors = whole_number(errors, "errors", least=0)
        hidden = whole_number(colluders, "colluders", least=0)
        self.timeout = None if timeout is None else positive(timeout, "timeout")
        self.real = any(batch.dtype.kind == "f" for batch in batches)
        if self.real and hidden:
            raise UsageError(
                "only integers can be hidden: no random number is uniform over the reals; got "
                f"colluders={colluders} with floating-point blocks; scale and round them"
            )
        self.result = trace(function, [_trace_of(batch) for batch in batches])
        if not (self.real or isinstance(self.result.largest, int)):
            raise UsageError(
                "constants of a function of integers must be integers; got floating-point ones; "
                "convert them, or the blocks to float64"
            )
        if self.real:
            self._check_sizes()
        least = self.result.degree
        self.degree = least if degree is None else whole_number(degree, "degree", least=1)
        if self.degree < least:
            raise UsageError(
                f"the degree must not be below that of f, {least}; got {degree}; leave it out"
            )
        self.code = self._code(hidden, stragglers)

    def _check_sizes(self) -> None:
        """Raise UsageError where combinations of blocks, or functions of them, could overflow."""
        sizes = [float(np.abs(batch).max(initial=0)) for batch in self.batches]
        largest = max(*sizes, self.result.largest)
        growth = COMBINATION_GROWTH ** min(self.result.degree, 70)
        ceiling = float(np.finfo(np.float64).max) / growth
        if not largest < ceiling:
            raise UsageError(
                f"results must be far from overflow, below {ceiling:.0e} at degree "
                f"{self.result.degree}, because blocks are mixed; got up to {largest:.1e}; scale "
                "the blocks down, or use integers"
            )

    def _code(self, hidden: int, stragglers: int | None) -> Code:
        """Choose the code, on no more workers than are asked for."""
        family, grid = (
            batch_family(self.real, self.degree, hidden),
            Grid(len(self.batches[0]), 1, 1),
        )
        have, need = self.pool.n_workers, family.needs(grid)
        late = 0 if stragglers is None else whole_number(stragglers, "stragglers", least=0)
        due = need + late + 2 * self.errors
        if have < due:
            raise UsageError(
                f"(K + T - 1) * degree + S + 2 * A + 1 = ({grid.m} + {hidden} - 1) * {self.degree} "
                f"+ {late} + {2 * self.errors} + 1 = {due} workers are needed; got {have}; use "
                f"{due + 1} ranks, or fewer blocks, colluders, stragglers or errors"
            )
        return family(have if stragglers is None else due, grid)

    def run(self) -> tuple[Array, Report]:
        """Run one round over the reals, or one for each prime."""
        if 0 in self.result.shape or any(0 in batch.shape for batch in self.batches):
            raise UsageError("matrices must not be empty; got a dimension of 0; leave them out")
        if isinstance(self.code, ModularCode):
            return self._over_fields(self.code)
        stacked = [_stacked(batch.astype(np.float64, copy=False)) for batch in self.batches]
        encoders = [
            DenseEncoder(matrix, *self._splits(matrix), np.dtype(np.float64)) for matrix in stacked
        ]
        product = self.function is operator.matmul
        function = None if product else partial(over_reals, self.function)
        output, report = self._round(self.code, encoders, function, self.timeout, self.progress)
        alpha = report.amplification or 0.0
        report.error_estimate = None
        if alpha * _EPS > DEFAULT_TOLERANCE["d"]:
            text = (
                f"interpolating from these replies may err by {alpha * _EPS:.1e} of the largest "
                "results, and there were no more to wait for; use fewer blocks, or integers"
            )
            report.warnings.append(text)
            warnings.warn(text, CodedlaWarning, stacklevel=4)
        return output, report

    def _over_fields(self, code: ModularCode) -> tuple[Array, Report]:
        largest = int(self.result.largest)
        product = self.function is operator.matmul
        inner = max(self.batches[0].shape[2], _TERMS) if product else _TERMS
        primes = code.primes(inner, largest)
        parts: list[Array] = []
        reports: list[Report] = []
        for index, p in enumerate(primes):
            of_prime = code.modulo(p)
            field = of_prime.galois
            stacked = [_stacked(field.balanced(batch)) for batch in self.batches]
            encoders = []
            for matrix in stacked:
                rows, cols = self._splits(matrix)
                masks, _ = draw_masks(of_prime, (rows.size, cols.size), (0, 0))
                encoders.append(DenseModularEncoder(matrix, rows, cols, field, masks))
            function = None if product else partial(over_field, self.function, p)
            shown = shifted(self.progress, index, len(primes))
            left = time_left(self.timeout, reports)
            values, report = self._round(of_prime, encoders, function, left, shown)
            parts.append(values)
            reports.append(report)
        check_residues(parts)
        merged = merge_reports(self._plan(code), self._plan(code).shape[0], reports, {})
        merged.amplification, merged.error_estimate = 1.0, 0.0
        merged.shapes = reports[0].shapes
        return crt(parts, primes, wrap=largest < 2**63), merged

    def _noise(self) -> float:
        """Return what rounding may change in a real reply.

        Not estimated from the replies: terms that cancel leave rounding errors larger than them.
        """
        return (
            _ROUNDINGS * _EPS * float(self.result.largest) * math.sqrt(math.prod(self.result.shape))
        )

    def _splits(self, matrix: Array) -> tuple[Split, Split]:
        return Split(matrix.shape[0], len(self.batches[0])), Split(matrix.shape[1], 1)

    def _plan(self, code: Code) -> Plan:
        """Describe the operation, for its report."""
        rows, cols = self.result.shape
        count = len(self.batches[0])
        return Plan(
            operation="map",
            code=code,
            shape=(count * rows, self.batches[0].shape[2], cols),
            dtype=np.dtype(np.float64 if self.real else np.int64),
            compute=np.dtype(np.float64),
            pool_workers=self.pool.n_workers,
            tolerance=DEFAULT_TOLERANCE["d"] if self.real else 1.0,
            reason=f"a function of degree {self.degree} of {count} blocks",
        )

    def _round(
        self,
        code: Code,
        encoders: Sequence[DenseEncoder],
        function: Callable[..., Any] | None,
        timeout: float | None,
        progress: Progress | None,
    ) -> tuple[Array, Report]:
        """Run one round; return the decoded blocks and what happened."""
        plan = self._plan(code)
        output = np.empty((plan.shape[0], plan.shape[2]))
        spares: SpareDecoder | None = None
        if self.errors:
            kind = ModularSpares if isinstance(code, ModularCode) else SpareDecoder
            noise = self._noise() if self.real else None
            spares = kind(code, output, output.dtype, most=self.errors, noise=noise)
        decoder = make_decoder(code, output, output.dtype) if spares is None else spares
        collector = Collector(
            code,
            eps=_EPS if self.real else 0.0,
            tolerance=plan.tolerance,
            workers=range(self.pool.n_workers),
            agree=None if spares is None else spares.agree,
        )

        def operands(share: int) -> tuple[Operand, ...]:
            rows = code.rows_a(share)
            return tuple(Operand(0, partial(encoder.coded, rows)) for encoder in encoders)

        outcome = self.pool.run(
            Round(
                shares=code.shares,
                operands=operands,
                collector=collector,
                decoder=decoder,
                timeout=timeout,
                progress=progress,
                work="matmul" if function is None else "call",
                function=function,
            )
        )
        if spares is not None:
            spares.judge(collector, outcome)
        report = new_report(plan)
        complete_report(report, plan, collector, outcome)
        report.shapes = {"results": [code.grid.m, *self.result.shape]}
        report.amplification = code.amplification(collector.responders)
        report.verified = "off" if spares is None else "spares"
        tell_losses(report, outcome)
        return decoder.output.reshape(code.grid.m, *self.result.shape), report


def _batch(values: Any, name: str) -> Array:
    """Return blocks as one array (K, rows, columns) of integers or float64."""
    array = as_array(values, name)
    if array.ndim != 3 or len(array) == 0:
        raise UsageError(
            f"{name} must be one or more matrices of one shape; got an array of shape "
            f"{array.shape}; pass a list of matrices"
        )
    if array.dtype.kind not in "iubf" or array.dtype.itemsize > 8:
        raise UsageError(
            f"{name} must hold integers or real numbers; got {array.dtype}; cast the matrices"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UsageError(f"{name} must be finite: blocks are mixed; got NaN or Inf; take them out")
    return array


def _trace_of(batch: Array) -> Trace:
    shape = batch.shape[1:]
    if batch.dtype.kind == "f":
        return Trace(shape, 1, float(np.abs(batch).max(initial=0.0)))
    if batch.size == 0:
        return Trace(shape, 1, 0)
    return Trace(shape, 1, max(int(batch.max()), -int(batch.min())))


def _stacked(batch: Array) -> Array:
    """Return the blocks below each other."""
    return np.ascontiguousarray(batch).reshape(-1, batch.shape[2])
