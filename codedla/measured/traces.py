"""Measured task times, read from a file and replayed as delays."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = ["Trace", "read_trace"]

_FORMS = (
    "a CSV file with one row per round and one column per worker, or with the columns round, "
    "worker and seconds; a JSON list of such rows; or codedla reports (--report)"
)


@dataclass(frozen=True)
class Trace:
    """Seconds that tasks took.

    Parameters
    ----------
    seconds : tuple of tuple of float
        One row per round, one entry per worker.
    """

    seconds: tuple[tuple[float, ...], ...]

    def delays(self) -> NDArray[np.float64]:
        """Return how much longer each task took than the fastest of its round.

        Returns
        -------
        ndarray (rounds, workers)
            Seconds, at least 0.
        """
        taken = np.array(self.seconds, dtype=float)
        return taken - taken.min(axis=1, keepdims=True)


def read_trace(file: str) -> Trace:
    """Read task times.

    Parameters
    ----------
    file : str
        CSV or JSON. A report's tasks took from their order to their reply; that of a
        straggler or a lost worker counts as having taken the whole round.

    Raises
    ------
    UsageError
        It cannot be read or holds something else.
    """
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"a trace is read from {file}: {reason}; give {_FORMS}") from None
    try:
        rows = _from_json(json.loads(text)) if text.lstrip()[:1] in "[{" else _from_csv(text)
        table = [tuple(float(entry) for entry in row) for row in rows]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise UsageError(f"a trace is {_FORMS}; got {file}, which is none of these") from None
    widths = {len(row) for row in table}
    if len(widths) != 1 or 0 in widths:
        raise UsageError(
            f"a trace has at least one round, and as many workers in each; {file} has rows of "
            f"{', '.join(map(str, sorted(widths))) or 'no'} entries; leave out incomplete rounds"
        )
    wrong = [entry for row in table for entry in row if not (math.isfinite(entry) and entry >= 0)]
    if wrong:
        raise UsageError(
            f"a trace holds seconds, 0 or more; {file} has {wrong[0]!r}; a task that never ended "
            "can be given the longest time that was waited for it"
        )
    return Trace(tuple(table))


def _from_csv(text: str) -> list[list[Any]]:
    lines = [line for line in csv.reader(text.splitlines()) if line and line[0][:1] != "#"]
    heads = [head.strip().lower() for head in lines[0]]
    if not {"round", "worker", "seconds"} <= set(heads):
        numeric = all(_is_number(head) for head in heads)
        return [list(line) for line in (lines if numeric else lines[1:])]
    places = [heads.index(name) for name in ("round", "worker", "seconds")]
    rounds: dict[str, dict[str, float]] = {}
    for line in lines[1:]:
        number, worker, seconds = (line[place].strip() for place in places)
        rounds.setdefault(number, {})[worker] = float(seconds)
    workers = sorted({worker for row in rounds.values() for worker in row}, key=_order)
    return [[row[worker] for worker in workers] for _, row in sorted(rounds.items(), key=_first)]


def _from_json(document: Any) -> list[list[Any]]:
    entries = document if isinstance(document, list) else [document]
    if entries and all(isinstance(entry, dict) for entry in entries):
        return [_from_report(entry) for entry in entries]
    return [list(row) for row in entries]


def _from_report(report: dict[str, Any]) -> list[float]:
    """Return how long each worker's answer took: the last one, where it gave several."""
    replies = [event for event in report["events"] if event["kind"] == "reply"]
    # Whoever had nothing to do was as fast as anybody.
    fastest = min((float(event["t"]) for event in replies), default=0.0)
    taken = [fastest] * int(report["n_workers"])
    for rank in (*report["stragglers"], *(loss["rank"] for loss in report["lost"])):
        taken[rank - 1] = float(report["times"]["total"])
    for event in replies:
        taken[event["rank"] - 1] = float(event["t"])
    return taken


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _order(name: str) -> tuple[float, str]:
    return (float(name) if _is_number(name) else math.inf, name)


def _first(item: tuple[str, Any]) -> tuple[float, str]:
    return _order(item[0])
