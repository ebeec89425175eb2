"""Check the links of all Markdown pages; render docs/ and a page for every code as HTML.

``python docs/build.py [FOLDER]``: FOLDER (default build/docs) receives an index, one page per file,
and in ``codes/`` one page per registered code and a comparison. Errors are drawn from the
``accuracy.json`` that ``benchmarks/accuracy.py`` writes, where there is one, else measured briefly.
Exit code 1 if a link leads nowhere or the text of a code is not well formed.
"""

from __future__ import annotations

import argparse
import html
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import code_pages
from markdown_it import MarkdownIt
from markdown_it.token import Token

from codedla.codes import available

ROOT = Path(__file__).resolve().parent.parent
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ max-width: {width}; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.55 sans-serif; }}
pre, code, .literal {{ font-family: monospace; background: #f3f3f3; }}
pre {{ padding: .7rem; overflow-x: auto; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #bbb; padding: .2rem .6rem; }}
th, td {{ text-align: left; vertical-align: top; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; }}
figcaption {{ font-size: .85rem; color: #555; }} math[display] {{ margin: .7rem 0; }}
</style></head><body>
<nav>{menu}</nav>
{body}
</body></html>
"""


def pages() -> list[Path]:
    """Return every Markdown file a reader may meet."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(tokens: list[Token]) -> set[str]:
    """Return the anchors of all headings."""
    pairs = itertools.pairwise(tokens)
    return {slug(_plain(text)) for opening, text in pairs if opening.type == "heading_open"}


def links(tokens: list[Token]) -> Iterator[str]:
    """Yield the target of every link and picture."""
    for token in tokens:
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield str(target)


def broken(page: Path, parsed: dict[Path, list[Token]]) -> Iterator[str]:
    """Yield a line for every link of a page that leads nowhere inside the repository."""
    for link in links(parsed[page]):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        where = page.relative_to(ROOT)
        if not target.exists():
            yield f"{where}: no such file: {link}"
        elif parts.fragment and target in parsed and parts.fragment not in anchors(parsed[target]):
            yield f"{where}: no such heading: {link}"


def render(page: Path, tokens: list[Token], parser: MarkdownIt, menu: str) -> str:
    """Return a page as HTML; links to other pages lead to their HTML."""
    for opening, text in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", slug(_plain(text)))
    body = parser.renderer.render(tokens, parser.options, {})
    body = re.sub(r'href="([\w./-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', body)
    return _whole(title_of(page, tokens), menu, body)


def title_of(page: Path, tokens: list[Token]) -> str:
    """Return a page's first heading."""
    return next((_plain(t) for t in tokens if t.type == "inline"), page.stem)


def _whole(title: str, menu: str, body: str, *, wide: bool = False) -> str:
    width = "90rem" if wide else "46rem"
    return PAGE.format(title=html.escape(title), menu=menu, body=body, width=width)


def _menu(titles: dict[str, str], up: str = "") -> str:
    entries = {"index": "contents", "codes/index": "codes", **titles}
    return " · ".join(
        f'<a href="{up}{stem}.html">{html.escape(title)}</a>' for stem, title in entries.items()
    )


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def markdown_pages(folder: Path) -> list[str]:
    """Check all Markdown pages, render those of docs/ and an index; return what is wrong."""
    parser = MarkdownIt("commonmark").enable("table")
    parsed = {page: parser.parse(page.read_text()) for page in pages()}
    faults = [line for page in parsed for line in broken(page, parsed)]
    shown = [page for page in parsed if page.parent == ROOT / "docs"]
    titles = {page.stem: title_of(page, parsed[page]) for page in shown}
    menu = _menu(titles)
    for page in shown:
        text = render(page, parsed[page], parser, menu)
        (folder / f"{page.stem}.html").write_text(text)
    entries = {"codes/index": "All codes, compared", **titles}
    lines = [f'<li><a href="{to}.html">{html.escape(t)}</a></li>' for to, t in entries.items()]
    body = "\n".join(["<h1>codedla</h1>", "<ul>", *lines, "</ul>"])
    (folder / "index.html").write_text(_whole("codedla", menu, body))
    print(f"{len(parsed)} pages checked, {len(shown)} rendered to {folder}")
    return faults


def pages_of_codes(folder: Path, names: Sequence[str], figures: Path | None) -> list[str]:
    """Write a page for each of these codes and their comparison; return what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, sources = code_pages.measured(names, figures)
    menu, faults = _menu({}, "../"), []
    for name in names:
        figure = f"{name}.svg"
        if rows[name]:
            code_pages.draw(name, rows[name], folder / figure)
        body, wrong = code_pages.code_page(name, rows[name], sources[name], figure)
        faults += wrong
        (folder / f"{name}.html").write_text(_whole(f"{name} - codedla", menu, body))
    body = code_pages.comparison(rows)
    (folder / "index.html").write_text(_whole("All codes - codedla", menu, body, wide=True))
    faults += [line for page in sorted(folder.glob("*.html")) for line in dangling(page)]
    figures_from = "; ".join(sorted(set(sources.values())))
    print(f"{len(names)} codes rendered to {folder}; figures: {figures_from}")
    return faults


class _Targets(HTMLParser):
    """Collects what a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down the target of a link or picture."""
        self.found += [value for key, value in attrs if key in ("href", "src") and value]


def dangling(page: Path) -> Iterator[str]:
    """Yield a line for every link of a rendered page to a file that is not there."""
    targets = _Targets()
    targets.feed(page.read_text())
    for link in targets.found:
        parts = urlsplit(link)
        if not parts.scheme and parts.path and not (page.parent / unquote(parts.path)).exists():
            yield f"{page.name}: no such file: {link}"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "docs")
    parser.add_argument("--codes", nargs="+", choices=available(), default=available())
    parser.add_argument("--figures", type=Path, help="a file that benchmarks/accuracy.py wrote")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Check and render; return the exit code."""
    args = parse(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    usual = ROOT / "accuracy.json"
    figures = args.figures or (usual if usual.exists() else None)
    faults = markdown_pages(args.folder)
    faults += pages_of_codes(args.folder / "codes", args.codes, figures)
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
