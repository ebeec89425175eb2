"""What the benchmarks share: machine facts, interleaved timing, tables and JSON files.

Everything is measured as a ratio within one run: the cases take turns, so that a machine that slows
down half-way slows all of them, and medians are reported.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("codedla", "numpy", "scipy", "mpi4py", "threadpoolctl")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def machine() -> dict[str, Any]:
    """Facts a reader needs to judge the figures: processor, cores, versions, load, threads."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": _cores(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": _versions(),
        "blas": _blas(),
        "threads": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }


def interleave(
    cases: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 7,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time the cases in turn, ``repeats`` times, after ``warmups`` untimed turns.

    Parameters
    ----------
    cases : mapping of str to callable
        What to time; return values are dropped.
    repeats, warmups : int
        Timed and untimed turns.
    clock : callable
        ``time.perf_counter``, or ``time.thread_time`` on a busy machine.

    Returns
    -------
    dict of str to list of float
        Seconds of every timed turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warmups + repeats):
        for name, case in cases.items():
            began = clock()
            case()
            if turn >= warmups:
                seconds[name].append(clock() - began)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median of every case."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """Median of the turn-by-turn ratios to ``base``: what drifts in time cancels out."""
    return {
        name: statistics.median(
            time / reference for time, reference in zip(times, seconds[base], strict=True)
        )
        for name, times in seconds.items()
    }


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout, by rich on a terminal, in plain columns otherwise."""
    if sys.stdout.isatty() and _rich_table(title, headers, rows):
        return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    print(f"\n{title}")
    for row in (headers, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def write_json(path: str | os.PathLike[str], document: Mapping[str, Any]) -> None:
    """Write ``document`` with the machine facts; temporary file and rename, NaN and inf as null."""
    target = Path(path)
    text = json.dumps(_plain({"machine": machine(), **document}), indent=1, allow_nan=False)
    temporary = target.with_name(target.name + ".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(target)
    print(f"figures in {target}", file=sys.stderr)


def run_as_job(
    script: str, options: Mapping[str, Any], ranks: int, *, largest_error: float
) -> tuple[dict[str, Any], float]:
    """Run ``script --inside`` as an MPI job; return what it wrote and the whole command's seconds.

    Parameters
    ----------
    script : str
        A benchmark that, with ``--inside --result FILE``, writes ``{"seconds", "error", ...}``.
    options : mapping
        Further options; True stands for a flag, None and False are left out.
    ranks : int
        Master included.
    largest_error : float
        Relative error of the result above which the run is refused.
    """
    from codedla.mpi.launch import run_job

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        argv = [sys.executable, script, "--inside", "--result", str(result)]
        for name, value in options.items():
            if value is not None and value is not False:
                argv += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        done = run_job(argv, ranks, timeout=300, capture=True)
        if not result.exists():
            raise SystemExit(f"{dict(options)} ended with code {done.code}:\n{done.stderr}")
        inside = json.loads(result.read_text())
    if not inside["error"] <= largest_error:
        raise SystemExit(f"{dict(options)} is wrong: relative error {inside['error']:.1e}")
    return inside, done.seconds


def _rich_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(title=title, title_justify="left")
    for i, header in enumerate(headers):
        table.add_column(header, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return True


def _plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cores() -> int:
    """Cores this process may use, which under mpirun or Slurm are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _blas() -> str:
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"
