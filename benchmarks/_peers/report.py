"""What every peer's root does in the same way: read the operands, time the product, tell of it.

A peer's program runs in that peer's own environment: NumPy and the standard library only.

The harness names a folder in ``PEERS_FOLDER``; the operands are ``A.npy`` and ``B.npy`` in it, the
product becomes ``C.npy``. What it must know at once is said in lines of JSON on stdout.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

WORKERS = int(os.environ.get("PEERS_WORKERS", "2"))
SMALL = 128


def folder() -> Path:
    """Where operands and product are."""
    return Path(os.environ["PEERS_FOLDER"])


def bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """First row and the row after the last of every part; sizes differ by one at most."""
    edges = [rows * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


def measure(
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray], workers: Iterable[int]
) -> None:
    """Time one product from the root's memory to the root's memory, and hand it over.

    Parameters
    ----------
    multiply : callable
        ``multiply(a, b)`` for float64 matrices of any size; called once with small ones before, so
        that connections are open and libraries loaded when the clock starts.
    workers : iterable of int
        Process numbers of the workers, the one to be struck first.
    """
    a, b = np.load(folder() / "A.npy"), np.load(folder() / "B.npy")
    small = np.ascontiguousarray(a[:SMALL, :SMALL])
    multiply(small, small)
    say(event="started", workers=list(workers))
    began = time.perf_counter()
    c = multiply(a, b)
    seconds = time.perf_counter() - began
    say(event="finished", seconds=seconds)
    np.save(folder() / "C.npy", c)


def say(**what: object) -> None:
    """One line for the harness."""
    # One write: under MPI lines of several processes meet in one pipe.
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
