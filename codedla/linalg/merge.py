"""Several rounds as one operation: their reports, and their progress."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Progress
from codedla.linalg.reporting import new_report

__all__ = ["merge_reports", "shifted", "time_left"]

_SOON = 1e-9
"""Seconds in which nobody answers."""


def merge_reports(
    plan: Plan, shape: int | tuple[int, int], reports: Sequence[Report], panels: dict[str, int]
) -> Report:
    """Return one report of a product in several rounds: panels, or one for each prime.

    Parameters
    ----------
    plan : Plan
        Of a panel, or of the whole product.
    shape : int or (int, int)
        Rows of the whole product, or rows and columns where the plan is of fewer.
    reports : sequence of Report
        Of the rounds run now, in order; may be empty.
    panels : dict of str to int
        "total", "resumed" and "computed"; empty unless there are panels.

    Returns
    -------
    Report
        Times and bytes are sums, ranks unions, errors and amplifications the worst. Of rounds that
        overlap, ``total`` and ``wait`` count once, and ``after_threshold`` are the seconds after
        the last needed reply of all.
    """
    _, inner, width = plan.shape
    rows, cols = (shape, width) if isinstance(shape, int) else shape
    merged = new_report(replace(plan, shape=(rows, inner, cols)))
    merged.panels = dict(panels)
    merged.warnings = _union(report.warnings for report in reports)
    merged.responders = _union(report.responders for report in reports)
    for name in ("stragglers", "redispatched", "wrong"):
        setattr(merged, name, sorted(_union(getattr(report, name) for report in reports)))
    first = min((report.began for report in reports), default=0.0)
    for report in reports:
        merged.lost.update(report.lost)
        for name, seconds in report.times.items():
            merged.times[name] = merged.times.get(name, 0.0) + seconds
        for name, count in report.bytes.items():
            merged.bytes[name] = merged.bytes.get(name, 0) + count
        later = report.began - first
        merged.events += [replace(e, seconds=e.seconds + later) for e in report.events]
        merged.spans += [replace(s, start=s.start + later, end=s.end + later) for s in report.spans]
    if reports:
        merged.began = first
        merged.times |= _times_together(reports, merged.times)
        merged.events.sort(key=lambda event: event.seconds)
        merged.amplification = _worst(report.amplification for report in reports)
        merged.error_estimate = _worst(report.error_estimate for report in reports)
        checks = {report.verified for report in reports}
        merged.verified = checks.pop() if len(checks) == 1 else "partly"
    return merged


def _union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """Return what is in any of the lists, once, in order of appearance."""
    return list(dict.fromkeys(item for items in lists for item in items))


def _times_together(reports: Sequence[Report], sums: dict[str, float]) -> dict[str, float]:
    """Return the times of which what happened at the same moment counts once."""
    total = _seconds_of_any(reports)
    if sums.get("total", 0.0) <= total * (1 + 1e-9):
        return {"total": total}
    ends = [report.began + report.times["total"] for report in reports]
    afters = [report.times["after_threshold"] for report in reports]
    after = max(ends) - max(end - late for end, late in zip(ends, afters, strict=True))
    wait = max(total - sums["encode"] - sums["send"] - after, 0.0)
    return {"total": total, "after_threshold": after, "wait": wait}


def _seconds_of_any(reports: Sequence[Report]) -> float:
    """Return for how long at least one of the rounds was under way."""
    seconds, end = 0.0, -math.inf
    for report in sorted(reports, key=lambda each: each.began):
        stop = report.began + report.times.get("total", 0.0)
        seconds += max(stop - max(end, report.began), 0.0)
        end = max(end, stop)
    return seconds


def _worst(values: Iterable[float | None]) -> float | None:
    """Return the largest value; None when one is unknown."""
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def shifted(progress: Progress | None, index: int, rounds: int) -> Progress | None:
    """Return what reports one round's progress as that of all rounds."""
    if progress is None:
        return None
    whole = progress

    def report(done: int, needed: int, total: int) -> None:
        whole(index * needed + min(done, needed), rounds * needed, rounds * total)

    return report


def time_left(timeout: float | None, reports: Sequence[Report]) -> float | None:
    """Return what the rounds so far have left of the time, on the pool's clock."""
    if timeout is None or not reports:
        return timeout
    passed = reports[-1].began - reports[0].began + reports[-1].times["total"]
    # A round that has no time left ends with the error that says so.
    return max(timeout - passed, _SOON)
