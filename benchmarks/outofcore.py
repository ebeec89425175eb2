"""A product whose operands are three times as large as what the master may take of memory.

The address space of rank 0 is limited (RLIMIT_AS, what ``ulimit -v`` sets), so that even mapping
the files would fail. ``codedla plan`` under the same limit says what the master will need at the
most; the command is then run, and again without a limit, with the operands in memory, in turns.
The product is compared with the operands by a random vector (C r against A (B r)), in windows.

    python benchmarks/outofcore.py [--limit 1024] [--factor 3] [--size 3000] [--columns N]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _common
import numpy as np

MIB = 1 << 20
LIMIT, STATUS = "CODEDLA_BENCHMARK_LIMIT", "CODEDLA_BENCHMARK_STATUS"
LARGEST_ERROR = 1e-12
#: Seconds of every command, at the most.
PATIENCE = 1800.0


def inside(words: list[str]) -> int:
    """Be one rank of the job: rank 0 lives within the limit and notes what it took at the most."""
    master = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0"
    if master and os.environ[LIMIT] != "0":
        limit = int(os.environ[LIMIT])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from codedla.cli import product
    from codedla.cli.main import main as program

    done = product._multiply

    def noted(*args: Any) -> None:
        done(*args)
        Path(os.environ[STATUS]).write_text(Path("/proc/self/status").read_text())

    product._multiply = noted
    sys.argv[1:] = words
    return program()


def make(path: Path, shape: tuple[int, int], rng: np.random.Generator) -> None:
    """Write a matrix of random numbers; the same ones again and again, which is faster."""
    array = np.lib.format.open_memmap(path, "w+", float, shape)
    step = max(1, 16 * MIB // (8 * shape[1]))
    block = rng.standard_normal((step, shape[1]))
    for top in range(0, shape[0], step):
        part = array[top : top + step]
        part[...] = block[: len(part)]
        # Not the same rows: a panel in the place of another would go unnoticed.
        part *= 1.0 + top / shape[0]
    array.flush()


def error(folder: Path, rng: np.random.Generator) -> float:
    """Relative error of the product, by a random vector."""
    a, b, c = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ABC")
    r = rng.standard_normal(c.shape[1])

    def times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
        step = max(1, 64 * MIB // (8 * matrix.shape[1]))
        parts = [matrix[top : top + step] @ vector for top in range(0, len(matrix), step)]
        return np.concatenate(parts)

    expected = times(a, times(b, r))
    return float(np.linalg.norm(times(c, r) - expected) / np.linalg.norm(expected))


def plan(args: argparse.Namespace, folder: Path, limit: int) -> dict[str, Any]:
    """What ``codedla plan`` says of the panels when it has no more than the master."""
    words = [sys.executable, "-m", "codedla", "plan", "A.npy", "B.npy", "--json"]
    done = subprocess.run(
        [*words, "--ranks", str(args.ranks)],
        cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found["layout"], "code": found["code"]}


def run(args: argparse.Namespace, folder: Path, limit: int) -> dict[str, Any]:
    """One product by the command; what it took."""
    from codedla.mpi.launch import run_job

    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--report", "r.json", "--force", "--quiet"]
    status = folder / "status"
    done = run_job(
        [sys.executable, __file__, "--inside", *words],
        args.ranks,
        timeout=PATIENCE,
        env={LIMIT: str(limit), STATUS: str(status)},
        capture=True,
    )
    if done.code:
        raise SystemExit(f"the command ended with code {done.code}:\n{done.stderr}")
    wrong = error(folder, np.random.default_rng(args.seed + 1))
    if not wrong <= LARGEST_ERROR:
        raise SystemExit(f"the product is wrong: relative error {wrong:.1e}")
    lines = dict(
        line.split(":", 1) for line in status.read_text().splitlines() if line.startswith("Vm")
    )
    report = json.loads((folder / "r.json").read_text())
    return {
        "seconds": report["times"]["total"],
        "command": done.seconds,
        "address_space": int(lines["VmPeak"].split()[0]) << 10,
        "resident": int(lines["VmHWM"].split()[0]) << 10,
        "panels": report.get("panels", {}).get("total", 1),
        "error": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=1024, help="MiB that the master may take")
    parser.add_argument("--factor", type=float, default=3.0, help="operands are so much larger")
    parser.add_argument("--size", type=int, default=3000, help="rows of the product")
    parser.add_argument("--columns", type=int, help="of the product (default: as many as rows)")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where the operands are written (default: as tempfile)")
    parser.add_argument("--quick", action="store_true", help="one run of a small product")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.limit, args.size, args.columns, args.repeats = 512, 20000, 20, 1
    limit, columns = args.limit * MIB, args.columns or args.size
    inner = int(-(-args.factor * limit // (8 * (args.size + columns))))
    rng = np.random.default_rng(args.seed)
    rows: dict[str, list[dict[str, Any]]] = {"out of core": [], "in memory": []}
    with tempfile.TemporaryDirectory(prefix="codedla-outofcore-", dir=args.folder) as name:
        folder = Path(name)
        os.chdir(folder)
        make(folder / "A.npy", (args.size, inner), rng)
        make(folder / "B.npy", (inner, columns), rng)
        operands = sum((folder / f"{name}.npy").stat().st_size for name in "AB")
        planned = plan(args, folder, limit)
        for _ in range(args.repeats):
            for case, bound in (("out of core", limit), ("in memory", 0)):
                rows[case].append(run(args, folder, bound))
                print(f"{case}: {rows[case][-1]}", file=sys.stderr)
        os.chdir("/")
    peak = max(row["address_space"] for row in rows["out of core"])
    ratio = statistics.median(
        far["seconds"] / near["seconds"]
        for far, near in zip(rows["out of core"], rows["in memory"], strict=True)
    )
    summary = {
        "limit": limit,
        "operands": operands,
        "operands_by_limit": operands / limit,
        "planned_peak": planned["peak_master"],
        "measured_peak": peak,
        "measured_resident": max(row["resident"] for row in rows["out of core"]),
        "panel": planned["panel"],
        "panels": planned["panels"],
        "code": planned["code"],
        "seconds": statistics.median(row["seconds"] for row in rows["out of core"]),
        "seconds_in_memory": statistics.median(row["seconds"] for row in rows["in memory"]),
        "time_ratio": ratio,
        "within_plan": peak <= planned["peak_master"] <= limit,
    }
    table = [
        ("limit of the master's address space", f"{limit / MIB:.0f} MiB"),
        ("operands", f"{operands / MIB:.0f} MiB, {operands / limit:.2f} times the limit"),
        ("product", f"({args.size} x {inner}) @ ({inner} x {columns}), code {summary['code']}"),
        ("panels", f"{planned['panels']} of {planned['panel'][0]} x {planned['panel'][1]}"),
        ("peak by codedla plan", f"{planned['peak_master'] / MIB:.0f} MiB"),
        ("peak measured (VmPeak)", f"{peak / MIB:.0f} MiB"),
        ("resident (VmHWM)", f"{summary['measured_resident'] / MIB:.0f} MiB"),
        ("seconds out of core", f"{summary['seconds']:.2f}"),
        ("seconds in memory, no limit", f"{summary['seconds_in_memory']:.2f}"),
        ("ratio (median of turns)", f"{ratio:.2f}"),
    ]
    _common.print_table("A product larger than the master's memory", ("", "figure"), table)
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        _common.write_json(args.json, {"settings": settings, "summary": summary, "rows": rows})
    return 0 if summary["within_plan"] else 1


if __name__ == "__main__":
    sys.exit(inside(sys.argv[2:]) if sys.argv[1:2] == ["--inside"] else main())
