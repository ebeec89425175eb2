"""Operands of every format, and outputs that are whole or not there."""

from __future__ import annotations

import errno
import gzip
import os

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from codedla.cli.files import inspect
from codedla.cli.output import Output, check_text
from codedla.errors import UsageError
from codedla.writing import write_text

h5py = pytest.importorskip("h5py")


def dense(value) -> np.ndarray:
    return value.toarray() if scipy.sparse.issparse(value) else np.asarray(value)


@pytest.fixture
def rng():
    return np.random.default_rng(3141593)


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i4", "u1", "?", ">f8"])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (0, 3), (1, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(tmp_path, rng, dtype, shape, order):
    array = np.asarray(rng.integers(0, 2, shape), dtype=dtype, order=order)
    np.save(tmp_path / "A.npy", array)
    operand = inspect(str(tmp_path / "A.npy"), "A")
    assert (operand.shape, operand.dtype, operand.nnz) == (shape, array.dtype, None)
    loaded = operand.load()
    assert isinstance(loaded, np.memmap) is (0 not in shape)
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i8"])
def test_npz(tmp_path, rng, layout, dtype):
    matrix = scipy.sparse.random_array((12, 8), density=0.3, rng=rng).astype(dtype)
    path = tmp_path / "A.npz"
    scipy.sparse.save_npz(path, matrix.asformat(layout))
    operand = inspect(str(path), "A")
    assert (operand.shape, operand.dtype) == ((12, 8), np.dtype(dtype))
    assert operand.nnz >= matrix.nnz
    np.testing.assert_array_equal(dense(operand.load()), matrix.toarray())


MTX = [
    (layout, field, symmetry)
    for layout in ("coordinate", "array")
    for field in ("real", "complex", "integer", "pattern")
    for symmetry in ("general", "symmetric", "skew-symmetric", "hermitian")
    # The format has no other combinations.
    if not (field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"))
    and not (symmetry == "hermitian" and field != "complex")
]


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(("layout", "field", "symmetry"), MTX)
def test_mtx(tmp_path, rng, suffix, layout, field, symmetry):
    values = rng.integers(1, 9, (6, 6)) * (rng.random((6, 6)) < 0.5)
    matrix = values.astype({"complex": "c16", "integer": "i8"}.get(field, "f8"))
    if field == "complex":
        matrix = matrix + 1j * matrix.T
    if field == "pattern":
        matrix = (matrix != 0).astype("f8")
    if symmetry == "symmetric":
        matrix = np.maximum(matrix, matrix.T) if field != "complex" else matrix + matrix.T
    elif symmetry == "skew-symmetric":
        matrix = matrix - matrix.T
    elif symmetry == "hermitian":
        matrix = matrix + matrix.conj().T
    plain = tmp_path / "plain.mtx"
    stored = scipy.sparse.coo_array(matrix) if layout == "coordinate" else matrix
    scipy.io.mmwrite(plain, stored, field=field, symmetry=symmetry)
    path = tmp_path / f"A{suffix}"
    data = plain.read_bytes()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    operand = inspect(str(path), "A")
    assert operand.shape == (6, 6)
    assert (operand.nnz is None) is (layout == "array")
    loaded = operand.load()
    np.testing.assert_array_equal(dense(loaded), matrix)
    assert loaded.dtype == operand.dtype


@pytest.mark.parametrize("chunks", [None, (2, 3)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i4"])
def test_h5(tmp_path, rng, chunks, dtype):
    array = rng.integers(0, 9, (5, 7)).astype(dtype)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("group/A", data=array, chunks=chunks)
    operand = inspect(f"{tmp_path}/m.h5:/group/A", "A")
    assert (operand.shape, operand.dtype) == ((5, 7), np.dtype(dtype))
    loaded = operand.load()
    np.testing.assert_array_equal(loaded, array)
    assert isinstance(loaded, np.memmap) is (chunks is None)


def write_truncated_npy(path):
    np.save(path, np.ones((100, 10)))
    os.truncate(path, 4000)


def write_bad_header(path):
    path.write_bytes(b"\x93NUMPY\x01\x00")


def write_text_file(path):
    path.write_text("1 2 3\n")


def write_objects(path):
    np.save(path, np.array([[1, None]], dtype=object), allow_pickle=True)


def write_strings(path):
    np.save(path, np.array([["a", "b"]]))


def write_dense_npz(path):
    np.savez(path, A=np.ones((2, 2)))


def write_half_zip(path):
    scipy.sparse.save_npz(path, scipy.sparse.eye_array(50, format="csr"))
    os.truncate(path, 200)


def write_bare_h5(path):
    with h5py.File(path, "w") as file:
        file["A"] = np.ones((2, 2))


@pytest.mark.parametrize(
    ("name", "write", "spec", "message"),
    [
        ("A.npy", write_truncated_npy, "A.npy", r"must be complete; got .*with 4000 of 8128 bytes"),
        ("A.npy", write_bad_header, "A.npy", "must start with a complete NumPy header"),
        ("A.npy", write_text_file, "A.npy", "must start with a complete NumPy header"),
        ("A.npy", write_objects, "A.npy", "must hold numbers; got dtype object"),
        ("A.npy", write_strings, "A.npy", "must hold numbers; got dtype <U1"),
        ("A.npz", write_dense_npz, "A.npz", r"scipy.sparse.save_npz; got .* holding A"),
        ("A.npz", write_half_zip, "A.npz", "must be a complete archive"),
        ("A.mtx", write_text_file, "A.mtx", "must start with a Matrix Market header"),
        ("A.mtx.gz", write_text_file, "A.mtx.gz", "got"),
        ("A.csv", write_text_file, "A.csv", "operands are .npy, .npz"),
        ("A.h5", write_bare_h5, "A.h5", "names its dataset"),
        ("A.h5", write_bare_h5, "A.h5:/B", "names a dataset; got '/B'.*there are /A"),
        ("A.h5", write_text_file, "A.h5:/A", "must be readable"),
        ("A.npy", None, "A.npy", "must be an existing file"),
        ("A.npy", lambda path: path.mkdir(), "A.npy", "got the directory"),
    ],
)
def test_bad_operands(tmp_path, monkeypatch, name, write, spec, message):
    monkeypatch.chdir(tmp_path)
    if write is not None:
        write(tmp_path / name)
    with pytest.raises(UsageError, match=message):
        inspect(spec, "A")


def npy_header(text: str) -> bytes:
    """A .npy file whose header says this and nothing is amiss otherwise."""
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + bytes(4096)


@pytest.mark.parametrize(
    "shape", ["(-3, 5)", "(3.0, 5)", "(True, 5)", "(10**9, 5)", "(3, 5", "(1, 2**70)", "{3}"]
)
def test_impossible_headers_are_refused(tmp_path, shape):
    path = tmp_path / "A.npy"
    path.write_bytes(npy_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"))
    with pytest.raises(UsageError, match="complete"):
        inspect(str(path), "A").load()


def test_damaged_npy_files_are_refused_or_read(tmp_path):
    """Every single damaged byte of the header: a refusal in words, or an array."""
    np.save(tmp_path / "A.npy", np.arange(12.0).reshape(3, 4))
    whole = (tmp_path / "A.npy").read_bytes()
    path, refused = tmp_path / "B.npy", 0
    for place in range(128):
        for damage in (0x15, 0x80):
            broken = bytearray(whole)
            broken[place] ^= damage
            path.write_bytes(broken)
            try:
                inspect(str(path), "B").load()
            except UsageError:
                refused += 1
    assert refused > 50
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            inspect(str(path), "B").load()


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 99, 1])},
        {"indices": np.array([0, -1, 1])},
        {"indptr": np.array([0, 9, 3])},
        {"indptr": np.array([0, 3, 2])},
        {"indptr": np.array([1, 2, 3])},
        {"data": np.ones(2)},
        {"shape": np.array([-2, 3])},
        {"shape": np.array([2, 3, 4])},
        {"shape": np.array(["a", "b"])},
        {"format": np.array(b"zzz")},
        {"data": np.array([1, None, "x"])},
    ],
    ids=lambda change: f"{next(iter(change))}",
)
@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_sparse_files_that_point_outside_are_refused(tmp_path, change, layout):
    """Compiled code would write where they point."""
    entries = {
        "format": np.array(layout.encode()),
        "shape": np.array([2, 3] if layout == "csr" else [3, 2]),
        "data": np.ones(3),
        "indices": np.array([0, 2, 1]),
        "indptr": np.array([0, 2, 3]),
    }
    np.savez(tmp_path / "A.npz", **entries)
    assert inspect(str(tmp_path / "A.npz"), "A").load().nnz == 3
    np.savez(tmp_path / "A.npz", **{**entries, **change})
    with pytest.raises(UsageError):
        inspect(str(tmp_path / "A.npz"), "A").load()


def test_a_file_that_promises_more_than_memory_is_refused(tmp_path):
    path = tmp_path / "A.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n3 3 99999999999999\n1 1 2\n")
    with pytest.raises(UsageError, match=r"memory|complete"):
        inspect(str(path), "A").load()


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "loop", "dangling", "A.npy/B"])
def test_paths_that_lead_nowhere(tmp_path, name):
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    (tmp_path / "dangling.npy").symlink_to("nothing.npy")
    (tmp_path / "A.npy").touch()
    with pytest.raises(UsageError, match="operand A must be"):
        inspect(str(tmp_path / f"{name}.npy"), "A")


def test_a_truncated_matrix_market_file_is_found_on_loading(tmp_path):
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, scipy.sparse.eye_array(50))
    os.truncate(path, path.stat().st_size - 60)
    with pytest.raises(UsageError, match="must be a complete file"):
        inspect(str(path), "A").load()


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("spec", ["C.npy", "C.h5:/C", "C.h5:/deep/er/C"])
@pytest.mark.parametrize("dtype", ["f8", "c8", "i8"])
@pytest.mark.parametrize("shape", [(4, 6), (6,), (0, 3)])
def test_output_round_trip(tmp_path, rng, spec, dtype, shape):
    value = rng.integers(0, 9, shape).astype(dtype)
    output = Output(f"{tmp_path}/{spec}")
    output.check()
    with output.receive(shape, value.dtype) as array:
        assert not output.path.exists()
        array[...] = value
    operand = inspect(f"{tmp_path}/{spec}", "C")
    assert (operand.shape, operand.dtype) == (shape, value.dtype)
    np.testing.assert_array_equal(operand.load(), value)
    assert [p.name for p in tmp_path.iterdir()] == [output.path.name]


@pytest.mark.parametrize("spec", ["C.npy", "C.h5:/C"])
def test_a_failed_product_leaves_the_old_file_and_nothing_else(tmp_path, spec):
    first = Output(f"{tmp_path}/{spec}")
    with first.receive((2, 2), np.dtype("f8")) as array:
        array[...] = 1
    second = Output(f"{tmp_path}/{spec}", force=True)
    with pytest.raises(ZeroDivisionError), second.receive((2, 2), np.dtype("f8")) as array:
        array[...] = 2
        raise ZeroDivisionError
    np.testing.assert_array_equal(inspect(f"{tmp_path}/{spec}", "C").load(), np.ones((2, 2)))
    assert [p.name for p in tmp_path.iterdir()] == [first.path.name]


def test_the_other_datasets_stay(tmp_path):
    for name, value in (("one", 1), ("two", 2)):
        output = Output(f"{tmp_path}/C.h5:/{name}")
        output.check()
        with output.receive((3,), np.dtype("f8")) as array:
            array[...] = value
    forced = Output(f"{tmp_path}/C.h5:/one", force=True)
    forced.check()
    with forced.receive((2, 2), np.dtype("f4")) as array:
        array[...] = 7
    with h5py.File(tmp_path / "C.h5") as file:
        assert sorted(file) == ["one", "two"]
        np.testing.assert_array_equal(file["one"][...], np.full((2, 2), 7))
        np.testing.assert_array_equal(file["two"][...], np.full(3, 2))


def test_an_output_that_appears_meanwhile_is_kept(tmp_path):
    output = Output(f"{tmp_path}/C.npy")
    output.check()
    with (
        pytest.raises(UsageError, match="appeared meanwhile"),
        output.receive((2,), np.dtype("f8")) as array,
    ):
        array[...] = 1
        output.path.write_text("precious")
    assert output.path.read_text() == "precious"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("C.txt", "outputs are .npy or FILE.h5:/dataset"),
        ("there.npy", "must not exist yet; got there.npy; give --force"),
        ("there.h5:/A", "must not exist yet"),
        ("text.h5:/A", "must be HDF5"),
        ("folder.npy", "got the directory"),
        ("no/such/C.npy", "directory must exist; got 'no/such'; create it"),
        ("text.h5/C.npy", "directory must exist"),
        ("/proc/C.npy", "must be writable"),
        ("there.h5:/", "names a dataset"),
        ("there.h5:/.", "names a dataset"),
        ("there.h5:/new//C", "names a dataset"),
        ("there.h5:/A/C", "/A is no group"),
    ],
)
def test_bad_outputs(tmp_path, monkeypatch, spec, message):
    monkeypatch.chdir(tmp_path)
    np.save("there.npy", np.ones(2))
    write_bare_h5(tmp_path / "there.h5")
    (tmp_path / "text.h5").write_text("text")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(UsageError, match=message):
        Output(spec).check()


def test_a_group_is_not_replaced_even_when_forced(tmp_path):
    path = tmp_path / "C.h5"
    with h5py.File(path, "w") as file:
        file["group/precious"] = np.ones(3)
    with pytest.raises(UsageError, match="/group is a group of other data"):
        Output(f"{path}:/group", force=True).check()
    Output(f"{path}:/group/C").check()


def test_an_output_lands_behind_a_symbolic_link(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    link = tmp_path / "C.npy"
    link.symlink_to(disk / "data")
    for force in (False, True):
        output = Output(str(link), force=force)
        output.check()
        with output.receive((2, 3), np.dtype("f8")) as array:
            assert list(disk.glob(".*.part"))
            array[...] = 1.0 + force
        assert link.is_symlink()
        np.testing.assert_array_equal(np.load(disk / "data"), np.full((2, 3), 1.0 + force))
    with pytest.raises(UsageError, match="must not exist yet"):
        Output(str(link)).check()


def test_a_long_name(tmp_path):
    output = Output(str(tmp_path / f"{'é' * 125}.npy"))
    output.check()
    with output.receive((1, 2), np.dtype("f8")) as array:
        array[...] = 7.0
    np.testing.assert_array_equal(np.load(output.path), [[7.0, 7.0]])


def test_no_room_for_the_output(tmp_path):
    with pytest.raises(UsageError, match=r"needs 1048576.000 GiB; .* has .* GiB free"):
        Output(f"{tmp_path}/C.npy").check(2**50)


def test_a_disk_that_fills_up_meanwhile(tmp_path, monkeypatch):
    """Between the check and the claim: said with the size, before there is a map to write to."""

    def full(handle, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = Output(f"{tmp_path}/C.npy")
    output.check(8_000_000)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(OSError, match=r"cannot claim 0.007 GiB of disk for the output \(No space"),
        output.receive((1000, 1000), np.dtype("f8")),
    ):
        pytest.fail("nothing may be computed")
    assert list(tmp_path.iterdir()) == []


def test_text_outputs(tmp_path):
    path = tmp_path / "r.json"
    check_text(path, force=False)
    write_text(path, "one")
    with pytest.raises(UsageError, match="must not exist yet"):
        check_text(path, force=False)
    check_text(path, force=True)
    write_text(path, "two")
    assert path.read_text() == "two"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_text_that_cannot_be_written_names_its_file(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_text(path, "one")

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(path), "write_bytes", full)
    with pytest.raises(OSError, match=r"No space.*/r\.json'"):
        write_text(path, "two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_text_outputs_with_long_names(tmp_path):
    path = tmp_path / f"{'r' * 250}.json"
    write_text(path, "\N{GREEK SMALL LETTER ALPHA}")
    assert path.read_bytes() == "\N{GREEK SMALL LETTER ALPHA}".encode()
    assert list(tmp_path.iterdir()) == [path]
