"""Operands larger than the memory of the master: read, multiplied and written panel by panel."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codedla.cli import checksums, journal
from codedla.cli.output import Output
from codedla.cli.restart import Restart
from codedla.measured import memory
from codedla.mpi.launch import find_launcher, run_job
from tests.cli.conftest import ROOT
from tests.cli.test_resume import SLOW, Job, leftovers

LAUNCHER = find_launcher()
MIB = 1 << 20
BAND = 24
"""Inner indices with other entries than zero: the rest of the files are holes, quickly made."""


def operands(folder: Path, rows: int, inner: int, cols: int) -> np.ndarray:
    """Write ``A.npy`` and ``B.npy``; return their product."""
    rng = np.random.default_rng(662607)
    a, b = rng.standard_normal((rows, BAND)), rng.standard_normal((BAND, cols))
    top = inner - BAND
    for name, shape, place, entries in (
        ("A", (rows, inner), (slice(None), slice(top, None)), a),
        ("B", (inner, cols), (slice(top, None), slice(None)), b),
    ):
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", float, shape)
        array[place] = entries
    return a @ b


def peak(status: str, name: str) -> int:
    """Bytes behind a name in ``/proc/self/status``."""
    (line,) = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


SERIAL = """
import json, resource, sys
from pathlib import Path
import numpy as np
import codedla
from codedla.cli import journal
from codedla.cli.files import inspect
from codedla.engine.memory import panel_memory
from codedla.measured.memory import budget, process_size
from codedla.engine.plan import make_plan
from codedla.linalg.panels import Panels, fit_panels

a, b = (inspect(f"{name}.npy", name).open() for name in "AB")
limit = process_size()[0] + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with codedla.SerialPool(4) as pool:
    allowed = budget(mpi=False)
    plan = make_plan(a.shape, b.shape, float, 4)
    size = fit_panels(plan, (a.dtype, b.dtype), allowed, rows=a.shape[0])
    shape = a.shape[0], b.shape[1]
    ranges = journal.tile([((0, shape[0]), (0, shape[1]))], *size)
    panels = Panels(a, b, pool=pool, operation="matmul", ranges=ranges)
    panels.check_memory(allowed)
    out = np.zeros(shape)
    panels.run(lambda *_: None, out=out)
np.save("C.npy", out)
needed = panel_memory(panels.plan, (a.dtype, b.dtype)).master + allowed.base
status = Path("/proc/self/status").read_text()
print(json.dumps({"limit": limit, "needed": needed, "panel": size, "status": status}))
"""


@pytest.mark.slow
def test_three_times_the_limit_in_one_process(tmp_path):
    shape = 2400, 44000, 230
    expected = operands(tmp_path, *shape)
    done = subprocess.run(
        [sys.executable, "-c", SERIAL, str(110 * MIB)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    files = sum((tmp_path / f"{name}.npy").stat().st_size for name in "AB")
    assert files >= 3 * found["limit"]
    # Both dimensions are cut: B does not fit, either.
    assert found["panel"][0] < shape[0]
    assert found["panel"][1] < shape[2]
    assert peak(found["status"], "VmPeak") < found["needed"] <= found["limit"]
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), expected, atol=1e-11)


@pytest.mark.slow
@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
@pytest.mark.jobs
def test_three_times_the_limit_of_the_master(tmp_path, monkeypatch):
    limit = 560 * MIB
    expected = operands(tmp_path, 20000, 11050, 40)
    files = sum((tmp_path / f"{name}.npy").stat().st_size for name in "AB")
    assert files >= 3 * limit
    env = {"PYTHONPATH": str(ROOT), "LIMIT": str(limit), "PEAK": str(tmp_path / "peak")}
    planned = subprocess.run(
        [sys.executable, "-m", "codedla", "plan", "A.npy", "B.npy", "--ranks", "3", "--json"],
        cwd=tmp_path,
        env={**os.environ, **env},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    layout = json.loads(planned.stdout)["layout"]
    assert layout["out_of_core"]
    assert (layout["measure"], layout["limit"]) == ("address space", "ulimit -v")
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--report", "r.json"]
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, str(ROOT / "tests/cli/limited.py"), *words]
    done = run_job(program, 3, timeout=120, env=env, capture=True)
    assert done.code == 0, done.stderr
    assert peak((tmp_path / "peak").read_text(), "VmPeak") < layout["peak_master"] <= limit
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), expected, atol=1e-11)
    assert json.loads((tmp_path / "r.json").read_text())["panels"]["computed"] > 1


@pytest.fixture
def small(tmp_path):
    """Small operands in files of every kind; gives their product."""
    rng = np.random.default_rng(602214)
    a, b = rng.standard_normal((240, 60)), rng.standard_normal((60, 50))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    np.save(tmp_path / "F.npy", np.asfortranarray(b))
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file["plain"] = a
        file.create_dataset("packed", data=a, chunks=(50, 25), compression="gzip")
    yield a @ b
    for job in Job.all:
        if job.process.returncode is None:
            for pid in [*job.pids(), job.process.pid]:
                os.kill(pid, signal.SIGKILL)
            job.process.communicate()
    Job.all.clear()


PANELS = ("--panel-rows", 50, "--panel-columns", 20)


@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
@pytest.mark.jobs
@pytest.mark.parametrize(
    ("a", "b", "c"),
    [("A.npy", "F.npy", "C.npy"), ("A.h5:/packed", "B.npy", "C.h5:/C"), ("A.h5:/plain",) * 3],
)
def test_files_of_every_kind(tmp_path, small, program, a, b, c):
    if c == a:
        b, c = "F.npy", "A.h5:/C"  # beside an operand
    # So little that nothing fits at once, and the smallest panels do.
    few = f"{memory.process_size()[1] + memory.MPI_RESIDENT + 90 * MIB}"
    words = [a, b, "-o", c, "--ranks", 3, *PANELS, "--force", "--master-memory", few]
    done = program("matmul", *words, "--report", "r.json", PYTHONWARNINGS="error")
    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "r.json").read_text())["panels"]["total"] == 15
    if ":" in c:
        h5py = pytest.importorskip("h5py")
        name, _, dataset = c.partition(":")
        with h5py.File(tmp_path / name, "r") as file:
            found = file[dataset][...]
    else:
        found = np.load(tmp_path / c)
    np.testing.assert_allclose(found, small, atol=1e-11)


@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
@pytest.mark.jobs
def test_a_killed_master_of_panels_in_two_dimensions(tmp_path, small, program):
    words = ("matmul", "A.npy", "B.npy", "-o", "C.npy", *PANELS)
    job = Job(tmp_path, *words, "--ranks", 4, *SLOW)
    path = tmp_path / ".C.npy.codedla-journal"
    job.wait_for(path, 7)
    job.signal_the_master(signal.SIGKILL)
    code, text = job.end()
    assert code not in (0, 2)
    saved = len(journal.read(path).entries)
    assert saved >= 7
    assert f"{saved} of 15 panels are safe" in text
    done = program(*words, "--ranks", 3, "--resume", "--report", "r.json")
    assert (done.code, done.err) == (0, "")
    counts = json.loads((tmp_path / "r.json").read_text())["panels"]
    assert counts == {"total": 15, "resumed": saved, "computed": 15 - saved}
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), small, atol=1e-11)
    assert leftovers(tmp_path) == []


def test_too_little_memory_is_refused(small, program):
    done = program("matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", 3, "--master-memory", "9M")
    assert done.code == 2
    (line,) = done.error_lines
    assert "the smallest panel of this product needs" in line
    assert "--master-memory leaves 9.0 MiB" in line


def test_a_plan_says_what_the_panels_take(program):
    words = ("plan", "--shape", "20000x20000x20000", "--ranks", 5, "--master-memory", "2G")
    done = program(*words)
    assert done.code == 0
    assert "out of core    --master-memory leaves the master" in done.out
    layout = json.loads(program(*words, "--json").out)["layout"]
    assert layout["peak_master"] <= 2 << 30
    assert layout["panels"] > 1
    assert "out of core" not in program(*words[:-1], "2T").out


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    restart = Restart(Output(str(tmp_path / "C.npy")), {"operation": "", "a": 1, "b": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    with restart.session((6, 4), np.dtype(float), resume=False) as session:
        session.save(((0, 3), (0, 2)), np.ones((3, 2)), "off")
        monkeypatch.setattr(checksums.os, "pwrite", full)
        with pytest.raises(OSError, match=r"a panel .* cannot be written \(No space left"):
            session.save(((0, 3), (2, 4)), np.ones((3, 2)), "off")
        assert journal.read(restart.journal).entries == session.entries
        assert len(session.entries) == 1
