"""Reports become a time line, and a document that trace viewers accept."""

from __future__ import annotations

import itertools
import json
import math

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla.engine.report import Report
from codedla.engine.round import Event, Span
from codedla.engine.timeline import MARKS, lay_out, trace_document

COUNT = {"type": "integer", "minimum": 0}
NAME = {"type": "string", "minLength": 1}
PANEL = {"type": "integer", "minimum": 1}


def kind_of_event(ph, args, **properties):
    """Schema of one kind of trace event; nothing but what is named may be there."""
    known = {"ph": {"const": ph}, "name": NAME, "pid": COUNT, "tid": COUNT, "args": args}
    known |= properties
    return {
        "type": "object",
        "properties": known,
        "required": sorted(known),
        "additionalProperties": False,
    }


SPAN_ARGS = {
    "type": "object",
    "properties": {"panel": PANEL, "share": COUNT, "note": NAME},
    "required": ["panel"],
    "additionalProperties": False,
}
# Chrome's "Trace Event Format": M names lanes, X has a duration, i is one moment.
SCHEMA = {
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    kind_of_event(
                        "M",
                        {
                            "oneOf": [
                                {"required": ["name"], "properties": {"name": NAME}},
                                {"required": ["sort_index"], "properties": {"sort_index": COUNT}},
                            ]
                        },
                        name={"pattern": "^(process|thread)_(name|sort_index)$"},
                    ),
                    kind_of_event("X", SPAN_ARGS, cat={"const": "span"}, ts=COUNT, dur=COUNT),
                    kind_of_event(
                        "X", {"required": ["panel"]}, cat={"const": "round"}, ts=COUNT, dur=COUNT
                    ),
                    kind_of_event(
                        "i",
                        {"required": ["panel"]},
                        cat={"const": "event"},
                        ts=COUNT,
                        s={"enum": ["g", "p", "t"]},
                    ),
                ]
            },
        },
    },
    "required": ["displayTimeUnit", "otherData", "traceEvents"],
    "additionalProperties": False,
}
jsonschema.Draft202012Validator.check_schema(SCHEMA)


def report(spans=(), events=(), n_workers=3, began=0.0, **more):
    return Report(
        "matmul",
        "polynomial",
        n_workers,
        2,
        {},
        "float64",
        grid="2x1x1",
        suffices="any 2 of 3 workers",
        spans=list(spans),
        events=list(events),
        began=began,
        **more,
    )


def document(reports, hosts=None):
    """Return the document as a viewer reads it, checked against the schema."""
    data = json.loads(json.dumps(trace_document(reports, hosts), allow_nan=False))
    jsonschema.validate(data, SCHEMA)
    return data


def of(data, ph, cat=None):
    return [e for e in data["traceEvents"] if e["ph"] == ph and cat in (None, e.get("cat"))]


def test_spans_of_one_round():
    spans = [
        Span(-1, "encode", 0.0, 0.002, 1),
        Span(-1, "send", 0.002, 0.003, 1),
        Span(1, "compute", 0.004, 1.5, 1, "panel 1"),
        Span(-1, "decode", 1.5, 1.75),
    ]
    data = document(report(spans))
    found = [(e["pid"], e["name"], e["ts"], e["dur"], e["args"]) for e in of(data, "X", "span")]
    assert found == [
        (0, "encode", 0, 2000, {"panel": 1, "share": 1}),
        (0, "send", 2000, 1000, {"panel": 1, "share": 1}),
        (2, "compute", 4000, 1_496_000, {"panel": 1, "share": 1, "note": "panel 1"}),
        (0, "decode", 1_500_000, 250_000, {"panel": 1}),
    ]
    assert data["otherData"]["code"] == "polynomial"


def test_every_rank_has_a_lane_in_its_order():
    data = document(report(n_workers=12), hosts={0: "login", 11: "node7"})
    names = {e["pid"]: e["args"]["name"] for e in of(data, "M") if e["name"] == "process_name"}
    order = {
        e["pid"]: e["args"]["sort_index"]
        for e in of(data, "M")
        if e["name"] == "process_sort_index"
    }
    assert list(names) == list(range(13)) == sorted(order, key=order.get)
    assert names[0] == "rank 0, master on login"
    assert (names[10], names[11]) == ("rank 10", "rank 11 on node7")
    threads = [e for e in of(data, "M") if e["name"] == "thread_name" and e["pid"] == 0]
    assert [e["args"]["name"] for e in threads] == ["rounds", "work"]


def test_what_happens_at_the_same_time_is_in_rows():
    spans = [
        Span(-1, "send", 0.0, 3.0, 0),
        Span(-1, "send", 1.0, 2.0, 1),
        Span(-1, "send", 2.0, 4.0, 2),
        Span(0, "compute", 0.0, 9.0, 0),
        Span(-1, "fold", 3.0, 5.0, 1),
    ]
    line = lay_out(report(spans))
    assert [(b.rank, b.row, b.share) for b in line.bars] == [
        (1, 0, 0),
        (0, 0, 0),
        (0, 1, 1),
        (0, 1, 2),
        (0, 0, 1),
    ]
    assert line.rows() == [2, 1, 1, 1]
    data = document(report(spans))
    titles = [
        e["args"]["name"] for e in of(data, "M") if e["name"] == "thread_name" and e["pid"] == 0
    ]
    assert titles == ["rounds", "work", "at the same time, 2"]


def test_panels_follow_each_other_by_their_clocks():
    """Handed over in any order, on a clock that does not start at zero."""
    times = {"total": 2.0, "after_threshold": 0.5}
    first = report([Span(0, "compute", 0.5, 1.0, 0)], began=1000.0, times=times)
    second = report([Span(0, "compute", 0.25, 1.0, 0)], began=1003.0, times=times)
    line = lay_out([second, first])
    assert [(b.start, b.end, b.panel) for b in line.bars] == [(0.5, 1.0, 0), (3.25, 4.0, 1)]
    assert [(p.start, p.end, p.enough) for p in line.panels] == [(0.0, 2.0, 1.5), (3.0, 5.0, 4.5)]
    assert line.end == 5.0
    data = document([second, first])
    rounds = [(e["ts"], e["dur"], e["args"]["panel"]) for e in of(data, "X", "round")]
    assert rounds == [(0, 2_000_000, 1), (3_000_000, 2_000_000, 2)]
    suffice = [e for e in of(data, "i") if e["name"] == "replies suffice"]
    assert [(e["ts"], e["s"]) for e in suffice] == [(1_500_000, "g"), (4_500_000, "g")]
    assert suffice[0]["args"]["needs"] == "any 2 of 3 workers"


def test_a_straggler_may_compute_on_into_the_next_panel():
    first = report([Span(2, "compute", 0.0, 9.0, 2)], began=5.0, times={"total": 1.0})
    second = report([Span(2, "compute", 0.5, 1.0, 2)], began=6.0, times={"total": 1.0})
    line = lay_out([first, second])
    assert [(b.row, b.start, b.end) for b in line.bars] == [(0, 0.0, 9.0), (1, 1.5, 2.0)]
    # The rounds themselves never overlap, or a viewer would nest them.
    rounds = of(document([first, second]), "X", "round")
    assert rounds[0]["ts"] + rounds[0]["dur"] == rounds[1]["ts"]


def test_events_are_marks():
    events = [
        Event(0.25, "reply", 0),
        Event(0.5, "lost", 1, "killed"),
        Event(0.75, "deadline", -1),
        Event(1.0, "redispatched", 1, "instead of rank 3"),
    ]
    data = document(report(events=events))
    assert [(e["ts"], e["name"], e["pid"], e["args"].get("note")) for e in of(data, "i")] == [
        (250_000, "reply", 1, None),
        (500_000, "lost", 2, "killed"),
        (750_000, "deadline", 0, None),
        (1_000_000, "redispatched", 2, "instead of rank 3"),
    ]


def test_losses_are_marked_once_whether_told_by_event_or_span():
    spans = [
        Span(0, "lost", 0.5, 0.5),
        Span(1, "lost", 0.25, 2.25, 1),
        Span(2, "redispatched", 1.0, 1.0, 2, "for rank 1"),
    ]
    line = lay_out(report(spans, [Event(0.5, "lost", 0, "killed")]))
    marks = [(m.at, m.kind, m.rank, m.note) for m in line.marks]
    assert marks == [
        (0.5, "lost", 1, "killed"),
        (1.0, "redispatched", 3, "for rank 1"),
    ]
    # What took time is a bar: a rank that gives no answer need not be lost.
    assert [(b.kind, b.rank, b.end) for b in line.bars] == [("lost", 2, 2.25)]


def test_clocks_that_disagree_a_little():
    """A worker's first span may come out before the round's start, or end before it starts."""
    early = Span(0, "receive", -0.25, 0.5, 0)
    reversed_ = Span(1, "reply", 0.75, 0.5, 1)
    data = document(report([early, reversed_]))
    assert [(e["ts"], e["dur"]) for e in of(data, "X", "span")] == [(0, 750_000), (1_000_000, 0)]


def test_what_never_ends_ends_with_the_round():
    never = Span(0, "compute", 0.5, math.inf, 0)
    nowhere = Span(1, "lost", math.nan, math.inf, 1)
    events = [Event(math.inf, "lost", 0)]
    data = document(report([never, nowhere], events, times={"total": 2.0}))
    assert [(e["pid"], e["ts"], e["dur"]) for e in of(data, "X", "span")] == [
        (2, 0, 2_000_000),
        (1, 500_000, 1_500_000),
    ]
    assert [e["ts"] for e in of(data, "i") if e["pid"] == 1] == [2_000_000]


@pytest.mark.parametrize("began", [math.nan, math.inf])
def test_a_pool_without_a_clock(began):
    assert of(document(report([Span(0, "compute", 0, 1)], began=began)), "X", "span")[0]["ts"] == 0


def test_nothing_to_show():
    data = document([])
    assert of(data, "X") == of(data, "i") == []
    assert lay_out([]).end == 0.0


def test_a_worker_beyond_the_reports_number_has_a_lane():
    assert lay_out(report([Span(6, "compute", 0, 1)], n_workers=2)).n_ranks == 8
    assert lay_out(report(events=[Event(0, "lost", 4)], n_workers=2)).n_ranks == 6


MOMENT = st.floats(-0.01, 50.0, allow_nan=False)
KINDS = ["encode", "send", "receive", "compute", "reply", "check", "fold", "decode", *MARKS]


@st.composite
def any_span(draw):
    start = draw(MOMENT)
    length = draw(st.sampled_from([0.0, 1e-7, 1e-3]) | st.floats(0.0, 5.0))
    worker, share = draw(st.integers(-1, 5)), draw(st.integers(-1, 5))
    return Span(worker, draw(st.sampled_from(KINDS)), start, start + length, share)


@st.composite
def any_reports(draw):
    """Draw up to three reports with random spans and events."""
    reports = []
    for _ in range(draw(st.integers(0, 3))):
        spans = draw(st.lists(any_span(), max_size=25))
        kinds = st.sampled_from(["reply", "lost", "silent", "back", "redispatched"])
        events = draw(
            st.lists(st.builds(Event, MOMENT.map(abs), kinds, st.integers(-1, 5)), max_size=5)
        )
        total = draw(st.floats(0.0, 60.0))
        times = {"total": total, "after_threshold": draw(st.floats(0.0, total))}
        began = draw(st.floats(0.0, 1e6))
        reports.append(report(spans, events, n_workers=6, began=began, times=times))
    return reports


@settings(max_examples=150, deadline=None)
@given(any_reports())
def test_random_spans(reports):
    data = document(reports)
    spans = of(data, "X", "span")
    wanted = [
        (span.worker + 1, span.kind) for r in reports for span in r.spans if span.kind not in MARKS
    ]
    assert sorted((e["pid"], e["name"]) for e in spans if e["name"] not in MARKS) == sorted(wanted)
    timed = [e["ts"] for e in data["traceEvents"] if e["ph"] != "M"]
    assert timed == sorted(timed)
    assert len(of(data, "i")) >= sum(len(r.events) for r in reports) + len(reports)
    rows = {}
    for e in of(data, "X"):
        rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for row in rows.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(row)), row
    named = {(e["pid"], e["tid"]) for e in of(data, "M") if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in data["traceEvents"]} - {(e, 0) for e in range(8)} <= named


@settings(max_examples=100, deadline=None)
@given(any_reports(), st.integers(0, 3))
def test_the_order_of_reports_does_not_matter(reports, turn):
    turned = reports[turn:] + reports[:turn]
    if len({r.began for r in reports}) == len(reports):
        assert trace_document(turned) == trace_document(reports)
