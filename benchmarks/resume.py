"""What is lost, and what computed twice, when the master is killed at a random moment.

Each run starts a product in panels by ``codedla matmul ... --ranks R``, kills rank 0 with SIGKILL
at a random moment (four in five while panels are computed, one in five from the very start of the
command to its end), and starts the same command with ``--resume`` and another number of ranks. The
product is compared with NumPy's; the panels that the second command computed must be exactly those
that the journal did not have; no process, shared-memory file or temporary file may be left.

    python benchmarks/resume.py [--runs 50] [--size 600] [--panels 20] [--ranks 5] [--seed 1]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import _common
import numpy as np

from codedla.cli import journal

MARK = "CODEDLA_RESUME_BENCHMARK"
RANK_0 = {b"OMPI_COMM_WORLD_RANK=0", b"PMI_RANK=0"}
LARGEST_ERROR = 1e-12
#: Seconds of every command, at most; one that takes longer counts as hung.
LIMIT = 120.0


def marked(mark: str) -> dict[int, set[bytes]]:
    """Processes of one run on this host, with their environments."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = set(Path(f"/proc/{name}/environ").read_bytes().split(b"\0"))
        except OSError:  # ended meanwhile, or another user's
            continue
        if f"{MARK}={mark}".encode() in words:
            found[int(name)] = words
    return found


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Shared-memory files that these processes use."""
    names = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile
            text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            names.update(re.findall(r"/dev/shm/\S+", text))
    return names


def run_once(
    args: argparse.Namespace, folder: Path, after: float, ranks: int, *, computing: bool
) -> dict[str, Any]:
    """One product, one kill, one restart on ``ranks`` ranks.

    The kill comes ``after`` so many seconds from the start, or from the begin of the ``computing``.
    """
    mark = uuid.uuid4().hex
    env = {**os.environ, MARK: mark}
    rows = -(-args.size // args.panels)
    command = [sys.executable, "-m", "codedla", "matmul", "A.npy", "B.npy", "-o", "C.npy"]
    command += ["--panel-rows", str(rows)]
    slow = [
        word for rank in range(1, args.ranks) for word in ("--inject", f"delay:{rank}:{args.delay}")
    ]
    began = time.perf_counter()
    first = subprocess.Popen(
        [*command, "--ranks", str(args.ranks), *slow],
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while computing and not (folder / ".C.npy.codedla-part").exists() and first.poll() is None:
        time.sleep(0.002)
    time.sleep(after)
    processes = marked(mark)
    segments = shared_memory(processes)
    masters = [pid for pid, words in processes.items() if words & RANK_0]
    for pid in masters:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, said = first.communicate(timeout=LIMIT)
    killed = time.perf_counter() - began
    contents = journal.read(folder / ".C.npy.codedla-journal")
    saved = len(contents.entries) if contents is not None else 0
    before = (folder / "C.npy").exists()
    began = time.perf_counter()
    second = subprocess.run(
        [*command, "--ranks", str(ranks), "--resume", "--force", "--report", "r.json", "--quiet"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    resumed = time.perf_counter() - began
    row: dict[str, Any] = {
        "after": after,
        "computing": computing,
        "killed": bool(masters) and first.returncode != 0,
        "finished_before": before,
        "saved": saved,
        "told": "--resume continues" in said,
        "ranks": ranks,
        "code": second.returncode,
        "seconds": [killed, resumed],
        "processes": len(marked(mark)),
        "segments": sorted(filter(os.path.exists, segments)),
        "error": None,
        "resumed": None,
        "computed": None,
    }
    if second.returncode == 0:
        product = np.load(folder / "C.npy")
        expected = np.load(folder / "A.npy") @ np.load(folder / "B.npy")
        row["error"] = float(np.linalg.norm(product - expected) / np.linalg.norm(expected))
    else:
        row["message"] = second.stderr
    with contextlib.suppress(FileNotFoundError):
        counts = json.loads((folder / "r.json").read_text())["panels"]
        row["resumed"], row["computed"] = counts["resumed"], counts["computed"]
    row["files"] = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    for name in ("C.npy", "r.json", *row["files"]):
        (folder / name).unlink(missing_ok=True)
    return row


def good(row: dict[str, Any], panels: int) -> bool:
    """Whether a run kept every promise."""
    counted = row["resumed"] == row["saved"] and row["computed"] == panels - row["saved"]
    return (
        row["code"] == 0
        and row["error"] is not None
        and row["error"] <= LARGEST_ERROR
        and counted
        and row["told"] == (row["saved"] > 0)
        and not row["processes"]
        and not row["segments"]
        and not row["files"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--size", type=int, default=600, help="rows of the square matrices")
    parser.add_argument("--panels", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds of sleep in every task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two runs of a small product")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.runs, args.size, args.panels = 2, 120, 10
    draw = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="codedla-resume-") as name:
        folder = Path(name)
        rng = np.random.default_rng(args.seed)
        for operand in "AB":
            np.save(folder / f"{operand}.npy", rng.standard_normal((args.size, args.size)))
        # Killed at once, that is not at all: how long the product takes by itself.
        whole = run_once(args, folder, 0.0, args.ranks, computing=False)["seconds"][1]
        waits = args.panels * args.delay
        for run in range(args.runs):
            computing = draw.random() < 0.8
            after = draw.uniform(0.0, 1.25 * waits if computing else whole + waits)
            ranks = draw.choice([3, args.ranks, args.ranks + 2])
            row = run_once(args, folder, after, ranks, computing=computing)
            row["good"] = good(row, args.panels) or (
                # Nothing was there to be continued, and the product was computed again.
                row["finished_before"] and row["code"] == 0 and not row["files"]
            )
            rows.append(row)
            print(
                f"run {run + 1}: killed after {row['after']:.2f} s, {row['saved']} panels saved, "
                f"{row['resumed']} resumed, {row['computed']} computed, code {row['code']}"
                f"{'' if row['good'] else '  <-- ' + str(row)}",
                file=sys.stderr,
            )
    summary = {
        "runs": len(rows),
        "good": sum(row["good"] for row in rows),
        "correct": sum(row["error"] is not None and row["error"] <= LARGEST_ERROR for row in rows),
        "killed": sum(row["killed"] for row in rows),
        "with_saved_panels": sum(row["saved"] > 0 for row in rows),
        "panels_saved": sum(row["saved"] for row in rows),
        "panels_resumed": sum(row["resumed"] or 0 for row in rows),
        "processes_left": sum(row["processes"] for row in rows),
        "files_left": sum(len(row["files"]) for row in rows),
        "shared_memory_left": sum(len(row["segments"]) for row in rows),
    }
    times = [row["seconds"] for row in rows]
    table = [(name.replace("_", " "), str(value)) for name, value in summary.items()]
    for index, what in enumerate(("the killed command", "the restart")):
        seconds = [pair[index] for pair in times]
        table.append((f"seconds of {what}", f"{statistics.median(seconds):.2f} (median)"))
        table.append(("", f"{max(seconds):.2f} (longest)"))
    _common.print_table("Master killed at a random moment, then --resume", ("", "figure"), table)
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        _common.write_json(args.json, {"settings": settings, "summary": summary, "rows": rows})
    return 0 if summary["good"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
