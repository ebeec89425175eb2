"""Every peer: how it is started, in which environment, and which of its processes are struck."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import threadpoolctl

from _peers.environments import (
    Unavailable,
    debian_environment,
    debian_packages,
    python_of,
    versions,
)
from codedla.mpi.launcher import INSTALL, find_launcher

HERE = Path(__file__).parent
SCALAPACK = ("libscalapack-openmpi2.2", "libopenblas0-pthread", "openmpi-bin", "libopenmpi3")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Setting:
    """What the peers have to agree on.

    Parameters
    ----------
    workers : int
        Processes that compute, the master not counted.
    venvs : Path
        Where environments are.
    coretype : str
        OpenBLAS kernel for Debian's library.
    """

    workers: int
    venvs: Path
    coretype: str


@dataclass(frozen=True)
class Start:
    """How a peer is started here.

    Parameters
    ----------
    argv : list of str
    workers : int
        0 where there is nobody to be struck.
    environment : mapping
        Added to that of the harness.
    note : str
        What a reader of the figures must know.
    """

    argv: list[str]
    workers: int
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def _numpy(_: Setting) -> Start:
    return Start([sys.executable, str(HERE / "with_numpy.py")], 0, note="one process, all threads")


def _by_hand(setting: Setting) -> Start:
    return Start(_mpi(setting, [str(HERE / "by_hand.py")]), setting.workers)


def _futures(setting: Setting) -> Start:
    return Start(
        _mpi(setting, ["-m", "mpi4py.futures", str(HERE / "with_futures.py")]), setting.workers
    )


def _dask(setting: Setting) -> Start:
    return _own(setting, "dask", ["dask[array]", "distributed"], 1)


def _ray(setting: Setting) -> Start:
    # Without a token of ours it would put one in the user's home.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return _own(setting, "ray", ["ray"], 2, {"RAY_USAGE_STATS_ENABLED": "0", **token})


def _torch(setting: Setting) -> Start:
    # Where the package index has only builds for graphics cards, they take several gigabytes.
    return _own(setting, "torch", ["torch==2.13.0"], 10, {"GLOO_SOCKET_IFNAME": "lo"})


def _scalapack(setting: Setting) -> Start:
    folder = debian_packages(setting.venvs / "scalapack", SCALAPACK, 1)
    argv = [str(folder / "usr" / "bin" / "mpirun.openmpi"), "-n", str(setting.workers + 1)]
    argv += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    note = "Debian's OpenBLAS chooses its kernel"
    environment = dict(debian_environment(folder))
    if setting.coretype:
        environment["OPENBLAS_CORETYPE"] = setting.coretype
        note = f"OPENBLAS_CORETYPE={setting.coretype}"
    argv += [sys.executable, str(HERE / "with_scalapack.py")]
    return Start(argv, setting.workers, environment, note)


def _codedla(tolerate: int) -> Callable[[Setting], Start]:
    def start(setting: Setting) -> Start:
        if find_launcher() is None:
            raise Unavailable(f"needs an MPI launcher; {INSTALL}")
        workers = setting.workers + tolerate
        root = str(HERE.parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        argv = [sys.executable, str(HERE / "with_codedla.py"), str(tolerate)]
        return Start(argv, workers, {"PYTHONPATH": path}, f"{workers} workers")

    return start


@dataclass(frozen=True)
class Peer:
    """One row of the table."""

    title: str
    start: Callable[[Setting], Start]


PEERS = {
    "numpy": Peer("NumPy, all threads", _numpy),
    "by-hand": Peer("mpi4py by hand", _by_hand),
    "scalapack": Peer("ScaLAPACK pdgemm", _scalapack),
    "torch": Peer("torch, gloo", _torch),
    "ray": Peer("Ray", _ray),
    "dask": Peer("dask.distributed", _dask),
    "futures": Peer("mpi4py.futures", _futures),
    "codedla-0": Peer("codedla, tolerate 0", _codedla(0)),
    "codedla-1": Peer("codedla, tolerate 1", _codedla(1)),
    "codedla-2": Peer("codedla, tolerate 2", _codedla(2)),
}


def threads(start: Start) -> dict[str, str]:
    """Thread variables: the cores are shared by the workers; one process alone has them all."""
    cores = len(os.sched_getaffinity(0))
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, cores // max(1, start.workers))))


def kernel() -> str:
    """The OpenBLAS kernel that NumPy has chosen for this processor, ``""`` for another BLAS."""
    np.dot(np.ones(2), np.ones(2))
    for library in threadpoolctl.threadpool_info():
        if library["internal_api"] == "openblas":
            return str(library["architecture"])
    return ""


def _mpi(setting: Setting, argv: list[str]) -> list[str]:
    """Command line of a plain MPI job: more ranks than cores allowed, idle ranks give way."""
    launcher = find_launcher()
    if launcher is None:
        raise Unavailable(f"needs an MPI launcher; {INSTALL}")
    start = [launcher.path, "-n", str(setting.workers + 1)]
    if launcher.kind == "openmpi":
        crowded = ["--map-by", ":OVERSUBSCRIBE"] if launcher.major >= 5 else ["--oversubscribe"]
        start += [*crowded, "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        start += ["--mca", "osc", "^ucx"]
        if os.geteuid() == 0:
            start.append("--allow-run-as-root")
    return [*start, sys.executable, *argv]


def _own(
    setting: Setting,
    name: str,
    requirements: list[str],
    gibibytes: float,
    environment: Mapping[str, str] | None = None,
) -> Start:
    """A peer in a virtual environment of its own, with the NumPy of the harness."""
    wanted = [f"numpy=={np.__version__}", *requirements]
    python = python_of(setting.venvs / name, wanted, gibibytes)
    script = HERE / f"with_{name}.py"
    note = versions(setting.venvs / name, requirements)
    return Start([str(python), str(script)], setting.workers, environment or {}, note)
