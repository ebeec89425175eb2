"""Reports as a time line: which rank did what when, for trace viewers and for pictures.

A product in several panels is several rounds, each with its own report; the reports' clocks
(``began``) put them one after the other on one axis. Things that one rank does at the same time,
such as sending to several workers, are put into separate rows of its lane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codedla.engine.report import Report
from codedla.engine.round import Span

__all__ = ["MARKS", "Bar", "Mark", "Panel", "Timeline", "lay_out", "trace_document"]

MARKS = ("lost", "redispatched")
"""Kinds of spans that are no work. Without any length they are something that happened."""


@dataclass(frozen=True)
class Bar:
    """A span at its place: seconds from the start of the time line, rank, row within the lane."""

    rank: int
    row: int
    start: float
    end: float
    kind: str
    share: int
    note: str
    panel: int


@dataclass(frozen=True)
class Mark:
    """Something that happened at one moment to one rank."""

    rank: int
    at: float
    kind: str
    note: str
    panel: int


@dataclass(frozen=True)
class Panel:
    """One report's stretch of the time line; ``enough`` is when its replies sufficed."""

    start: float
    end: float
    enough: float | None
    report: Report


@dataclass
class Timeline:
    """Everything that a viewer draws.

    Parameters
    ----------
    n_ranks : int
        Lanes, the master's included.
    panels : list of Panel
        One per report, in the order in which they began.
    bars : list of Bar
        In the order of their starts. No two of one rank and row overlap.
    marks : list of Mark
        In the order of their moments.
    """

    n_ranks: int
    panels: list[Panel] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def end(self) -> float:
        """Seconds from the first to the last thing on the time line."""
        ends = [panel.end for panel in self.panels]
        ends += [bar.end for bar in self.bars] + [mark.at for mark in self.marks]
        return max(ends, default=0.0)

    def rows(self) -> list[int]:
        """Return for every rank how many rows its bars need, at least one."""
        needed = [1] * self.n_ranks
        for bar in self.bars:
            needed[bar.rank] = max(needed[bar.rank], bar.row + 1)
        return needed


def lay_out(reports: Report | Sequence[Report]) -> Timeline:
    """Put the spans and events of one or several reports on one time line.

    Parameters
    ----------
    reports : Report or sequence of Report
        Of one process: their clocks are compared.

    Returns
    -------
    Timeline
    """
    ordered = sorted([reports] if isinstance(reports, Report) else reports, key=_began)
    workers = [report.n_workers for report in ordered]
    for report in ordered:
        workers += [span.worker + 1 for span in report.spans]
        workers += [event.worker + 1 for event in report.events]
    line = Timeline(n_ranks=1 + max(workers, default=0))
    # A clock that was aligned may put the first span a little before the start of its round.
    starts = [_began(r) + min([0.0, *map(_start, r.spans)]) for r in ordered]
    origin = min(starts, default=0.0)
    loose: list[tuple[float, float, Span, int]] = []
    for index, report in enumerate(ordered):
        shift = _began(report) - origin
        total = report.times.get("total", 0.0)
        moments = [m for span in report.spans for m in (span.start, span.end)]
        last = max([total, *filter(math.isfinite, moments)])
        enough = None
        if "total" in report.times and "after_threshold" in report.times:
            enough = shift + total - report.times["after_threshold"]
        line.panels.append(Panel(shift, shift + last, enough, report))
        for span in report.spans:
            start = shift + _start(span)
            end = shift + (span.end if math.isfinite(span.end) else last)
            loose.append((start, max(start, end), span, index))
        line.marks += _marks(report, shift, last, index)
    line.bars = list(_in_rows(loose))
    line.marks.sort(key=lambda mark: (mark.at, mark.rank))
    return line


def trace_document(
    reports: Report | Sequence[Report], hosts: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Return reports as a document in Chrome's trace event format (Perfetto, chrome://tracing).

    Parameters
    ----------
    reports : Report or sequence of Report
        Of one process, with spans; panels of one product follow each other.
    hosts : mapping of int to str, optional
        Host names by rank, shown beside the ranks.

    Returns
    -------
    dict
        JSON-ready. One "process" per rank (its pid is the rank), one "thread" per row.

    Examples
    --------
    >>> from codedla.engine.report import Report
    >>> from codedla.engine.round import Span
    >>> spans = [Span(-1, "send", 0.0, 0.001, share=0), Span(0, "compute", 0.001, 0.5, share=0)]
    >>> report = Report("matmul", "uncoded", 1, 1, {}, "float64", spans=spans)
    >>> [e["name"] for e in trace_document(report)["traceEvents"] if e["ph"] == "X"]
    ['matmul', 'send', 'compute']
    """
    line = lay_out(reports)
    events = list(_metadata(line, hosts or {}))
    timed = [*_rounds(line), *map(_complete, line.bars), *map(_instant, line.marks)]
    timed.sort(key=lambda event: int(event["ts"]))
    first = line.panels[0].report if line.panels else None
    about = {"program": "codedla", "panels": len(line.panels)}
    if first is not None:
        about |= {"operation": first.operation, "code": first.code, "grid": first.grid}
    return {"traceEvents": events + timed, "displayTimeUnit": "ms", "otherData": about}


def _began(report: Report) -> float:
    return report.began if math.isfinite(report.began) else 0.0


def _start(span: Span) -> float:
    return span.start if math.isfinite(span.start) else 0.0


def _marks(report: Report, shift: float, last: float, panel: int) -> Iterator[Mark]:
    """Yield what happened in one round: its events, and the spans that say what they do not."""
    told = set()
    for event in report.events:
        told.add((event.kind, event.worker))
        at = shift + (event.seconds if math.isfinite(event.seconds) else last)
        yield Mark(event.worker + 1, at, event.kind, event.note, panel)
    for span in report.spans:
        moment = span.kind in MARKS and span.start == span.end
        if moment and (span.kind, span.worker) not in told:
            yield Mark(span.worker + 1, shift + _start(span), span.kind, span.note, panel)


def _in_rows(loose: list[tuple[float, float, Span, int]]) -> Iterator[Bar]:
    """Give each span the first row of its rank that is free when it starts."""
    free: dict[int, list[float]] = {}
    for start, end, span, panel in sorted(loose, key=lambda entry: (entry[0], -entry[1])):
        if span.kind in MARKS and end == start:
            continue  # a mark, not a bar
        rank = span.worker + 1
        rows = free.setdefault(rank, [])
        row = next((i for i, until in enumerate(rows) if until <= start), len(rows))
        if row == len(rows):
            rows.append(end)
        else:
            rows[row] = end
        yield Bar(rank, row, start, end, span.kind, int(span.share), span.note, panel)


# Whole microseconds, rounded at both ends: what does not overlap in seconds does not overlap here.
def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


#: Row 0 of the master's lane is for the rounds as a whole.
_FIRST_ROW = 1


def _metadata(line: Timeline, hosts: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the names of lanes and rows and their order."""
    for rank, rows in enumerate(line.rows()):
        name = "rank 0, master" if rank == 0 else f"rank {rank}"
        if rank in hosts:
            name += f" on {hosts[rank]}"
        yield _named("process_name", rank, 0, {"name": name})
        yield _named("process_sort_index", rank, 0, {"sort_index": rank})
        titles = {0: "rounds"} if rank == 0 and line.panels else {}
        for row in range(rows):
            titles[_FIRST_ROW + row] = "work" if row == 0 else f"at the same time, {row + 1}"
        for row, title in titles.items():
            yield _named("thread_name", rank, row, {"name": title})
            yield _named("thread_sort_index", rank, row, {"sort_index": row})


def _named(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _rounds(line: Timeline) -> Iterator[dict[str, Any]]:
    """Yield each round as a whole, cut where the next begins, and when its replies sufficed."""
    for index, panel in enumerate(line.panels):
        following = line.panels[index + 1].start if index + 1 < len(line.panels) else math.inf
        start, end = _micro(panel.start), _micro(min(panel.end, following))
        report = panel.report
        yield {
            "name": report.operation,
            "cat": "round",
            "ph": "X",
            "ts": start,
            "dur": end - start,
            "pid": 0,
            "tid": 0,
            "args": {"panel": index + 1, "code": report.code, "grid": report.grid},
        }
        if panel.enough is not None:
            yield {
                "name": "replies suffice",
                "cat": "event",
                "ph": "i",
                "s": "g",  # across all lanes
                "ts": _micro(panel.enough),
                "pid": 0,
                "tid": 0,
                "args": {"panel": index + 1, "needs": report.suffices},
            }


def _complete(bar: Bar) -> dict[str, Any]:
    args: dict[str, Any] = {"panel": bar.panel + 1}
    if bar.share >= 0:
        args["share"] = bar.share
    if bar.note:
        args["note"] = bar.note
    start = _micro(bar.start)
    return {
        "name": bar.kind,
        "cat": "span",
        "ph": "X",
        "ts": start,
        "dur": _micro(bar.end) - start,
        "pid": bar.rank,
        "tid": _FIRST_ROW + bar.row,
        "args": args,
    }


def _instant(mark: Mark) -> dict[str, Any]:
    args: dict[str, Any] = {"panel": mark.panel + 1}
    if mark.note:
        args["note"] = mark.note
    return {
        "name": mark.kind,
        "cat": "event",
        "ph": "i",
        "s": "p",  # across the rank's rows
        "ts": _micro(mark.at),
        "pid": mark.rank,
        "tid": _FIRST_ROW,
        "args": args,
    }
