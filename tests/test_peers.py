"""The peers benchmark judges runs rightly, and leaves neither processes nor files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codedla.mpi.launch import find_launcher

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import _results  # noqa: E402
import peers  # noqa: E402
from _peers import catalogue, environments, harness  # noqa: E402
from _peers.faults import Fault, Moments  # noqa: E402

PEER = """
import os, subprocess, sys, time
sys.path.insert(0, {folder!r})
import numpy as np, report
daemon = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL)
def multiply(a, b):
    if len(a) > report.SMALL:
        {act}
    return a @ b
report.measure(multiply, [daemon.pid, os.getpid()])
"""


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return harness.Problem.draw(tmp_path_factory.mktemp("problem"), 200)


def play(problem, act, condition="healthy", bound=20.0, strike=0.0):
    """One run of a peer that starts a daemon and then does as told."""
    program = PEER.format(folder=str(BENCHMARKS / "_peers"), act=act)
    start = catalogue.Start([sys.executable, "-c", program], 1)
    return harness.run(start, problem, condition, Moments(strike, 0.3), bound=bound)


def processes_of(folder):
    """Processes of runs whose files are below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PEERS_FOLDER={folder}/".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # ended meanwhile
            continue
    return found


@pytest.mark.parametrize(
    ("act", "bound", "outcome", "left"),
    [
        ("pass", 20.0, "ok", 1),
        ("return a", 20.0, "wrong", 1),
        ("return (a @ b)[1:]", 20.0, "wrong", 1),
        ("os._exit(3)", 20.0, "died", 1),
        ("raise KeyError('lost')", 20.0, "died", 1),
        ("time.sleep(60)", 0.4, "hangs", None),
    ],
)
def test_outcomes(problem, act, bound, outcome, left):
    run = play(problem, act, bound=bound)
    assert (run["outcome"], run["left"]) == (outcome, left)
    assert (run["seconds"] is not None) == (outcome in ("ok", "wrong"))
    assert (run["exit"] is None) == (outcome == "hangs")
    if "KeyError" in act:
        assert run["said"] == "KeyError: 'lost'"
    # The daemon is gone, and so are the files of the run.
    assert not processes_of(problem.folder)
    assert sorted(os.listdir(problem.folder)) == ["A.npy", "B.npy"]


def test_a_fault_that_comes_too_late_is_no_fault(problem):
    assert play(problem, "pass", "killed", strike=5.0)["outcome"] == "missed"
    assert play(problem, "daemon.wait()", "killed", strike=0.1)["outcome"] == "ok"


def test_what_cannot_start(problem):
    start = catalogue.Start([sys.executable, "-c", "raise SystemExit('error: no such cluster')"], 1)
    run = harness.run(start, problem, "healthy", Moments(0, 0), bound=20.0)
    assert (run["outcome"], run["said"]) == ("no start", "error: no such cluster")


@pytest.mark.alone
def test_a_slow_worker_has_a_fifth_of_the_time():
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        fault = Fault("slow", Moments(0, 0), worker.pid)
        time.sleep(0.5)
        before, began = cpu_seconds(worker.pid), time.monotonic()
        time.sleep(1.5)
        share = (cpu_seconds(worker.pid) - before) / (time.monotonic() - began)
        fault.end()
    finally:
        worker.kill()
        worker.wait()
    assert 0.02 < share < 0.35


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_paused_and_frozen():
    worker = subprocess.Popen(["sleep", "60"])
    try:
        for kind, again in (("paused", True), ("frozen", False)):
            fault = Fault(kind, Moments(0.0, 0.2), worker.pid)
            time.sleep(0.1)
            assert state(worker.pid) == "T"
            time.sleep(0.3)
            assert (state(worker.pid) != "T") == again
            fault.end()
            assert state(worker.pid) != "T"
    finally:
        worker.kill()
        worker.wait()


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # ended meanwhile
        return ""


def test_ratios_are_of_the_same_turn():
    def run(seconds, outcome="ok"):
        fixed = {"exit": 9.0, "error": 0.0, "left": 0, "code": 137}
        return {"outcome": outcome, "seconds": seconds, **fixed}

    runs = {
        ("numpy", "healthy"): [run(1.0), run(2.0), run(4.0)],
        ("ray", "healthy"): [run(2.0), run(2.0), run(12.0)],
        ("ray", "killed"): [run(6.0), run(None, "died"), None],
        ("dask", "healthy"): [run(None, "no start"), run(4.0), run(8.0)],
    }
    rows = {(row["peer"], row["condition"]): row for row in peers.summary(runs)}
    assert rows["ray", "healthy"]["to_numpy"] == 2.0
    assert rows["ray", "killed"]["to_healthy"] == 3.0
    assert rows["ray", "healthy"]["to_by_hand"] is None
    assert peers.cell(rows["ray", "killed"]) == "died (137)"
    assert rows["dask", "healthy"]["outcome"] == "ok"
    assert (rows["dask", "healthy"]["right"], rows["dask", "healthy"]["seconds"]) == (2, 6.0)
    assert peers.cell(rows["dask", "healthy"]) == "6.00 / 9.0"


def test_a_peer_that_cannot_be_had(tmp_path):
    with pytest.raises(environments.Unavailable, match=r"needs 1e\+06 GiB of disk space"):
        environments.python_of(tmp_path / "new" / "peer", ["anything"], 1e6)
    with pytest.raises(environments.Unavailable, match="failed: ERROR: no such package"):
        environments._run(
            [sys.executable, "-c", "raise SystemExit('...\\nERROR: no such package')"]
        )
    (tmp_path / "file").touch()
    with pytest.raises(environments.Unavailable, match="no environment can be made"):
        environments.python_of(tmp_path / "file" / "a" / "peer", ["anything"], 1)


@pytest.mark.jobs
@pytest.mark.skipif(find_launcher() is None, reason="no MPI launcher (mpirun) was found")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted(tmp_path, number):
    argv = [sys.executable, BENCHMARKS / "peers.py", "--quick", "--size", "300"]
    argv += ["--peers", "by-hand", "--conditions", "frozen"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    benchmark = subprocess.Popen(argv, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until(lambda: any(state(pid) == "T" for pid in processes_of(tmp_path)), 60)
        benchmark.send_signal(number)
        code = benchmark.wait(40)
    finally:
        benchmark.kill()
        benchmark.wait()
    assert code == (143 if number == signal.SIGTERM else -9)
    # A killed benchmark has a guard that clears up after it.
    until(lambda: not processes_of(tmp_path) and not os.listdir(tmp_path), 30)


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_results_keep_old_figures(tmp_path):
    rows = [{"code": "mds", "seconds": {"median": 0.12345}, "note": None, "all": [1, 2]}]
    facts = {"date": "2001-02-03", "processor": "P", "cores": 2, "load": [0.5], "python": "3"}
    facts |= {"versions": {}, "blas": "B"}
    document = {"machine": facts, "rows": rows, "settings": {"n": 3}}
    (tmp_path / "decode.json").write_text(json.dumps(document))
    page = _results.results(tmp_path, "")
    assert "| code | seconds median | note |\n| --- | --- | --- |\n| mds | 0.123 |  |" in page
    assert "Settings: n 3." in page
    assert _results.results(None, page) == page
    assert set(_results.old_figures(page)) == {p.stem for p in BENCHMARKS.glob("[a-z]*.py")}
