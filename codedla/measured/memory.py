"""Which memory this process may take: of the machine, its control group and its own limits."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MPI_RESIDENT", "MPI_SPACE", "Budget", "budget", "free_memory", "process_size"]

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
            for name, free in free_memory()
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


def free_memory() -> Iterator[tuple[str, float]]:
    """Yield what is free on the machine and in the control groups that this process is in."""
    text = _read(Path("/proc/meminfo"))
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            yield "the free memory of this machine", float(line.split()[1]) * 1024
    for folder, limit, used, cache in _groups():
        most, now = _read(folder / limit).strip(), _read(folder / used).strip()
        # Where nothing is limited, older systems give the largest number of pages.
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
