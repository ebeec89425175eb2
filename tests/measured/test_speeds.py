"""Measured speeds: where they are kept, when they are used, and what is said about them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from codedla.engine.plan import make_plan
from codedla.errors import CodedlaWarning
from codedla.measured.speeds import ASSUMED, Speeds, load, save, speeds, speeds_file

ABOUT = {"host": "node7", "date": "2026-01-02"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "config" / "speeds.json"
    monkeypatch.setenv("CODEDLA_SPEEDS", str(path))
    return path


def plan(**options):
    return make_plan((3000, 3000), (3000, 3000), "f8", 8, **options)


def test_where_they_are(monkeypatch):
    monkeypatch.setenv("CODEDLA_SPEEDS", "")
    assert speeds_file() is None
    assert speeds() is ASSUMED
    monkeypatch.delenv("CODEDLA_SPEEDS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert speeds_file() == Path("/settings/codedla/speeds.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert speeds_file() == Path("/home/someone/.config/codedla/speeds.json")


def test_there_and_back(file):
    assert speeds() == ASSUMED
    save(file, Speeds(3e10, 7e9), {**ABOUT, "ranks": 9})
    found = speeds()
    assert (found.flops, found.bandwidth) == (3e10, 7e9)
    assert "node7, 2026-01-02" in found.source
    assert json.loads(file.read_text())["ranks"] == 9
    assert [path.name for path in file.parent.iterdir()] == ["speeds.json"]


def test_predictions_use_them_and_say_so(file):
    assumed = plan()
    assert assumed.to_dict()["speeds"]["source"] == "assumed"
    save(file, Speeds(ASSUMED.flops / 10, ASSUMED.bandwidth / 10), ABOUT)
    measured = plan()
    assert measured.seconds == pytest.approx(10 * assumed.seconds)
    assert "2 Gflop/s per worker, 0.4 GB/s at the master (measured on node7" in str(measured)
    assert measured.to_dict()["speeds"]["flops"] == ASSUMED.flops / 10


def test_a_slow_network_changes_the_grid(file):
    usual = make_plan((8000, 500), (500, 8000), "f8", 18, code="khatri-rao").grid
    save(file, Speeds(1e9, 1e15), ABOUT)
    computing = make_plan((8000, 500), (500, 8000), "f8", 18, code="khatri-rao").grid
    save(file, Speeds(1e15, 1e6), ABOUT)
    sending = make_plan((8000, 500), (500, 8000), "f8", 18, code="khatri-rao").grid
    assert computing.outputs == 16
    assert usual.outputs == 16
    assert sending.m + sending.n <= computing.m + computing.n


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "must be of schema"),
        ('{"schema": "codedla.speeds/9"}', "codedla.speeds/9"),
        ('{"schema": "codedla.speeds/1", "flops": 0, "bandwidth": 1}', "flops in"),
        ('{"schema": "codedla.speeds/1", "flops": true, "bandwidth": 1}', "got True"),
        ('{"schema": "codedla.speeds/1", "flops": 1, "bandwidth": NaN}', "bandwidth in"),
        ('{"schema": "codedla.speeds/1", "flops": 1}', "got None"),
    ],
)
def test_what_is_no_file_of_speeds(file, text, said):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        load(file)
    with pytest.warns(CodedlaWarning, match="codedla bench --save"):
        assert speeds() == ASSUMED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert speeds() == ASSUMED  # said once
