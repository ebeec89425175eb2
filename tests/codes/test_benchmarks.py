"""The accuracy benchmark runs as users run it; the helpers all benchmarks share do their part."""

from __future__ import annotations

import json
import math
from pathlib import Path

import _common
import _reference
import accuracy
import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import available, get
from tests.benchmark_runs import run_benchmark


def test_accuracy_runs_and_keeps_its_promises(tmp_path: Path) -> None:
    options = ["--quick", "--code", "khatri-rao", "uncoded", "galois"]
    printed, document = run_benchmark("accuracy.py", tmp_path, *options)
    assert "0 broken promises" in printed
    assert "nothing to measure: galois" in printed
    assert document["machine"]["cores"] >= 1 and "numpy" in document["machine"]["versions"]
    worst = [row for row in document["rows"] if row["k"] == 64 and row["s"] == 2]
    assert {row["dtype"] for row in worst} == {"float64", "float32"}
    assert all(row["worst"] < 1e-12 for row in worst if row["dtype"] == "float64")
    held = {(row["scheme"], row["k"], row["s"]) for row in document["reference"]}
    assert held >= {("systematic, signed-geometric rows", k, 2) for k in (16, 64)}
    assert all(row["worst"] <= 10 * row["reference"] for row in document["reference"][:2])


def test_every_code_and_choice_of_nodes_is_a_case() -> None:
    cases = accuracy.cases()
    assert {name for name, _ in cases.values()} == set(available())
    assert cases["mds"] == ("mds", "trig") and cases["mds/unity"] == ("mds", "unity")
    assert len(cases) == sum(max(1, len(get(name).node_choices)) for name in available())


@pytest.mark.parametrize("name", available())
def test_every_code_exists_at_some_size(name: str) -> None:
    code = accuracy.make(name, 16, 1)
    assert code is not None and code.name == name
    needs = type(code).needs(code.blocks)
    assert 8 <= needs <= 24, "as large as it should be"
    assert accuracy.make(name, 16, 1) is code


def test_grids_fit_what_a_code_cuts() -> None:
    assert accuracy.grids_near(get("mds"), 16)[0] == Grid(16, 1, 1)
    assert accuracy.grids_near(get("khatri-rao"), 64)[0] == Grid(8, 1, 8)
    assert accuracy.grids_near(get("matdot"), 36)[0] == Grid(1, 19, 1)
    assert accuracy.grids_near(get("entangled"), 36)[0] == Grid(4, 2, 4)


def test_what_does_not_exist_is_left_out() -> None:
    assert accuracy.make("uncoded", 16, 2) is None
    assert accuracy.make("uncoded", 16, 1).tolerates == 0
    with pytest.raises(ValueError, match="there is no uncoded for k=16 and 2 losses"):
        accuracy.measure("uncoded", 16, 2, "float64", 1)


@pytest.mark.parametrize(
    "name", ["khatri-rao", "matdot", "entangled", "rotation", "rotmatdot", "lt", "polynomial"]
)
def test_trials_encode_and_decode(name: str) -> None:
    """One share or several, stacked or not, real or complex: the error is that of rounding."""
    code = accuracy.make(name, 9, 2)
    trial = accuracy.Trial(code)
    for survivors in accuracy.survivor_sets(code, 3):
        assert code.decodable(survivors)
        assert 0 < trial.error(survivors) < 1e-11
        assert trial.estimate(survivors) < 1e-11


def test_a_wrong_share_is_seen() -> None:
    code = accuracy.make("rotation", 4, 1)
    trial = accuracy.Trial(code)
    trial.replies[0] *= 1 + 1e-6
    assert trial.error(code.shares) > 1e-8


def test_slow_workers_send_less() -> None:
    code = accuracy.make("lt", 64, 1)
    pace = np.full(code.n_workers, 1.0)
    pace[0] = 5.0
    told = accuracy.first_to_suffice(code, pace)
    assert code.decodable(told) and len(told) < len(code.shares)
    by_worker = np.bincount([code.home(share) for share in told], minlength=code.n_workers)
    assert by_worker[0] > 2 * by_worker[1]


def row(**changes) -> dict:
    sound = {"case": "mds", "k": 64, "s": 2, "dtype": "float64", "worst": 1e-13}
    return {**sound, "quotients": (0.5, 9.0), "approximate": False, **changes}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, None),
        ({"worst": 2e-12}, "is not below 1e-12"),
        ({"worst": 2e-12, "s": 3}, None),
        ({"quotients": (0.05, 9.0)}, "estimate / error"),
        ({"quotients": (0.5, 2e4)}, "estimate / error"),
        ({"quotients": (0.5, 2e4), "approximate": True}, None),
        ({"quotients": (0.05, 9.0), "approximate": True}, "estimate / error"),
        ({"quotients": None}, None),
    ],
)
def test_promises_that_do_not_hold_are_named(changes: dict, broken: str | None) -> None:
    found = accuracy.judge([row(**changes)])
    assert len(found) == (broken is not None)
    assert broken is None or broken in found[0]


def test_references_name_codes_there_are_and_are_exceeded_when_wrong(monkeypatch) -> None:
    named = {code for scheme in _reference.ERRORS for code in scheme.codes}
    assert len([code for code in named if accuracy.case_of(*code)]) >= 0.8 * len(named)
    scheme = _reference.Scheme("tiny", "", (("mds", None), ("none", None)), (1e-18, None, 1.0))
    monkeypatch.setattr(_reference, "ERRORS", (scheme,))
    rows = accuracy.compare(["mds"], [], (16, 64), 1)
    assert [(x["k"], x["s"], x["kept"]) for x in rows] == [(16, 2, False), (64, 2, True)]


def test_random_codes_are_compared_over_as_many_patterns() -> None:
    """Between the typical error and that of the rarest pattern, and less for the best of draws."""
    one = accuracy._worst_sampled("khatri-rao", 36, 5, 1)
    best = accuracy._worst_sampled("khatri-rao", 36, 5, 12)
    measured = accuracy.measure("khatri-rao", 36, 5, "float64", 20)
    assert measured["random"] < best < one < measured["worst"]


def test_cases_take_turns() -> None:
    order: list[str] = []
    ticks = iter(range(1000))
    seconds = _common.interleave(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        repeats=3,
        warmups=2,
        clock=lambda: float(next(ticks)),
    )
    assert order == ["a", "b"] * 5
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_ratios_cancel_drift() -> None:
    seconds = {"base": [1.0, 2.0, 4.0], "case": [3.0, 6.0, 12.0]}
    assert _common.ratios(seconds, "base") == {"base": 1.0, "case": 3.0}
    assert _common.medians(seconds) == {"base": 2.0, "case": 6.0}


def test_json_is_plain_and_replaces_whole_files(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    target.write_text("old")
    rows = [{"x": np.float64(1.5), "n": np.int64(3), "bad": math.inf, "pair": (1.0, math.nan)}]
    _common.write_json(target, {"rows": rows})
    document = json.loads(target.read_text(), parse_constant=pytest.fail)
    assert document["rows"] == [{"x": 1.5, "n": 3, "bad": None, "pair": [1.0, None]}]
    assert list(tmp_path.iterdir()) == [target]


def test_plain_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    _common.print_table("title", ["name", "s"], [["a", "1.25"], ["longer", "10.5"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["", "title", "name       s", "------  ----", "a       1.25", "longer  10.5"]
