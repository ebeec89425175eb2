"""Products and reports into files: whole or not at all.

A product is received straight into a temporary file beside its destination and renamed when it is
complete, so that a file under the final name is always whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli.files import H5_SPEC, import_h5py, npy_layout
from codedla.errors import UsageError

__all__ = ["Output", "check_distinct", "check_text"]


class Output:
    """Destination of a product.

    Parameters
    ----------
    spec : str
        ``FILE.npy`` or ``FILE.h5:/dataset``.
    force : bool
        Whether an existing file (or dataset) may be replaced.

    Raises
    ------
    UsageError
        There is no name in it.
    """

    def __init__(self, spec: str, *, force: bool = False) -> None:
        match = H5_SPEC.match(spec)
        self.spec = spec
        self.force = force
        name = match["path"] if match else spec
        # Behind a symbolic link, so that the product lands on the disk that the link leads to.
        self.path = Path(os.path.realpath(name) if os.path.islink(name) else name)
        self.dataset = match["name"] if match else ""
        if not self.path.name:
            raise UsageError(f"an output must be a file; got the directory {spec!r}; name a file")
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
            import_h5py(self.spec)
            self._check_dataset_name()
        _check_place(self.path, self.spec)
        if self.taken() and not self.force:
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

    def taken(self) -> bool:
        """Tell whether the output's place is taken."""
        if not self.path.exists():
            return False
        if not self.dataset:
            return True
        try:
            with import_h5py(self.spec).File(self.path, "r") as file:
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
        group = import_h5py(self.spec).Group
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
            array = self.create(self.temporary, shape, np.dtype(dtype))
            yield array
            if isinstance(array, np.memmap):
                array.flush()
            elif not self.dataset:
                with self.temporary.open("wb") as stream:
                    np.save(stream, array, allow_pickle=False)
            del array
            self.publish(self.temporary)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file, if there is one."""
        self.temporary.unlink(missing_ok=True)

    def create(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Make the file ``path`` ready for the product; return its array, mapped."""
        offset = self.allocate(path, shape, dtype)
        if 0 in shape:
            return np.empty(shape, dtype)  # an empty file cannot be mapped
        return np.memmap(path, dtype=dtype, mode="r+", offset=offset, shape=shape)

    def allocate(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Make the file ``path`` ready for the product; return where in it the entries begin.

        A file that is there already is emptied, not replaced: who holds a lock on it keeps it.

        Raises
        ------
        OSError
            The disk has no room for the product.
        """
        offset = (
            self._begin_h5(path, shape, dtype) if self.dataset else _begin_npy(path, shape, dtype)
        )
        if 0 not in shape:
            _reserve(path)
        return offset

    def locate(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Return where the entries begin in a file that :meth:`allocate` made ready.

        Raises
        ------
        Exception
            Whatever the reader of a damaged file comes to.
        ValueError
            The file holds something else.
        """
        if self.dataset:
            with import_h5py(self.spec).File(path, "r", locking=False) as file:
                item = file[self.dataset]
                found, offset = (item.shape, item.dtype), item.id.get_offset()
            if found != (shape, dtype) or offset is None:
                raise ValueError(f"dataset {self.dataset} is not the product")
            return int(offset)
        place, found_shape, fortran, found_dtype = npy_layout(path)
        if (found_shape, found_dtype) != (shape, dtype) or (fortran and len(shape) > 1):
            raise ValueError("the array is not the product")
        return place

    def _begin_h5(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        h5py = import_h5py(self.spec)
        mode = "w"
        if self.path.exists():
            # The other datasets stay; working on a copy keeps the old file whole until the end.
            shutil.copyfile(self.path, path)
            mode = "a"
        # Nobody else knows this file; the library's own lock would meet the one of a restart.
        with h5py.File(path, mode, locking=False) as file:
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
            return int(created.get_offset() or 0)

    def publish(self, path: Path) -> None:
        """Give a complete file the output's name.

        Raises
        ------
        UsageError
            As by :meth:`recheck`.
        """
        self.recheck()
        path.replace(self.path)

    def recheck(self) -> None:
        """Make sure that the place is still free, some time after :meth:`check`.

        Raises
        ------
        UsageError
            A file of that name appeared meanwhile, and may not be replaced.
        """
        if self.taken() and not self.force:
            raise UsageError(
                f"an output must not exist yet; {self.spec} appeared meanwhile; "
                "run again with --force or another name"
            )


def _begin_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Write the header of a ``.npy`` file and make room for the entries; return its length."""
    facts = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, facts)
        offset = stream.tell()
        stream.truncate(offset + math.prod(shape) * dtype.itemsize)
    return offset


def _reserve(path: Path) -> None:
    """Claim the disk space now: writing to a map on a full disk would kill the process."""
    with path.open("r+b") as stream:
        size = path.stat().st_size
        try:
            os.posix_fallocate(stream.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot claim {size / 2**30:.3f} GiB of disk for the output ({error.strerror})",
                str(path.parent),
            ) from error


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
    if path.exists() and not path.is_file():
        # The result is renamed into its place: a device or a pipe would be gone.
        raise UsageError(f"an output must be an ordinary file; got {spec!r}; choose another name")
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


def check_distinct(what: str, names: Sequence[str | None]) -> None:
    """Make sure that no file has two uses; None: not given.

    Raises
    ------
    UsageError
    """
    given = [name for name in names if name is not None]
    if len({os.path.realpath(name) for name in given}) < len(given):
        raise UsageError(f"{what} are different files; got {', '.join(given)}; choose other names")
