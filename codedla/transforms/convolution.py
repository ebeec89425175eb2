"""The coded convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.codes import error_estimate
from codedla.codes.base import Code
from codedla.engine.arguments import block_counts, check_choice
from codedla.engine.facts import Facts, scan
from codedla.engine.plan import Plan, compute_dtype, machine_epsilon, make_plan
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.engine.spectral import METHODS
from codedla.errors import UsageError
from codedla.linalg.operands import COMBINATION_GROWTH, EXACT_BELOW, as_array
from codedla.measured.speeds import speeds
from codedla.transforms.checks import ConvolutionCheck, verify_convolution
from codedla.transforms.coded import (
    Pieces,
    check_options,
    first_plan,
    losses_to_try,
    run_transform,
    too_inaccurate,
)

__all__ = ["convolve"]

Array = NDArray[Any]

MODES = ("full", "same", "valid")
_SECONDS_DIRECT = 5e-10
"""Assumed seconds of one multiply-add in a convolution that is multiplied out."""
_SECONDS_POINT = 1e-7
"""Assumed seconds of one point in a convolution by transforms."""


def convolve(
    a: ArrayLike,
    b: ArrayLike,
    mode: str = "full",
    method: str = "auto",
    *,
    pool: Pool,
    code: str = "auto",
    blocks: int | tuple[int, int] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    verify: str = "off",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    r"""Convolve two sequences on a pool; the slowest workers are not waited for.

    ``a`` is cut into ``m`` pieces, ``b`` into ``n``; worker ``w`` convolves combinations

    .. math:: \tilde a_w = \sum_i G^A_{wi} a_i, \qquad \tilde b_w = \sum_j G^B_{wj} b_j .

    A convolution is bilinear like a product, and so the codes for products recover all
    :math:`a_i * b_j`, which the master adds up where they overlap.

    Parameters
    ----------
    a, b : array_like
        One-dimensional: bool, integer, float16/32/64 or complex64/128, finite.
    mode : {"full", "same", "valid"}
        As in :func:`scipy.signal.convolve`: all of it, the middle part of ``a``'s length, or what
        does not depend on the ends.
    method : {"auto", "direct", "fft"}
        How workers convolve: multiplied out, by transforms of overlapping pieces, or what is
        faster. Integers are always multiplied out when they need more than 53 bits.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    code : str
        A name of ``codedla codes``, or ``"auto"``: ``mds`` where cutting ``a`` alone is best, else
        ``khatri-rao``.
    blocks : int or (m, n), optional
        Numbers of pieces; an int cuts ``a`` only. Chosen from the lengths when omitted.
    tolerate, nodes, tolerance
        As in :func:`codedla.matmul`.
    verify : {"off", "freivalds", "locate"}
        "freivalds": compare the polynomials with these coefficients at a random point of the unit
        circle, in linear time. "locate": check every reply in this way, go on without workers that
        answer wrongly (``report.wrong``), and check the result, too.
    return_report : bool
        Return ``(c, report)``.
    timeout : float, optional
        Seconds after which the convolution fails with :class:`NotDecodable`.
    progress : callable, optional
        ``progress(done, needed, total)`` after every reply.

    Returns
    -------
    c : ndarray
        Of NumPy's result dtype. Integers are exact.
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError
        Sequences or options break a rule; nothing was computed.
    NotDecodable, WorkerError, VerificationFailed
        As in :func:`codedla.matmul`.

    References
    ----------
    Q. Yu, M. Maddah-Ali, S. Avestimehr, "Polynomial codes: an optimal design for high-dimensional
    coded matrix multiplication", arXiv:1705.10464, which also codes convolutions.
    """
    check_options(pool, verify, progress)
    check_choice(mode, "mode", MODES)
    check_choice(method, "method", METHODS)
    first, second = _Sequence.of(a, "a"), _Sequence.of(b, "b")
    _check_together(first, second)
    way = _plan(
        first,
        second,
        pool.n_workers,
        method=method,
        code=code,
        blocks=None if blocks is None else _checked_blocks(blocks, len(first), len(second)),
        tolerate=tolerate,
        nodes=nodes,
        tolerance=tolerance,
    )
    plan = way.plan
    _check_verifiable(verify, plan)
    pieces_a = _cut(first.values, plan.grid.m, plan.compute)
    pieces_b = _cut(second.values, plan.grid.n, plan.compute)
    weights = (partial(_row, plan.code, "a"), partial(_row, plan.code, "b"))
    shares_a = Pieces(pieces_a, plan.grid.m, weights[0])
    shares_b = Pieces(pieces_b, plan.grid.n, weights[1])
    width = pieces_a.shape[1] + pieces_b.shape[1] - 1
    check = None
    if verify == "locate":
        check = ConvolutionCheck((pieces_a, pieces_b), weights, machine_epsilon(plan.compute)).check
    length = len(first) + len(second) - 1
    real = plan.compute.kind == "c" and plan.dtype.kind != "c"
    held = np.empty(0, plan.compute).real.dtype if real else plan.compute
    products, report = run_transform(
        plan,
        pool,
        work=way.work,
        operands=lambda share: (shares_a.operand(share), shares_b.operand(share)),
        output=np.empty((plan.grid.m, plan.grid.n * width), held),
        replies=plan.compute,
        shapes={"a": [len(first)], "b": [len(second)], "c": [length]},
        check=check,
        timeout=timeout,
        progress=progress,
    )
    if plan.dtype.kind in "iub" and products.dtype.kind == "f":
        np.rint(products, out=products)
    steps = (pieces_a.shape[1], pieces_b.shape[1])
    blocks_done = products.reshape(plan.grid.m, plan.grid.n, width)
    whole = _overlapped(blocks_done, steps)[:length]
    eps = machine_epsilon(plan.compute)
    _estimate(report, plan, (first, second), whole, eps)
    if verify != "off":
        verify_convolution(first.values, second.values, whole, (report.amplification or 1.0) * eps)
        report.verified = verify
    result = _cropped(_settled(whole, plan.dtype), mode, len(first), len(second))
    return (result, report) if return_report else result


# -- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sequence:
    """A checked operand."""

    values: Array
    facts: Facts

    @staticmethod
    def of(value: ArrayLike, name: str) -> _Sequence:
        array = as_array(value, name)
        if array.ndim != 1 or array.size == 0:
            raise UsageError(
                f"{name} must be a sequence of numbers, at least one; got shape {array.shape}; "
                "convolve rows one by one"
            )
        try:
            compute_dtype(array.dtype)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        facts = scan(array[None, :])
        if not facts.finite:
            raise UsageError(
                f"{name} must be finite: a coded convolution would spread NaN or Inf to entries "
                "that do not depend on them; use numpy.convolve"
            )
        return _Sequence(array, facts)

    def __len__(self) -> int:
        return self.values.size


def _check_together(a: _Sequence, b: _Sequence) -> None:
    """Raise UsageError where combinations, or their convolutions, could overflow."""
    dtype = compute_dtype(np.result_type(a.values, b.values))
    largest = max(a.facts.max_abs, b.facts.max_abs, _largest(a, b))
    if largest * COMBINATION_GROWTH >= float(np.finfo(dtype).max):
        raise UsageError(
            f"entries must be far from overflow of {dtype}, because combinations of them are sent; "
            f"got up to {max(a.facts.max_abs, b.facts.max_abs):.1e}; scale a and b down"
        )


def _largest(a: _Sequence, b: _Sequence) -> float:
    """Bound the entries of the convolution."""
    return a.facts.max_abs * b.facts.max_abs * min(len(a), len(b))


def _checked_blocks(blocks: Any, long: int, short: int) -> tuple[int, int]:
    counts = block_counts(blocks)
    m, n = (counts, 1) if isinstance(counts, int) else counts if len(counts) == 2 else (0, 0)
    if not (1 <= m <= long and 1 <= n <= short):
        raise UsageError(
            "blocks must be numbers of pieces of a and of b, at most their lengths "
            f"{long} and {short}; got {blocks!r}; write for instance blocks=(2, 1)"
        )
    return m, n


def _check_verifiable(verify: str, plan: Plan) -> None:
    if verify != "off" and plan.compute.kind in "iu":
        raise UsageError(
            "integers that wrap around modulo 2**64 have no check in linear time; got "
            f"verify={verify!r}; use verify='off', or cast to float64"
        )


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    """A plan, and how workers are to convolve."""

    plan: Plan
    work: str


def _plan(
    a: _Sequence,
    b: _Sequence,
    n_workers: int,
    *,
    method: str,
    code: str,
    blocks: tuple[int, int] | None,
    tolerate: int | None,
    nodes: str | None,
    tolerance: float | None,
) -> _Way:
    """Choose how to compute, the code, and the numbers of pieces."""
    dtype = np.result_type(a.values, b.values)
    refused: UsageError | None = None
    for work, exactness in _ways(a, b, dtype, method, tolerance):

        def attempt(
            name: str,
            pieces: tuple[int, int],
            losses: int | None,
            exactness: dict[str, Any] = exactness,
        ) -> Plan:
            plan = make_plan(
                (len(a), 1),
                (1, len(b)),
                dtype,
                n_workers,
                code=name,
                blocks=(pieces[0], 1, pieces[1]),
                tolerate=losses,
                nodes=nodes,
                **exactness,
            )
            if code == "auto":
                if too_inaccurate(plan):
                    raise UsageError(f"code {name!r} loses too many digits with {pieces} pieces")
                reason = "shortest pieces" if blocks is None else "pieces asked for"
                tolerated = f"tolerates {plan.tolerates} of {plan.code.active} workers"
                plan = replace(plan, reason=f"{reason}; {tolerated}")
            return plan

        grids = [blocks] if blocks is not None else _grids(len(a), len(b), n_workers, method)
        losses = [tolerate] if blocks is not None else losses_to_try(tolerate, n_workers)
        try:
            plan = first_plan(
                _attempts(attempt, code, grids, losses), _unusable, named=code != "auto"
            )
        except UsageError as error:
            refused = refused or error
            continue
        return _Way(replace(plan, operation="convolve"), work)
    raise refused or UsageError("no code fits these sequences; use more ranks")


def _ways(
    a: _Sequence, b: _Sequence, dtype: np.dtype, method: str, tolerance: float | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how workers may convolve, and the options of the plan that keep it accurate."""
    work = "convolve" if method == "auto" else f"convolve-{method}"
    if dtype.kind not in "iub":
        yield work, {"tolerance": tolerance}
        return
    bound = _largest(a, b)
    if bound * 8 < EXACT_BELOW:
        # Rounding to the nearest integer is right while everything errs by less than a half.
        # Transforms err relative to the largest entries, wherever they are.
        points = len(a) + len(b)
        spread = 4 * math.log2(points + 2) * a.facts.norm * b.facts.norm
        errors = {"convolve-direct": bound}
        if method != "direct":
            errors = {work: max(bound, spread), **({} if method == "fft" else errors)}
        for how, error in errors.items():
            exact_to = 0.05 / max(error, 1.0)
            limit = exact_to if tolerance is None else min(tolerance, exact_to)
            yield how, {"tolerance": limit, "strict": True}
    if method != "fft" or bound * 8 >= EXACT_BELOW:
        yield "convolve-direct", {"exact_integers": True}


def _attempts(
    attempt: Callable[[str, tuple[int, int], int | None], Plan],
    code: str,
    grids: Sequence[tuple[int, int]],
    losses: Sequence[int | None],
) -> Iterator[Callable[[], Plan]]:
    for lost in losses:
        for pieces in grids:
            names = ("mds",) * (pieces[1] == 1) + ("khatri-rao", "replication")
            for name in (code,) if code != "auto" else names:
                yield partial(attempt, name, pieces, lost)


def _unusable(code: Code) -> str:
    if code.stack == (1, 1, 1):
        return ""
    return (
        f"a convolution is coded by single combinations of pieces; got code {code.name!r}, which "
        "stacks several; use code='auto', 'mds' or 'khatri-rao'"
    )


def _grids(long: int, short: int, n_workers: int, method: str) -> list[tuple[int, int]]:
    """Return the numbers of pieces that workers allow, those with the cheapest round first."""

    def seconds(grid: tuple[int, int]) -> float:
        la, lb = -(-long // grid[0]), -(-short // grid[1])
        direct, transformed = _SECONDS_DIRECT * la * lb, _SECONDS_POINT * (la + lb)
        work = {"direct": direct, "fft": transformed}.get(method, min(direct, transformed))
        # Everything is sent and received once by the master.
        return work + n_workers * 16.0 * (la + lb) / speeds().bandwidth

    grids = [
        (m, n)
        for m in range(1, min(long, n_workers) + 1)
        for n in range(1, min(short, n_workers // m) + 1)
    ]
    return sorted(grids, key=seconds)


# -- pieces and their sums -------------------------------------------------------------------------


def _cut(values: Array, count: int, dtype: np.dtype) -> Array:
    """Return pieces of equal length as rows; the last ones are padded with zeros."""
    size = -(-values.size // count)
    if values.size == count * size:
        return np.ascontiguousarray(values.reshape(count, size), dtype)
    pieces = np.zeros(count * size, dtype)
    pieces[: values.size] = values
    return pieces.reshape(count, size)


def _row(code: Code, operand: str, share: int) -> Array:
    return code.rows_a(share) if operand == "a" else code.rows_b(share)


def _overlapped(products: Array, steps: tuple[int, int]) -> Array:
    """Add up the convolutions of all pieces, (m, n, width), where they belong."""
    m, n, width = products.shape
    whole = np.zeros((m - 1) * steps[0] + (n - 1) * steps[1] + width, products.dtype)
    for i in range(m):
        for j in range(n):
            start = i * steps[0] + j * steps[1]
            whole[start : start + width] += products[i, j]
    return whole


def _settled(whole: Array, dtype: np.dtype) -> Array:
    """Bring the convolution to the result's dtype."""
    if whole.dtype == dtype:
        return whole
    if dtype.kind == "b":
        return whole != 0
    if dtype.kind in "iu":
        # Through int64, so that narrow types wrap around exactly as NumPy's convolution does.
        return whole.astype(np.int64).astype(dtype)
    with np.errstate(over="ignore"):
        return whole.astype(dtype)


def _cropped(whole: Array, mode: str, long: int, short: int) -> Array:
    if mode == "full":
        return whole
    if mode == "same":
        start, length = (short - 1) // 2, long
    else:
        start, length = min(long, short) - 1, abs(long - short) + 1
    return whole[start : start + length].copy()


def _estimate(
    report: Report, plan: Plan, sequences: tuple[_Sequence, _Sequence], whole: Array, eps: float
) -> None:
    if plan.dtype.kind in "iub":
        report.error_estimate = 0.0
        return
    norm = scan(whole[None, :]).norm
    scale = sequences[0].facts.norm * sequences[1].facts.norm / norm if norm else 1.0
    stages = math.sqrt(math.log2(whole.size + 1))
    estimate = error_estimate(report.amplification or 1.0, eps, stages * max(scale, 1.0))
    report.error_estimate = estimate if np.isfinite(estimate) else None
