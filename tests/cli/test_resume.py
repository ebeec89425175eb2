"""Unfinished products: what is kept, what is trusted, and what a later run makes of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import codedla
from codedla.cli import journal, restart
from codedla.cli.files import inspect
from codedla.cli.journal import Contents, Entry
from codedla.cli.output import Output
from codedla.cli.restart import Restart, identity_of
from codedla.errors import CodedlaWarning, NotDecodable, UsageError
from codedla.linalg.merge import merge_reports
from codedla.linalg.panels import Panels, automatic_rows
from codedla.mpi.launch import find_launcher
from tests.cli.conftest import ROOT

LAUNCHER = find_launcher()
jobs = pytest.mark.skipif(LAUNCHER is None, reason="no mpirun on this machine")
ROWS, HEIGHT = 30, 4


# ---------------------------------------------------------------- the journal

HEADER = {"identity": {"a": [1, 2]}, "file": {"size": 7}}
ENTRIES = [Entry(i, i + 4, f"{i:032x}", "off") for i in range(0, 40, 4)]
GOOD = journal.encode(HEADER, ENTRIES)


def cut(ranges, height):
    """Ranges of at most so many rows."""
    panels = journal.tile([(rows, (0, 1)) for rows in ranges], height, 1)
    return [rows for rows, _ in panels]


def test_a_journal_is_read_as_it_was_written():
    assert journal.decode(GOOD) == Contents({"format": journal.FORMAT, **HEADER}, ENTRIES, 0, "")


@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD) - 1), st.integers(0, 255))
@settings(max_examples=500)
def test_damage_costs_the_damaged_lines_only(length, place, value):
    data = bytearray(GOOD)
    changed = data[place] != value
    data[place] = value
    contents = journal.decode(bytes(data[:length]))
    assert contents.problem or contents.header == {"format": journal.FORMAT, **HEADER}
    assert all(entry in ENTRIES for entry in contents.entries)
    lines = GOOD.count(b"\n", 0, length)
    hit = int(changed and place < length)
    if not contents.problem:
        # A line break that is no longer one takes two lines along.
        assert len(contents.entries) >= lines - 1 - 2 * hit
        assert contents.damaged or len(contents.entries) == lines - 1
    elif lines:
        assert hit
        assert place <= GOOD.index(b"\n")


@given(st.binary(max_size=300))
def test_any_bytes_are_no_journal(data):
    assert journal.decode(data).problem


def line_of(fact):
    """A line with a right checksum, whatever it says."""
    text = json.dumps(fact).encode()
    return journal._mark(text) + b" " + text + b"\n"


@pytest.mark.parametrize(
    "fact",
    [
        [],
        3,
        {},
        {"rows": [4, 2], "digest": "0", "verified": "off"},
        {"rows": [-1, 2], "digest": "0", "verified": "off"},
        {"rows": [0, "2"], "digest": "0", "verified": "off"},
        {"rows": [38, 41], "digest": "0", "verified": "off"},
    ],
)
def test_lines_that_cannot_be_true_are_dropped(fact):
    contents = journal.decode(GOOD + line_of(fact))
    assert contents.entries == ENTRIES
    assert contents.damaged == 1


def test_a_journal_of_another_version_is_not_used():
    data = line_of({"format": "codedla.journal/9"}) + GOOD.partition(b"\n")[2]
    assert "another version" in journal.decode(data).problem


@given(st.sets(st.integers(0, 29)), st.integers(1, 31))
def test_the_rest_is_cut_into_panels(done, height):
    entries = [Entry(row, row + 1, "") for row in sorted(done)]
    panels = journal.tile(journal.remaining((ROWS, 5), entries), height, 5)
    assert [row for rows, _ in panels for row in range(*rows)] == sorted(set(range(ROWS)) - done)
    assert all(1 <= stop - start <= height for (start, stop), _ in panels)
    assert {cols for _, cols in panels} <= {(0, 5)}


def test_a_full_disk_leaves_the_last_journal(tmp_path, monkeypatch):
    path, fresh = tmp_path / "j", tmp_path / "j.new"
    journal.write(path, fresh, HEADER, ENTRIES[:2])

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.write(path, fresh, HEADER, ENTRIES[:3])
    assert journal.read(path).entries == ENTRIES[:2]
    assert not fresh.exists()


# ---------------------------------------------------------------- what is on disk


class Work:
    """A product computed with NumPy, row by row, through a restartable output."""

    def __init__(self, folder: Path, spec: str = "C.npy") -> None:
        rng = np.random.default_rng(31337)
        self.a, self.b = rng.standard_normal((ROWS, 6)), rng.standard_normal((6, 5))
        self.expected = self.a @ self.b
        self.folder, self.spec = folder, spec
        np.save(folder / "A.npy", self.a)
        np.save(folder / "B.npy", self.b)
        self.restart = self.fresh()

    def fresh(self) -> Restart:
        output = Output(str(self.folder / self.spec), force=True)
        operands = (inspect(str(self.folder / f"{name}.npy"), name) for name in "AB")
        return Restart(output, identity_of("matmul", *operands, output))

    def run(self, *, resume=True, height=HEIGHT, width=5, panels=100) -> tuple[int, int]:
        """Compute up to ``panels`` panels; return how many were found and how many computed."""
        self.restart = self.fresh()
        with self.restart.session((ROWS, 5), np.dtype(float), resume=resume) as session:
            found = list(session.entries)
            todo = journal.tile(journal.remaining((ROWS, 5), found), height, width)
            for rows, cols in todo[:panels]:
                session.save((rows, cols), self.expected[slice(*rows), slice(*cols)], "off")
            if panels < len(todo):
                return len(found), panels
            session.finish()
        np.testing.assert_array_equal(self.result(), self.expected)
        names = {path.name for path in self.folder.iterdir()}
        assert names == {"A.npy", "B.npy", self.spec.partition(":")[0]}
        return len(found), len(todo)

    def result(self):
        if ":" not in self.spec:
            return np.load(self.folder / self.spec)
        h5py = pytest.importorskip("h5py")
        name, _, dataset = self.spec.partition(":")
        with h5py.File(self.folder / name, "r") as file:
            return file[dataset][...]


@pytest.fixture(params=["C.npy", "C.h5:/deep/C"])
def work(tmp_path, request):
    if ".h5" in request.param:
        pytest.importorskip("h5py")
    return Work(tmp_path, request.param)


def test_a_run_goes_on_where_the_last_one_ended(work):
    assert work.run(panels=3) == (0, 3)
    assert work.run(panels=2) == (3, 2)
    # 20 of 30 rows are there, and the rest may be cut differently.
    assert work.run(height=7) == (5, 2)


def test_without_a_finished_panel_nothing_is_left(work):
    work.run(panels=0)
    assert {path.name for path in work.folder.iterdir()} == {"A.npy", "B.npy"}


def test_without_resume_the_unfinished_product_is_replaced(work):
    work.run(panels=3)
    with pytest.warns(CodedlaWarning, match="3 finished panels"):
        assert work.run(resume=False, height=10) == (0, 3)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_damaged_rows_are_computed_again(tmp_path):
    work = Work(tmp_path)
    work.run(panels=4)
    offset = work.restart.part.stat().st_size - ROWS * 5 * 8
    flip(work.restart.part, offset + 5 * 5 * 8)  # row 5: the second panel
    with pytest.warns(CodedlaWarning, match="1 of 4 finished panels are damaged"):
        assert work.run() == (3, 5)


def remove(path):
    path.unlink()


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


def make_link(path):
    elsewhere = path.with_name("A.npy")
    path.unlink()
    path.symlink_to(elsewhere)


def shorten(path):
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path):
    with path.open("ab") as stream:
        stream.write(b"x")


def empty(path):
    os.truncate(path, 0)


def scribble(path):
    path.write_bytes(os.urandom(400))


def damage_the_start(path):
    flip(path, 9)


@pytest.mark.parametrize(
    "damage",
    [
        remove,
        make_folder,
        make_pipe,
        make_link,
        shorten,
        lengthen,
        empty,
        scribble,
        damage_the_start,
    ],
)
def test_an_unusable_part_is_a_fresh_start(work, damage):
    work.run(panels=3)
    damage(work.restart.part)
    with pytest.warns(CodedlaWarning, match="missing or damaged"):
        assert work.run() == (0, 8)
    np.testing.assert_array_equal(np.load(work.folder / "A.npy"), work.a)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (make_folder, "it is no file"),
        (make_pipe, "it is no file"),
        (make_link, "it is no file"),
        (empty, "it is empty"),
        (scribble, "damaged"),
        (damage_the_start, "damaged"),
    ],
)
def test_an_unusable_journal_is_a_fresh_start(tmp_path, damage, message):
    work = Work(tmp_path)
    work.run(panels=3)
    damage(work.restart.journal)
    with pytest.warns(CodedlaWarning, match=message):
        assert work.run() == (0, 8)
    np.testing.assert_array_equal(np.load(work.folder / "A.npy"), work.a)


def test_a_shortened_journal_keeps_its_whole_lines(tmp_path):
    work = Work(tmp_path)
    work.run(panels=3)
    path = work.restart.journal
    os.truncate(path, path.stat().st_size - 5)
    with pytest.warns(CodedlaWarning, match="1 damaged line"):
        assert work.run() == (2, 6)


def test_a_part_without_a_journal_is_nothing_to_resume(tmp_path):
    work = Work(tmp_path)
    work.run(panels=3)
    work.restart.journal.unlink()
    assert work.run() == (0, 8)


def test_a_journal_that_cannot_be_replaced_is_an_error(tmp_path):
    work = Work(tmp_path)
    work.run(panels=1)
    make_folder(work.restart.journal)
    (work.restart.journal / "mine").touch()
    with (
        pytest.warns(CodedlaWarning, match="no file"),
        pytest.raises(UsageError, match="remove it"),
    ):
        work.run()
    assert (work.restart.journal / "mine").exists()


def change_time(work):
    os.utime(work.folder / "A.npy", ns=(1, 1))


def change_content(work):
    """Other numbers under the same name, size and time of modification."""
    path = work.folder / "A.npy"
    status = path.stat()
    np.save(path, work.a + 1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_size(work):
    np.save(work.folder / "B.npy", work.b.astype(np.float32))


def change_format(work):
    text = work.restart.journal.read_bytes()
    fact = json.loads(text.partition(b"\n")[0].partition(b" ")[2])
    fact["format"] = "codedla.journal/9"
    work.restart.journal.write_bytes(line_of(fact) + text.partition(b"\n")[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_content, "operand A is another or has changed"),
        (change_time, "operand A is another or has changed"),
        (change_size, "operand B is another or has changed"),
        (change_format, "another version"),
    ],
)
def test_another_command_starts_anew(tmp_path, change, message):
    work = Work(tmp_path)
    work.run(panels=3)
    change(work)
    with pytest.warns(CodedlaWarning, match=message):
        assert work.run() == (0, 8)


def test_another_type_of_product_starts_anew(tmp_path):
    work = Work(tmp_path)
    work.run(panels=3)
    with (
        pytest.warns(CodedlaWarning, match="another shape or type"),
        work.fresh().session((ROWS, 5), np.dtype(np.float32), resume=True) as session,
    ):
        assert session.entries == []


def test_a_changed_hdf5_file_is_copied_again(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "C.h5", "w") as file:
        file["other"] = np.arange(5)
    work = Work(tmp_path, "C.h5:/C")
    work.run(panels=3)
    with h5py.File(tmp_path / "C.h5", "a") as file:
        file["new"] = np.arange(4)
    with pytest.warns(CodedlaWarning, match=r"C\.h5 has changed"):
        assert work.run() == (0, 8)
    with h5py.File(tmp_path / "C.h5", "r") as file:
        assert sorted(file) == ["C", "new", "other"]


def test_a_job_that_waited_for_another_one_computes_nothing_again(work):
    """It found no output when it began, and the lock is free now: the other one is done."""
    waiting = work.fresh()
    waiting.output.force = False
    waiting.output.check()
    work.run()
    with (
        pytest.raises(UsageError, match="appeared meanwhile"),
        waiting.session((ROWS, 5), np.dtype(float), resume=True),
    ):
        pytest.fail("the product is computed again")
    assert not waiting.left()
    np.testing.assert_array_equal(work.result(), work.expected)


def test_one_job_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(restart, "_PATIENCE", 0.1)
    work = Work(tmp_path)
    with work.restart.session((ROWS, 5), np.dtype(float), resume=True) as session:
        for attempt in (work.fresh().probe, work.fresh().abandon, work.run):
            with pytest.raises(UsageError, match="another job is writing"):
                attempt()
        assert work.fresh().tidy() == []
        session.save(((0, ROWS), (0, 5)), work.expected, "off")
        session.finish()
    np.testing.assert_array_equal(work.result(), work.expected)
    work.fresh().probe()


def test_where_there_are_no_locks(tmp_path, monkeypatch):
    def refuse(number, kind):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(restart.fcntl, "flock", refuse)
    work = Work(tmp_path)
    with pytest.warns(CodedlaWarning, match="knows no locks"):
        assert work.run() == (0, 8)


def test_a_part_that_is_replaced_meanwhile_does_not_become_the_product(tmp_path):
    work = Work(tmp_path)
    with work.restart.session((ROWS, 5), np.dtype(float), resume=True) as session:
        session.save(((0, ROWS), (0, 5)), work.expected, "off")
        work.restart.part.unlink()
        work.restart.part.write_bytes(b"somebody else's")
        with pytest.raises(UsageError, match="removed or replaced"):
            session.finish()
    assert not (tmp_path / "C.npy").exists()


def test_only_a_proven_product_is_complete(work):
    work.run(panels=3)
    before = work.restart.journal.read_bytes()
    assert not work.fresh().complete((ROWS, 5))
    work.run()
    assert not work.fresh().complete((ROWS, 5))
    # As if the run had been killed between naming the product and removing the journal.
    work.restart = work.fresh()
    with work.restart.session((ROWS, 5), np.dtype(float), resume=False) as session:
        session.save(((0, ROWS), (0, 5)), work.expected, "off")
        full = work.restart.journal.read_bytes()
        session.finish()
    path = work.restart.journal
    path.write_bytes(before)
    assert not work.fresh().complete((ROWS, 5))
    path.write_bytes(full)
    assert work.fresh().complete((ROWS, 5))
    assert not path.exists()
    path.write_bytes(full)
    flip(work.restart.output.path, work.restart.output.path.stat().st_size - 3)
    assert not work.fresh().complete((ROWS, 5))


def test_what_a_job_leaves_is_tidied_up(tmp_path):
    work = Work(tmp_path)
    work.run(panels=2)
    assert [entry.start for entry in work.fresh().tidy()] == [0, 4]
    work.restart.journal.unlink()
    assert work.fresh().tidy() == []
    assert not work.restart.left()
    work.run(panels=2)
    change_time(work)
    assert work.fresh().tidy() == []


@pytest.mark.parametrize("length", [3, 195, 196, 251])
def test_names_beside_long_names(tmp_path, length):
    names = {
        str(Restart(Output(str(tmp_path / f"{letter * length}.npy")), {})._fresh.name)
        for letter in "aé"
        if len((letter * length).encode()) <= 251
    }
    assert all(len(os.fsencode(name)) <= 255 for name in names)
    assert len(names) == 1 + (length * 2 <= 251)
    other = Restart(Output(str(tmp_path / f"{'a' * (length - 1)}b.npy")), {})
    assert other._fresh.name not in names


# ---------------------------------------------------------------- panels of a product


@pytest.fixture
def rng():
    return np.random.default_rng(1618)


def in_panels(pool, a, b, ranges, out, *, operation="matmul", verify="off", **options):
    panels = Panels(a, b, pool=pool, operation=operation, ranges=ranges, **options)
    reports = []
    panels.run(lambda _, report, block: reports.append(report), out=out, verify=verify)
    counts = {"total": len(ranges), "resumed": 0, "computed": len(ranges)}
    return merge_reports(panels.plan, len(out), reports, counts)


@pytest.mark.parametrize("dtype", [float, np.float32, complex, np.int64, bool])
@pytest.mark.parametrize("code", ["auto", "mds", "polynomial", "replication"])
def test_panels_give_the_product(rng, dtype, code):
    a = (rng.standard_normal((37, 12)) * 3).astype(dtype)
    b = (rng.standard_normal((12, 9)) * 3).astype(dtype)
    out = np.zeros((37, 9), dtype)
    ranges = cut([(0, 20), (22, 37)], 8)
    with codedla.SerialPool(5) as pool:
        report = in_panels(pool, a, b, ranges, out, code=code, tolerate=1)
    expected = a @ b
    expected[20:22] = 0
    tolerance = 1e-4 if dtype is np.float32 else 1e-10
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    assert report.shapes == {"A": [37, 12], "B": [12, 9], "C": [37, 9]}
    assert report.to_dict()["panels"] == {"total": 5, "resumed": 0, "computed": 5}
    assert [event.seconds for event in report.events] == sorted(
        event.seconds for event in report.events
    )


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_sparse_panels(rng, layout):
    a = scipy.sparse.random_array((40, 15), density=0.2, format=layout, rng=rng)
    x = rng.standard_normal(15)
    y = np.zeros(40)
    with codedla.SerialPool(4) as pool:
        in_panels(pool, a, x, cut([(0, 40)], 11), y, operation="matvec")
    np.testing.assert_allclose(y, a @ x, atol=1e-12)


def test_b_is_sent_once(rng):
    a, b = rng.standard_normal((40, 50)), rng.standard_normal((50, 60))
    once, often = np.empty((40, 60)), np.empty((40, 60))
    with codedla.SerialPool(4) as pool:
        options = {"code": "mds", "tolerate": 1}
        whole = in_panels(pool, a, b, [(0, 40)], once, **options)
        parts = in_panels(pool, a, b, cut([(0, 40)], 10), often, **options)
        again = in_panels(pool, a, b, [(0, 40)], once, **options)
    np.testing.assert_allclose(often, once, atol=1e-12)
    # Rows are padded to whole blocks, a little; B would be 4 times as much.
    assert parts.bytes["sent"] < whole.bytes["sent"] + b.nbytes
    # After the end nothing is kept.
    assert again.bytes["sent"] == whole.bytes["sent"]


def test_errors_of_any_panel_come_before_the_first(rng):
    a, b = rng.standard_normal((8, 4)), rng.standard_normal((4, 4))
    a[7, 0] = np.nan
    with codedla.SerialPool(4) as pool, pytest.raises(UsageError, match="NaN"):
        Panels(a, b, pool=pool, operation="matmul", ranges=[(0, 4), (4, 8)], code="polynomial")


def test_the_timeout_is_for_all_panels(rng):
    a, b, out = np.ones((60, 4)), np.ones((4, 4)), np.empty((60, 4))
    with codedla.SimulatedPool(3, delays=lambda _, n: np.full(n, 0.4)) as pool:
        panels = Panels(a, b, pool=pool, operation="matmul", ranges=cut([(0, 60)], 1))
        with pytest.raises(NotDecodable, match="time-out"):
            panels.run(lambda *_: time.sleep(0.2), out=out, timeout=1.0)


def test_progress_over_all_panels(rng):
    a, b, out = np.ones((6, 4)), np.ones((4, 4)), np.empty((6, 4))
    told = []
    with codedla.SerialPool(3) as pool:
        panels = Panels(
            a, b, pool=pool, operation="matmul", ranges=[(0, 3), (3, 6)], code="uncoded"
        )
        panels.run(lambda *_: None, out=out, progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 6, 6), (2, 6, 6), (3, 6, 6), (4, 6, 6), (5, 6, 6), (6, 6, 6)]


def test_nothing_to_compute(rng):
    with codedla.SerialPool(3) as pool:
        report = in_panels(pool, np.ones((4, 4)), np.ones((4, 4)), [], np.ones((4, 4)))
    assert json.loads(report.to_json())["panels"]["computed"] == 0
    assert "matmul by code" in report.summary()


@pytest.mark.parametrize(("size", "most"), [(100, 1), (1500, 1), (40_000, 64), (10**7, 64)])
def test_automatic_panels(size, most):
    from codedla.engine.plan import make_plan

    rows = automatic_rows(make_plan((size, size), (size, size), float, 8))
    assert -(-size // rows) <= most
    assert (rows < size) == (most > 1)


# ---------------------------------------------------------------- real jobs

SHAPES = ((240, 60), (60, 50))
#: Every worker takes a moment for every panel, so that there is something to interrupt.
SLOW = [word for rank in (1, 2, 3) for word in ("--inject", f"delay:{rank}:0.08")]


class Job:
    """A product started as a user does, whose master can be found."""

    all: list[Job] = []

    def __init__(self, folder: Path, *words: object, **env: str) -> None:
        self.mark = f"RESUME_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "codedla", *map(str, words)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        self.all.append(self)

    def pids(self, rank: int | None = None) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile
                continue
            ranks = [b"OMPI_COMM_WORLD_RANK=%d" % rank, b"PMI_RANK=%d" % rank] if rank == 0 else []
            if self.mark.encode() in words and (not ranks or set(ranks) & set(words)):
                found.append(int(name))
        return found

    def signal_the_master(self, number: int) -> None:
        for pid in self.pids(rank=0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_for(self, path: Path, panels: int) -> None:
        """Wait until so many panels are in the journal, or the job is over."""
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            contents = journal.read(path)
            if contents is not None and len(contents.entries) >= panels:
                return
            time.sleep(0.01)

    def end(self, timeout: float = 30) -> tuple[int, str]:
        _, text = self.process.communicate(timeout=timeout)
        assert self.pids() == []
        return self.process.returncode, text


@pytest.fixture
def big(tmp_path):
    """Operands in files; gives their product, and ends what a failed test leaves running."""
    rng = np.random.default_rng(577215)
    a, b = (rng.standard_normal(shape) for shape in SHAPES)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    yield a @ b
    for job in Job.all:
        if job.process.returncode is None:
            for pid in [*job.pids(), job.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            job.process.communicate()
    Job.all.clear()


WORDS = ("matmul", "A.npy", "B.npy", "-o", "C.npy", "--panel-rows", 12)
JOURNAL = ".C.npy.codedla-journal"


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def check(folder, expected, report="r.json"):
    np.testing.assert_allclose(np.load(folder / "C.npy"), expected, atol=1e-11)
    assert leftovers(folder) == []
    return json.loads((folder / report).read_text())["panels"]


@jobs
@pytest.mark.jobs
@pytest.mark.parametrize(("panels", "ranks"), [(1, 3), (7, 6), (15, 4)])
def test_a_killed_master(tmp_path, big, program, panels, ranks):
    job = Job(tmp_path, *WORDS, "--ranks", 4, *SLOW)
    job.wait_for(tmp_path / JOURNAL, panels)
    job.signal_the_master(signal.SIGKILL)
    code, text = job.end()
    assert code not in (0, 2)
    assert "the same command with --resume continues" in text
    saved = len(journal.read(tmp_path / JOURNAL).entries)
    assert f"{saved} of 20 panels are safe" in text
    done = program(*WORDS, "--ranks", ranks, "--resume", "--report", "r.json")
    assert (done.code, done.err) == (0, "")
    counts = check(tmp_path, big)
    assert saved >= panels
    assert counts == {"total": 20, "resumed": saved, "computed": 20 - saved}


@jobs
@pytest.mark.jobs
def test_a_master_killed_before_the_first_panel(tmp_path, big):
    job = Job(tmp_path, *WORDS, "--ranks", 4, *[w.replace("0.08", "9") for w in SLOW])
    end = time.monotonic() + 30
    while not (tmp_path / ".C.npy.codedla-part").exists() and time.monotonic() < end:
        time.sleep(0.01)
    job.signal_the_master(signal.SIGKILL)
    code, text = job.end()
    assert code == 1
    assert "resume" not in text
    assert leftovers(tmp_path) == []


@jobs
@pytest.mark.jobs
def test_the_end_of_the_allocation(tmp_path, big, program):
    job = Job(tmp_path, *WORDS, "--ranks", 4, *SLOW, "--verify", "freivalds")
    job.wait_for(tmp_path / JOURNAL, 4)
    began = time.monotonic()
    job.process.terminate()
    code, text = job.end()
    assert code == 143
    assert time.monotonic() - began < 8
    assert "panels are safe" in text
    # A damaged byte costs its panel, other panels another size.
    part = tmp_path / ".C.npy.codedla-part"
    flip(part, part.stat().st_size - SHAPES[0][0] * SHAPES[1][1] * 8 + 7)
    saved = len(journal.read(tmp_path / JOURNAL).entries)
    words = [*WORDS[:-1], 100, "--ranks", 3, "--resume", "--report", "r.json"]
    done = program(*words, "--verify", "off")
    assert done.code == 0
    assert "1 of" in done.err
    assert "are computed again" in done.err
    assert check(tmp_path, big)["resumed"] == saved - 1
    assert json.loads((tmp_path / "r.json").read_text())["verified"] == "partly"


@jobs
@pytest.mark.jobs
def test_sigterm_at_the_master_alone(tmp_path, big, program):
    job = Job(tmp_path, *WORDS, "--ranks", 4, *SLOW)
    job.wait_for(tmp_path / JOURNAL, 3)
    job.signal_the_master(signal.SIGTERM)
    code, text = job.end()
    assert code == 143
    assert text.count("panels are safe") == 1
    refused = program(*WORDS, "--ranks", 4, "--dry-run")
    assert "panels         20, of 12 rows" in refused.out
    # One panel for all, and no wish to go on: what was left is replaced.
    done = program(*WORDS[:-2], "--ranks", 4, "--report", "r.json")
    assert done.code == 0
    assert "with --resume it would have been continued" in done.err
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), big, atol=1e-11)
    assert leftovers(tmp_path) == []


@jobs
@pytest.mark.jobs
def test_panels_with_a_lying_rank_and_time_lines(tmp_path, big, program):
    words = ("--trace", "t.json", "--report", "r.json", "--verify", "--inject", "corrupt:1:1")
    done = program(*WORDS, "--ranks", 4, *words)
    assert done.code == 0, done.err
    # Said once, not once for every panel.
    (line,) = done.err.splitlines()
    assert "rank 1 was not used" in line
    assert check(tmp_path, big) == {"total": 20, "resumed": 0, "computed": 20}
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verified"], report["wrong"]) == ("locate", [1])
    assert "20 panels, 0 of an earlier run" in done.out
    bars = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    computed = [bar for bar in bars if bar["name"].startswith("compute")]
    assert len(computed) >= 20 * report["threshold"]


def can_mount() -> bool:
    """Whether a file system of this test's own can be mounted."""
    if os.geteuid() != 0 or os.sysconf("SC_PAGE_SIZE") != 4096 or not shutil.which("unshare"):
        return False
    words = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=4k none /mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@jobs
@pytest.mark.jobs
@pytest.mark.root
@pytest.mark.skipif(not can_mount(), reason="cannot mount a small file system")
def test_a_full_disk(tmp_path, big, program):
    """The product and one journal fit, a second journal beside the first does not."""
    (tmp_path / "d").mkdir()
    kept = "cp -a d kept; umount d; cp -a kept/. d"
    script = f'mount -t tmpfs -o size=100k none d; "$@"; code=$?; {kept}; exit $code'
    before = ("unshare", "-m", "sh", "-c", script, "sh")
    words = ("matmul", "A.npy", "B.npy", "-o", "d/C.npy", "--panel-rows", 12, "--report", "r.json")
    done = program(*words, "--ranks", 3, before=before)
    assert done.code == 1
    (line,) = done.error_lines
    assert "journal cannot be written (No space left on device)" in line
    assert "1 of 20 panels are safe" in done.err
    done = program(*words, "--ranks", 3, "--resume")
    assert (done.code, done.err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "d" / "C.npy"), big, atol=1e-11)
    assert json.loads((tmp_path / "r.json").read_text())["panels"]["resumed"] == 1
    assert leftovers(tmp_path / "d") == []


@jobs
@pytest.mark.jobs
def test_two_jobs_for_one_output(tmp_path, big, program):
    job = Job(tmp_path, *WORDS, "--ranks", 4, *SLOW, "--report", "r.json")
    job.wait_for(tmp_path / JOURNAL, 1)
    # Frozen, so that it is not done before the second one has begun.
    job.signal_the_master(signal.SIGSTOP)
    second = program(*WORDS, "--ranks", 3, "--resume", "--force")
    job.signal_the_master(signal.SIGCONT)
    assert second.code == 2
    assert "another job is writing C.npy" in second.error_lines[0]
    code, text = job.end()
    assert (code, text) == (0, "")
    check(tmp_path, big)


@jobs
@pytest.mark.jobs
def test_matvec_into_hdf5(tmp_path, big, program):
    h5py = pytest.importorskip("h5py")
    a, x = np.load(tmp_path / "A.npy"), np.load(tmp_path / "B.npy")[:, 0]
    np.save(tmp_path / "x.npy", x)
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["other"] = np.arange(3)
    words = ("matvec", "A.npy", "x.npy", "-o", "y.h5:/y", "--panel-rows", 12)
    job = Job(tmp_path, *words, "--ranks", 4, *SLOW)
    job.wait_for(tmp_path / ".y.h5.codedla-journal", 5)
    job.signal_the_master(signal.SIGKILL)
    assert job.end()[0] == 1
    done = program(*words, "--ranks", 3, "--resume", "--report", "r.json")
    assert (done.code, done.err) == (0, "")
    with h5py.File(tmp_path / "y.h5", "r") as file:
        np.testing.assert_allclose(file["y"][...], a @ x, atol=1e-12)
        assert file["other"][...].tolist() == [0, 1, 2]
    assert json.loads((tmp_path / "r.json").read_text())["panels"]["resumed"] >= 5
    assert leftovers(tmp_path) == []


def test_too_many_panels(tmp_path, monkeypatch, capsys):
    from codedla.cli.main import main

    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.ones((10_001, 2)))
    np.save("B.npy", np.ones((2, 2)))
    assert main([*map(str, WORDS[:-1]), "1", "--ranks", "3"]) == 2
    assert "use at least 2" in capsys.readouterr().err
