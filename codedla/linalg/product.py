"""One coded product, from checked operands to the result and its report."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes import error_estimate
from codedla.codes.exact import WrapCode
from codedla.engine import arithmetic
from codedla.engine.ahead import Ahead, Encoder
from codedla.engine.arguments import check_choice, check_progress, positive
from codedla.engine.collector import Collector
from codedla.engine.decoder import Decoder, make_decoder
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import scan
from codedla.engine.plan import Plan, compute_dtype, machine_epsilon
from codedla.engine.report import Report
from codedla.engine.round import Check, Operand, Outcome, Pool, Progress, Round
from codedla.errors import CodedlaWarning, UsageError, VerificationFailed
from codedla.linalg.operands import Checked
from codedla.linalg.reporting import complete_report, new_report, tell_losses, tell_miss
from codedla.linalg.resident import resident_keys
from codedla.linalg.spares import check_spares, make_spare_decoder
from codedla.linalg.verify import (
    ReplyCheck,
    SharedCheck,
    unverifiable,
    verify_product,
    worthwhile,
)

__all__ = [
    "Product",
    "ProductRound",
    "check_options",
    "empty_product",
    "reply_dtype",
    "run_product",
]

logger = logging.getLogger("codedla")
Array = NDArray[Any]

VERIFY = ("auto", "off", "freivalds", "locate", "spares")
"""Values of ``verify=``."""
USUAL_SPREAD = 1e6
"""Rows and columns that differ in size by less are no reason for a warning."""


@dataclass
class Product:
    """What one product needs besides its operands' values.

    Parameters
    ----------
    plan : Plan
    pool : Pool
    keys_a : sequence of int
        Resident id of A's part of each share; empty when they are used once.
    encoder_a : Encoder, optional
        Given when A's parts are resident, or made by the workers.
    keys_b : sequence of int
        Resident id of B's part of each share; empty when they are used once.
    encoder_b : Encoder, optional
        Given when B's parts are resident, or made by the workers.
    check : callable, optional
        A check of the replies that the caller has prepared.
    shared : SharedCheck, optional
        What the checks of several products with the same B have in common.
    told : set of int, optional
        Ranks of whose wrong answers the user was told already; None: tell after every round.
    """

    plan: Plan
    pool: Pool
    keys_a: Sequence[int] = ()
    encoder_a: Encoder | None = None
    keys_b: Sequence[int] = ()
    check: Check | None = None
    encoder_b: Encoder | None = None
    shared: SharedCheck | None = None
    told: set[int] | None = None

    def keys_of(self, share: int) -> tuple[int, int]:
        """Return the resident ids of a share's parts of A and B; 0 for what is used once."""
        key_a = self.keys_a[share] if self.keys_a else 0
        return key_a, self.keys_b[share] if self.keys_b else 0

    def encoder_of_a(self, matrix: Any) -> Encoder:
        """Return the encoder of A, cut as the plan says."""
        if self.encoder_a is None:
            m, inner, _ = self.plan.shape
            grid = self.plan.grid
            return make_encoder(matrix, Split(m, grid.m), Split(inner, grid.p), self.plan.compute)
        return self.encoder_a

    def encoder_of_b(self, matrix: Any, dtype: np.dtype) -> Encoder:
        """Return the encoder of B, cut as the plan says."""
        if self.encoder_b is not None:
            return self.encoder_b
        _, inner, n = self.plan.shape
        grid = self.plan.grid
        return make_encoder(matrix, Split(inner, grid.p), Split(n, grid.n), dtype)


def run_product(
    product: Product,
    a: Checked,
    b: Checked,
    *,
    out: Array | None = None,
    verify: str = "off",
    timeout: float | None = None,
    progress: Progress | None = None,
) -> tuple[Array, Report]:
    """Run a planned product.

    Parameters
    ----------
    product : Product
    a, b : Checked
    out, verify, timeout, progress
        As in :func:`codedla.matmul`.

    Returns
    -------
    C : ndarray (M, N)
    report : Report

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
    """
    check_options(product.plan, out, verify, progress)
    if timeout is not None:
        timeout = positive(timeout, "timeout")
    for text in product.plan.warnings:
        warnings.warn(text, CodedlaWarning, stacklevel=4)
    if 0 in product.plan.shape:
        return empty_product(product.plan, out, verify)
    whole = ProductRound(product, a, b, out=out, verify=verify, timeout=timeout, progress=progress)
    try:
        outcome = product.pool.run(whole.job)
    finally:
        whole.release()
    return whole.complete(outcome)


def empty_product(plan: Plan, out: Array | None, verify: str) -> tuple[Array, Report]:
    """Return a product without rows, columns or terms, which nobody need compute."""
    rows, _, cols = plan.shape
    report = new_report(plan)
    empty = np.zeros((rows, cols), plan.dtype) if out is None else out
    empty[...] = 0
    report.amplification, report.error_estimate = 1.0, 0.0
    report.verified = "off" if verify == "auto" else verify
    return empty, report


class ProductRound:
    """One round whose decoded blocks are a product, or a panel of one.

    Parameters
    ----------
    product : Product
    a, b : Checked
        Not empty.
    out, verify, timeout, progress
        As in :func:`codedla.matmul`, and checked.
    lent : bool
        ``out`` is the caller's: what still arrives when the round is over must not end up there.
        If it is not, nothing is copied, and :meth:`complete` may have to return other memory.

    Attributes
    ----------
    job : Round
        What a pool runs.

    Raises
    ------
    UsageError, VerificationFailed
        The operands cannot be checked as asked.
    """

    def __init__(
        self,
        product: Product,
        a: Checked,
        b: Checked,
        *,
        out: Array | None,
        verify: str,
        timeout: float | None,
        progress: Progress | None,
        lent: bool = True,
    ) -> None:
        plan = product.plan
        self._plan, self._a, self._b, self._out, self._lent = plan, a, b, out, lent
        self._pool, self._shared, self._told = product.pool, product.shared, product.told
        self._checked_before = product.check is not None
        replies = reply_dtype(plan)
        buffer = _result_buffer(plan, replies, _apart(out, a, b))
        self._target = buffer
        self._mode = _verification(verify, product, a, b)
        checker = None
        if self._mode == "locate":
            shared = product.shared
            checker = ReplyCheck(plan, a, b) if shared is None else shared.of_replies(plan, a, b)
        self._spares = None
        if self._mode == "spares":
            self._spares = make_spare_decoder(plan, buffer, replies, a, b)
        decoder = make_decoder(plan.code, buffer, replies) if self._spares is None else self._spares
        decoder.threads = product.pool.threads
        self._passing: tuple[int, ...] = ()
        if plan.code.load > 1 and not product.keys_b:
            # Shares of one worker often have the same part of B: it is sent once.
            self._passing = resident_keys(plan.code, product.pool)
            product = replace(product, keys_b=self._passing)
        self.job = Round(
            shares=plan.code.shares,
            operands=_operands(product, a, b, replies),
            collector=Collector(
                plan.code,
                eps=machine_epsilon(plan.compute),
                tolerance=plan.tolerance,
                shares=plan.code.shares,
                workers=range(product.pool.n_workers),
                agree=None if self._spares is None else self._spares.agree,
                speculate=plan.speculate,
            ),
            decoder=decoder,
            timeout=timeout,
            progress=progress,
            # A memory map is as large as memory or larger: there, nothing is kept in between.
            borrowed=lent and buffer is out and not isinstance(out, np.memmap),
            check=product.check if checker is None else checker.check,
            prepare=None if checker is None else checker.prepare,
        )
        code = plan.code
        logger.info("plan: code %s, grid %s, needs %s", code.name, code.blocks, code.suffices)

    def release(self) -> None:
        """Let the workers forget what was kept for this round only."""
        if self._passing:
            self._pool.drop(sorted(set(self._passing)))

    def complete(self, outcome: Outcome) -> tuple[Array, Report]:
        """Return the product, checked, and its report, once the round is decoded.

        It is ``out``, unless that was not lent and a reply may go on arriving there.

        Raises
        ------
        VerificationFailed
            It does not pass the check.
        """
        plan, collector, decoder = self._plan, self.job.collector, self.job.decoder
        report = new_report(plan)
        if self._spares is not None:
            self._spares.judge(collector, outcome)
        logger.info("decoded from ranks %s", [w + 1 for w in collector.responders])
        if collector.waited_for_accuracy:
            logger.info("waited for %d more to keep the tolerance", collector.waited_for_accuracy)
        complete_report(report, plan, collector, outcome)
        a, b, mode = self._a, self._b, self._mode
        _judge(report, plan, collector, a, b, decoder.output, mode, self._shared)
        # Last, because ``out`` may overlap an operand, and then a check would read the product.
        apart = not self._lent and self._target is self._out and decoder.output is not self._out
        result = _settle(plan, decoder, None if apart else self._out)
        if self._checked_before:
            report.verified = "locate"
        tell_losses(report, outcome, self._told)
        return result, report


def check_options(plan: Plan, out: Any, verify: str, progress: Progress | None) -> None:
    """Raise UsageError unless the options of a product are what they must be."""
    check_choice(verify, "verify", VERIFY)
    check_progress(progress)
    if out is None:
        return
    rows, _, cols = plan.shape
    plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    if not plain or out.shape != (rows, cols) or out.dtype != plan.dtype:
        got = (
            f"{getattr(out, 'dtype', '')} {type(out).__name__} {getattr(out, 'shape', '')}".strip()
        )
        raise UsageError(f"out must be a {plan.dtype} array of shape {(rows, cols)}; got {got}")
    if not out.flags.writeable:
        raise UsageError("out must be writeable; got a read-only array")


def _verification(verify: str, product: Product, a: Checked, b: Checked) -> str:
    """Return what is checked: "off", "freivalds", "locate" or "spares"."""
    if verify == "auto":
        cheap = worthwhile(product.plan, a, b, product.pool.overhead)
        return "locate" if cheap else "off"
    if verify == "spares":
        check_spares(product.plan)
    elif verify == "freivalds":
        reason = unverifiable(product.plan, a, b)
        if reason:
            raise VerificationFailed(reason)
    return verify


def reply_dtype(plan: Plan) -> np.dtype:
    """Return the dtype of replies: resident shares may meet a wider vector."""
    if plan.dtype.kind not in "fc":
        return plan.compute
    return np.result_type(plan.compute, compute_dtype(plan.dtype))


def _apart(out: Array | None, *operands: Checked) -> Array | None:
    """Return ``out`` unless it overlaps an operand, of which blocks are still to be read."""
    arrays = [array for operand in operands for array in operand.arrays]
    if out is None or any(np.may_share_memory(out, array) for array in arrays):
        return None
    return out


def _result_buffer(plan: Plan, replies: np.dtype, out: Array | None) -> Array:
    """Return the matrix that is decoded into: ``out`` itself where that is possible."""
    rows, _, cols = plan.shape
    real = replies.kind == "c" and plan.dtype.kind != "c"
    dtype = np.empty(0, replies).real.dtype if real else replies
    if out is not None and out.dtype == dtype:
        return out
    return arithmetic.empty((rows, cols), dtype)


def _operands(
    product: Product, a: Checked, b: Checked, replies: np.dtype
) -> Callable[[int], tuple[Operand, Operand]]:
    """Return the function that gives each share's two operands, encoding them on demand."""
    code = product.plan.code
    grid = code.grid
    encoder_a = product.encoder_of_a(a.matrix)
    encoder_b = product.encoder_of_b(b.matrix, replies)
    coded = [share for share in code.shares if code.plain_block(share) is None]
    ahead_a = Ahead(encoder_a, coded, code.rows_a, lambda rows: len(rows) // code.stack[0])
    ahead_b = Ahead(encoder_b, coded, code.rows_b, lambda rows: code.stack[2])
    encoder_a.threads = encoder_b.threads = product.pool.threads
    encoder_a.meanwhile = encoder_b.meanwhile = product.pool.meanwhile

    def operands(share: int) -> tuple[Operand, Operand]:
        block = code.plain_block(share)

        def share_a() -> Any:
            if block is not None:
                return encoder_a.plain(block // grid.n)
            return ahead_a.take(share)

        def share_b() -> Any:
            if block is not None:
                return encoder_b.plain(block % grid.n)
            rows = code.rows_b(share)
            if rows.size == 1 and rows[0, 0] == 1:
                return encoder_b.plain(0)
            return ahead_b.take(share)

        key_a, key_b = product.keys_of(share)
        return Operand(key_a, share_a), Operand(key_b, share_b)

    return operands


def _settle(plan: Plan, decoder: Decoder, out: Array | None) -> Array:
    """Bring the decoded matrix to the result's dtype: integers are rounded, halves are narrowed."""
    decoded = decoder.output
    if decoded.dtype == plan.dtype:
        if out is not None and out is not decoded:
            out[...] = decoded
        return decoded if out is None else out
    result = np.empty(decoded.shape, plan.dtype) if out is None else out
    # By rows, so that no second matrix of full size appears.
    for row, target in zip(decoded, result, strict=True):
        if plan.dtype.kind == "b":
            target[...] = np.rint(row) != 0
        elif plan.dtype.kind in "iu":
            # Through int64, so that narrow types wrap around exactly as NumPy's product does.
            whole = row if row.dtype.kind in "iu" else np.rint(row).astype(np.int64)
            target[...] = whole.astype(plan.dtype)
        else:
            with np.errstate(over="ignore"):
                target[...] = row.astype(plan.dtype)
    return result


def _judge(
    report: Report,
    plan: Plan,
    collector: Collector,
    a: Checked,
    b: Checked,
    decoded: Array,
    verify: str,
    shared: SharedCheck | None,
) -> None:
    """Estimate the error of the product and, on request, check it."""
    eps = machine_epsilon(plan.compute)
    alpha, inexact = 1.0, plan.code.method_error
    if eps:
        known = collector.alpha
        alpha = plan.code.amplification(collector.responders) if known is None else known
    report.amplification = alpha
    exact = plan.dtype.kind in "iub"
    if alpha * eps > plan.tolerance:
        tell_miss(report, plan, alpha * eps)
    if exact:
        report.error_estimate = 0.0
    elif a.facts.finite and b.facts.finite:
        norm = scan(decoded).norm
        scale = a.facts.norm * b.facts.norm / norm if norm else 1.0
        estimate = error_estimate(alpha, eps, max(scale, 1.0)) + inexact * max(scale, 1.0)
        report.error_estimate = estimate if np.isfinite(estimate) else None
        if _recovered(plan, collector):
            _warn_of_scales(report, plan, alpha * eps, a.row_spread * b.column_spread)
    if verify == "spares":
        report.verified = verify
    elif verify != "off":
        eps = eps or float(np.finfo(np.float64).eps)
        # What an approximate code leaves out is no worker's fault.
        lost = plan.code.lost_bits if isinstance(plan.code, WrapCode) else 0
        alpha += inexact / eps
        verify_product(a, b, decoded, alpha=alpha, eps=eps, lost_bits=lost, shared=shared)
        report.verified = verify


def _recovered(plan: Plan, collector: Collector) -> bool:
    """Tell whether any block of the product was decoded rather than received as it is."""
    plain = {plan.code.plain_block(share) for share in collector.responders} - {None}
    return len(plain) < plan.grid.outputs


def _warn_of_scales(report: Report, plan: Plan, error: float, spread: float) -> None:
    """Say when recovered rows or columns may be wrong relative to their own, far smaller size."""
    reached = error * spread
    if spread > USUAL_SPREAD and reached > plan.tolerance:
        text = (
            "rows of A or columns of B differ so much in size that recovered small ones may err "
            f"by {min(reached, 1.0):.0e} relative to themselves (the error estimate is relative "
            "to the whole product); scale them, or use code='replication'"
        )
        report.warnings.append(text)
        warnings.warn(text, CodedlaWarning, stacklevel=5)
