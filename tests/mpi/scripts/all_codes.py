"""Every registered code in one job: rank 2 is always late, rank 3 is killed half-way."""

from __future__ import annotations

import os
import signal
import sys
import traceback

import numpy as np
import scipy.sparse as sp
from common import FOLDER, faults, note_shared_memory, write

import codedla
from codedla.codes import available, get
from codedla.codes.exact import ExactCode
from codedla.mpi import launch, program

rank, _ = launch.world_from_env()
(FOLDER / f"pid{rank}").write_text(str(os.getpid()))
RNG = np.random.default_rng(90089)
SHAPE = (61, 45, 53)
LOST = set()


def grid_of(family, workers):
    """The grid of most blocks, two at most a dimension, that survives a loss if any does."""
    for losses in (1, 0):
        grids = [g for g in family.grids(workers, losses) if max(g.m, g.p, g.n) <= 2]
        if grids:
            return max(grids, key=lambda g: g.m * g.p * g.n)
    raise ValueError(f"no grid for {family.name}")


def operands(kind):
    rows, inner, columns = SHAPE
    a, b = RNG.standard_normal((rows, inner)), RNG.standard_normal((inner, columns))
    if kind == "integers":
        return np.rint(50 * a).astype(int), np.rint(50 * b).astype(int)
    if kind == "complex":
        return a * (1 - 2j), b + 1j
    if kind == "single":
        return a.astype(np.float32), b.astype(np.float32)
    if kind == "sparse":
        return sp.csr_array(a * (RNG.random(a.shape) < 0.1)), b
    return a, b


def complaint(name, kind, pool):
    """What is wrong with one product; an empty string if nothing is."""
    family = get(name)
    grid = grid_of(family, pool.n_workers)
    a, b = operands(kind)
    expected = a @ b
    options = {"code": name, "pool": pool, "return_report": True, "verify": "freivalds"}
    if family.approximate:
        options["tolerance"] = 100.0
    if family.operation == "matvec":
        c, report = codedla.matvec(a, b, blocks=(grid.m, 1, 1), **options)
    else:
        c, report = codedla.matmul(a, b, blocks=(grid.m, grid.p, grid.n), **options)
    LOST.update(report.lost)
    if kind == "integers":
        return "" if np.array_equal(c, expected) else "not NumPy's integers"
    error = np.linalg.norm(c - expected) / np.linalg.norm(expected)
    allowed = 50 * report.error_estimate + 1e-14
    if error <= allowed and (family.approximate or kind == "single" or allowed < 1e-8):
        return ""
    return f"error {error}, estimate {report.error_estimate}, blocks {grid}"


def work(pool):
    note_shared_memory()
    bad, done = [], {}
    for killed in (False, True):
        if killed:
            os.kill(int((FOLDER / "pid3").read_text()), signal.SIGKILL)
        for name in available():
            kinds = ("sparse", "complex") if killed else ("double", "single")
            if issubclass(get(name), ExactCode):
                kinds = ("integers",)
            for kind in kinds:
                try:
                    wrong = complaint(name, kind, pool)
                except Exception:
                    wrong = traceback.format_exc()
                if wrong:
                    bad.append(f"{name} {kind}{' after a loss' * killed}: {wrong}")
            done[name] = done.get(name, 0) + len(kinds)
            write("result", {"bad": bad, "done": done, "lost": sorted(LOST)})
    return 0


sys.exit(program.run(work, faults=faults(["delay:2:0.02"])))
