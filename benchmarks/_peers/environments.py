"""Environments of the peers' own: made on first use, kept in the user's cache.

NumPy, mpi4py and mpi4py.futures run in the environment of the harness, as codedla does: the same
NumPy, BLAS and MPI are what makes their figures comparable.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1 << 30
INSTALL_LIMIT = 1800.0
"""Seconds that one installation may take."""


class Unavailable(Exception):
    """A peer cannot be had here; the message says why."""


def default_folder() -> Path:
    """Where environments are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "codedla" / "peers"


def python_of(folder: Path, requirements: Sequence[str], gibibytes: float) -> Path:
    """Python of the virtual environment in `folder`, which is made where it is not there yet.

    Parameters
    ----------
    folder : Path
    requirements : sequence of str
        As pip takes them.
    gibibytes : float
        Free disk space without which nothing is installed.

    Raises
    ------
    Unavailable
        No space, or what pip said last.
    """
    python, wanted = folder / "bin" / "python", "\n".join(requirements)
    if _complete(folder, wanted):
        return python
    _check_space(folder, gibibytes)
    print(f"installing {' '.join(requirements)} in {folder}", file=sys.stderr)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", *requirements])
    (folder / ".complete").write_text(wanted)
    return python


def versions(folder: Path, requirements: Sequence[str]) -> str:
    """What is in the virtual environment in `folder`: "torch 2.13.0", for instance."""
    names = [re.split(r"[\[=<>~]", requirement)[0] for requirement in requirements]
    places = [str(path) for path in folder.glob("lib/python*/site-packages")]
    found = importlib.metadata.distributions(path=places)
    return ", ".join(f"{d.name} {d.version}" for d in found if d.name in names)


def debian_packages(folder: Path, packages: Sequence[str], gibibytes: float) -> Path:
    """Debian packages, with what they need and this system does not have, unpacked into `folder`.

    Nothing is installed and no rights are needed; the system stays as it is.

    Raises
    ------
    Unavailable
        No apt, no space, or what apt said last.
    """
    wanted = "\n".join(packages)
    if _complete(folder, wanted):
        return folder
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Unavailable("needs Debian's packages, and there is no apt-get here")
    _check_space(folder, gibibytes)
    print(f"unpacking {' '.join(packages)} in {folder}", file=sys.stderr)
    archives = folder / "archives"
    shutil.rmtree(folder, ignore_errors=True)
    archives.mkdir(parents=True)
    plan = _run(["apt-get", "--simulate", "--no-install-recommends", "install", *packages])
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    # What is installed already is not in the plan, but may be asked for by name.
    _run(["apt-get", "download", *sorted({*names, *packages})], cwd=archives)
    for archive in archives.glob("*.deb"):
        _run(["dpkg", "--extract", str(archive), str(folder)])
    shutil.rmtree(archives)
    (folder / ".complete").write_text(wanted)
    return folder


def debian_environment(folder: Path) -> Mapping[str, str]:
    """Variables with which programs unpacked into `folder` find their libraries there."""
    system = next(folder.glob("usr/lib/*-linux-gnu"), None)
    if system is None:
        raise Unavailable(f"{folder} holds no Debian libraries; remove it, and it is made again")
    places = [system, system / "openblas-pthread", folder / "lib" / system.name]
    return {
        "OPAL_PREFIX": str(folder / "usr"),
        "PMIX_INSTALL_PREFIX": str(folder / "usr"),
        "LD_LIBRARY_PATH": ":".join(map(str, places)),
    }


def _complete(folder: Path, wanted: str) -> bool:
    mark = folder / ".complete"
    return mark.exists() and mark.read_text() == wanted


def _check_space(folder: Path, gibibytes: float) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free / GIB
    except OSError as error:
        raise Unavailable(f"no environment can be made there: {error}") from error
    if free < gibibytes:
        raise Unavailable(
            f"needs {gibibytes:g} GiB of disk space in {folder.parent}, where {free:.1f} are free"
        )


def _run(argv: Sequence[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, cwd=cwd, timeout=INSTALL_LIMIT, check=True
        )
    except subprocess.CalledProcessError as error:
        said = [line for line in (error.stderr or error.stdout).splitlines() if line.strip()]
        raise Unavailable(
            f"{Path(argv[0]).name} failed: {(said or ['nothing said'])[-1]}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(argv[0]).name} failed: {error}") from error
    return done.stdout
