"""How much memory the master has, and what a product in panels takes of it.

Every figure is an upper bound that a test or a benchmark compares with what was measured: what a
limit of the address space allows must be known before it is met.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codedla.codes.exact import ModularCode
from codedla.engine.arithmetic import accumulating
from codedla.engine.cost import in_bytes
from codedla.engine.plan import Plan
from codedla.errors import UsageError

__all__ = [
    "MPI_RESIDENT",
    "MPI_SPACE",
    "OPEN_ROUNDS",
    "Budget",
    "PanelMemory",
    "budget",
    "panel_memory",
    "process_size",
    "too_small",
]

OPEN_ROUNDS = 3
"""Panels of which the master holds the operands at a time, at the most: those under way."""
WORKING = 64 << 20
"""Bytes for what does not grow with the panels: tiles, windows of files, a thread of BLAS."""
MPI_SPACE, MPI_RESIDENT = 256 << 20, 48 << 20
"""What MPI adds to the address space and to the resident memory of the master."""
_SHARED = 0.5
"""Of memory that other ranks on the same node use as well, what the master plans with."""
_LEAST = 256 << 20
"""Bytes that are planned with however little is free: the system makes room, or says no."""


@dataclass(frozen=True)
class Budget:
    """Memory that the master may take for operands, shares and product.

    Parameters
    ----------
    bytes : float
        Infinite when nothing limits it.
    limit : str
        What does, in words.
    base : int
        What the process takes besides, in the same measure.
    measure : str
        ``"address space"`` or ``"resident memory"``.
    """

    bytes: float
    limit: str
    base: int
    measure: str


@dataclass(frozen=True)
class PanelMemory:
    """What one process needs at the most while a product is computed in panels.

    Parameters
    ----------
    master : float
        Bytes of the part of B and of the panels of A and C under way on the master, with
        everything that is encoded and decoded from them.
    worker : float
        Bytes of one worker: its share of B, two shares of A, two replies.
    """

    master: float
    worker: float


def budget(asked: float | None = None, *, mpi: bool = True) -> Budget:
    """Return what the master may take: the tightest of all limits.

    The limit of the address space (``ulimit -v``) counts in full, what the process has already and
    what MPI will take subtracted; of the memory that is free on the machine or in the control
    group half is planned with, because workers may be on the same node.

    Parameters
    ----------
    asked : float, optional
        The user's own limit on the resident memory of the master, in bytes.
    mpi : bool
        MPI is still to be started in this process, or in one like it.

    Returns
    -------
    Budget
    """
    space, resident = process_size()
    if mpi:
        space, resident = space + MPI_SPACE, resident + MPI_RESIDENT
    found = []
    if asked is not None:
        found.append(Budget(asked - resident, "--master-memory", resident, "resident memory"))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(Budget(limit - space, "ulimit -v", space, "address space"))
    if asked is None:
        found += [
            # What this process has is not free any more.
            Budget(
                max(_SHARED * free - (MPI_RESIDENT if mpi else 0), _LEAST),
                name,
                resident,
                "resident memory",
            )
            for name, free in _free()
        ]
    return min(
        found,
        key=lambda each: each.bytes,
        default=Budget(math.inf, "nothing", resident, "resident memory"),
    )


def process_size() -> tuple[int, int]:
    """Return the address space and the resident memory of this process, in bytes."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:  # not on Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak << 10, peak << 10
    page = resource.getpagesize()
    return int(fields[0]) * page, int(fields[1]) * page


def panel_memory(
    plan: Plan,
    dtypes: tuple[np.dtype, np.dtype],
    *,
    in_memory: tuple[bool, bool] = (False, False),
    rounds: int = OPEN_ROUNDS,
) -> PanelMemory:
    """Return the memory that panels of a plan's shape need.

    Parameters
    ----------
    plan : Plan
        Of one panel.
    dtypes : (dtype, dtype)
        Of A and of B as they are stored.
    in_memory : (bool, bool)
        Which operands are in memory anyway: dense panels of theirs are views.
    rounds : int
        Panels under way at a time.

    Returns
    -------
    PanelMemory
    """
    (m, inner, n), grid, (u, q, v) = plan.shape, plan.grid, plan.code.stack
    height, depth, width = -(-m // grid.m), -(-inner // grid.p), -(-n // grid.n)
    item = plan.compute.itemsize
    share_a, share_b = u * q * height * depth * item, q * v * depth * width * item
    reply = u * v * height * width * item
    coded = sum(plan.code.plain_block(share) is None for share in plan.code.shares)

    def held(entries: int, which: int) -> float:
        dtype, density = dtypes[which], plan.density[which]
        if density < 1.0:
            # Entries and their indices, as they are and cut for the encoder.
            return entries * density * (dtype.itemsize + item + 2 * 12)
        # Other dtypes than that of the shares are cast as a whole.
        stored = 0 if in_memory[which] else entries * dtype.itemsize
        return stored + (entries * item if dtype != plan.compute else 0)

    of_a = held(m * inner, 0) + coded * share_a
    of_b = held(inner * n, 1) + coded * share_b
    # The decoded matrix and, if it is of another dtype, the result.
    of_c = m * n * (item + (plan.dtype.itemsize if plan.dtype != plan.compute else 0))
    # Replies to coded shares, and what is folded into them in double precision.
    of_c += coded * reply * (1 + accumulating(plan.compute).itemsize // item)
    if isinstance(plan.code, ModularCode):
        # One round after the other, whose results are kept and put together in the end.
        largest = 0 if plan.request is None else plan.request.largest or 0
        of_c += m * n * item * (len(plan.code.primes(depth * q, largest)) + 3)
    # A worker that stopped half-way keeps a panel of A and a reply of its own alive.
    late = max(plan.tolerates, 1)
    master = rounds * (of_a + of_c) + of_b + late * (of_a + reply)
    # Right-hand sides of the check of replies: a few columns as long as rows of A.
    blocks = grid.p * grid.n
    master += 8 * inner * (5 * blocks + plan.code.n_shares) + WORKING
    return PanelMemory(float(master), float(share_b + 2 * (share_a + reply)))


def too_small(needed: float, available: Budget, what: str) -> UsageError:
    """Return the error that says that the master's memory does not suffice."""
    return UsageError(
        f"{what} needs {in_bytes(needed + available.base)} of {available.measure} on the master "
        f"({in_bytes(available.base)} for the program itself); {available.limit} leaves "
        f"{in_bytes(max(available.bytes + available.base, 0))}; raise the limit"
    )


def _free() -> Iterator[tuple[str, float]]:
    """Yield what is free on the machine and in the control groups that this process is in."""
    text = _read(Path("/proc/meminfo"))
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            yield "the free memory of this machine", float(line.split()[1]) * 1024
    for folder, limit, used, cache in _groups():
        most, now = _read(folder / limit).strip(), _read(folder / used).strip()
        if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
            # What is cached of files is given up when memory is needed.
            spare = [
                int(line.split()[1])
                for line in _read(folder / "memory.stat").splitlines()
                if line.split()[:1] == [cache]
            ]
            yield "the memory of this control group", float(int(most) - int(now) + sum(spare))


def _groups() -> Iterator[tuple[Path, str, str, str]]:
    """Yield the folder and the names of the files of every control group that may set a limit."""
    root = Path("/sys/fs/cgroup")
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = top / name.lstrip("/")
        # The limit of any group above counts as well; inside a container there are none to see.
        for each in {top, folder, *folder.parents}:
            if each == top or top in each.parents:
                yield each, *names


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
