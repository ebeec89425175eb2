"""Operands from files, in two steps.

:func:`inspect` looks at the header only (shape, dtype, completeness), :meth:`Operand.load` maps or
reads the entries.
"""

from __future__ import annotations

import math
import re
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

if TYPE_CHECKING:
    from codedla.linalg.sources import Source

__all__ = ["H5_SPEC", "Operand", "import_h5py", "inspect", "npy_layout"]

H5_SPEC = re.compile(r"^(?P<path>.+\.(?:h5|hdf5)):(?P<name>.+)$")
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

    @property
    def loaded_bytes(self) -> float:
        """Bytes of an operand that can only be loaded as a whole; 0 where ranges can be read."""
        if self.format in ("npy", "h5"):
            return 0.0
        entries = math.prod(self.shape) if self.nnz is None else self.nnz
        # Of a sparse matrix the indices, too, and twice: files list entries in any order.
        return 2.0 * entries * (self.dtype.itemsize + (0 if self.nnz is None else 12))

    def open(self) -> Source:
        """Return the entries of a dense operand in a file as a source that reads them by ranges.

        Sparse operands and text files are loaded into memory.

        Raises
        ------
        UsageError
            As by :meth:`load`.
        """
        from codedla.linalg.sources import FileSource, as_source

        try:
            if self.format == "npy":
                return FileSource(self.path, *_of_matrix(*npy_layout(self.path)))
            if self.format == "h5":
                return _open_h5(self.path, self.dataset, self.spec)
        except (*_DAMAGED, OSError) as error:
            raise UsageError(
                f"an operand must be a complete file; got {self.spec} ({error}); write it again"
            ) from error
        return as_source(self.load(), "an operand")

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
    match = H5_SPEC.match(spec)
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


def npy_layout(path: Path) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]]:
    """Return where the entries of a ``.npy`` file begin, shape, Fortran order or not, and dtype."""
    with path.open("rb") as stream:
        shape, fortran, dtype = _read_header(stream)
        return stream.tell(), shape, fortran, dtype


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        # Versions 2 and 3 differ in the encoding of field names only, which no matrix has.
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    return _checked_shape(shape), fortran, dtype


def _checked_shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Refuse what a header can say and no array can have: negative, fractional, boolean lengths."""
    if not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        raise ValueError(f"no array has shape {shape}")
    return shape


def _inspect_npy(spec: str, path: Path) -> Operand:
    try:
        start, shape, _, dtype = npy_layout(path)
    except _DAMAGED as error:
        raise UsageError(
            f"a .npy file must start with a complete NumPy header; got {spec} ({error}); "
            "write it again with numpy.save"
        ) from error
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


def _of_matrix(
    offset: int, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]
) -> tuple[int, tuple[int, int], np.dtype[Any], bool]:
    """Return the arguments of a source; a vector is a matrix of one column."""
    rows, cols = (*shape, 1)[:2]
    return offset, (rows, cols), dtype, fortran and len(shape) > 1


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
                data_shape, _, dtype = _read_header(stream)
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


def import_h5py(spec: str) -> Any:
    """Return h5py, or say how to get it for the file ``spec`` (UsageError)."""
    try:
        import h5py
    except ImportError as error:
        raise UsageError(_NO_H5PY.format(spec=spec)) from error
    return h5py


def _inspect_h5(spec: str, path: Path, name: str) -> Operand:
    h5py = import_h5py(spec)
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


def _open_h5(path: Path, name: str, spec: str) -> Source:
    from codedla.linalg.sources import DatasetSource, FileSource

    place = _h5_layout(path, name, spec)
    return DatasetSource(path, name) if place is None else FileSource(path, *_of_matrix(*place))


def _load_h5(path: Path, name: str, spec: str) -> NDArray[Any]:
    place = _h5_layout(path, name, spec)
    if place is None:
        with import_h5py(spec).File(path, "r") as file:
            array: NDArray[Any] = file[name][...]
            return array
    # Map it, like .npy, instead of reading it into memory.
    offset, shape, _, dtype = place
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


def _h5_layout(
    path: Path, name: str, spec: str
) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]] | None:
    """Return the layout of a contiguous, uncompressed dataset; None for any other."""
    with import_h5py(spec).File(path, "r") as file:
        item = file[name]
        offset = item.id.get_offset()
        if offset is None or item.size == 0 or item.external:
            return None
        return int(offset), tuple(item.shape), False, item.dtype
