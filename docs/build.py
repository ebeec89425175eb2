"""Check the links of all Markdown pages and render the pages of docs/ as HTML.

``python docs/build.py [FOLDER]``: FOLDER (default build/docs) receives one page per file. Exit
code 1 if a link inside the repository leads nowhere.
"""

from __future__ import annotations

import html
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.55 sans-serif; }}
pre, code {{ font-family: monospace; background: #f3f3f3; }}
pre {{ padding: .7rem; overflow-x: auto; }}
table {{ border-collapse: collapse; }} td, th {{ border: 1px solid #bbb; padding: .2rem .6rem; }}
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


def render(page: Path, tokens: list[Token], parser: MarkdownIt, menu: list[Path]) -> str:
    """Return a page as HTML; links to other pages lead to their HTML."""
    for opening, text in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", slug(_plain(text)))
    title = next((_plain(t) for t in tokens if t.type == "inline"), page.stem)
    entries = " · ".join(f'<a href="{p.stem}.html">{html.escape(p.stem)}</a>' for p in menu)
    body = parser.renderer.render(tokens, parser.options, {})
    body = re.sub(r'href="([\w./-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', body)
    return PAGE.format(title=html.escape(title), menu=entries, body=body)


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def main(folder: Path) -> int:
    """Check and render; return the exit code."""
    parser = MarkdownIt("commonmark").enable("table")
    parsed = {page: parser.parse(page.read_text()) for page in pages()}
    faults = [line for page in parsed for line in broken(page, parsed)]
    print("\n".join(faults), end="\n" if faults else "")
    menu = [page for page in parsed if page.parent == ROOT / "docs"]
    folder.mkdir(parents=True, exist_ok=True)
    for page in menu:
        text = render(page, parsed[page], parser, menu)
        (folder / f"{page.stem}.html").write_text(text)
    print(f"{len(parsed)} pages checked, {len(menu)} rendered to {folder}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs")))
