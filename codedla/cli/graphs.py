"""Graphs from files: edge lists as SNAP and KONECT publish them, or matrices of link weights."""

from __future__ import annotations

import bz2
import gzip
import lzma
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from codedla.cli.files import inspect
from codedla.errors import UsageError
from codedla.iterative.graphs import Graph, as_graph

__all__ = ["check_graph", "load_graph"]

_MATRICES = (".npz", ".mtx", ".mtx.gz")
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SNIFFED = 1000
"""Lines at the beginning that are looked at for the separator and for early mistakes."""
_UNREADABLE = (EOFError, zlib.error, lzma.LZMAError, OSError)
_MARK = b"\xef\xbb\xbf"
"""With which some programs begin text in UTF-8."""


def check_graph(name: str) -> None:
    """Look at the beginning of a graph file.

    Raises
    ------
    UsageError
        No such file, not a format that is read, or the first lines are not an edge list.
    """
    if _is_matrix(name):
        inspect(name, "GRAPH")
        return
    if not name.endswith(".npy"):
        _sniff(Path(name))
    else:
        inspect(name, "GRAPH")


def load_graph(name: str) -> Graph:
    """Read a graph.

    Parameters
    ----------
    name : str
        ``.npz`` (SciPy sparse, ids from 0) or ``.mtx[.gz]`` (ids from 1): entry (i, j) is the
        weight of the link from i to j. ``.npy``: integers (E, 2). Anything else is text, plain or
        compressed (.gz, .bz2, .xz): two integer ids a line, separated by blanks or a comma, the
        link from the first to the second; further columns are not read; lines that begin with #
        (or %) are comments.

    Raises
    ------
    UsageError
        The file is none of these, or holds no links.
    """
    if _is_matrix(name):
        import scipy.sparse as sp

        matrix = inspect(name, "GRAPH").load()
        return as_graph(
            matrix if sp.issparse(matrix) else sp.csr_array(np.asarray(matrix)),
            first_id=0 if name.endswith(".npz") else 1,
        )
    if name.endswith(".npy"):
        return as_graph(inspect(name, "GRAPH").load())
    path = Path(name)
    comment, separator, encoding = _sniff(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no lines at all: said below
            edges = np.loadtxt(
                path,
                np.int64,
                comments=comment,
                delimiter=separator,
                usecols=(0, 1),
                ndmin=2,
                encoding=encoding,
            )
    except ValueError as error:
        raise _not_a_list(path, str(error)) from error
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if not len(edges):
        raise UsageError(f"a graph has at least one node; got no links in {path}; check the file")
    return as_graph(edges)


def _is_matrix(name: str) -> bool:
    return name.endswith(_MATRICES)


def _sniff(path: Path) -> tuple[str, str | None, str]:
    """Return the comment sign, the separator (None: blanks) and the encoding of an edge list."""
    comment, separator, begun = "#", None, False
    if not path.exists():
        raise UsageError(f"a graph must be an existing file; got {str(path)!r}; check the path")
    if not path.is_file():
        raise UsageError(f"a graph must be an ordinary file; got {str(path)!r}; name one")
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as raw:
            # Comments may be in any encoding that has the digits where ASCII has them.
            encoding = "utf-8-sig" if raw.read(3) == _MARK else "latin-1"
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding=encoding) as stream:
            for number, line in zip(range(_SNIFFED), stream, strict=False):
                text = line.strip()
                if text[:1] in ("#", "%"):
                    comment = text[0] if text[0] == "%" else comment
                    continue
                if not text:
                    continue
                separator = "," if "," in text else None
                words = text.split(separator)
                try:
                    int(words[0]), int(words[1])
                except (ValueError, IndexError):
                    if _binary(text):
                        raise _not_text(path) from None
                    header = not begun and not any(map(_has_digits, words))
                    why = f"line {number + 1}: {text[:40]!r}"
                    raise _not_a_list(path, why, header=header) from None
                begun = True
    except UnicodeDecodeError as error:
        raise _not_text(path) from error
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    return comment, separator, encoding


def _binary(text: str) -> bool:
    """Tell whether there are characters that no text has."""
    return any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in text if not sign.isspace())


def _has_digits(word: str) -> bool:
    return any(map(str.isdigit, word))


def _not_a_list(path: Path, why: str, *, header: bool = False) -> UsageError:
    cure = "convert it, or give a .mtx or .npz matrix"
    if header:
        cure = f"if that is a header, remove it or begin it with #; if it is a link, {cure}"
    return UsageError(f"a line of an edge list is two integer ids; got {path} ({why}); {cure}")


def _not_text(path: Path) -> UsageError:
    return UsageError(
        f"an edge list must be text, plain or with the ending .gz, .bz2 or .xz; got {path}, which "
        "is not text; name another file, or an array or matrix by .npy, .npz or .mtx"
    )


def _unreadable(path: Path, error: Exception) -> UsageError:
    if isinstance(error, PermissionError):
        return UsageError(
            f"a graph must be a file that can be read; got {path} ({error.strerror}); change its "
            "permissions"
        )
    return UsageError(
        f"a graph must be a complete, readable file; got {path} ({error}); fetch it again"
    )
