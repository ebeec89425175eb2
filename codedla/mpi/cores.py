"""Which cores a rank may use, who shares them, and what BLAS makes of them.

Linux tells per process which cores it may run on; launchers bind ranks to some of them, and a
control group may grant less time than there are cores.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedla.engine.arguments import whole_number
from codedla.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["allowed", "check_threads", "describe", "fair_share", "quota", "resolve_threads"]

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512bw")


def allowed() -> list[int]:
    """Return the numbers of the cores (hardware threads) that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def quota() -> float | None:
    """Return the cores' worth of CPU time that the control group grants; None without a limit."""
    try:
        limit, period = _CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def check_threads(threads: Any) -> int | str:
    """Return ``threads`` if it is a positive whole number or ``"auto"``.

    Raises
    ------
    UsageError
    """
    if threads == "auto":
        return "auto"
    if isinstance(threads, str):
        raise UsageError(
            f"threads must be a whole number or 'auto'; got {threads!r}; use threads='auto' for "
            "the cores that every rank may use"
        )
    return whole_number(threads, "threads", least=1)


def fair_share(cores: Sequence[Sequence[int]], me: int, granted: float | None = None) -> int:
    """Return how many threads a rank can keep busy beside the other ranks of its host.

    Parameters
    ----------
    cores : sequence of sequence of int
        Cores that each rank of the host may use.
    me : int
        Which of them is asked about.
    granted : float, optional
        Cores' worth of time for all of them together.

    Returns
    -------
    int
        Its cores divided by the ranks that may use any of them, itself included; at least 1.
    """
    mine = set(cores[me])
    sharing = sum(not mine.isdisjoint(others) for others in cores)
    share = len(mine) / max(sharing, 1)
    if granted is not None:
        share = min(share, granted / len(cores))
    return max(int(share), 1)


def resolve_threads(threads: int | str, comm: MPI.Comm) -> int:
    """Turn ``"auto"`` into this rank's :func:`fair_share`; collective for ``"auto"`` only."""
    if isinstance(threads, int):
        return threads
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return fair_share(host.allgather(allowed()), host.Get_rank(), quota())
    finally:
        host.Free()


def describe() -> dict[str, Any]:
    """Return what this process may use and what its BLAS is, JSON-ready.

    Returns
    -------
    dict
        ``host``; ``cores``: numbers of those allowed; ``present``: cores of the host; ``physical``:
        cores allowed when hardware threads of one core count once; ``quota``; ``load``: processes
        that wanted to run on the host, on average of the last minute; ``blas``: None, or ``api,
        version, architecture, threads``; ``flags``: vector instructions; ``vendor``.
    """
    import numpy  # noqa: F401  loads the library that is asked about
    from threadpoolctl import threadpool_info

    cores = allowed()
    blas = next((info for info in threadpool_info() if info["user_api"] == "blas"), None)
    cpu = _cpu()
    return {
        "host": socket.gethostname(),
        "cores": cores,
        "present": os.cpu_count() or 1,
        "physical": len({_siblings(core) for core in cores}),
        "quota": quota(),
        "load": os.getloadavg()[0],
        "blas": blas
        and {
            "api": blas["internal_api"],
            "version": blas["version"],
            "architecture": blas.get("architecture"),
            "threads": blas["num_threads"],
        },
        "flags": [flag for flag in _FLAGS if flag in cpu.get("flags", "").split()],
        "vendor": cpu.get("vendor_id", ""),
    }


def _siblings(core: int) -> str:
    """Return which hardware threads share a core with this one, in Linux's words."""
    try:
        return Path(_SIBLINGS.format(core)).read_text().strip()
    except OSError:
        return str(core)


def _cpu() -> dict[str, str]:
    """Return what Linux says of the first core."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
