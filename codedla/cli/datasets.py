"""Labelled data from files: IDX (images and labels), ``.npz`` (X and y), CSV."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli.tables import read_table
from codedla.errors import UsageError

__all__ = ["Labelled", "check_data", "load_data"]

Array = NDArray[Any]

_IDX = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DAMAGED = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass
class Labelled:
    """Data for a classifier.

    Parameters
    ----------
    X : ndarray (rows, features)
        As stored.
    y : ndarray (rows,) of int64
        Places in ``classes``.
    classes : ndarray (classes,)
        The labels.
    """

    X: Array
    y: NDArray[np.int64]
    classes: Array

    def scaling(self, rows: int) -> tuple[Array, Array]:
        """Return ``shift`` and ``scale`` of the features, from the first rows.

        Bytes become 0 to 1; other features get mean 0 and deviation 1.
        """
        if self.X.dtype == np.uint8:
            return np.zeros(self.X.shape[1]), np.full(self.X.shape[1], 255.0)
        some = self.X[:rows].astype(np.float64, copy=False)
        deviation = some.std(axis=0)
        return some.mean(axis=0), np.where(deviation > 0, deviation, 1.0)


def check_data(data: str, labels: str | None) -> str:
    """Return the format, "idx", "npz" or "csv", if the files are there and of one.

    Raises
    ------
    UsageError
        Not there, of no known format, or labels where there are none to be.
    """
    for name in [data, *([] if labels is None else [labels])]:
        if not Path(name).is_file():
            raise UsageError(f"data must be an existing file; got {name!r}; check the path")
    kind = _format(data)
    if kind == "idx" and labels is None:
        raise UsageError(
            f"IDX images need their labels; got {data} alone; name the file of labels after it"
        )
    if kind != "idx" and labels is not None:
        raise UsageError(
            f"{Path(data).suffix} files hold their labels; got {labels!r} besides; leave it out"
        )
    return kind


def _format(name: str) -> str:
    stem = name.removesuffix(".gz")
    if name.endswith(".npz"):
        return "npz"
    if stem.endswith((".csv", ".txt")):
        return "csv"
    try:
        head = _open(name).read(4)
    except _DAMAGED as error:
        raise UsageError(
            f"data must be a complete file; got {name} ({error}); fetch it again"
        ) from error
    if head[:2] == b"\0\0" and len(head) == 4 and head[2] in _IDX:
        return "idx"
    raise UsageError(
        f"data are IDX files, .npz with X and y, or .csv (.gz too); got {name!r}; convert it"
    )


def load_data(data: str, labels: str | None = None, label: str | None = None) -> Labelled:
    """Read labelled data.

    Parameters
    ----------
    data, labels : str
        Files; labels of IDX images only.
    label : str, optional
        Column of a CSV file with the labels, by name or number from 1; by default "label" if there
        is one, else the last.

    Raises
    ------
    UsageError
        Not complete, not finite, of different lengths, or of one class only.
    """
    kind = check_data(data, labels)
    try:
        if kind == "idx":
            X, y = _read_idx(data), _read_idx(str(labels))
        elif kind == "npz":
            X, y = _read_npz(data)
        else:
            X, y = read_table(_open(data).read(), data, label)
    except UsageError:
        raise
    except PermissionError as error:
        raise UsageError(
            f"data must be files that can be read; got {error.filename} ({error.strerror}); change "
            "its permissions"
        ) from error
    except _DAMAGED as error:
        raise UsageError(
            f"data must be complete files; got {data} ({error}); write or fetch it again"
        ) from error
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise UsageError(f"labels must be finite; got NaN or Inf in {data}; drop these rows")
    if X.ndim < 2 or y.ndim != 1 or len(X) != len(y) or X.size == 0:
        raise UsageError(
            "data are rows of features with one label each; got shapes "
            f"{X.shape} and {y.shape}; check that the files belong together"
        )
    if X.dtype.kind not in "iufb":
        raise UsageError(f"features must be real numbers; got {X.dtype} in {data}; convert them")
    X = np.ascontiguousarray(X.reshape(len(X), -1))
    if X.dtype.kind == "f" and not np.isfinite(X).all():
        raise UsageError(f"features must be finite; got NaN or Inf in {data}; fill or drop them")
    classes, places = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise UsageError(
            f"a classifier needs two classes; got {classes[0].item()!r} alone; check "
            f"{labels or data}"
        )
    return Labelled(X, places.astype(np.int64), classes)


def _open(name: str) -> Any:
    """Open a file that may be compressed, whatever it is called."""
    with open(name, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        raw = file.read()
    return gzip.GzipFile(fileobj=io.BytesIO(raw)) if packed else io.BytesIO(raw)


def _read_idx(name: str) -> Array:
    data = _open(name).read()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX:
        raise UsageError(
            f"images and their labels are two IDX files; got {name}, which is none; name another"
        )
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    dtype = np.dtype(_IDX[data[2]])
    values = np.frombuffer(data, dtype, offset=4 + 4 * data[3])
    if values.size != int(np.prod(shape)):
        raise ValueError(f"{name} has {values.size} entries, its header says {shape}")
    return values.reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read_npz(name: str) -> tuple[Array, Array]:
    with np.load(name, allow_pickle=False) as file:
        if not {"X", "y"} <= set(file.files):
            raise UsageError(
                f"an .npz file of data has the arrays X and y; got {', '.join(file.files)} in "
                f"{name}; save it with numpy.savez(name, X=..., y=...)"
            )
        try:
            return file["X"], file["y"]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise UsageError(
                f"X and y must be arrays of numbers, y or text; got Python objects in {name}; "
                "convert them with numpy.array(..., dtype=float) or dtype=str"
            ) from error
