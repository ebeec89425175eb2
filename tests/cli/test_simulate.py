"""``codedla simulate``: what it prints, draws and refuses."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

import codedla
from codedla.cli.main import main
from codedla.linalg.product import Product
from codedla.linalg.stream import panel_rows
from codedla.mpi.launch import find_launcher, run_job
from codedla.planning import Machine

BASE = ["simulate", "--shape", "4000x4000x400", "--rounds", "30"]


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch, tmp_path):
    """No test is taken for a rank of the job that may be running the tests."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI_", "PMIX_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def figures(capsys, *options):
    assert main([*BASE, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_table_of_all_schemes(capsys):
    assert main([*BASE, "--workers", "10", "40", "--delays", "exp:0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:6] == ["workers", "scheme", "grid", "p50", "s", "p90"]
    schemes = ["uncoded", "replication@1", "speculative", "khatri-rao"]
    assert [line.split()[:2] for line in lines[1:9]] == [
        [count, scheme] for count in ("10", "40") for scheme in schemes
    ]
    assert lines[-1] == "4000x4000 @ 4000x400, 30 rounds, machine: assumed"


def test_coded_products_do_not_wait_for_late_workers(capsys):
    delays = ["--ranks", "101", "--delays", "bimodal:0.02:50", "--codes"]
    document = figures(capsys, *delays, "uncoded", "speculative", "mds@10%", "mds@0")
    rows = {row["scheme"]: row for row in document["rows"]}
    assert document["schema"] == "codedla.simulation/1"
    assert rows["uncoded"]["p50"] > 50 > 10 > rows["mds@10%"]["max"]
    assert rows["mds@10%"]["tolerates"] == 10
    assert rows["mds@0"]["p90"] > 50
    assert rows["speculative"]["p50"] < rows["uncoded"]["p50"]
    for row in rows.values():
        assert row["p50"] <= row["p90"] <= row["p99"] <= row["max"]
        assert row["failed"] == 0.0
    # Who is not waited for is not held for 50 s.
    assert rows["mds@10%"]["worker_seconds"] < rows["uncoded"]["worker_seconds"]


def test_the_seed_decides(capsys):
    options = ["--workers", "20", "--delays", "weibull:0.5:1", "--codes", "uncoded"]
    first = figures(capsys, *options, "--seed", "5")
    assert first == figures(capsys, *options, "--seed", "5")
    spelled = [*options[:3], "random:weibull:0.5:1:5", *options[4:]]
    assert first["rows"] == figures(capsys, *spelled)["rows"]
    assert first["rows"] != figures(capsys, *options, "--seed", "6")["rows"]


def test_operands_traces_panels_and_machines(capsys, tmp_path):
    np.save("a.npy", np.ones((300, 200), np.float32))
    np.save("b.npy", np.ones((200, 30), np.float32))
    (tmp_path / "t.csv").write_text("0,0,0,9\n0,0,0,0\n0,0,0,0\n")
    Machine(flops=1e6).save("slow.json")
    options = ["--ranks", "5", "--delays", "trace:t.csv", "--codes", "uncoded", "mds@1"]
    argv = ["simulate", "a.npy", "b.npy", *options, "--machine", "slow.json", "--json"]
    assert main([*argv, "--rounds", "3", "--panels", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["shape"], document["dtype"]) == ([300, 200, 30], "float32")
    assert document["machine"]["flops"] == 1e6
    uncoded, mds = document["rows"]
    # Rank 4 is 9 s late in one round of three: 3 s in each panel.
    assert uncoded["panels"] == 3
    assert uncoded["max"] - uncoded["p50"] == pytest.approx(9, rel=0.01)
    assert mds["max"] < 9


def test_panels_are_those_of_a_product(capsys):
    options = ["simulate", "--shape", "8000x8000x8000", "--ranks", "5", "--rounds", "5", "--json"]
    assert main([*options, "--codes", "uncoded", "mds@1", "replication"]) == 0
    rows = {row["code"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    with codedla.SerialPool(4) as pool:
        pool.streams = True
        plan = codedla.make_plan((8000, 8000), (8000, 8000), np.dtype(float), 4, code="mds")
        rows_of_one = panel_rows(Product(plan, pool), "off")
    assert rows["mds"]["panels"] == -(-8000 // rows_of_one) > 1
    assert rows["replication"]["panels"] == 1


def test_a_round_with_resident_shares(capsys):
    first = figures(capsys, "--workers", "8", "--codes", "mds", "--resident")["rows"][0]
    second = figures(capsys, "--workers", "8", "--codes", "mds")["rows"][0]
    assert first["p50"] < second["p50"]


@pytest.mark.parametrize("workers", [["30"], ["10", "30"]])
def test_a_picture(workers, capsys):
    pytest.importorskip("matplotlib")
    options = ["--workers", *workers, "--delays", "fritchman:0.1:0.5:1", "--png", "t.png"]
    assert main([*BASE, *options]) == 0
    with open("t.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    assert main([*BASE, *options]) == 2
    assert "give --force to replace it" in capsys.readouterr().err
    assert main([*BASE, *options, "--force"]) == 0


def test_without_matplotlib(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*BASE, "--workers", "10", "--png", "t.png"]) == 2
    assert "pip install 'codedla[plot]'" in capsys.readouterr().err


def test_this_machine_is_measured(capsys):
    assert main(["simulate", "--calibrate", "m.json"]) == 0
    assert "Gflop/s" in capsys.readouterr().err
    assert Machine.load("m.json").flops > 1e8
    assert main(["simulate", "--calibrate", "m.json"]) == 2
    assert "must not exist yet" in capsys.readouterr().err


@pytest.mark.jobs
@pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found")
def test_messages_of_real_ranks_are_measured():
    argv = [sys.executable, "-m", "codedla", "simulate", "--calibrate", "m.json"]
    done = run_job(argv, 3, timeout=100, capture=True)
    assert done.code == 0, done.stderr
    machine = Machine.load("m.json")
    assert machine.ranks_per_host == 3
    assert machine.source == "measured with 2 workers"
    assert 0 < machine.overhead < 1


def test_operands_that_do_not_fit(capsys):
    np.save("a.npy", np.ones((3, 4)))
    assert main(["simulate", "a.npy", "a.npy", "--workers", "4"]) == 2
    assert "got (3, 4) in a.npy and (3, 4) in a.npy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "10x10x10"], "needs --ranks or --workers"),
        (["--workers", "9"], "needs two operands or --shape"),
        (["a.npy", "b.npy", "--shape", "4x4x4", "--workers", "9"], "files or --shape, not both"),
        (["--shape", "0x4x4", "--workers", "9"], "must be positive numbers"),
        (["--shape", "9x9x9", "--workers", "1"], "workers must be 2 to 100,000; got 1"),
        (["--shape", "9x9x9", "--workers", "200000"], "got 200000"),
        (["--shape", "9x9x9", "--workers", "9", "--rounds", "0"], "--rounds must be 1 or more"),
        (["--shape", "9x9x9", "--workers", "9", "--panels", "0"], "--panels must be 1 or more"),
        (["--shape", "9x9x9", "--workers", "9", "--seed", "-1"], "--seed must be 0 or more"),
        (["--shape", "9x9x9", "--workers", "9", "--delays", "exp"], "exp:MEAN[:SEED]; got 'exp'"),
        (["--shape", "9x9x9", "--workers", "9", "--delays", "gauss:1"], "unknown distribution"),
        (["--shape", "9x9x9", "--workers", "9", "--codes", "nds"], "did you mean mds"),
        (["--shape", "9x9x9", "--workers", "9", "--codes", "mds@x"], "a part like 5%; got 'x'"),
        (["--shape", "9x9x9", "--workers", "9", "--codes", "mds@9"], "9 of 9 workers"),
        (["--shape", "9x9x9", "--workers", "9", "--tolerate", "100%"], "got '100%'"),
        (["--shape", "9x9x9", "--workers", "9", "--tolerate", "-1"], "a whole number"),
        (["--shape", "9x9x9", "--workers", "9", "--png", "x.pdf"], "must end in .png"),
        (["--shape", "9x9x9", "--workers", "9", "--machine", "no.json"], "No such file"),
        (["--shape", "9x9x9", "--workers", "9", "--dtype", "object"], "operands must be"),
    ],
)
def test_refusals(options, words, capsys):
    assert main(["simulate", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("codedla: error: ")
    assert words in error
    assert error.count("\n") == 1
