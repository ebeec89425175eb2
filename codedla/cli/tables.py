"""Labelled data from CSV files; what is wrong in one is named by its line and column."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = ["read_table"]

Array = NDArray[Any]
_Rows = list[tuple[int, list[str]]]

_EXACT = 2.0**53
"""From here on not every whole number is one of double precision."""
_SHOWN = 12
"""Names of columns in a message, at most."""


def read_table(data: bytes, name: str, label: str | None) -> tuple[Array, Array]:
    """Read features and labels.

    Parameters
    ----------
    data : bytes
        Text in UTF-8, columns separated by commas, with a header or without.
    name : str
        Of the file, for messages.
    label : str or None
        Column with the labels, by name or number from 1; by default "label" if there is one, else
        the last.

    Returns
    -------
    X : ndarray (rows, features) of float64
    y : ndarray (rows,)
        Of int64 or float64 if all of them are numbers, else of text.

    Raises
    ------
    UsageError
    """
    rows = _rows(data, name)
    first = [word.strip() for word in rows[0][1]] if rows else []
    named = _names_columns(first, label)
    if named:
        rows = rows[1:]
    if not rows:
        raise UsageError(f"a table has rows of data; got none in {name}; check the file")
    if len(first) < 2:
        raise UsageError(
            f"a table has features and a label, separated by commas; got one column in {name}; "
            "write commas between them"
        )
    column = _column(first, named, label, name)
    for line, row in rows:
        if len(row) != len(first):
            raise UsageError(
                f"all rows have as many columns as the first; got {len(row)} in line {line} of "
                f"{name}, not {len(first)}; correct that line"
            )
    table = np.array([row for _, row in rows], dtype=object)
    try:
        features = np.delete(table, column, axis=1).astype(np.float64)
    except ValueError:
        features = np.full((1, 1), np.nan)
    if not np.isfinite(features).all():
        raise _not_numbers(rows, first if named else None, column, name)
    return features, _labels(table[:, column], rows, name)


def _rows(data: bytes, name: str) -> _Rows:
    """Return the rows that are not blank, each with the number of its last line."""
    try:
        text = data.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        return [(reader.line_num, row) for row in reader if not _blank(row)]
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(
            f"a table is text in UTF-8; got byte 0x{data[error.start]:02x} in line {line} of "
            f"{name}; convert it, for instance with iconv"
        ) from error
    except csv.Error as error:
        raise UsageError(
            f"a table is text with columns separated by commas; got {name}, line "
            f"{reader.line_num}: {error}; correct that line"
        ) from error


def _names_columns(first: list[str], label: str | None) -> bool:
    """Tell whether a row is a header; some number their columns but for the label's."""
    sought = "label" if label is None else label
    return not any(map(_is_number, first)) or (sought in first and not _is_number(sought))


def _blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _not_numbers(rows: _Rows, names: list[str] | None, column: int, name: str) -> UsageError:
    """Return the error that names the first feature that is no finite number."""
    for number, (line, row) in enumerate(rows):
        for place, word in enumerate(row):
            if place == column or (_is_number(word) and np.isfinite(float(word))):
                continue
            what = f"got {word[:40]!r}" if word.strip() else "got an empty cell"
            called = f" ({names[place]!r})" if names else ""
            cure = "give a number or drop the row; labels alone may be text, see --label"
            if names is None and number == 0:
                cure = "names of columns are no numbers either, in none of a header's cells"
            return UsageError(
                f"features must be finite numbers; {what} in line {line}, column {place + 1}"
                f"{called} of {name}; {cure}"
            )
    raise AssertionError("all of them are numbers")


def _labels(words: Array, rows: _Rows, name: str) -> Array:
    for (line, _), word in zip(rows, words, strict=True):
        if not word.strip():
            raise UsageError(
                f"every row has a label; got an empty cell in line {line} of {name}; drop that row"
            )
    y = words.astype(str)
    if not all(map(_is_number, y)):
        return np.char.strip(y)
    numbers = y.astype(np.float64)
    if np.isfinite(numbers).all() and np.array_equal(numbers, np.rint(numbers)):
        # Beyond, neighbours would become one class: long numbers are names.
        small = np.abs(numbers).max(initial=0.0) < _EXACT
        return numbers.astype(np.int64) if small else np.char.strip(y)
    return numbers


def _column(first: list[str], named: bool, label: str | None, name: str) -> int:
    """Return the place of the column with the labels."""
    if label is None:
        return first.index("label") if named and "label" in first else len(first) - 1
    if named and label in first:
        return first.index(label)
    if label.isdecimal() and 1 <= int(label) <= len(first):
        return int(label) - 1
    more = f" and {len(first) - _SHOWN} more" if len(first) > _SHOWN else ""
    has = ", ".join(first[:_SHOWN]) + more if named else f"columns 1 to {len(first)}"
    raise UsageError(
        f"--label must be a column of {name}, which has {has}; got {label!r}; give "
        f"{'one of these names, or ' if named else ''}a number from 1 to {len(first)}"
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
