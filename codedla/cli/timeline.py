"""What happened as files: a trace for viewers (``--trace``) and a picture (``--timeline``)."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from codedla.cli.files import H5_SPEC
from codedla.cli.output import check_text
from codedla.errors import UsageError
from codedla.writing import write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from codedla.engine.report import Report
    from codedla.engine.timeline import Timeline

__all__ = ["COLOURS", "check_outputs", "draw", "write_timeline", "write_trace"]

PICTURES = (".png", ".svg", ".pdf")

#: Okabe and Ito's colours, which readers with any kind of colour vision can tell apart; dark grey.
COLOURS = {
    "encode": "#E69F00",
    "send": "#56B4E9",
    "receive": "#0072B2",
    "compute": "#009E73",
    "reply": "#F0E442",
    "check": "#CC79A7",
    "fold": "#555555",
    "decode": "#D55E00",
}
_OTHER = "#DDDDDD"
#: Kinds of bars that are no work: hatched, and called so in the legend.
_HATCHED = {"lost": "lost or not answering", "redispatched": "until another rank took over"}
_FOREIGN = "a share of another rank"


class _Sign(NamedTuple):
    """How a mark is drawn and what the legend calls it."""

    marker: str
    fill: str
    label: str


_LOST = _Sign("X", "black", "lost")
_AGAIN = _Sign(">", "white", "takes over a share")
_SIGNS = {
    "lost": _LOST,
    "error": _Sign("P", "red", "exception"),
    "redispatched": _AGAIN,
    "speculated": _Sign(">", "black", "computes a late share, too"),
    "wrong": _Sign("D", "red", "wrong reply refused"),
    "silent": _Sign("o", "white", "no sign of life"),
    "back": _Sign("o", "black", "back again"),
    "deadline": _Sign("v", "red", "deadline passed"),
}

# Inches and lanes. Above _ALL lanes only some are drawn: more could not be told apart.
_WIDTH, _MARGIN, _LANE, _TALLEST = 11.0, 1.6, 0.28, 24.0
_ALL = 130
_DOTS = 120
#: Rows of one lane that make it taller; more are drawn thinner.
_TALL_ROWS = 4


# ---------------------------------------------------------------- before the run


def check_outputs(args: argparse.Namespace) -> None:
    """Make sure that ``--trace`` and ``--timeline`` will find their place, if they are given.

    Raises
    ------
    UsageError
        Wrong suffix, exists already, directory missing or not writable, another file of the run,
        or no matplotlib for a picture.
    """
    for option, value, suffixes in (
        ("--trace", args.trace, (".json",)),
        ("--timeline", args.timeline, PICTURES),
    ):
        if value is None:
            continue
        path = Path(value)
        if path.suffix.lower() not in suffixes:
            raise UsageError(
                f"{option} must end in {' or '.join(suffixes)}; got {value!r}; choose such a name"
            )
        check_text(path, force=args.force)
        for other, name in _others(args, option):
            if os.path.realpath(value) == os.path.realpath(name):
                raise UsageError(
                    f"{option} needs a file of its own; got {value}, which is also {other}; "
                    "choose another name"
                )
    if args.timeline is not None:
        _figure_class(args.timeline)


def _others(args: argparse.Namespace, option: str) -> Iterator[tuple[str, str]]:
    """Yield the other files of the run."""
    files = {
        "operand A": args.a,
        "the other operand": args.b,
        "the product": args.output,
        "--report": args.report,
        "--trace": args.trace,
        "--timeline": args.timeline,
    }
    for what, name in files.items():
        if name is not None and what != option:
            match = H5_SPEC.match(name)
            yield what, match["path"] if match else name


def _figure_class(spec: str) -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"the picture {spec} needs the package matplotlib; it is not installed; "
            "pip install 'codedla[plot]'"
        ) from error
    return Figure


# ---------------------------------------------------------------- after the run


def write_trace(
    path: Path, reports: Report | Sequence[Report], hosts: Mapping[int, str] | None = None
) -> None:
    """Write reports as a trace that https://ui.perfetto.dev and chrome://tracing show."""
    from codedla.engine.timeline import trace_document

    write_text(path, json.dumps(trace_document(reports, hosts), allow_nan=False) + "\n")


def write_timeline(path: Path, reports: Report | Sequence[Report]) -> None:
    """Write reports as a picture with one lane per rank; the suffix chooses the format."""
    from codedla.engine.timeline import lay_out

    buffer = io.BytesIO()
    figure = draw(lay_out(reports))
    figure.savefig(buffer, format=path.suffix.lower().lstrip("."), dpi=_DOTS)
    write_bytes(path, buffer.getvalue())


def draw(line: Timeline) -> Figure:
    """Draw a time line as bars, the master's lane on top."""
    ranks = _shown(line)
    rows = line.rows()
    heights = [1.0 + 0.5 * (min(rows[rank], _TALL_ROWS) - 1) for rank in ranks]
    tall = min(_MARGIN + _LANE * sum(heights), _TALLEST)
    figure = _figure_class("of the ranks")(figsize=(_WIDTH, tall), layout="constrained")
    axes = figure.add_subplot()
    tops: dict[int, float] = {}
    depth = 0.0
    for rank, height in zip(ranks, heights, strict=True):
        tops[rank] = depth
        depth += height
    lanes = dict(zip(ranks, heights, strict=True))
    _draw_lanes(axes, line, tops, lanes)
    bars = _draw_bars(axes, line, tops, lanes)
    signs = _draw_marks(axes, line, tops, lanes)
    enough = [panel.enough for panel in line.panels if panel.enough is not None]
    axes.vlines(enough, 0.0, depth, colors="black", linestyles="dashed", linewidths=1.0, zorder=3)
    axes.set_ylim(depth, 0.0)
    axes.set_xlim(0.0, line.end * 1.02 or 1.0)
    axes.set_xlabel("seconds" + _hidden(line, ranks))
    axes.set_title(_title(line), loc="left", fontsize=10)
    _draw_legend(figure, bars, signs, enough=bool(enough))
    return figure


def _shown(line: Timeline) -> list[int]:
    """Return the ranks to draw: all, or as many as can be read, those with a story first."""
    if line.n_ranks <= _ALL:
        return list(range(line.n_ranks))
    told = {0}
    for panel in line.panels:
        report = panel.report
        told.update(report.lost, report.wrong, report.redispatched)
    first = sorted(told)[:_ALL]
    rest = [rank for rank in range(line.n_ranks) if rank not in told]
    return sorted(first + rest[: _ALL - len(first)])


def _hidden(line: Timeline, ranks: Sequence[int]) -> str:
    missing = line.n_ranks - len(ranks)
    return f" ({missing} more ranks are not drawn; the trace has all)" if missing else ""


def _title(line: Timeline) -> str:
    if not line.panels:
        return "nothing was computed"
    report = line.panels[0].report
    panels = f", {len(line.panels)} panels" if len(line.panels) > 1 else ""
    return (
        f"{report.operation}, code {report.code}, grid {report.grid or '?'}, "
        f"{report.n_workers} workers{panels}: {line.end:.3g} s"
    )


def _draw_lanes(
    axes: Axes, line: Timeline, tops: Mapping[int, float], heights: Mapping[int, float]
) -> None:
    """Label the lanes and shade every other one."""
    fates = _fates(line)
    names = [
        " ".join(filter(None, [f"rank {rank}" if rank else "master", fates.get(rank)]))
        for rank in tops
    ]
    centres = [top + heights[rank] / 2 for rank, top in tops.items()]
    crowded = sum(heights.values()) * _LANE + _MARGIN > _TALLEST
    axes.set_yticks(centres, names, fontsize=6 if crowded else 8)
    axes.tick_params(axis="y", length=0)
    for rank, top in list(tops.items())[::2]:
        axes.axhspan(top, top + heights[rank], color="0.95", zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)


def _fates(line: Timeline) -> dict[int, str]:
    """Return for ranks that did not simply answer what became of them, the worst last."""
    fates: dict[int, str] = {}
    for attribute, word in (("stragglers", "(late)"), ("wrong", "(wrong)"), ("lost", "(lost)")):
        for panel in line.panels:
            fates.update(dict.fromkeys(getattr(panel.report, attribute), word))
    return fates


def _draw_bars(
    axes: Axes, line: Timeline, tops: Mapping[int, float], heights: Mapping[int, float]
) -> list[Patch]:
    """Draw the spans; return the legend of the kinds that occurred."""
    rows = line.rows()
    places: dict[tuple[str, bool], dict[tuple[int, int], list[tuple[float, float]]]] = {}
    for bar in line.bars:
        if bar.rank in tops:
            foreign = bar.kind == "compute" and bar.share not in (-1, bar.rank - 1)
            ranges = places.setdefault((bar.kind, foreign), {}).setdefault((bar.rank, bar.row), [])
            ranges.append((bar.start, bar.end - bar.start))
    legend = []
    order = [*COLOURS, *_HATCHED]
    unknown = sorted({kind for kind, _ in places} - set(order))
    for kind, foreign in sorted(places, key=lambda key: ((order + unknown).index(key[0]), key[1])):
        look = _look(kind, foreign=foreign)
        for (rank, row), ranges in places[kind, foreign].items():
            tall = 0.84 * heights[rank] / rows[rank]
            top = tops[rank] + 0.08 * heights[rank] + row * tall
            axes.broken_barh(ranges, (top, 0.94 * tall), linewidth=0.4, zorder=2, **look)
        label = _FOREIGN if foreign else _HATCHED.get(kind, kind)
        legend.append(_patch(label=label, **look))
    return legend


def _look(kind: str, *, foreign: bool) -> dict[str, Any]:
    if kind in _HATCHED:
        return {"facecolor": "none", "edgecolor": "0.45", "hatch": "////"}
    colour = COLOURS.get(kind, _OTHER)
    if foreign:
        return {"facecolor": colour, "edgecolor": "black", "hatch": "...."}
    # An edge of the same colour keeps spans shorter than a dot visible.
    return {"facecolor": colour, "edgecolor": colour}


def _patch(**look: Any) -> Patch:
    from matplotlib.patches import Patch

    return Patch(**look)


def _draw_marks(
    axes: Axes, line: Timeline, tops: Mapping[int, float], heights: Mapping[int, float]
) -> list[_Sign]:
    """Draw what happened at one moment; return the signs that occurred."""
    places: dict[_Sign, list[tuple[float, float]]] = {}
    for mark in line.marks:
        sign = _SIGNS.get(mark.kind)
        if sign is not None and mark.rank in tops:
            centre = tops[mark.rank] + heights[mark.rank] / 2
            places.setdefault(sign, []).append((mark.at, centre))
    # The cross last, because a share is given away in the moment in which its rank is lost.
    for sign, points in sorted(places.items(), key=lambda entry: entry[0] is _LOST):
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, linestyle="none", clip_on=False, zorder=4, **_sign_look(sign))
    return list(dict.fromkeys(sign for sign in _SIGNS.values() if sign in places))


def _sign_look(sign: _Sign) -> dict[str, Any]:
    # White around black and black around the others: visible on any bar.
    edge = "white" if sign.fill == "black" else "black"
    return {
        "marker": sign.marker,
        "markersize": 8,
        "markerfacecolor": sign.fill,
        "markeredgecolor": edge,
        "markeredgewidth": 0.8,
    }


def _draw_legend(
    figure: Figure, bars: Sequence[Patch], signs: Sequence[_Sign], *, enough: bool
) -> None:
    from matplotlib.lines import Line2D

    handles: list[Any] = list(bars)
    for sign in signs:
        look = _sign_look(sign)
        handles.append(Line2D([], [], linestyle="none", label=sign.label, **look))
    if enough:
        handles.append(Line2D([], [], color="black", linestyle="dashed", label="replies suffice"))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 6), fontsize=8
        )
