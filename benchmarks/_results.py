"""Write ``RESULTS.md``: what every benchmark measures, the command, and the figures it wrote.

    for s in benchmarks/[a-z]*.py; do python $s --json figures/$(basename $s .py).json; done
    python benchmarks/_results.py figures

A benchmark without a file in that folder keeps the figures that ``RESULTS.md`` has.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE / "RESULTS.md"
MARK = "<!-- figures -->"
LONGEST = 40
"""Rows of a table that are still read; longer ones stay in their JSON file."""
HEAD = f"""# Results

Made by `python benchmarks/{Path(__file__).name}` from the JSON files of the benchmarks; edit
neither the commands nor the figures by hand. Times on a shared machine scatter: compare figures of
one table, which were measured in turns, not those of different tables.
"""

Figures = Mapping[str, Any]


def results(folder: Path | None, before: str) -> str:
    """The whole page.

    Parameters
    ----------
    folder : Path or None
        With ``NAME.json`` for the benchmarks that have new figures.
    before : str
        The page as it is, for the figures of the others.
    """
    kept = old_figures(before)
    parts = [HEAD]
    for script in sorted(HERE.glob("[a-z]*.py")):
        source = None if folder is None else folder / f"{script.stem}.json"
        if source is not None and source.exists():
            figures = render(script.stem, json.loads(source.read_text()))
        else:
            figures = kept.get(script.stem, "")
        parts.append(section(script, figures))
    return "\n".join(parts)


def section(script: Path, figures: str) -> str:
    """Heading, what is measured, the command, and the figures."""
    name = script.stem
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    about = text.split("\n\n")[0].replace("``", "`")
    command = f"python benchmarks/{name}.py --json {name}.json"
    return f"## {name}\n\n{about}\n\n```sh\n{command}\n```\n\n{MARK}\n{figures}"


def old_figures(page: str) -> dict[str, str]:
    """Figures of every section of a page."""
    found = {}
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, rest = part.partition("\n")
        figures = rest.partition(MARK)[2].strip()
        found[title.strip()] = f"{figures}\n" if figures else ""
    return found


def render(name: str, document: Figures) -> str:
    """Figures of one benchmark as Markdown."""
    body = RENDERERS.get(name, plain)(document)
    return f"{machine(document['machine'])}\n\n{body}\n"


def machine(facts: Figures) -> str:
    """Where and when it was measured, in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['date'][:10]}, {facts['processor']}, {facts['cores']} cores, load "
        f"{facts['load'][0]:g}, Python {facts['python']}, {versions}, {facts['blas']}."
    )


def plain(document: Figures) -> str:
    """Settings in a line, every list of records as a table."""
    parts = []
    for key, value in document.items():
        if key == "machine":
            continue
        if isinstance(value, Mapping):
            simple = {name: item for name, item in flat(value).items() if shown(item)}
            words = (f"{name.replace('_', ' ')} {number(item)}" for name, item in simple.items())
            parts.append(f"{key.replace('_', ' ').capitalize()}: {', '.join(words)}.")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            parts.append(records(key, [flat(row) for row in value]))
    return "\n\n".join(parts)


def records(key: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of records, without what is no number and no word."""
    title = key.replace("_", " ").capitalize()
    if len(rows) > LONGEST:
        return f"{title}: {len(rows)} rows, in the JSON file."
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if all(shown(row.get(name)) for row in rows)
    ]
    heads = [name.replace("_", " ") for name in names]
    cells = ([number(row.get(name)) for name in names] for row in rows)
    return f"{title}:\n\n{table(heads, cells)}"


def peers(document: Figures) -> str:
    """One line for every peer, one column for every condition."""
    settings = document["settings"]
    cases = {(row["peer"], row["condition"]): row for row in document["rows"]}
    lines, notes = [], []
    for name, peer in document["peers"].items():
        if peer["missing"]:
            lines.append([peer["title"], f"not here: {peer['missing']}"])
            continue
        healthy = cases[name, "healthy"]
        line = [peer["title"], number(healthy["to_numpy"]), number(healthy["to_by_hand"])]
        lines.append([*line, *(case(cases.get((name, kind))) for kind in settings["conditions"])])
        if peer["note"]:
            notes.append(f"{peer['title']}: {peer['note']}")
    about = (
        f"{settings['size']} x {settings['size']} float64, {settings['workers']} workers, medians "
        f"of {settings['repeats']}: seconds to the result, and to the exit of the command. In "
        f"brackets: result / the peer's own healthy result. Paused: {settings['pause']:g} s; given "
        f"up after {settings['bound']:g} s."
    )
    heads = ["", "x NumPy", "x by hand", *settings["conditions"]]
    return "\n\n".join([about, table(heads, lines), "; ".join(notes) + "."])


def case(row: Figures | None) -> str:
    """One peer under one condition."""
    if row is None:
        return ""
    if row["outcome"] == "died":
        return f"died (code {row['code']})"
    if row["outcome"] != "ok":
        return str(row["outcome"])
    leaving = "no exit" if row["exit"] is None else f"{row['exit']:.1f}"
    own = "" if row["condition"] == "healthy" else f" ({number(row['to_healthy'])})"
    return f"{row['seconds']:.2f}, {leaving}{own}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [
        heads,
        ["---"] * len(heads),
        *([*row, *[""] * (len(heads) - len(row))] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def flat(record: Figures) -> dict[str, Any]:
    """The record with what lies one level deeper, under both names."""
    result: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            result |= {f"{key} {name}": item for name, item in value.items()}
        else:
            result[key] = value
    return result


def shown(value: Any) -> bool:
    """Whether a value fits into a cell."""
    return value is None or isinstance(value, bool | int | float | str)


def number(value: Any) -> str:
    """Three digits of a fraction; anything else as it is."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


RENDERERS: dict[str, Callable[[Figures], str]] = {"peers": peers}


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="with the JSON files")
    parser.add_argument("--output", type=Path, default=TARGET, help="the page")
    args = parser.parse_args()
    before = args.output.read_text() if args.output.exists() else ""
    text = results(args.folder, before)
    args.output.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
