"""A round of a stored matrix times a vector, beside what else it could be done with.

Coded and hand-written rounds take turns inside one job (``rounds.py``); mpi4py.futures, where every
task carries its rows, and dask.distributed, where they stay with the workers, are programs of their
own. All take turns, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np
import rounds
from _peers.environments import Unavailable, python_of

from codedla.mpi.launch import run_job

__all__ = ["TARGETS", "compare"]

HERE = Path(__file__).parent
TARGETS = {"sleep": ("at most", 1.6), "futures": ("at least", 20.0), "dask": ("at least", 20.0)}
"""What a coded round may cost more than by hand, and how much less than by the others."""
TITLES = {
    "coded": "codedla, tolerate 2",
    "sleep": "mpi4py by hand",
    "mpi": "mpi4py by hand, blocking calls",
    "futures": "mpi4py.futures, pickled tasks",
    "dask": "dask.distributed",
}
LIMIT = 180.0
"""Seconds that one run of a peer may take."""


def _coded_and_by_hand(args: argparse.Namespace) -> dict[str, float]:
    options = {"case": rounds.PAIR, "rounds": args.rounds, "size": args.size, "repeats": 1}
    inside, _ = _common.run_as_job(rounds.__file__, options, args.ranks, largest_error=1e-12)
    return {name: turns[0] for name, turns in inside["turns"].items()}


def _peer(run: Callable[[list[str]], str], script: str, args: argparse.Namespace) -> float:
    """Run a peer's program; return the seconds of its median round."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        sizes = map(str, (args.size, max(3, args.rounds // 10), args.ranks - 1))
        said = run([str(HERE / script), str(result), *sizes])
        if not result.exists():
            lines = [line for line in said.splitlines() if line.strip()]
            raise Unavailable((lines or ["ended without a word"])[-1].strip())
        found = json.loads(result.read_text())
    if not found["error"] < 1e-12:
        raise Unavailable(f"wrong: relative error {found['error']:.1e}")
    return float(found["round"])


def _futures(args: argparse.Namespace) -> float:
    def run(argv: list[str]) -> str:
        command = [sys.executable, "-m", "mpi4py.futures", *argv]
        return run_job(command, args.ranks, timeout=LIMIT, capture=True).stderr

    return _peer(run, "with_futures.py", args)


def _dask(args: argparse.Namespace) -> float:
    wanted = [f"numpy=={np.__version__}", "dask[array]", "distributed"]
    python = python_of(args.venvs / "dask", wanted, 1)

    def run(argv: list[str]) -> str:
        try:
            done = subprocess.run(
                [str(python), *argv], capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return f"not done within {LIMIT:g} s"
        return done.stderr

    return _peer(run, "with_dask.py", args)


PEERS: dict[str, Callable[[argparse.Namespace], float]] = {"futures": _futures, "dask": _dask}


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all loops in turn, ``args.repeats`` times; print a table and return its rows.

    Parameters
    ----------
    args : argparse.Namespace
        ``size, ranks, rounds, repeats, peers`` and ``venvs``.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ("coded", "sleep", "mpi")}
    seconds |= {name: [] for name in args.peers}
    missing: dict[str, str] = {}
    for _ in range(args.repeats):
        for name, found in _coded_and_by_hand(args).items():
            seconds[name].append(found)
        for name in args.peers:
            if name not in missing:
                try:
                    seconds[name].append(PEERS[name](args))
                except Unavailable as error:
                    missing[name] = str(error)
    rows = [_row(name, seconds, missing) for name in seconds]
    _common.print_table(
        f"a round of {args.size}x{args.size} float64 @ vector, {args.ranks} ranks, medians of "
        f"{args.repeats} turns",
        ["loop", "round ms", "ratio", "target", ""],
        [_cells(row) for row in rows],
    )
    return rows


def _row(name: str, seconds: dict[str, list[float]], missing: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"loop": name, "title": TITLES[name]}
    if name in missing:
        return {**row, "unavailable": missing[name]}
    # Coded over by hand, but the others over coded: both read as "times".
    pairs = list(zip(seconds[name], seconds["coded"], strict=True))
    by_hand = name in ("sleep", "mpi")
    ratio = statistics.median(coded / own if by_hand else own / coded for own, coded in pairs)
    row |= {"round": statistics.median(seconds[name]), "ratio": ratio}
    if name in TARGETS:
        kind, bound = TARGETS[name]
        met = ratio <= bound if kind == "at most" else ratio >= bound
        row |= {"target": f"{kind} {bound:g}", "met": met}
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    if "unavailable" in row:
        return [row["title"], "-", "-", "-", row["unavailable"]]
    by_hand = row["loop"] in ("sleep", "mpi")
    what = "" if row["loop"] == "coded" else "coded / this" if by_hand else "this / coded"
    ratio = f"{row['ratio']:.2f}" if what else ""
    target = row.get("target", "")
    if target:
        target += "" if row["met"] else " (missed)"
    return [row["title"], f"{row['round'] * 1e3:.3f}", ratio, target, what]
