"""What is reported of a product, and what its caller is warned of."""

from __future__ import annotations

import warnings

from codedla.engine.collector import Collector
from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Outcome
from codedla.errors import CodedlaWarning, VerificationFailed

__all__ = ["complete_report", "new_report", "tell_losses", "tell_miss"]


def new_report(plan: Plan) -> Report:
    """Return the report of a product of which nothing is known yet but its plan."""
    rows, inner, cols = plan.shape
    return Report(
        operation=plan.operation,
        code=plan.code.name,
        grid=str(plan.code.blocks),
        reason=plan.reason,
        suffices=plan.code.suffices,
        n_workers=plan.pool_workers,
        threshold=plan.threshold,
        shapes={"A": [rows, inner], "B": [inner, cols], "C": [rows, cols]},
        dtype=str(plan.dtype),
        warnings=list(plan.warnings),
    )


def complete_report(report: Report, plan: Plan, collector: Collector, outcome: Outcome) -> None:
    """Take over into the report who did what, how long it took and what was moved."""
    # A worker may have computed several shares.
    by = collector.computed_by
    report.responders = list(dict.fromkeys(by[share] + 1 for share in collector.responders))
    report.stragglers = sorted(w + 1 for w in collector.stragglers)
    away = {**collector.lost_workers, **collector.silent_workers}
    report.lost = {w + 1: reason for w, reason in away.items()}
    report.wrong = sorted(w + 1 for w in collector.wrong)
    homes = {plan.code.home(share) for share in collector.redispatched}
    report.redispatched = sorted(home + 1 for home in homes)
    names = ("encode", "send", "wait", "decode", "after_threshold", "total")
    report.times = {name: getattr(outcome, name) for name in names}
    report.bytes = {"sent": outcome.sent, "received": outcome.received}
    report.events, report.spans, report.began = outcome.events, outcome.spans, outcome.began


def tell_losses(report: Report, outcome: Outcome, told: set[int] | None = None) -> None:
    """Put every lost rank under the report's warnings; warn of those that are new.

    Parameters
    ----------
    report : Report
    outcome : Outcome
        Of its round.
    told : set of int, optional
        Ranks of whose wrong answers was warned before; these are added.
    """
    before = set() if told is None else told
    for rank, reason in sorted(report.lost.items()):
        fate = "not used" if rank in report.wrong else "lost"
        text = f"rank {rank} was {fate} ({reason}); the product was completed all the same"
        report.warnings.append(text)
        if rank - 1 in outcome.lost or (rank in report.wrong and rank not in before):
            before.add(rank)
            warnings.warn(text, CodedlaWarning, stacklevel=5)


def tell_miss(report: Report, plan: Plan, reached: float) -> None:
    """Say that nobody was left to wait for and decoding is still less accurate than asked.

    Raises
    ------
    VerificationFailed
        Of integers, which could be rounded wrongly.
    """
    text = (
        f"decoding from these replies may err by {reached:.1e}, above the tolerance "
        f"{plan.tolerance:.1e}, and there were no more to wait for"
    )
    if plan.dtype.kind in "iub":
        raise VerificationFailed(
            f"integers could be rounded wrongly: {text}; use code='replication' or more workers"
        )
    report.warnings.append(text)
    warnings.warn(text, CodedlaWarning, stacklevel=5)
