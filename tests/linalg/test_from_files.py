"""Shares that workers make themselves from files, in this process; real ranks are in tests/mpi."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.blocks import Split
from codedla.engine.encoder import DenseEncoder
from codedla.engine.recipe import Recipe, RecipeEncoder
from codedla.engine.stragglers import parse_fault
from codedla.errors import UsageError
from codedla.views import Unreadable, file_view

RNG = np.random.default_rng(90007)


def saved(folder, name, matrix):
    path = folder / f"{name}.npy"
    np.save(path, matrix)
    return np.load(path, mmap_mode="r")


VIEWS = {
    "whole": lambda a: a,
    "rows": lambda a: a[5:29],
    "columns": lambda a: a[:, 3:18],
    "window": lambda a: a[4:30, 2:19],
    "every second row": lambda a: a[::2],
    "transposed": lambda a: a.T,
    "as operands are kept": lambda a: np.asarray(a)[3:],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_recipes_make_the_shares_of_the_matrix(tmp_path, view, order):
    for dtype in ("f4", "f8", "c16"):
        values = np.asarray(RNG.integers(-9, 9, (31, 23)), dtype, order=order)
        matrix = VIEWS[view](saved(tmp_path, "a", values))
        rows, cols = Split(matrix.shape[0], 3), Split(matrix.shape[1], 2)
        dense = DenseEncoder(np.array(matrix), rows, cols, matrix.dtype)
        place = file_view(matrix)
        assert place is not None
        recipes = RecipeEncoder(place, rows, cols)
        weights = RNG.standard_normal((2, 6))
        if dtype == "c16":
            weights = weights + 1j * RNG.standard_normal((2, 6))
        sent = [recipes.coded(weights, 2), *(recipes.plain(k) for k in range(6))]
        wanted = [dense.coded(weights, 2), *(dense.plain(k) for k in range(6))]
        for recipe, share in zip(sent, wanted, strict=True):
            packed = recipe.pack()
            assert packed.nbytes < 800
            np.testing.assert_array_equal(Recipe.unpack(packed).make(), share)


def test_what_lies_in_no_file(tmp_path):
    mapped = saved(tmp_path, "a", np.ones((4, 4)))
    assert file_view(np.ones((4, 4))) is None
    assert file_view(mapped * 1.0) is None
    assert file_view(mapped.copy()) is None
    assert file_view(mapped[::-1]) is None


def test_a_file_that_is_not_what_was_mapped(tmp_path):
    path = tmp_path / "a.npy"
    mapped = saved(tmp_path, "a", np.ones((40, 40)))
    changed = np.load(path, mmap_mode="c")
    changed[3, 3] = 7
    assert file_view(changed) is None
    for values in (np.zeros((40, 40)), np.ones((20, 40))):
        path.unlink()
        np.save(path, values)
        assert file_view(mapped) is None
    path.unlink()
    np.save(path, np.ones((40, 40)))
    assert file_view(mapped) is not None


def test_hdf5_files_that_no_other_process_can_open(tmp_path):
    h5py = pytest.importorskip("h5py")
    values = RNG.standard_normal((12, 12))
    options = {"core": {"backing_store": False}, "family": {"memb_size": 4096}}
    for driver, words in options.items():
        with h5py.File(tmp_path / "part%d.h5", "w", driver=driver, **words) as file:
            file["a"] = values
            with codedla.SerialPool(2) as pool, pytest.raises(UsageError, match=driver):
                codedla.matmul(file["a"], file["a"], pool=pool, encode="workers")


def test_another_file_is_not_taken_for_it(tmp_path):
    view = file_view(saved(tmp_path, "a", np.ones((40, 40))))
    (tmp_path / "a.npy").unlink()
    with pytest.raises(Unreadable, match=r"cannot read .*a\.npy"):
        view.open()
    np.save(tmp_path / "a.npy", np.zeros((40, 40)))
    with pytest.raises(Unreadable, match="another file here than on rank 0"):
        view.open()
    np.save(tmp_path / "a.npy", np.ones((40, 41)))
    with pytest.raises(Unreadable, match="another file"):
        view.open()


def test_matvec_and_store(tmp_path):
    values = RNG.standard_normal((60, 35))
    a, x = saved(tmp_path, "a", values), RNG.standard_normal(35)
    late = [parse_fault("delay:1:5"), parse_fault("delay:3:5")]
    with codedla.SerialPool(6, faults=late) as pool:
        y = codedla.matvec(a, x, pool=pool, encode="workers", tolerate=2)
        np.testing.assert_allclose(y, values @ x, rtol=1e-9)
        with codedla.store(a, pool=pool, encode="workers", tolerate=2) as stored:
            for _ in range(2):
                np.testing.assert_allclose(stored @ x, values @ x, rtol=1e-9)


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    values, x = RNG.standard_normal((60, 35)), RNG.standard_normal(35)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["whole"] = values
        file.create_dataset("chunked", data=values, chunks=(10, 10))
    with h5py.File(tmp_path / "a.h5", "r") as file, codedla.SerialPool(3) as pool:
        y = codedla.matvec(file["whole"], x, pool=pool, encode="workers")
        np.testing.assert_allclose(y, values @ x, rtol=1e-9)
        with pytest.raises(UsageError, match=r"in one piece .* without chunks"):
            codedla.matvec(file["chunked"], x, pool=pool, encode="workers")


def test_refusals(tmp_path):
    a, x = saved(tmp_path, "a", RNG.standard_normal((20, 20))), np.ones(20)
    single = saved(tmp_path, "single", np.ones((20, 20), np.float32))
    whole = saved(tmp_path, "whole", np.full((20, 20), 2**40))
    with codedla.SerialPool(3) as pool:
        for operand, options, reason in (
            (np.ones((20, 20)), {}, "A must lie in a file.*mmap_mode"),
            (single, {}, "A must hold float64.*got float32"),
            (whole, {}, "encode='master'"),
        ):
            with pytest.raises(UsageError, match=reason):
                codedla.matvec(
                    operand,
                    x.astype(int) if operand is whole else x,
                    pool=pool,
                    encode="workers",
                    **options,
                )
        with pytest.raises(UsageError, match="encode must be"):
            codedla.matvec(a, x, pool=pool, encode="nobody")


@pytest.mark.parametrize(
    "code", ["khatri-rao", "orthopoly", "orthmatdot", "rotation", "polynomial"]
)
def test_matmul_is_the_same_to_rounding(tmp_path, code):
    left, right = RNG.standard_normal((45, 36)), RNG.standard_normal((36, 52))
    a, b = saved(tmp_path, "a", left), saved(tmp_path, "b", np.asfortranarray(right))
    late = [parse_fault("delay:1:5"), parse_fault("delay:2:5")]
    if code == "polynomial":  # complex shares of real blocks
        with codedla.SerialPool(8) as pool, pytest.raises(UsageError, match="must hold complex"):
            codedla.matmul(a, b, pool=pool, code=code, encode="workers")
        return
    with codedla.SerialPool(8, faults=late) as pool:
        here = codedla.matmul(left, right, pool=pool, code=code, tolerate=2)
        there, report = codedla.matmul(
            a, b, pool=pool, code=code, tolerate=2, encode="workers", return_report=True
        )
        checked = codedla.matmul(
            a, b, pool=pool, code=code, tolerate=2, encode="workers", verify="locate"
        )
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-11)
    np.testing.assert_allclose(checked, left @ right, rtol=0, atol=1e-9)
    assert report.verified == "off"


def test_both_operands_of_a_product_lie_in_files(tmp_path):
    a = saved(tmp_path, "a", np.ones((20, 20)))
    with codedla.SerialPool(3) as pool, pytest.raises(UsageError, match="B must lie in a file"):
        codedla.matmul(a, np.ones((20, 20)), pool=pool, encode="workers")
