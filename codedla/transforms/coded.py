"""What the coded transforms share: which codes they can use, one round, and its report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.base import Code
from codedla.codes.exact import ExactCode
from codedla.engine.arguments import check_choice, check_pool, check_progress, positive
from codedla.engine.choose import default_tolerate
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.encoder import DenseEncoder
from codedla.engine.plan import Plan, machine_epsilon
from codedla.engine.report import Report
from codedla.engine.round import Check, Operand, Pool, Progress, Round
from codedla.errors import CodedlaWarning, UsageError
from codedla.linalg.reporting import complete_report, new_report, tell_losses, tell_miss

__all__ = [
    "VERIFY",
    "Pieces",
    "check_options",
    "first_plan",
    "losses_to_try",
    "run_transform",
]

Array = NDArray[Any]

VERIFY = ("off", "freivalds", "locate")


class Pieces:
    """An operand in equal pieces, of which shares are combinations.

    Parameters
    ----------
    pieces : ndarray (count * rows, length)
        One piece below the other, each of ``rows`` rows; C order.
    count : int
    weights : callable
        ``weights(share)`` returns the combinations that make up a share, (stacked, count).
    """

    def __init__(self, pieces: Array, count: int, weights: Callable[[int], Array]) -> None:
        self._encoder = DenseEncoder(
            pieces, Split(pieces.shape[0], count), Split(pieces.shape[1], 1), pieces.dtype
        )
        self._weights = weights

    def operand(self, share: int) -> Operand:
        """Return a share's part, which is encoded when it is sent."""
        rows = self._weights(share)

        def supply() -> Any:
            used = np.flatnonzero(rows[0])
            if len(rows) == 1 and used.size == 1 and rows[0, used[0]] == 1:
                return self._encoder.plain(int(used[0]))
            return self._encoder.coded(rows)

        return Operand(0, supply)


def check_options(pool: Any, verify: Any, progress: Any) -> None:
    """Raise UsageError unless these options of a transform are what they must be."""
    check_pool(pool)
    check_choice(verify, "verify of a transform", VERIFY)
    check_progress(progress)


def losses_to_try(tolerate: int | None, n_workers: int) -> list[int]:
    """Return how many losses a code should tolerate, or the usual number and what is below."""
    return list(range(default_tolerate(n_workers), -1, -1)) if tolerate is None else [tolerate]


def first_plan(
    attempts: Iterable[Callable[[], Plan]], unusable: Callable[[Code], str], *, named: bool
) -> Plan:
    """Return the first plan that can be made and used.

    Parameters
    ----------
    attempts : iterable of callable
        Each makes a plan, or raises UsageError.
    unusable : callable
        Tells why a code cannot be used, or returns an empty string.
    named : bool
        All attempts are with the code that the caller named, the most modest last.

    Raises
    ------
    UsageError
        None can; why the last could not if the code was named, else the first.
    """
    refused: UsageError | None = None
    for attempt in attempts:
        try:
            plan = attempt()
            reason = not_linear(plan.code) or unusable(plan.code)
            if not reason:
                return plan
            raise UsageError(reason)
        except UsageError as error:
            refused = error if named else refused or error
    raise refused or UsageError("no number of pieces fits the workers; use more ranks")


def not_linear(code: Code) -> str:
    """Return why a code cannot combine pieces of real or complex numbers, or an empty string."""
    inexact = not isinstance(code, ExactCode) and code.field in ("real", "complex")
    whole = code.generator_a.shape[1] == code.grid.m and code.generator_b.shape[1] == code.grid.n
    if inexact and whole and code.grid.p == 1 and not code.approximate:
        return ""
    return (
        "a transform is coded by combining whole pieces of real or complex numbers; got code "
        f"{code.name!r}, which does something else; use code='auto', 'mds' or 'khatri-rao'"
    )


def too_inaccurate(plan: Plan) -> bool:
    """Tell whether the worst survivor set misses the tolerance, where that can be."""
    if plan.code.only_plain or plan.tolerates < 3:
        return False
    return plan.worst_amplification * machine_epsilon(plan.compute) > plan.tolerance


def run_transform(
    plan: Plan,
    pool: Pool,
    *,
    work: str,
    operands: Callable[[int], tuple[Operand, ...]],
    output: Array,
    replies: np.dtype,
    shapes: dict[str, list[int]],
    check: Check | None,
    timeout: float | None,
    progress: Progress | None,
) -> tuple[Array, Report]:
    """Run the round of a transform.

    Parameters
    ----------
    plan : Plan
        Its ``operation`` names the transform.
    pool : Pool
    work : str
        What workers do.
    operands : callable
        As in :class:`codedla.engine.round.Round`.
    output : ndarray
        Receives the decoded blocks.
    replies : numpy.dtype
    shapes : dict
        What the report says of them.
    check, timeout, progress
        As in :class:`codedla.engine.round.Round`.

    Returns
    -------
    decoded : ndarray
    report : Report
        Without error estimate.
    """
    if timeout is not None:
        timeout = positive(timeout, "timeout")
    for text in plan.warnings:
        warnings.warn(text, CodedlaWarning, stacklevel=4)
    eps = machine_epsilon(plan.compute)
    decoder = make_decoder(plan.code, output, replies)
    collector = Collector(
        plan.code,
        eps=eps,
        tolerance=plan.tolerance,
        shares=plan.code.shares,
        workers=range(pool.n_workers),
    )
    job = Round(
        shares=plan.code.shares,
        operands=operands,
        collector=collector,
        decoder=decoder,
        timeout=timeout,
        progress=progress,
        check=check,
        work=work,
    )
    outcome = pool.run(job)
    report = new_report(plan)
    report.shapes = shapes
    complete_report(report, plan, collector, outcome)
    known = collector.alpha
    alpha = plan.code.amplification(collector.responders) if known is None else known
    report.amplification = alpha if eps else 1.0
    if eps and alpha * eps > plan.tolerance:
        tell_miss(report, plan, alpha * eps)
    tell_losses(report, outcome)
    return decoder.output, report


def divisors(number: int, most: int) -> Iterator[int]:
    """Yield the divisors of a number up to ``most``, the largest first."""
    return (d for d in range(min(number, most), 0, -1) if number % d == 0)
