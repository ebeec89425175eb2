"""One page per registered code, a comparison of all, and a figure of error against size for each.

Everything comes from the registry and from ``benchmarks/accuracy.py``: the text from the top of the
family's file, the figures from ``accuracy.json`` where that exists, else from a short run.
"""

from __future__ import annotations

import html
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from docutils import nodes, utils
from docutils.core import publish_parts
from docutils.parsers.rst import roles

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import accuracy  # noqa: E402  a script, found by its folder

from codedla.codes import registry  # noqa: E402

__all__ = ["code_page", "comparison", "draw", "measured", "rendered"]

LOSSES = (2, 5)  # a panel each
SIZES = (4, 16, 36, 64)  # of the short run
SAMPLES = 8
SHORT = "a short run while these pages were made"
FEW = 4  # codes that are measured in this process
TABLE_SIZES = (16, 64)  # worst errors in the comparison
CEILING = 10.0  # drawn for "no digit is left"
NODE_COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#7b5ea7", "#b08900", "#444444")
ERRORS = ("worst", "random")

BOLD = re.compile(r"(?<![\w`*])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w`*(])", re.DOTALL)
# An accent with an index below: docutils stacks all three.
ACCENTED = re.compile(
    r"<munderover>\s*(<mi>\w</mi>)\s*(<m[in]>[^<]*</m[in]>|<mrow>.*?</mrow>)\s*"
    r'(<mo stretchy="false">.</mo>)\s*</munderover>',
    re.DOTALL,
)

Row = dict[str, Any]

# What a docstring means to Sphinx, in plain docutils: code.
for _role in ("attr", "class", "data", "func", "meth", "mod", "obj"):
    roles.register_generic_role(_role, nodes.literal)


def measured(
    names: Iterable[str], file: Path | None
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """Return the errors of these codes in double precision, and where the figures come from.

    Parameters
    ----------
    names : iterable of str
    file : Path, optional
        Written by ``benchmarks/accuracy.py``; codes it lacks are measured now, briefly.

    Returns
    -------
    rows : dict
        Code -> rows as of ``accuracy.measure``, infinite errors as ``inf``.
    sources : dict
        Code -> the same in words.
    """
    rows: dict[str, list[Row]] = {name: [] for name in names}
    source = SHORT
    if file is not None:
        document = json.loads(file.read_text())
        for row in document["rows"]:
            if row["dtype"] == "float64" and row["code"] in rows and row["s"] in LOSSES:
                # JSON has no infinity: null stands for it.
                errors = {key: math.inf if row[key] is None else row[key] for key in ERRORS}
                rows[row["code"]].append({**row, **errors})
        source = f"benchmarks/accuracy.py, {document['machine']['date'][:10]}"
    missing = [name for name, found in rows.items() if not found and accuracy.inexact(name)]
    sources = dict.fromkeys(rows, source) | dict.fromkeys(missing, SHORT)
    if len(missing) > FEW:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            rows |= zip(missing, pool.map(_short_run, missing), strict=True)
    else:
        rows |= {name: _short_run(name) for name in missing}
    return rows, sources


def _short_run(name: str) -> list[Row]:
    cases = [case for case, (code, _) in accuracy.cases().items() if code == name]
    return [
        accuracy.measure(case, k, losses, "float64", SAMPLES)
        for case in cases
        for losses in LOSSES
        for k in SIZES
        if accuracy.make(case, k, losses) is not None
    ]


def draw(name: str, rows: Sequence[Row], target: Path) -> None:
    """Draw worst and random error against the number of replies needed into an SVG file."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    losses = sorted({row["s"] for row in rows})
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(
            1, len(losses), figsize=(1.2 + 3.3 * len(losses), 3.1), sharey=True, squeeze=False
        )
        for axis, lost in zip(axes[0], losses, strict=True):
            _panel(axis, [row for row in rows if row["s"] == lost])
            axis.set_title(f"{lost} lost workers", fontsize=9)
            axis.set_xlabel("replies needed at best")
        axes[0][0].set_ylabel("relative error of C")
        axes[0][0].legend(fontsize=7, frameon=False)
        figure.tight_layout()
        # No date: the same figures give the same file.
        figure.savefig(target, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _panel(axis: Any, rows: Sequence[Row]) -> None:
    choices = list(dict.fromkeys(row["nodes"] for row in rows))
    for colour, choice in zip(NODE_COLOURS, choices, strict=False):
        line = sorted((row for row in rows if row["nodes"] == choice), key=lambda r: r["needs"])
        sizes = [row["needs"] for row in line]
        for key, style in (("worst", "o-"), ("random", "o:")):
            errors = [min(row[key], CEILING) for row in line]
            label = ", ".join(filter(None, (choice, key)))
            axis.plot(sizes, errors, style, color=colour, markersize=3, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(1e-17, 2 * CEILING)
    ticks = sorted({row["needs"] for row in rows})
    axis.set_xticks(ticks[:: max(1, len(ticks) // 5)], minor=False)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.minorticks_off()
    axis.axhline(2.0**-52, color="#999999", linewidth=0.7)
    axis.grid(alpha=0.25)


def rendered(text: str, where: str) -> tuple[str, list[str]]:
    """Return reStructuredText as HTML, formulas as MathML, and what is wrong with it."""
    # Code inside bold text is beyond reStructuredText, and some LaTeX beyond docutils.
    text = BOLD.sub(lambda bold: bold[0].replace("``", ""), text)
    text = re.sub(r"\\dots\b", r"\\ldots", text)
    text = re.sub(r"\\[td]frac(?![a-z])", r"\\frac", text)
    text = re.sub(r"\\[Bb]igg?(?![a-zA-Z])", "", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\w)", r"\\frac{\1}{\2}", text)
    complaints = io.StringIO()
    parts = publish_parts(
        text,
        writer="html5",
        settings_overrides={
            "math_output": "mathml",
            "initial_header_level": 3,
            "doctitle_xform": False,
            "embed_stylesheet": False,
            "file_insertion_enabled": False,
            "raw_enabled": False,
            "report_level": utils.Reporter.WARNING_LEVEL,
            "halt_level": utils.Reporter.SEVERE_LEVEL,
            "warning_stream": complaints,
        },
    )
    faults = [line.replace("<string>", where) for line in complaints.getvalue().splitlines()]
    body = ACCENTED.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', parts["body"])
    return body, [line for line in faults if line.startswith(where)]


def code_page(name: str, rows: Sequence[Row], source: str, figure: str) -> tuple[str, list[str]]:
    """Return the body of a code's page and the faults of its text.

    Parameters
    ----------
    name : str
    rows : sequence of dict
        As by :func:`measured`.
    source : str
        Where these come from.
    figure : str
        Link of the picture.
    """
    code = registry.get(name)
    entry = registry.entry(code)
    module = sys.modules[code.__module__]
    file = Path(module.__file__ or "")
    where = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
    text, faults = rendered(registry.describe(code), where)
    first = re.sub(r"``", "", (code.__doc__ or "").strip().split("\n\n")[0])
    facts = {
        "operation": entry["operation"],
        "may cut": ", ".join(entry["splits"]),
        "replies needed": entry["threshold"],
        "survives": f"any {entry['example']['tolerates']} lost workers in that example",
        "field": entry["field"],
        "systematic": _yes(entry["systematic"]),
        "approximate": _yes(entry["approximate"]),
        "nodes": ", ".join(entry["nodes"]) or "none to choose",
        "weakness": entry["weakness"],
        "citation": entry["citation"],
        "file": where,
    }
    body = [f"<h1>{_h(name)}</h1>", f"<p>{_h(first)}</p>", _table(facts.items())]
    body += ["<h2>Error against size</h2>", *_error_part(name, rows, source, figure)]
    body += ["<h2>In full</h2>", text]
    return "\n".join(body), faults


def _error_part(name: str, rows: Sequence[Row], source: str, figure: str) -> list[str]:
    if not accuracy.inexact(name):
        return ["<p>Exact arithmetic: no digit is lost, whoever is.</p>"]
    if not rows:
        return [f"<p>Nothing to show: it does not survive {LOSSES[0]} losses.</p>"]
    heads = ["nodes", "blocks", "workers", "K", "lost", "amplification", "worst", "random"]
    lines = [
        [
            row["nodes"] or "-",
            *(str(row[key]) for key in ("blocks", "workers", "threshold", "s")),
            *(_error(row[key]) for key in ("alpha", *ERRORS)),
        ]
        for row in rows
    ]
    caption = (
        "Relative error of C in double precision: of the worst set of replies that is known, and "
        "of random ones (median); grey: machine epsilon; the top edge: nothing is left. "
        f"Source: {source}."
    )
    return [
        f'<figure><img src="{_h(figure)}" alt="error of {_h(name)} against replies needed">',
        f"<figcaption>{_h(caption)}</figcaption></figure>",
        "<details><summary>The numbers</summary>",
        _table(lines, heads),
        "</details>",
    ]


def comparison(rows: dict[str, list[Row]]) -> str:
    """Return the body of the page that compares all codes."""
    heads = ["code", "operation", "cuts", "replies needed", "for example", "field", "kind"]
    heads += [f"worst error, k = {k}, 2 lost" for k in TABLE_SIZES] + ["weakness"]
    lines = []
    for name in rows:
        entry = registry.entry(registry.get(name))
        kind = [key for key in ("systematic", "approximate") if entry[key]]
        lines.append(
            [
                f'<a href="{_h(name)}.html">{_h(name)}</a>',
                *(_h(entry["operation"]), _h(", ".join(entry["splits"]))),
                _h(entry["threshold_formula"]),
                _h(entry["threshold"].partition(" (e.g. blocks ")[2].rstrip(")")),
                *(_h(entry["field"]), _h(", ".join(kind) or "-")),
                *(_h(_worst(name, rows[name], k)) for k in TABLE_SIZES),
                _h(entry["weakness"]),
            ]
        )
    note = (
        f"<p>{len(lines)} codes. Errors are those of the default nodes in double precision, the "
        "worst set of replies known.</p>"
    )
    return "\n".join(["<h1>All codes</h1>", note, _table(lines, heads, escaped=True)])


def _worst(name: str, rows: Sequence[Row], k: int) -> str:
    if not accuracy.inexact(name):
        return "exact"
    default = registry.get(name).node_choices[:1] or (None,)
    for row in rows:
        if (row["k"], row["s"], row["nodes"]) == (k, LOSSES[0], default[0]):
            return _error(row["worst"])
    return "-"


def _error(value: float | None) -> str:
    return f"{value:.1e}" if value is not None and math.isfinite(value) else "all lost"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _h(text: str) -> str:
    return html.escape(text)


def _table(
    lines: Iterable[Iterable[str]], heads: Sequence[str] = (), *, escaped: bool = False
) -> str:
    """Return a table; without heads the first cell of every line is one."""
    clean = (lambda cell: cell) if escaped else _h
    top = "".join(f"<th>{_h(head)}</th>" for head in heads)
    body = []
    for line in lines:
        first, *rest = line
        tag = "td" if heads else "th"
        cells = "".join(f"<td>{clean(cell)}</td>" for cell in rest)
        body.append(f"<tr><{tag}>{clean(first)}</{tag}>{cells}</tr>")
    head = f"<thead><tr>{top}</tr></thead>" if heads else ""
    return "\n".join(["<table>", head, "<tbody>", *body, "</tbody></table>"])
