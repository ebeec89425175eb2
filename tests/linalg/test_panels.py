"""Products in panels of two dimensions, of operands in memory and in files."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import codedla
from codedla.cli import journal
from codedla.cli.files import inspect
from codedla.engine.memory import OPEN_ROUNDS, WORKING, panel_memory
from codedla.engine.plan import make_plan
from codedla.engine.stragglers import Fault
from codedla.errors import CodedlaWarning, UsageError, VerificationFailed
from codedla.linalg.panels import Panels, fit_panels
from codedla.linalg.projection import Partition
from codedla.linalg.sources import FileSource, MemorySource
from codedla.measured.memory import Budget

SHAPE = (37, 23, 29)
ROWS, COLS = [(0, 10), (10, 20), (20, 37)], [(0, 17), (17, 29)]
PANELS = [(rows, cols) for cols in COLS for rows in ROWS]


@pytest.fixture
def rng():
    return np.random.default_rng(141421)


def multiply(pool, a, b, panels=PANELS, *, verify="off", **options):
    """Return the product put together from the blocks, and the reports."""
    blocks, reports = {}, []

    def done(panel, report, block):
        assert panel not in blocks
        blocks[panel] = block.copy()
        reports.append(report)

    work = Panels(a, b, pool=pool, operation="matmul", ranges=panels, **options)
    work.run(done, verify=verify)
    assert set(blocks) == set(panels)
    dtype = next(iter(blocks.values())).dtype
    whole = np.zeros((a.shape[0], b.shape[1]), dtype)
    for (rows, cols), block in blocks.items():
        whole[slice(*rows), slice(*cols)] = block
    return whole, reports


@pytest.mark.parametrize("verify", ["off", "freivalds", "locate"])
@pytest.mark.parametrize("dtype", [float, np.float32, complex, np.int64])
@pytest.mark.parametrize("code", ["auto", "polynomial", "replication", "rotation", "galois"])
def test_two_dimensions(rng, dtype, code, verify):
    if code in ("polynomial", "rotation") and dtype is np.int64:
        code = "base3"
    if code == "galois" and dtype is not np.int64:
        code = "matdot"
    a = (rng.standard_normal(SHAPE[:2]) * 9).astype(dtype)
    b = (rng.standard_normal(SHAPE[1:]) * 9).astype(dtype)
    with codedla.SerialPool(5) as pool:
        found, reports = multiply(pool, a, b, code=code, tolerate=1, verify=verify)
    assert found.dtype == dtype
    tolerance = 1e-3 if dtype is np.float32 else 1e-9
    np.testing.assert_allclose(found, a @ b, rtol=tolerance, atol=tolerance)
    assert {report.verified for report in reports} == {verify}


def test_sparse_operands(rng):
    a = scipy.sparse.random_array(SHAPE[:2], density=0.3, format="csc", rng=rng)
    b = scipy.sparse.random_array(SHAPE[1:], density=0.3, rng=rng)
    with codedla.SerialPool(4) as pool:
        found, _ = multiply(pool, a, b)
    np.testing.assert_allclose(found, (a @ b).toarray(), atol=1e-12)


def test_files_are_read_once(tmp_path, rng, monkeypatch):
    a, b = rng.standard_normal(SHAPE[:2]), rng.standard_normal(SHAPE[1:])
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", np.asfortranarray(b))
    read = []
    plain = FileSource.read

    def noted(self, rows, cols):
        read.append((self, rows, cols))
        return plain(self, rows, cols)

    monkeypatch.setattr(FileSource, "read", noted)
    sources = [inspect(str(tmp_path / f"{name}.npy"), name).open() for name in "AB"]
    with codedla.SerialPool(4) as pool:
        work = Panels(*sources, pool=pool, operation="matmul", ranges=PANELS)
        read.clear()  # the pass that finds NaN and sizes
        out = np.empty((37, 29))
        work.run(lambda *_: None, out=out, verify="locate")
    np.testing.assert_allclose(out, a @ b, atol=1e-12)
    assert [entry[1:] for entry in read if entry[0] is sources[1]] == [
        ((0, 23), cols) for cols in COLS
    ]
    assert [entry[1] for entry in read if entry[0] is sources[0]] == 2 * ROWS


def test_no_more_panels_are_open_than_planned(tmp_path, rng):
    np.save(tmp_path / "A.npy", rng.standard_normal((60, 8)))
    b = rng.standard_normal((8, 5))
    source = inspect(str(tmp_path / "A.npy"), "A").open()
    began, ended, most = [], [], []
    plain = source.read

    def read(rows, cols):
        began.append(rows)
        most.append(len(began) - len(ended))
        return plain(rows, cols)

    with codedla.SimulatedPool(6) as pool:
        panels = [((top, top + 5), (0, 5)) for top in range(0, 60, 5)]
        work = Panels(source, b, pool=pool, operation="matmul", ranges=panels)
        source.read = read
        work.run(lambda panel, *_: ended.append(panel[0]))
    assert sorted(ended) == sorted(began)
    assert 1 <= max(most) <= OPEN_ROUNDS


@pytest.mark.parametrize("verify", ["off", "locate"])
@pytest.mark.parametrize("code", ["auto", "rotation", "polynomial", "galois"])
def test_what_is_done_with_is_forgotten(rng, code, verify):
    """When a part of B is read, no other is in memory; of A, no more than are under way."""
    kind = np.int64 if code == "galois" else float
    parts: dict[str, list[weakref.ref]] = {"a": [], "b": []}
    most = {"a": 0, "b": 0}

    class Kept(MemorySource):
        in_memory = False

        def __init__(self, matrix, name):
            super().__init__(matrix)
            self.name = name

        def read(self, rows, cols):
            alive = sum(part() is not None for part in parts[self.name])
            most[self.name] = max(most[self.name], alive + 1)
            # A base, which any view keeps alive.
            made = super().read(rows, cols).copy()
            parts[self.name].append(weakref.ref(made))
            return made

    a = Kept((rng.standard_normal((60, 8)) * 9).astype(kind), "a")
    b = Kept((rng.standard_normal((8, 40)) * 9).astype(kind), "b")
    panels = journal.tile([((0, 60), (0, 40))], 6, 8)
    with codedla.SerialPool(5) as pool:
        work = Panels(a, b, pool=pool, operation="matmul", ranges=panels, code=code, tolerate=1)
        most.update(a=0, b=0)
        out = np.empty((60, 40), kind)
        gc.disable()  # nothing may wait for it
        try:
            work.run(lambda *_: None, out=out, verify=verify)
        finally:
            gc.enable()
    np.testing.assert_allclose(out, a.matrix @ b.matrix, atol=1e-9)
    assert most["b"] == 1
    assert most["a"] <= OPEN_ROUNDS


@pytest.mark.parametrize("dtype", [float, np.int64])
def test_b_is_projected_once_and_liars_are_found_in_every_panel(rng, monkeypatch, dtype):
    a = (rng.standard_normal(SHAPE[:2]) * 99).astype(dtype)
    b = (rng.standard_normal(SHAPE[1:]) * 99).astype(dtype)
    passes = []
    plain = Partition.blocks_of_b
    monkeypatch.setattr(
        Partition, "blocks_of_b", lambda self: passes.append(self.cols.length) or plain(self)
    )
    with codedla.SerialPool(5) as pool:
        multiply(pool, a, b, [PANELS[0]], verify="locate")
        once = len(passes)
        passes.clear()
        multiply(pool, a, b, PANELS[:3], verify="locate")
    assert once == len(passes) > 0
    with (
        codedla.SerialPool(5, faults=[Fault("corrupt", 1, 1.0)]) as pool,
        pytest.warns(CodedlaWarning, match="rank 2 was not used") as told,
    ):
        found, reports = multiply(pool, a, b, verify="locate", tolerate=2)
    # Once, not for every panel.
    assert len(told) == 1
    wrong = [report.wrong for report in reports]
    np.testing.assert_allclose(found, a @ b, atol=1e-9)
    assert [2] in wrong
    with (
        codedla.SerialPool(5, faults=[Fault("corrupt", 1, 1.0)]) as pool,
        pytest.raises(VerificationFailed, match="Freivalds"),
    ):
        multiply(pool, a, b, verify="freivalds", tolerate=2)


def test_panels_are_as_large_as_memory_allows():
    shape = (4000, 5000, 3000)
    plan = make_plan(shape[:2], shape[1:], float, 5)
    kinds = np.dtype(float), np.dtype(float)
    before = (0, 0)
    for gib in (0.1, 0.2, 0.4, 0.8, 4):
        limit = Budget(gib * 2**30, "a test", 0, "resident memory")
        rows, cols = fit_panels(plan, kinds, limit, rows=shape[0])
        panel = replace(plan, shape=(rows, shape[1], cols))
        assert panel_memory(panel, kinds).master <= limit.bytes
        assert rows * cols >= before[0] * before[1]
        before = rows, cols
    assert before == (4000, 3000)
    with pytest.raises(UsageError, match=r"smallest panel .* a test leaves 64\.0 MiB"):
        fit_panels(plan, kinds, Budget(WORKING, "a test", 0, "resident memory"), rows=shape[0])


def test_memory_of_operands_in_memory_is_not_counted():
    plan = make_plan((400, 500), (500, 300), float, 5)
    kinds = np.dtype(float), np.dtype(float)
    needed = [
        panel_memory(plan, kinds, in_memory=which).master
        for which in ((False, False), (False, True), (True, True))
    ]
    assert needed[0] - needed[1] == 500 * 300 * 8
    assert needed[1] > needed[2]
    assert panel_memory(plan, (np.dtype(np.int8),) * 2).master > needed[0]


def test_a_source_is_taken_as_it_is(rng):
    a, b = rng.standard_normal((6, 5)), rng.standard_normal((5, 4))
    with codedla.SerialPool(3) as pool:
        found, _ = multiply(pool, MemorySource(a), b, [((0, 6), (0, 4))])
    np.testing.assert_allclose(found, a @ b, atol=1e-13)
