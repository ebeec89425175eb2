"""``codedla bench``: what redundancy costs on this cluster, what it buys, and what to use."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import platform
import socket
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedla.cli.messages import fail, farewell, say, warn
from codedla.cli.options import add_json, add_threads, count, positive_number
from codedla.errors import CodedlaError, UsageError
from codedla.mpi.launch import run_job, scratch_folder, thread_environment, world_from_env

if TYPE_CHECKING:
    from codedla.cli.measure import Measurement
    from codedla.cli.verdict import Figures
    from codedla.engine.stragglers import Fault
    from codedla.mpi.pool import MPIPool

NAME = "bench"
HELP = "measure codes on this cluster, healthy and with a slow rank, and say which to use"
EPILOG = """\
The same product uncoded, replicated and coded, in turn, without and with a rank that is made slow;
NumPy on the master; rounds of A @ x; the link; the speed of every rank. Takes less than a minute
and a half: with the last turn after 60 s.

examples:
  codedla bench --ranks 9
  codedla bench --ranks 5 --threads auto --size 4000 --save
  srun codedla bench --json > bench.json
  mpirun -n 9 codedla bench --quick

--save keeps the measured speeds where 'codedla plan' and the choice of a code find them: in
~/.config/codedla/speeds.json, or in the file that CODEDLA_SPEEDS names."""

_SIZE, _QUICK_SIZE = 2000, 1000
_REPEATS, _QUICK_REPEATS = 5, 3
_BUDGET, _QUICK_BUDGET = 60.0, 15.0
#: Seconds for the job to start, and for turns that take longer than the one before.
_MARGIN = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--ranks",
        type=count,
        metavar="R",
        help="start MPI with R ranks, master included (not needed under mpirun or srun)",
    )
    parser.add_argument(
        "--size",
        type=count,
        metavar="N",
        help=f"rows and columns of both matrices (default {_SIZE}; with --quick {_QUICK_SIZE})",
    )
    parser.add_argument(
        "--repeats",
        type=count,
        metavar="N",
        help=f"turns, as far as there is time (default {_REPEATS}; with --quick {_QUICK_REPEATS})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="less exact, in a few seconds (last turn after 15 s)"
    )
    parser.add_argument(
        "--slow",
        type=positive_number,
        default=5.0,
        metavar="FACTOR",
        help="how slow rank 1 is made (default 5)",
    )
    add_threads(parser)
    parser.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="SPEC",
        help="a fault in all turns, as in matmul, for trying this command out; may be repeated",
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the measured speeds for later predictions"
    )
    parser.add_argument("--png", metavar="FILE", help="draw the medians")
    parser.add_argument("--force", action="store_true", help="replace an existing picture")
    add_json(parser, "all figures and the verdict")


def run(args: argparse.Namespace) -> int:
    """Carry out the command on the master, or start the job that does."""
    world = world_from_env()
    try:
        faults = _check(args, world)
    except BaseException as error:
        if world is None or world[1] == 1:
            raise
        # The other ranks are on their way into MPI: meet them there and send them home.
        return _enter_mpi(args, [], failure=fail(error))
    return _start_job(args) if world is None else _enter_mpi(args, faults)


def serve(args: argparse.Namespace) -> int:
    """Take part as a worker rank; nothing is checked here."""
    try:
        faults = _faults(args, None)
    except UsageError:
        faults = []  # the master says so, and orders nothing
    return _enter_mpi(args, faults)


def _size(args: argparse.Namespace) -> int:
    return int(args.size or (_QUICK_SIZE if args.quick else _SIZE))


def _repeats(args: argparse.Namespace) -> int:
    return int(args.repeats or (_QUICK_REPEATS if args.quick else _REPEATS))


def _check(args: argparse.Namespace, world: tuple[int, int] | None) -> list[Fault]:
    """Find every error before anything is measured; return the faults of all turns."""
    if world is not None and args.ranks not in (None, world[1]):
        raise UsageError(
            f"--ranks is not needed under a launcher; got --ranks {args.ranks} in a job of "
            f"{world[1]} ranks; leave it out"
        )
    n_ranks = args.ranks if world is None else world[1]
    if n_ranks is None or n_ranks < 2:
        raise UsageError(
            f"a bench needs a master and at least one worker; got {n_ranks or 1} rank; "
            "add --ranks 5, or start it with: mpirun -n 5 codedla bench"
        )
    if args.slow < 1:
        raise UsageError(f"a slow rank's factor is at least 1; got --slow {args.slow:g}; use 5")
    size = _size(args)
    if size < n_ranks - 1:
        raise UsageError(
            f"every worker needs a row; got --size {size} for {n_ranks - 1} workers; "
            f"use --size {100 * (n_ranks - 1)}"
        )
    _check_memory(size, n_ranks)
    if args.save:
        from codedla.measured.speeds import speeds_file

        if speeds_file() is None:
            raise UsageError(
                "--save needs a file; got CODEDLA_SPEEDS set to nothing; unset it, or name a file"
            )
    if args.png is not None:
        _check_picture(args)
    return _faults(args, n_ranks)


def _check_memory(size: int, n_ranks: int) -> None:
    from codedla.engine.cost import in_bytes
    from codedla.measured.memory import free_memory

    # Operands, two results and their difference on the master; as much again in all shares.
    square = (5 + 4) * 8
    needed, free = square * size**2, min((free for _, free in free_memory()), default=math.inf)
    if needed > free:
        raise UsageError(
            f"matrices must fit into memory; got --size {size}, which needs about "
            f"{in_bytes(needed)} on this host where {in_bytes(free)} are available; use --size "
            f"{max(int((free / 2 / square) ** 0.5) // 100 * 100, n_ranks - 1)}"
        )


def _check_picture(args: argparse.Namespace) -> None:
    from codedla.cli.output import check_text

    path = Path(args.png)
    if path.suffix.lower() != ".png":
        raise UsageError(f"--png must end in .png; got {args.png!r}; choose such a name")
    check_text(path, force=args.force)
    try:
        import matplotlib  # noqa: F401  not installed with every codedla
    except ImportError as error:
        raise UsageError(
            f"the picture {args.png} needs the package matplotlib; it is not installed; "
            "pip install 'codedla[plot]'"
        ) from error


def _faults(args: argparse.Namespace, n_ranks: int | None) -> list[Fault]:
    from codedla.engine.stragglers import check_ranks, parse_fault

    faults = [parse_fault(spec) for spec in args.inject]
    if n_ranks is not None:
        check_ranks(faults, n_ranks - 1)
    return faults


def _start_job(args: argparse.Namespace) -> int:
    """Start the same command on MPI ranks and hand on what the master says."""
    from codedla.cli.progress import follow

    with scratch_folder() as folder, follow(args.quiet, folder, "steps") as env:
        result = run_job(
            [sys.executable, "-m", "codedla", *args.argv],
            args.ranks,
            timeout=_BUDGET + _MARGIN,
            env={**thread_environment(args.threads), **env},
            begins=True,
        )
    if result.signal is not None:
        if result.code:
            say(farewell(result.signal))
        return result.code
    if not result.reported:
        reason = result.reason or f"the launcher returned {result.launcher_code}"
        say(f"error: the job ended without figures: {reason}; try codedla doctor")
        return 1
    return result.code


def _enter_mpi(args: argparse.Namespace, faults: list[Fault], *, failure: int = 0) -> int:
    """Join the job; on the master measure and tell, or end everybody with `failure`."""
    from codedla.engine.stragglers import Fault
    from codedla.mpi.program import run_stages
    from codedla.mpi.survey import survey

    said: list[dict[str, Any]] = []
    repeats = _repeats(args)
    slowed = [*faults, Fault("slow", 0, args.slow)]
    stages = [stage for _ in range(repeats) for stage in (faults, slowed)]

    def meet() -> None:
        found = survey(args.threads)
        if found is not None:
            said.extend(found["ranks"])

    job = _Job(args, said, repeats, len(stages), failure)
    return int(run_stages(job, stages, threads=args.threads, before=meet))


class _Job:
    """What the master does in each stage: measure, and tell after the last one."""

    def __init__(
        self,
        args: argparse.Namespace,
        ranks: list[dict[str, Any]],
        repeats: int,
        stages: int,
        failure: int,
    ) -> None:
        self.args, self.ranks, self.repeats, self.failure = args, ranks, repeats, failure
        self.left = stages
        self.measurement: Measurement | None = None
        self.bar = contextlib.ExitStack()

    def __call__(self, pool: MPIPool) -> int:
        if self.failure:
            return self.failure
        try:
            if self.measurement is None:
                self.measurement = self._begin(pool)
            self.measurement.stage(pool)
            self.left -= 1
            if not self.left:
                self.bar.close()
                _tell(self.args, self.measurement.figures, self.repeats)
        except Exception as error:
            self.bar.close()
            return fail(error)
        return 0

    def _begin(self, pool: MPIPool) -> Measurement:
        from codedla.cli.measure import Measurement, new_figures
        from codedla.cli.progress import progress

        size = _size(self.args)
        figures = new_figures(size, pool.n_workers, pool.threads, 1, self.args.slow)
        figures.ranks = self.ranks
        total, done = Measurement.steps(figures, self.repeats), 0
        draw = self.bar.enter_context(progress(self.args.quiet, "steps"))

        def step() -> None:
            nonlocal done
            done += 1
            if draw is not None:
                draw(done, total, total)

        budget = _QUICK_BUDGET if self.args.quick else _BUDGET
        return Measurement(figures, self.repeats, budget, len(self.ranks[0]["cores"]), step)


def _tell(args: argparse.Namespace, figures: Figures, repeats: int) -> None:
    from codedla.cli.verdict import table, verdict

    if args.save:
        _save(figures)
    if args.png is not None:
        from codedla.cli.picture import draw_bench
        from codedla.writing import write_bytes

        write_bytes(Path(args.png), draw_bench(figures))
    if args.json:
        print(json.dumps(figures.to_dict(), indent=2), flush=True)
        return
    turns = len(figures.cases[0].healthy)
    cut = f" (there was no time for {repeats})" if turns < repeats else ""
    print(
        f"{figures.size} x {figures.size} float64 on {figures.n_workers + 1} ranks, "
        f"{figures.threads} thread{'s' * (figures.threads != 1)} each; medians of {turns} "
        f"turn{'s' * (turns != 1)}{cut}; rank {figures.slow_rank} slow: {figures.factor:g} times\n"
    )
    print(table(figures), end="\n\n")
    for sentence in verdict(figures):
        print(f"- {sentence}")
    sys.stdout.flush()


def _save(figures: Figures) -> None:
    from codedla.cli.verdict import doubt
    from codedla.measured.speeds import Speeds, save, speeds_file

    path = speeds_file()
    if path is None:  # checked before anything was measured
        raise CodedlaError("the measured speeds have no file to be kept in")
    flops = statistics.median(figures.flops.values())
    about = {
        "host": socket.gethostname(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "ranks": figures.n_workers + 1,
        "threads": figures.threads,
        "latency": figures.latency,
        "machine": platform.machine(),
    }
    save(path, Speeds(flops, figures.bandwidth), about)
    say(f"the measured speeds are in {path}; codedla plan reckons with them")
    if doubt(figures):
        warn(f"they may be far off. {doubt(figures)}")
