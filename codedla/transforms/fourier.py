"""The coded Fourier transform."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.codes import error_estimate
from codedla.codes.base import Code
from codedla.engine.arguments import check_choice, whole_number
from codedla.engine.facts import Facts, scan
from codedla.engine.plan import Plan, compute_dtype, machine_epsilon, make_plan
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.errors import UsageError, VerificationFailed
from codedla.linalg.operands import COMBINATION_GROWTH, as_array
from codedla.transforms.checks import TransformCheck, verify_transform
from codedla.transforms.coded import (
    Pieces,
    check_options,
    divisors,
    first_plan,
    losses_to_try,
    run_transform,
    too_inaccurate,
)

__all__ = ["fft", "ifft"]

Array = NDArray[Any]

_NORMS = ("backward", "ortho", "forward")
_COLUMNS = 1 << 13
"""Columns that the last stage handles at once: they and their twiddles stay in cache."""
_DENSE_STAGE = 32
"""Up to so many parts the last stage is a product with the matrix of the transform."""
_QUARTERS = np.array([1, -1j, -1, 1j])


def fft(
    x: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    pool: Pool,
    code: str = "auto",
    parts: int | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    verify: str = "off",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    r"""Compute the discrete Fourier transform on a pool; the slowest workers are not waited for.

    ``x`` of length ``N`` is dealt into ``m`` interleaved parts :math:`x_j = (x_j, x_{j+m}, \dots)`.
    The transform is linear, and so workers transform combinations
    :math:`\tilde x_w = \sum_j G_{wj} x_j`, of length ``N / m`` each; from any ``m`` replies the
    transforms :math:`X_j` of the parts are recovered, and the master adds up

    .. math:: X_{k + qN/m} = \sum_j e^{-2\pi i jq/m} \, e^{-2\pi i jk/N} X_{jk} .

    Parameters
    ----------
    x : array_like
        Real or complex, of any number of dimensions; transformed along ``axis``.
    n : int, optional
        Length: ``x`` is cut or padded with zeros to it.
    axis : int
    norm : {None, "backward", "ortho", "forward"}
        As in :func:`scipy.fft.fft`.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    code : str
        A name of ``codedla codes`` that codes one operand, or ``"auto"``.
    parts : int, optional
        ``m``, which must divide ``N``. Default: the largest that does, and that leaves as many
        workers over as are to be tolerated.
    tolerate : int, optional
        Workers that may be late or lost without delay; when more are lost, others compute their
        shares. Default: as in :func:`codedla.matmul`.
    nodes, tolerance
        As in :func:`codedla.matmul`.
    verify : {"off", "freivalds", "locate"}
        "freivalds": compare a random combination of the result, the value of a polynomial at a
        random point of the unit circle, with the same of ``x``, in O(N). "locate": check every
        reply in this way, go on without workers that answer wrongly (``report.wrong``), and check
        the result, too.
    return_report : bool
        Return ``(X, report)``.
    timeout : float, optional
        Seconds after which the transform fails with :class:`NotDecodable`.
    progress : callable, optional
        ``progress(done, needed, total)`` after every reply.

    Returns
    -------
    X : ndarray
        complex64 for half and single precision, else complex128.
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError
        ``parts`` does not divide the length, or another rule is broken; nothing was computed.
    NotDecodable, WorkerError, VerificationFailed
        As in :func:`codedla.matmul`.

    References
    ----------
    Q. Yu, M. Maddah-Ali, S. Avestimehr, "Coded Fourier transform", arXiv:1710.06471.
    """
    options = (pool, code, parts, tolerate, nodes, tolerance, verify, timeout, progress)
    result, report = _run("fft", x, n, axis, norm, *options)
    return (result, report) if return_report else result


def ifft(
    x: ArrayLike,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    pool: Pool,
    code: str = "auto",
    parts: int | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    verify: str = "off",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    """Compute the inverse of :func:`fft` on a pool.

    It is the transform itself, scaled and read backwards.

    Parameters
    ----------
    x, n, axis, norm, pool, code, parts, tolerate, nodes, tolerance, verify, return_report
        As in :func:`fft`.
    timeout, progress
        As in :func:`fft`.

    Returns
    -------
    x : ndarray
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
        As in :func:`fft`.
    """
    options = (pool, code, parts, tolerate, nodes, tolerance, verify, timeout, progress)
    result, report = _run("ifft", x, n, axis, norm, *options)
    return (result, report) if return_report else result


def _run(
    operation: str,
    x: ArrayLike,
    n: int | None,
    axis: int,
    norm: str | None,
    pool: Pool,
    code: str,
    parts: int | None,
    tolerate: int | None,
    nodes: str | None,
    tolerance: float | None,
    verify: str,
    timeout: float | None,
    progress: Progress | None,
) -> tuple[Array, Report]:
    check_options(pool, verify, progress)
    array, axis = _checked(x, axis)
    compute = compute_dtype(array.dtype)
    rows = _rows(array, axis, n)
    batch, length = rows.shape
    factor = _factor(norm, length, inverse=operation == "ifft")
    facts = scan(rows)
    plan = _plan(
        (batch, length),
        compute,
        pool.n_workers,
        combinable=_combinable(facts, compute),
        code=code,
        parts=parts,
        tolerate=tolerate,
        nodes=nodes,
        tolerance=tolerance,
    )
    plan = replace(plan, operation=operation)
    m, width = plan.grid.m, length // plan.grid.m
    real = plan.compute.kind != "c"
    replies = np.result_type(plan.compute, np.complex64)
    # One part below the other; each is contiguous then, and combining parts is a plain sum.
    dealt = np.empty((m, batch, width), plan.compute)
    np.copyto(dealt, np.moveaxis(rows.reshape(batch, width, m), 2, 0), casting="unsafe")
    check = None
    if verify != "off":
        _check_finite(facts, compute)
    weights = partial(_weights, plan.code)
    columns = width // 2 + 1 if real else width
    if verify == "locate":
        check = TransformCheck(dealt, columns, weights, np.finfo(replies).eps).check
    pieces = Pieces(dealt.reshape(m * batch, width), m, weights)
    shape = [*array.shape[:axis], length, *array.shape[axis + 1 :]]
    spectra, report = run_transform(
        plan,
        pool,
        work="rfft" if real else "fft",
        operands=lambda share: (pieces.operand(share),),
        output=np.empty((m * batch, columns), replies),
        replies=replies,
        shapes={"x": list(array.shape), "X": shape},
        check=check,
        timeout=timeout,
        progress=progress,
    )
    result = _joined(spectra.reshape(m, batch, columns), length, real=real)
    eps = machine_epsilon(plan.compute)
    if facts.finite:
        # A transform keeps norms, and its rounding errors grow with the number of its stages.
        stages = math.sqrt(math.log2(length + 1))
        report.error_estimate = error_estimate(report.amplification or 1.0, eps, stages)
    if verify != "off":
        verify_transform(rows, result, (report.amplification or 1.0) * eps)
        report.verified = verify
    if operation == "ifft":
        result = np.concatenate([result[:, :1], result[:, :0:-1]], axis=1)
    if factor != 1.0:
        result *= result.real.dtype.type(factor)
    whole = result.reshape(array.shape[:axis] + array.shape[axis + 1 :] + (length,))
    return np.moveaxis(whole, -1, axis), report


# -- arguments ---------------------------------------------------------------------------------


def _checked(x: ArrayLike, axis: Any) -> tuple[Array, int]:
    """Return ``x`` as an array, and a number of an axis that it has."""
    array = as_array(x, "x")
    if array.ndim == 0:
        raise UsageError("x must have at least one dimension; got a scalar; pass a sequence")
    try:
        compute_dtype(array.dtype)
    except UsageError as error:
        raise UsageError(f"x: {error}") from None
    try:
        return array, range(array.ndim)[operator.index(axis)]
    except (IndexError, TypeError):
        raise UsageError(
            f"axis must be a whole number from {-array.ndim} to {array.ndim - 1}; got {axis!r}"
        ) from None


def _rows(array: Array, axis: int, n: int | None) -> Array:
    """Return the sequences that are transformed as rows, cut or padded to length ``n``."""
    along = np.moveaxis(array, axis, -1)
    length = array.shape[axis] if n is None else whole_number(n, "n", least=1)
    if length < 1:
        raise UsageError("x must not be empty along the axis; got length 0; give n")
    if array.size == 0 and n is None:
        raise UsageError(f"x must hold numbers; got shape {array.shape}; leave empty ones out")
    # Counted, not inferred: nothing along the axis is as good as zeros, to be padded.
    rows = along.reshape(math.prod(along.shape[:-1]), along.shape[-1])
    if rows.shape[1] >= length:
        return rows[:, :length]
    try:
        padded = np.zeros((rows.shape[0], length), array.dtype)
    except (MemoryError, ValueError) as error:
        raise UsageError(
            f"sequences padded to n points must fit memory; got n={length}, {len(rows)} of them "
            f"({error}); use a smaller n"
        ) from error
    padded[:, : rows.shape[1]] = rows
    return padded


def _factor(norm: str | None, length: int, *, inverse: bool) -> float:
    if norm is not None:
        check_choice(norm, "norm, unless None,", _NORMS)
    if norm == "ortho":
        return 1.0 / math.sqrt(length)
    return 1.0 / length if (norm == "forward") != inverse else 1.0


def _combinable(facts: Facts, compute: np.dtype) -> bool:
    """Tell whether parts may be summed: all finite, and far from overflow."""
    return facts.finite and facts.max_abs < float(np.finfo(compute).max) / COMBINATION_GROWTH


def _check_finite(facts: Facts, compute: np.dtype) -> None:
    if not facts.finite:
        raise VerificationFailed(
            "a transform of NaN or Inf cannot be verified by random projection; use verify='off'"
        )
    if not _combinable(facts, compute):
        raise VerificationFailed(
            "a transform near overflow cannot be verified by random projection; scale x down or "
            "use verify='off'"
        )


# -- the plan ------------------------------------------------------------------------------------


def _plan(
    shape: tuple[int, int],
    compute: np.dtype,
    n_workers: int,
    *,
    combinable: bool,
    code: str,
    parts: int | None,
    tolerate: int | None,
    nodes: str | None,
    tolerance: float | None,
) -> Plan:
    """Choose code and parts; the cheapest are the most parts."""
    batch, length = shape
    if parts is not None:
        parts = _checked_parts(parts, length)
        if code == "auto" and parts > n_workers:
            raise UsageError(
                f"every part needs a worker; got {parts} parts and {n_workers} workers; use "
                f"parts={next(divisors(length, n_workers))}, or {parts + 1} ranks"
            )

    def attempt(name: str, m: int, losses: int | None) -> Plan:
        plan = make_plan(
            (m * batch, length // m),
            (length // m, 1),
            compute,
            n_workers,
            operation="matvec",
            code=name,
            blocks=(m, 1, 1),
            tolerate=losses,
            nodes=nodes,
            tolerance=tolerance,
            plain_only=not combinable,
        )
        if code == "auto":
            if too_inaccurate(plan):
                raise UsageError(f"code {name!r} loses too many digits with {m} parts; use fewer")
            plan = replace(plan, reason=f"{_why(m, length, parts)}; {_place(plan)}")
        return plan

    def unusable(made: Code) -> str:
        if made.grid.n == 1 and made.stack[1:] == (1, 1) and length % made.grid.m == 0:
            return ""
        return (
            f"a transform of {length} points is cut into parts of equal length, whole ones; code "
            f"{made.name!r} cuts {made.grid}; use code='mds' or other parts"
        )

    return first_plan(
        _attempts(attempt, length, n_workers, combinable, code, parts, tolerate),
        unusable,
        named=code != "auto",
    )


def _attempts(
    attempt: Callable[[str, int, int | None], Plan],
    length: int,
    n_workers: int,
    combinable: bool,
    code: str,
    parts: int | None,
    tolerate: int | None,
) -> Iterator[Callable[[], Plan]]:
    names = [code]
    if code == "auto":
        names = ["mds", "replication"] if combinable else ["replication", "uncoded"]
    for name in names:
        if parts is not None:
            yield partial(attempt, name, parts, tolerate)
            continue
        for losses in losses_to_try(tolerate, n_workers):
            for m in divisors(length, n_workers):
                yield partial(attempt, name, m, losses)


def _checked_parts(parts: Any, length: int) -> int:
    m = whole_number(parts, "parts", least=1)
    if length % m:
        below, above = length - length % m, length - length % m + m
        lengths = f"n={below} or n={above}" if below else f"n={above}"
        fitting = [d for d in divisors(length, length) if d <= 4 * m][:3] if m < 10**6 else [1]
        raise UsageError(
            f"parts must divide the length; got {length} points in {m} parts; use {lengths}, or "
            f"parts={' or '.join(map(str, fitting))}"
        )
    return m


def _why(m: int, length: int, parts: int | None) -> str:
    if parts is not None:
        return "parts asked for"
    return f"{m} is the largest number of parts that divides {length} and leaves enough workers"


def _place(plan: Plan) -> str:
    return f"tolerates {plan.tolerates} of {plan.code.active} workers"


def _weights(code: Code, share: int) -> Array:
    """Return the combinations of parts that a share is made of."""
    return code.rows_a(share) * code.rows_b(share)[0, 0]


# -- the last stage --------------------------------------------------------------------------------


def _joined(spectra: Array, length: int, *, real: bool) -> Array:
    """Return the transform of the whole from those of its parts, (batch, N).

    Parameters
    ----------
    spectra : ndarray (m, batch, N / m), or (m, batch, N / m // 2 + 1) of real parts
    length : int
    real : bool
    """
    m, batch, columns = spectra.shape
    width = length // m
    result = np.empty((batch, m, width), spectra.dtype)
    if m == 1:
        result[:, 0, :columns] = spectra[0]
    else:
        _stage(spectra, length, result)
    if real and columns < width:
        # Of real numbers, the second half of every part's spectrum is the first one mirrored.
        result[:, :, columns:] = result[:, ::-1, width - columns : 0 : -1].conj()
    return result.reshape(batch, length)


def _stage(spectra: Array, length: int, result: Array) -> None:
    """Multiply by the twiddle factors and transform across the parts, some columns at a time."""
    m, batch, columns = spectra.shape
    dtype = spectra.dtype
    part = np.arange(m)
    step = min(columns, _COLUMNS)
    fine = _roots(np.outer(part, np.arange(step)), length)
    across = _roots(np.outer(part, part), m).astype(dtype)
    group = max(1, _COLUMNS // step)
    for left in range(0, columns, step):
        stop = min(left + step, columns)
        twiddles = (fine[:, : stop - left] * _roots(part * left, length)[:, None]).astype(dtype)
        for top in range(0, batch, group):
            turned = spectra[:, top : top + group, left:stop].transpose(1, 0, 2) * twiddles
            target = result[top : top + group, :, left:stop]
            with np.errstate(all="ignore"):
                if m <= _DENSE_STAGE:
                    np.matmul(across, turned, out=target)
                else:
                    target[...] = np.fft.fft(turned, axis=1)


def _roots(exponents: Array, order: int) -> Array:
    """Return powers of the root of unity ``exp(-2 pi i / order)``."""
    fours = 4 * (exponents % order)
    quarters = (2 * fours + order) // (2 * order)
    # Angles are as accurate as they are small, and quarter turns are exact.
    rest = (fours - quarters * order) / (4 * order)
    return _QUARTERS[quarters % 4] * np.exp(-2j * np.pi * rest)
