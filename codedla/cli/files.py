"""Operands from files and products into files.

Reading is in two steps: :func:`inspect` looks at the header only (shape, dtype, completeness),
:meth:`Operand.load` maps or reads the entries.  A product is received straight into a temporary
file beside its destination and renamed when it is complete, so that a file under the final name
is always whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = ["Operand", "Output", "inspect", "write_text"]

_H5 = re.compile(r"^(?P<path>.+\.(?:h5|hdf5)):(?P<name>.+)$")
#: What NumPy, SciPy and the archive readers raise over the contents of a damaged file.
_DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    SyntaxError,
    NotImplementedError,
    EOFError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_NO_H5PY = "{spec} needs the package h5py; it is not installed; pip install 'codedla[hdf5]'"


@dataclass(frozen=True)
class Operand:
    """A matrix or vector in a file.

    Parameters
    ----------
    spec : str
        As the user wrote it.
    path : Path
        The file.
    format : str
        ``"npy"``, ``"npz"``, ``"mtx"`` or ``"h5"``.
    shape : tuple of int
    dtype : numpy.dtype
    nnz : int or None
        Stored entries of a sparse operand, None for a dense one.
    dataset : str
        Name inside an HDF5 file.
    """

    spec: str
    path: Path
    format: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nnz: int | None = None
    dataset: str = ""

    def load(self) -> Any:
        """Return the entries: a read-only memory map, an ndarray or a SciPy sparse matrix.

        Raises
        ------
        UsageError
            The file does not hold what its header promises.
        """
        try:
            if self.format == "npy":
                return _map_npy(self.path, self.shape)
            if self.format == "npz":
                return _load_npz(self.path)
            if self.format == "mtx":
                return _load_mtx(self.path)
            return _load_h5(self.path, self.dataset, self.spec)
        except MemoryError as error:
            raise UsageError(
                f"an operand must fit into memory; got {self.spec} ({error}); "
                "check its header, or use a machine with more"
            ) from error
        except (*_DAMAGED, OSError) as error:
            raise UsageError(
                f"an operand must be a complete file; got {self.spec} ({error}); write it again"
            ) from error


def inspect(spec: str, role: str) -> Operand:
    """Read the header of an operand.

    Parameters
    ----------
    spec : str
        ``FILE.npy``, ``FILE.npz``, ``FILE.mtx``, ``FILE.mtx.gz`` or ``FILE.h5:/dataset``.
    role : str
        ``"A"``, ``"B"`` or ``"x"``, for messages.

    Returns
    -------
    Operand

    Raises
    ------
    UsageError
        No such file, a format that is not read, not numeric, or not a complete file.
    """
    match = _H5.match(spec)
    path = Path(match["path"] if match else spec)
    try:
        if not path.exists():
            raise UsageError(
                f"operand {role} must be an existing file; got {str(path)!r}; check the path"
            )
        if path.is_dir():
            raise UsageError(
                f"operand {role} must be a file; got the directory {str(path)!r}; name one"
            )
        if not path.is_file():
            raise UsageError(
                f"operand {role} must be an ordinary file; got {str(path)!r}, a pipe or device; "
                "save it to a file first"
            )
        if match:
            operand = _inspect_h5(spec, path, match["name"])
        elif spec.endswith(".npy"):
            operand = _inspect_npy(spec, path)
        elif spec.endswith(".npz"):
            operand = _inspect_npz(spec, path)
        elif spec.endswith((".mtx", ".mtx.gz")):
            operand = _inspect_mtx(spec, path)
        elif spec.endswith((".h5", ".hdf5")):
            raise UsageError(
                f"an HDF5 operand names its dataset; got {spec!r}; write it {spec}:/dataset"
            )
        else:
            raise UsageError(
                "operands are .npy, .npz (SciPy sparse), .mtx, .mtx.gz or FILE.h5:/dataset; "
                f"got {spec!r}; convert it, for instance with numpy.save"
            )
    except OSError as error:
        raise UsageError(
            f"operand {role} must be readable; got {spec!r} ({error.strerror or error}); "
            "check the file and its permissions"
        ) from error
    _check_numeric(operand, role)
    return operand


def _check_numeric(operand: Operand, role: str) -> None:
    if operand.dtype.kind not in "biufc":
        kind = "object" if operand.dtype.hasobject else str(operand.dtype)
        raise UsageError(
            f"operand {role} must hold numbers; got dtype {kind} in {operand.spec}; "
            "save it again after .astype(float)"
        )


# ---------------------------------------------------------------- .npy


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        # Versions 2 and 3 differ in the encoding of field names only, which no matrix has.
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    return _checked_shape(shape), dtype


def _checked_shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Refuse what a header can say and no array can have: negative, fractional, boolean lengths."""
    if not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"no array has shape {shape}")
    return shape


def _inspect_npy(spec: str, path: Path) -> Operand:
    with path.open("rb") as stream:
        try:
            shape, dtype = _read_header(stream)
        except _DAMAGED as error:
            raise UsageError(
                f"a .npy file must start with a complete NumPy header; got {spec} ({error}); "
                "write it again with numpy.save"
            ) from error
        start = stream.tell()
    operand = Operand(spec, path, "npy", shape, dtype)
    _check_numeric(operand, "in a .npy file")
    need = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    size = path.stat().st_size
    if size < need:
        raise UsageError(
            f"a .npy file must be complete; got {spec} with {size} of {need} bytes; "
            "copy or write it again"
        )
    return operand


def _map_npy(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    if 0 in shape:  # an empty file cannot be mapped
        return np.zeros(shape, np.load(path, allow_pickle=False).dtype)
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


# ---------------------------------------------------------------- sparse


def _inspect_npz(spec: str, path: Path) -> Operand:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if not {"format.npy", "shape.npy", "data.npy"} <= names:
                inside = ", ".join(sorted(n.removesuffix(".npy") for n in names)) or "nothing"
                raise UsageError(
                    f"an .npz operand must be written by scipy.sparse.save_npz; got {spec} "
                    f"holding {inside}; save a dense matrix as .npy"
                )
            with archive.open("shape.npy") as stream:
                shape = _checked_shape(tuple(np.lib.format.read_array(stream).tolist()))
            with archive.open("data.npy") as stream:
                data_shape, dtype = _read_header(stream)
    except (*_DAMAGED, MemoryError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"an .npz file must be a complete archive; got {spec} ({error}); write it again"
        ) from error
    return Operand(spec, path, "npz", shape, dtype, nnz=int(np.prod(data_shape, dtype=object)))


def _load_npz(path: Path) -> Any:
    import scipy.sparse

    matrix = scipy.sparse.load_npz(path)
    if matrix.format in ("csr", "csc", "bsr"):
        # SciPy checks indices only when asked to, and compiled code writes where they point.
        matrix.check_format(full_check=True)
    return matrix.tocsr()


def _inspect_mtx(spec: str, path: Path) -> Operand:
    import scipy.io

    try:
        rows, columns, entries, layout, field, symmetry = scipy.io.mminfo(path)
    except _DAMAGED as error:
        raise UsageError(
            f"a .mtx file must start with a Matrix Market header; got {spec} ({error}); "
            "write it again with scipy.io.mmwrite"
        ) from error
    dtype = np.dtype(
        {"complex": np.complex128, "integer": np.int64, "unsigned-integer": np.uint64}.get(
            field, np.float64
        )
    )
    nnz = entries if symmetry == "general" else min(2 * entries, rows * columns)
    return Operand(
        spec,
        path,
        "mtx",
        (int(rows), int(columns)),
        dtype,
        nnz=int(nnz) if layout == "coordinate" else None,
    )


def _load_mtx(path: Path) -> Any:
    import scipy.io
    import scipy.sparse

    matrix = scipy.io.mmread(path)
    return matrix.tocsr() if scipy.sparse.issparse(matrix) else np.ascontiguousarray(matrix)


# ---------------------------------------------------------------- HDF5


def _h5py(spec: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UsageError(_NO_H5PY.format(spec=spec)) from error
    return h5py


def _inspect_h5(spec: str, path: Path, name: str) -> Operand:
    h5py = _h5py(spec)
    with h5py.File(path, "r") as file:
        item = file.get(name)
        if not isinstance(item, h5py.Dataset):
            found: list[str] = []
            file.visititems(
                lambda key, value: (
                    found.append(f"/{key}") if isinstance(value, h5py.Dataset) else None
                )
            )
            raise UsageError(
                f"an HDF5 operand names a dataset; got {name!r} in {path}; "
                f"there are {', '.join(found[:10]) or 'none'}"
            )
        if item.shape is None:
            raise UsageError(f"an HDF5 operand must have a shape; got the empty {name!r} in {path}")
        return Operand(spec, path, "h5", tuple(item.shape), item.dtype, dataset=name)


def _load_h5(path: Path, name: str, spec: str) -> NDArray[Any]:
    with _h5py(spec).File(path, "r") as file:
        item = file[name]
        offset = item.id.get_offset()
        if offset is None or item.size == 0 or item.external:
            array: NDArray[Any] = item[...]
            return array
        # Contiguous and uncompressed: map it, like .npy, instead of reading it into memory.
        shape, dtype = item.shape, item.dtype
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


# ---------------------------------------------------------------- outputs


class Output:
    """Destination of a product.

    Parameters
    ----------
    spec : str
        ``FILE.npy`` or ``FILE.h5:/dataset``.
    force : bool
        Whether an existing file (or dataset) may be replaced.
    """

    def __init__(self, spec: str, *, force: bool = False) -> None:
        match = _H5.match(spec)
        self.spec = spec
        self.force = force
        name = match["path"] if match else spec
        # Behind a symbolic link, so that the product lands on the disk that the link leads to.
        self.path = Path(os.path.realpath(name) if os.path.islink(name) else name)
        self.dataset = match["name"] if match else ""
        # The parent process of a job chooses the mark, so that it can tidy up after a killed one.
        self._mark(os.environ.get("CODEDLA_PART") or uuid.uuid4().hex)

    def _mark(self, mark: str) -> None:
        # Cut, because a name has at most 255 bytes.
        self.temporary = self.path.with_name(f".{self.path.name[:50]}.{mark[:12]}.part")

    def with_mark(self, mark: str) -> Output:
        """Return the same output with another process's temporary name."""
        other = Output(self.spec, force=self.force)
        other._mark(mark)
        return other

    def check(self, bytes_needed: int = 0) -> None:
        """Make sure that the product will find its place.

        Raises
        ------
        UsageError
            Unknown format, exists already, directory missing or not writable, or no room.
        """
        if not self.dataset and not self.spec.endswith(".npy"):
            raise UsageError(
                f"outputs are .npy or FILE.h5:/dataset; got {self.spec!r}; choose one of them"
            )
        if self.dataset:
            _h5py(self.spec)
            self._check_dataset_name()
        _check_place(self.path, self.spec)
        if self._taken() and not self.force:
            raise UsageError(
                f"an output must not exist yet; got {self.spec}; "
                "give --force to replace it, or another name"
            )
        free = shutil.disk_usage(self.path.parent).free
        if bytes_needed > free:
            raise UsageError(
                f"the output needs {bytes_needed / 2**30:.3f} GiB; {self.path.parent} has "
                f"{free / 2**30:.3f} GiB free; make room or choose another directory"
            )

    def _taken(self) -> bool:
        if not self.path.exists():
            return False
        if not self.dataset:
            return True
        try:
            with _h5py(self.spec).File(self.path, "r") as file:
                self._check_dataset_place(file)
                return self.dataset in file
        except OSError as error:
            raise UsageError(
                f"the output file must be HDF5; got {self.path} ({error}); choose another name"
            ) from error

    def _check_dataset_name(self) -> None:
        parts = self.dataset.strip("/").split("/")
        if "" in parts or "." in parts or ".." in parts or "\0" in self.dataset:
            raise UsageError(
                f"an HDF5 output names a dataset; got {self.spec!r}; write it {self.path}:/name"
            )

    def _check_dataset_place(self, file: Any) -> None:
        """Refuse to put a dataset below another one, or in the place of a whole group."""
        group = _h5py(self.spec).Group
        parts = self.dataset.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            place, last = "/".join(parts[:depth]), depth == len(parts)
            if file.get(place, getlink=True) is None:
                return
            found = file.get(place)  # None: a link that leads nowhere
            if isinstance(found, group) is last:
                kind = "a group of other data" if last else "no group"
                raise UsageError(
                    f"an HDF5 output must have its own place; got {self.spec}, and /{place} is "
                    f"{kind}; choose another name"
                )

    @contextlib.contextmanager
    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Lend the array that becomes the file when the block ends without an exception."""
        try:
            array = self._create(shape, np.dtype(dtype))
            yield array
            if isinstance(array, np.memmap):
                array.flush()
            elif not self.dataset:
                with self.temporary.open("wb") as stream:
                    np.save(stream, array, allow_pickle=False)
            del array
            if self._taken() and not self.force:
                raise UsageError(
                    f"an output must not exist yet; {self.spec} appeared meanwhile; "
                    "run again with --force or another name"
                )
            self.temporary.replace(self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file, if there is one."""
        self.temporary.unlink(missing_ok=True)

    def _create(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self.dataset:
            return self._create_h5(shape, dtype)
        if 0 in shape:
            return np.empty(shape, dtype)  # an empty file cannot be mapped
        array = np.lib.format.open_memmap(self.temporary, mode="w+", dtype=dtype, shape=shape)
        _reserve(self.temporary)
        return array

    def _create_h5(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        h5py = _h5py(self.spec)
        if self.path.exists():
            # The other datasets stay; working on a copy keeps the old file whole until the end.
            shutil.copyfile(self.path, self.temporary)
        with h5py.File(self.temporary, "a") as file:
            if self.dataset in file:
                del file[self.dataset]
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_layout(h5py.h5d.CONTIGUOUS)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            links.set_create_intermediate_group(True)
            created = h5py.h5d.create(
                file.id,
                self.dataset.encode(),
                h5py.h5t.py_create(dtype, logical=True),
                h5py.h5s.create_simple(shape),
                layout,
                links,
            )
            offset = created.get_offset()
        if 0 in shape:
            return np.empty(shape, dtype)
        _reserve(self.temporary)
        return np.memmap(self.temporary, dtype=dtype, mode="r+", offset=offset, shape=shape)


def _reserve(path: Path) -> None:
    """Claim the disk space now: writing to a map on a full disk would kill the process."""
    with path.open("r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)


def _check_place(path: Path, spec: str) -> None:
    folder = path.parent
    try:
        path.exists()
    except OSError as error:
        raise UsageError(
            f"an output must have a possible name; got {spec!r} ({error.strerror}); choose another"
        ) from error
    if path.is_dir():
        raise UsageError(f"an output must be a file; got the directory {spec!r}; name a file in it")
    if not folder.is_dir():
        raise UsageError(
            f"an output's directory must exist; got {str(folder)!r}; create it with mkdir -p"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"an output's directory must be writable; got {str(folder)!r} ({error.strerror}); "
            "choose another"
        ) from error


def check_text(path: Path, *, force: bool) -> None:
    """Make sure that a small text output will find its place.

    Raises
    ------
    UsageError
        Exists already, or the directory is missing or not writable.
    """
    _check_place(path, str(path))
    if path.exists() and not force:
        raise UsageError(
            f"an output must not exist yet; got {path}; give --force to replace it, or another name"
        )


def write_text(path: Path, text: str) -> None:
    """Write a small text file under a temporary name and rename it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
