"""``make docs``: pages of codes hold what their families say, and no link dangles."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from codedla.codes import registry

pytest.importorskip("docutils")
pytest.importorskip("markdown_it")

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

# Scripts, found by their folder.
build = importlib.import_module("build")
code_pages = importlib.import_module("code_pages")

CODES = ["khatri-rao", "galois"]


def figures(path: Path) -> Path:
    """What ``benchmarks/accuracy.py`` would write for one code."""
    same = {"case": "khatri-rao", "code": "khatri-rao", "nodes": None, "dtype": "float64"}
    same |= {"alpha": 7.0, "random": 1e-15, "blocks": "4x4", "approximate": False}
    rows = [
        {**same, "k": k, "s": s, "threshold": k, "needs": k, "workers": k + s, "worst": worst}
        for k, s, worst in ((16, 2, 4.321e-14), (64, 2, 6.543e-13), (16, 5, None))
    ]
    path.write_text(json.dumps({"machine": {"date": "2001-02-03T04:05:06"}, "rows": rows}))
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    given = figures(folder / "accuracy.json")
    assert build.main([str(folder / "out"), "--codes", *CODES, "--figures", str(given)]) == 0
    return folder / "out"


def test_a_page_says_what_the_family_says(pages: Path) -> None:
    text = (pages / "codes" / "khatri-rao.html").read_text()
    code = registry.get("khatri-rao")
    assert code.citation in text and code.threshold_formula in text
    assert "m*n (e.g. blocks 2x2 on 6 workers: 4 replies)" in text
    assert "<strong>Any m n of N workers decode.</strong>" in text, "bold text with code in it"
    assert "<math" in text and ":math:" not in text and ".. math" not in text
    assert "codedla/codes/families/khatri_rao.py" in text


def test_errors_come_from_the_file(pages: Path) -> None:
    text = (pages / "codes" / "khatri-rao.html").read_text()
    assert "4.3e-14" in text and "all lost" in text
    assert "benchmarks/accuracy.py, 2001-02-03" in text
    picture = (pages / "codes" / "khatri-rao.svg").read_text()
    assert "5 lost workers" in picture and "relative error of C" in picture


def test_exact_codes_have_no_error_to_draw(pages: Path) -> None:
    text = (pages / "codes" / "galois.html").read_text()
    assert "no digit is lost" in text and "<img" not in text


def test_the_comparison_has_every_code(pages: Path) -> None:
    text = (pages / "codes" / "index.html").read_text()
    assert re.findall(r'<a href="([\w-]+)\.html">\1</a>', text) == CODES
    assert "6.5e-13" in text and registry.get("galois").weakness in text
    index = (pages / "index.html").read_text()
    assert 'href="codes/index.html"' in index and 'href="failures.html"' in index


def test_pages_are_the_same_each_time(pages: Path, tmp_path: Path) -> None:
    given = figures(tmp_path / "accuracy.json")
    assert build.main([str(tmp_path), "--codes", *CODES, "--figures", str(given)]) == 0
    for page in (pages / "codes").iterdir():
        assert (tmp_path / "codes" / page.name).read_bytes() == page.read_bytes()


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<a href="page.html#x">self</a> <a href="https://x.org/y">far</a>')
    assert list(build.dangling(page)) == []
    page.write_text('<a href="other.html">other</a> <img src="figure.svg">')
    assert [line.split(": ")[-1] for line in build.dangling(page)] == ["other.html", "figure.svg"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (":math:`\\nonsense x`", "Unknown LaTeX"),
        ("``open", "Inline literal start-string"),
        ("fine ``x**2``, :func:`f` and **bold ``code``**", None),
    ],
)
def test_text_that_is_not_well_formed_is_found(text: str, complaint: str | None) -> None:
    _, faults = code_pages.rendered(text, "file.py")
    if complaint is None:
        assert faults == []
    else:
        assert len(faults) == 1 and complaint in faults[0] and faults[0].startswith("file.py")


def test_accents_carry_their_index_outside() -> None:
    body, _ = code_pages.rendered(r":math:`\hat T_{ij} + \sum_i^n x`", "file.py")
    assert re.search(r"<msub><mover.*?T.*?</mover><mrow>", body, re.DOTALL)
    assert body.count("<munderover>") + body.count("<msubsup>") == 1, "the sum keeps its limits"


def test_every_code_is_well_formed() -> None:
    faults = []
    for name in registry.available():
        faults += code_pages.rendered(registry.describe(registry.get(name)), name)[1]
    assert faults == []


def test_codes_that_were_not_measured_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_pages, "SIZES", (4,))
    rows, sources = code_pages.measured(["matdot", "galois"], None)
    assert {(row["nodes"], row["s"]) for row in rows["matdot"]} == {
        (nodes, s) for nodes in registry.get("matdot").node_choices for s in (2, 5)
    }
    assert all(0 < row["worst"] < 1e-11 for row in rows["matdot"])
    assert rows["galois"] == [] and "short run" in sources["matdot"]


def test_each_page_says_where_its_own_figures_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code_pages, "SIZES", (4,))
    file = figures(tmp_path / "accuracy.json")
    _, sources = code_pages.measured(["khatri-rao", "matdot"], file)
    assert "2001-02-03" in sources["khatri-rao"] and "short run" in sources["matdot"]
