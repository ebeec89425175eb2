"""The plan of one coded operation: who gets what, what it costs, how accurate it will be.

A :class:`Plan` is frozen and prints itself; making one needs neither MPI nor the operands' values.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from codedla.blocks import Grid
from codedla.codes import error_estimate
from codedla.codes.base import Code
from codedla.codes.exact import ExactCode
from codedla.engine import choose
from codedla.engine.arguments import MOST_WORKERS, block_counts, positive, whole_number
from codedla.engine.cost import Cost, in_bytes, in_flops, predict
from codedla.errors import UsageError
from codedla.measured.speeds import speeds

__all__ = ["DEFAULT_TOLERANCE", "Plan", "compute_dtype", "default_tolerance", "make_plan"]

DEFAULT_TOLERANCE = {"d": 1e-9, "s": 1e-3}
"""Largest ``alpha * eps`` accepted by default: double and single precision."""

_EXPLAINED = (
    "grid",
    "threshold",
    "tolerates",
    "memory_worker",
    "flops_worker",
    "bytes",
    "seconds",
    "worst_amplification",
)
_COMPUTE: dict[str, np.dtype] = {
    "f2": np.dtype(np.float32),
    "f4": np.dtype(np.float32),
    "f8": np.dtype(np.float64),
    "c8": np.dtype(np.complex64),
    "c16": np.dtype(np.complex128),
}


def compute_dtype(dtype: np.dtype, *, exact_integers: bool = False) -> np.dtype:
    """Return the dtype in which a product with result ``dtype`` is coded and computed.

    Parameters
    ----------
    dtype : numpy.dtype
        ``numpy.result_type`` of the operands.
    exact_integers : bool
        Compute integers in wrap-around int64 instead of float64.

    Raises
    ------
    UsageError
        No code works in this dtype (object, strings, dates, long double).
    """
    if dtype.kind in "iub":
        return np.dtype(np.int64) if exact_integers else np.dtype(np.float64)
    name = f"{dtype.kind}{dtype.itemsize}"
    if name not in _COMPUTE:
        raise UsageError(
            "operands must be bool, integers, float16, float32, float64, complex64 or complex128; "
            f"got dtype {dtype}; cast with .astype(float)"
        )
    return _COMPUTE[name]


def default_tolerance(dtype: np.dtype) -> float:
    """Return the default for ``alpha * eps`` in computing dtype ``dtype``."""
    return DEFAULT_TOLERANCE["s" if dtype in (np.float32, np.complex64) else "d"]


def machine_epsilon(dtype: np.dtype) -> float:
    """Return eps (twice the unit roundoff) of a floating dtype, 0.0 for integers."""
    return 0.0 if dtype.kind in "iub" else float(np.finfo(dtype).eps)


@dataclass(frozen=True)
class Plan:
    """Plan of one coded product ``C = A @ B``.

    Parameters
    ----------
    operation : str
        ``"matmul"`` or ``"matvec"``.
    code : Code
        The code, built for the workers it uses.
    shape : tuple of int
        ``(M, L, N)``: rows of A, inner dimension, columns of B.
    dtype : numpy.dtype
        dtype of the result.
    compute : numpy.dtype
        dtype of shares and replies.
    pool_workers : int
        Workers in the pool; those beyond ``code.n_workers`` stay idle.
    tolerance : float
        Largest accepted ``alpha * eps``.
    reason : str
        Why this code and this grid.
    warnings : tuple of str
        What a user should know before running it.
    density : tuple of float
        Densities of A and B; 1.0 for dense operands.
    request : Request, optional
        What was asked for; needed by :meth:`explain`.
    speculate : bool
        Shares of late workers are given to idle ones, too.
    """

    operation: str
    code: Code
    shape: tuple[int, int, int]
    dtype: np.dtype
    compute: np.dtype
    pool_workers: int
    tolerance: float
    reason: str
    warnings: tuple[str, ...] = ()
    density: tuple[float, float] = (1.0, 1.0)
    request: choose.Request | None = field(default=None, repr=False, compare=False)
    speculate: bool = False

    @property
    def grid(self) -> Grid:
        """Numbers of blocks."""
        return self.code.grid

    @property
    def threshold(self) -> int:
        """Replies that suffice."""
        return self.code.threshold

    @property
    def tolerates(self) -> int:
        """Workers that may be lost whichever they are."""
        return self.code.tolerates

    @property
    def flops_plain(self) -> float:
        """Flops of the plain product (a complex multiply-add counts 8)."""
        m, inner, n = self.shape
        return 2.0 * m * inner * n * self.density[0] * self.density[1] * _flop_factor(self.dtype)

    @cached_property
    def cost(self) -> Cost:
        """Predicted cost of the round."""
        asked = self.request
        return predict(
            self.code,
            self.shape,
            self.density,
            self.compute,
            None if asked is None else asked.largest,
            resident=asked is not None and asked.resident,
        )

    @property
    def flops_worker(self) -> float:
        """Flops of the worker with most to do, all of its shares."""
        return self.cost.flops_worker

    @property
    def bytes_sent(self) -> float:
        """Bytes the master sends when nothing is resident yet."""
        return self.cost.sent

    @property
    def bytes_received(self) -> float:
        """Bytes of the replies that are needed."""
        return self.cost.received

    @property
    def seconds(self) -> float:
        """Predicted time of the round: the slowest worker, all messages, the rest of decoding."""
        return self.cost.seconds

    @property
    def memory_worker(self) -> float:
        """Bytes of one worker's shares and of its reply (two buffers)."""
        return self.cost.memory_worker

    @property
    def memory_master(self) -> float:
        """Bytes of operands, product, coded shares under way and decoding scratch."""
        m, inner, n = self.shape
        entries = m * inner * self.density[0] + inner * n * self.density[1] + m * n
        whole = entries * self.dtype.itemsize
        coded = sum(self.code.plain_block(share) is None for share in self.code.shares)
        return whole + coded * self.memory_worker / self.code.load

    @cached_property
    def worst_amplification(self) -> float:
        """Worst ``alpha(S)`` over survivor sets of threshold size (sampled when there are many)."""
        return float(self.code.worst_amplification()[0])

    @property
    def predicted_error(self) -> float:
        """Error estimate of the worst survivor set for ``|A| |B| = |C|``; 0 for integers."""
        if self.dtype.kind in "iub":
            return 0.0
        return error_estimate(self.worst_amplification, machine_epsilon(self.compute))

    def explain(self) -> list[dict[str, Any]]:
        """Return what could have been chosen, the cheapest first, and what became of it.

        Returns
        -------
        list of dict
            ``code, grid, threshold, tolerates, memory_worker, flops_worker, bytes, seconds,
            worst_amplification, verdict`` of every candidate of ``code="auto"``, and of the code
            that was named; numbers are None where no grid fits.

        Raises
        ------
        UsageError
            The plan was not made by :func:`make_plan`.
        """
        if self.request is None:
            raise UsageError("only plans of make_plan can be explained; got one made by hand")
        offered = choose.candidates(self.request)
        rows = [_explained(candidate, self) for candidate in offered]
        if self.code.name not in (candidate.name for candidate in offered):
            named = choose.Candidate(self.code.name, self.code, self.cost)
            rows.insert(0, _explained(named, self))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data."""
        return {
            "operation": self.operation,
            "code": self.code.name,
            "grid": [self.grid.m, self.grid.p, self.grid.n],
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "n_workers": self.pool_workers,
            "workers_used": self.code.active,
            "threshold": self.threshold,
            "tolerates": self.tolerates,
            "flops_plain": self.flops_plain,
            "flops_worker": self.flops_worker,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "seconds": self.seconds,
            "speeds": asdict(speeds()),
            "memory_worker": self.memory_worker,
            "memory_master": self.memory_master,
            # JSON has no infinity: null is a survivor set that does not decode in double precision.
            "worst_amplification": _finite(self.worst_amplification),
            "predicted_error": _finite(self.predicted_error),
            "speculate": self.speculate,
            "reason": self.reason,
            "warnings": list(self.warnings),
        }

    def _error_in_words(self) -> str:
        if self.dtype.kind in "iub":
            return "none: integers are exact, or refused when they are too large"
        return f"about {self.predicted_error:.0e} * |A| |B| / |C| (Frobenius norms) in that set"

    def __str__(self) -> str:
        m, inner, n = self.shape
        workers = f"{self.code.active} of {self.pool_workers}"
        flops = in_flops(self.flops_worker)
        most = "at most " if self.code.load > 1 else ""  # the round ends before all is done
        rows = [
            ("operation", f"{self.operation}  ({m} x {inner}) @ ({inner} x {n})  {self.dtype}"),
            ("code", f"{self.code.name}, grid {self.code.blocks}"),
            ("why", self.reason),
            ("workers", f"{workers} used"),
            ("needs", self.code.suffices),
            ("tolerates", _losses(self.tolerates, self.speculate)),
            ("flops", f"{most}{flops} per worker, {in_flops(self.flops_plain)} uncoded"),
            ("sent", f"{in_bytes(self.bytes_sent)} in all"),
            ("received", f"{in_bytes(self.bytes_received)} needed"),
            ("memory", f"{in_bytes(self.memory_worker)} per worker rank"),
            ("", f"{in_bytes(self.memory_master)} on the master rank"),
            ("predicted", f"{self.seconds:.3g} s, reckoned with {speeds()}"),
            ("amplification", f"{self.worst_amplification:.1e} in the worst survivor set"),
            ("error", self._error_in_words()),
        ]
        rows += [("warning", text) for text in self.warnings]
        return "\n".join(f"{name:<14} {value}" for name, value in rows)


def make_plan(
    shape_a: tuple[int, int],
    shape_b: tuple[int, int],
    dtype: Any,
    n_workers: int,
    *,
    operation: str = "matmul",
    code: str = "auto",
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    nnz: tuple[int | None, int | None] | None = None,
    plain_only: bool = False,
    exact_integers: bool = False,
    strict: bool = False,
    memory: float | None = None,
    largest: int | None = None,
    resident: bool = False,
    speculate: bool = False,
) -> Plan:
    """Choose a code and a grid and lay out the work.

    Parameters
    ----------
    shape_a, shape_b : tuple of int
        Shapes of the operands.
    dtype : dtype-like
        ``numpy.result_type`` of the operands.
    n_workers : int
        Workers in the pool (ranks - 1).
    operation : {"matmul", "matvec"}
    code : str
        A registered name or ``"auto"``.
    blocks : int, (m, n) or (m, p, n), optional
        Numbers of blocks; chosen from the shapes when omitted.
    tolerate : int, optional
        Workers that may be lost. Default: 0 with one or two workers, 1 with three to five, else 2;
        with ``blocks`` given, as many as the workers allow.
    nodes : str, optional
        Evaluation points, for codes that have a choice.
    tolerance : float, optional
        Largest accepted ``alpha * eps``; default 1e-9 (double) or 1e-3 (single precision).
    nnz : (int or None, int or None), optional
        Stored entries of sparse operands.
    plain_only : bool
        Only plain copies may be sent (operands hold NaN or Inf, or sums could overflow).
    exact_integers : bool
        Only wrap-around integer arithmetic is exact for these operands.
    strict : bool
        Refuse a code whose worst survivor set misses the tolerance, instead of warning.
    memory : float, optional
        Bytes that the shares and replies of one worker may take; auto chooses accordingly, and a
        named code that needs more is refused.
    largest : int, optional
        No entry of an integer product is larger in magnitude.
    resident : bool
        The shares of A stay on the workers, for many products.
    speculate : bool
        Give shares of late workers to idle ones, too.

    Returns
    -------
    Plan

    Raises
    ------
    UsageError
        Shapes do not fit, or no code fits the request; the message says what would.
    """
    (rows, inner), (inner_b, cols) = shape_a, shape_b
    if inner != inner_b:
        raise UsageError(
            f"columns of A must equal rows of B; got A {rows}x{inner} and B {inner_b}x{cols}"
        )
    if n_workers < 1:
        raise UsageError(
            f"a pool needs at least one worker beside the master; got {n_workers + 1} rank; "
            "start with mpirun -n R or --ranks R, R >= 2"
        )
    if n_workers > MOST_WORKERS:
        raise UsageError(
            f"one master serves at most {MOST_WORKERS} workers; got {n_workers}; use fewer ranks"
        )
    result = np.dtype(dtype)
    compute = compute_dtype(result, exact_integers=exact_integers)
    limit = default_tolerance(compute)
    if tolerance is not None:
        limit = positive(tolerance, "tolerance")
    if not isinstance(code, str):
        raise UsageError(f"code must be a name; got {code!r}; choose one of codedla codes")
    density = _density(shape_a, shape_b, nnz)
    request = choose.Request(
        operation=operation,
        shape=(rows, inner, cols),
        n_workers=n_workers,
        code=code,
        blocks=None if blocks is None else block_counts(blocks),
        tolerate=None if tolerate is None else whole_number(tolerate, "tolerate", least=0),
        nodes=nodes,
        eps=machine_epsilon(compute),
        itemsize=compute.itemsize,
        tolerance=limit,
        check_accuracy=tolerance is not None or limit > DEFAULT_TOLERANCE["d"],
        strict=strict,
        plain_only=plain_only,
        exact_integers=exact_integers,
        density=density,
        compute=compute,
        memory=None if memory is None else positive(memory, "memory"),
        # Of integers whose size is not known, whatever suits small ones is offered.
        largest=(largest or 0) if result.kind in "iub" else None,
        bits=8 * result.itemsize if result.kind in "iu" else 64,
        resident=resident,
    )
    chosen = choose.choose(request)
    if speculate and any(chosen.code.masks):
        raise UsageError(
            "nobody may see a second share of a code with secrets, so that none can be given to an "
            f"idle worker; got speculate with code {chosen.code.name!r}; leave it out, and "
            "tolerate more workers"
        )
    reason = chosen.reason
    if speculate and not chosen.code.speculative:
        reason += "; late shares are given to idle workers, too"
    if chosen.code.field == "complex" and compute.kind == "f":
        compute = np.result_type(compute, np.complex64)
    if isinstance(chosen.code, ExactCode):
        compute = chosen.code.computes
    plan = Plan(
        operation=operation,
        code=chosen.code,
        shape=request.shape,
        dtype=result,
        compute=compute,
        pool_workers=n_workers,
        tolerance=_attainable(chosen.code, limit, request.eps, given=tolerance is not None),
        reason=reason,
        warnings=chosen.warnings + _approximate(chosen.code),
        density=density,
        request=request,
        speculate=speculate or chosen.code.speculative,
    )
    # Known already: it is left where the cached property would put it. A changed copy of the plan
    # does not take it along, and predicts anew.
    vars(plan)["cost"] = chosen.cost
    return plan


def _attainable(code: Code, limit: float, eps: float, *, given: bool) -> float:
    """Return the tolerance for ``alpha * eps`` above which waiting for one more reply can help."""
    if code.only_plain:
        return max(limit, 2 * eps)
    # Rounding errors far below the error of the method itself would be waited for in vain.
    return limit if given else max(limit, 10 * code.method_error)


def _approximate(code: Code) -> tuple[str, ...]:
    if not code.approximate:
        return ()
    text = (
        f"code {code.name} is approximate: without any rounding its product may be off by "
        f"{code.method_error:.0e} * |A| |B|"
    )
    return (text,)


def _explained(candidate: choose.Candidate, plan: Plan) -> dict[str, Any]:
    """Return one line of :meth:`Plan.explain`."""
    row: dict[str, Any] = {"code": candidate.name, **dict.fromkeys(_EXPLAINED)}
    code, cost = candidate.code, candidate.cost
    if code is None or cost is None:
        return {**row, "verdict": candidate.refused}
    alpha = code.worst_amplification()[0]
    lost = alpha * machine_epsilon(plan.compute)
    if code.name == plan.code.name:
        verdict = f"chosen: {plan.reason}"
    elif candidate.refused:
        verdict = candidate.refused
    elif lost > plan.tolerance:
        verdict = f"the worst survivor set may err by {lost:.0e}, more than {plan.tolerance:.0e}"
    else:
        # Products of nothing take no time at all.
        times = cost.seconds / plan.cost.seconds if plan.cost.seconds else 1.0
        verdict = f"{times:.2f} times the predicted time"
    return {
        **row,
        "grid": str(code.blocks),
        "threshold": code.threshold,
        "tolerates": code.tolerates,
        "memory_worker": cost.memory_worker,
        "flops_worker": cost.flops_worker,
        "bytes": cost.sent + cost.received,
        "seconds": cost.seconds,
        "worst_amplification": _finite(alpha),
        "verdict": verdict,
    }


def _density(
    shape_a: tuple[int, int],
    shape_b: tuple[int, int],
    nnz: tuple[int | None, int | None] | None,
) -> tuple[float, float]:
    counts = nnz or (None, None)
    sizes = (shape_a[0] * shape_a[1], shape_b[0] * shape_b[1])
    a, b = (
        1.0 if count is None else count / max(size, 1)
        for count, size in zip(counts, sizes, strict=True)
    )
    return a, b


def _losses(count: int, speculate: bool) -> str:
    if count == 0 and speculate:
        return "nobody without delay: what is late is computed again"
    if count == 0:
        return "nobody: every worker must answer"
    workers = "worker" if count == 1 else "workers, whichever they are"
    return f"{count} slow or dead {workers}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _flop_factor(dtype: np.dtype) -> float:
    return 4.0 if dtype.kind == "c" else 1.0
