"""The benchmarks that start MPI jobs run, check their products and write what they promise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SPECULATING = ("hand-written", "speculative")

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found"),
]


def run(name, folder, *options):
    target = folder / "figures.json"
    argv = [sys.executable, BENCHMARKS / name, "--quick", "--json", target, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(target.read_text())


@pytest.mark.alone
def test_stragglers(tmp_path):
    options = ["--ranks", "5", "--schemes", *SPECULATING, "khatri-rao", "--late", "1"]
    text, figures = run("stragglers.py", tmp_path, *options)
    rows = {row["scheme"]: row for row in figures["rows"]}
    assert list(rows) == ["uncoded", *SPECULATING, "khatri-rao"]
    # The uncoded product waits for the sleeper, the others do not.
    assert rows["uncoded"]["result"] >= figures["settings"]["delay"]
    assert max(rows[name]["result"] for name in (*SPECULATING, "khatri-rao")) < 1.0
    assert figures["machine"]["versions"]
    assert "khatri-rao" in text


@pytest.mark.alone
def test_rounds(tmp_path):
    text, figures = run("rounds.py", tmp_path, "--ranks", "5", "--size", "200")
    late = {row["case"]: row["round"] for row in figures["rows"] if row["late"]}
    assert late["mds"] < late["uncoded"]
    assert "round ms" in text


def test_outofcore(tmp_path):
    text, figures = run("outofcore.py", tmp_path, "--folder", str(tmp_path))
    summary = figures["summary"]
    assert summary["operands_by_limit"] >= 3
    assert summary["measured_peak"] <= summary["planned_peak"] <= summary["limit"]
    assert "peak measured" in text
    assert list(tmp_path.iterdir()) == [tmp_path / "figures.json"]


@pytest.mark.skipif(not getattr(find_launcher(), "tolerant", False), reason="a loss ends the job")
def test_pipeline(tmp_path):
    text, figures = run("pipeline.py", tmp_path, "--cases", "one killed")
    rows = {row["case"]: row for row in figures["rows"]}
    assert list(rows) == ["hand-written", "tolerate 1", "one killed"]
    assert rows["tolerate 1"]["ratio"] > 0 and rows["one killed"]["base"] == "tolerate 1"
    assert all(run["error"] < 1e-10 for runs in figures["runs"].values() for run in runs)
    assert "after the last reply" in text


def test_encode(tmp_path):
    text, figures = run("encode.py", tmp_path)
    [job] = figures["from_file"]
    assert job["master"]["bytes_sent"] > 8 * job["rows"] ** 2
    assert job["workers"]["bytes_sent"] < 5000 + 8 * job["rows"] * (job["ranks"] - 1)
    assert "encoded by" in text


def test_resume(tmp_path):
    text, figures = run("resume.py", tmp_path)
    summary = figures["summary"]
    assert summary["runs"] == summary["good"] == summary["correct"] == 2
    assert summary["panels_saved"] == summary["panels_resumed"]
    assert (summary["files_left"], summary["processes_left"]) == (0, 0)
    assert "then --resume" in text


@pytest.mark.skipif(not getattr(find_launcher(), "tolerant", False), reason="a loss ends the job")
def test_peers(tmp_path):
    options = ["--size", "600", "--peers", "by-hand", "codedla-1", "--conditions", "killed"]
    text, figures = run("peers.py", tmp_path, *options, "--png", tmp_path / "picture.png")
    rows = {(row["peer"], row["condition"]): row for row in figures["rows"]}
    assert rows["by-hand", "killed"]["outcome"] == "died"
    assert rows["codedla-1", "killed"]["outcome"] == "ok"
    assert rows["codedla-1", "killed"]["runs"][0]["code"] == 0
    assert all(row["left"] == 0 for row in rows.values())
    assert "died" in text
    assert {path.name for path in tmp_path.iterdir()} == {"figures.json", "picture.png"}


def test_fidelity(tmp_path):
    text, figures = run("fidelity.py", tmp_path, "--size", "200", "--only", "3 ranks, uncoded")
    (row,) = figures["rows"]
    # Both are times of the same product; how close they are only a quiet machine can say.
    assert row["measured"] > 0
    assert row["simulated"] > 0
    assert row["ratio"] == row["simulated"] / row["measured"]
    assert figures["machines"][0]["source"] == "measured with 2 workers"
    assert "simulated / measured" in text
