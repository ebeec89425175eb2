"""What ``matmul`` and ``matvec`` do: check everything, start MPI if need be, multiply, write.

Three kinds of process come here: the one a user starts with ``--ranks`` (checks, starts the job,
hands on its exit code), rank 0 of a job (checks, then multiplies), and its other ranks (serve).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codedla.cli.files import Operand, inspect
from codedla.cli.jobs import count_ranks, enter_mpi, faults_of, serve, start_job
from codedla.cli.journal import Entry, Panel, remaining, tile
from codedla.cli.layout import Layout, Stored, lay_out
from codedla.cli.messages import fail, say
from codedla.cli.options import code_arguments
from codedla.cli.output import Output, check_text
from codedla.cli.restart import Restart, identity_of
from codedla.errors import UsageError
from codedla.mpi.launch import world_from_env
from codedla.writing import write_text

if TYPE_CHECKING:
    from codedla.engine.plan import Plan
    from codedla.engine.report import Report
    from codedla.engine.stragglers import Fault

__all__ = ["layout_for", "plan_for", "print_plan", "run_product", "serve_product"]

#: Seconds that a command takes besides the product, at the least: starting Python and MPI.
_OVERHEAD = 1.0


@dataclass
class _Task:
    """A checked product."""

    operation: str
    a: Operand
    b: Operand
    plan: Plan
    faults: list[Fault]
    output: Output
    restart: Restart
    layout: Layout
    in_panels: bool
    complete: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the product as NumPy would give it."""
        return (self.a.shape[0], *self.b.shape[1:])

    def panels(self, entries: Sequence[Entry]) -> list[Panel]:
        """Panels that are to be computed when `entries` are finished."""
        layout = self.layout
        return tile(remaining(layout.shape, entries), layout.rows, layout.cols)


def run_product(args: argparse.Namespace, operation: str) -> int:
    """Carry out a product on the master, or start the job that does.

    Returns
    -------
    int
        The exit code.
    """
    world = world_from_env()
    try:
        task = _check(args, operation, world)
    except BaseException as error:
        if world is None or world[1] == 1:
            raise
        # The other ranks are on their way into MPI: meet them there and send them home, because
        # some launchers would let them wait for ever for a rank that left before.
        return enter_mpi(args, failure=fail(error))
    if args.dry_run:
        print_plan(task.plan, task.layout if task.in_panels else None, as_json=args.json)
        return 0
    if task.complete:
        say(f"{task.output.spec} is already complete")
        return 0 if world is None else enter_mpi(args, failure=0)
    if world is None:
        return _start_job(args, task)
    return enter_mpi(args, task.faults, lambda pool: _multiply(args, task, pool))


def serve_product(args: argparse.Namespace) -> int:
    """Take part in a product as a worker rank; nothing is read or checked here."""
    return 0 if args.dry_run else serve(args)


def print_plan(plan: Plan, layout: Layout | None, *, as_json: bool) -> None:
    """Print a plan and, if there are any, what is to be said of its panels."""
    if as_json:
        more = {} if layout is None else {"layout": layout.to_dict()}
        print(json.dumps({**plan.to_dict(), **more}, indent=2))
    else:
        print(plan, *([] if layout is None else layout.lines()), sep="\n")


def layout_for(
    args: argparse.Namespace, plan: Plan, a: Operand, b: Operand, *, mpi: bool = True
) -> Layout:
    """Cut the product of two files into panels; see :func:`codedla.cli.layout.lay_out`."""
    stored = (Stored(each.dtype, each.loaded_bytes) for each in (a, b))
    return lay_out(args, plan, *stored, mpi=mpi)


def plan_for(
    args: argparse.Namespace, operation: str, n_workers: int
) -> tuple[Plan, Operand, Operand]:
    """Read the operands' headers and plan their product.

    Raises
    ------
    UsageError
        Not matrices, dimensions that do not fit, or options that no code can meet.
    """
    from codedla.engine.plan import make_plan

    a = inspect(args.a, "A")
    b = inspect(args.b, "x" if operation == "matvec" else "B")
    _check_shapes(a, b, operation)
    plan = make_plan(
        (a.shape[0], a.shape[1]),
        (b.shape[0], b.shape[1] if len(b.shape) > 1 else 1),
        np.result_type(a.dtype, b.dtype),
        n_workers,
        operation=operation,
        nnz=(a.nnz, b.nnz),
        **code_arguments(args),
    )
    return plan, a, b


def _check_shapes(a: Operand, b: Operand, operation: str) -> None:
    for operand, role in ((a, "A"), (b, "B")):
        if len(operand.shape) != 2 and not (role == "B" and operation == "matvec"):
            hint = "; use codedla matvec" if role == "B" and len(operand.shape) == 1 else ""
            raise UsageError(
                f"operand {role} must be a matrix (2 dimensions); got shape {operand.shape} in "
                f"{operand.spec}; save it reshaped{hint}"
            )
    if operation == "matvec" and len(b.shape) not in (1, 2):
        raise UsageError(
            f"x must be a vector or a few columns; got shape {b.shape} in {b.spec}; reshape it"
        )
    if a.shape[1] != b.shape[0]:
        what = "x must have as many entries as A has columns"
        if operation == "matmul":
            what = "inner dimensions must agree: columns of A = rows of B"
        hint = ""
        if len(b.shape) == 2 and a.shape[1] == b.shape[1]:
            hint = " (it would fit transposed)"
        raise UsageError(
            f"{what}; got A {_times(a.shape)} in {a.spec} and "
            f"{'x' if operation == 'matvec' else 'B'} {_times(b.shape)} in {b.spec}; "
            f"check the files{hint}"
        )


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _check(args: argparse.Namespace, operation: str, world: tuple[int, int] | None) -> _Task:
    """Find every error that can be found before MPI starts and before anything is computed."""
    n_ranks = count_ranks(args, world, operation)
    plan, a, b = plan_for(args, operation, n_ranks - 1)
    output = Output(args.output, force=args.force)
    for operand in (a, b):
        same_place = not output.dataset or output.dataset.strip("/") == operand.dataset.strip("/")
        if same_place and os.path.realpath(output.path) == os.path.realpath(operand.path):
            raise UsageError(
                f"a product needs a place of its own; got -o {args.output}, which is an operand; "
                "choose another name"
            )
    shape = (a.shape[0], *b.shape[1:])
    restart = Restart(output, identity_of(operation, a, b, output))
    layout = layout_for(args, plan, a, b)
    again = args.resume and restart.left() and 0 not in shape
    in_panels = layout.out_of_core or not layout.whole or again
    if args.encode == "workers":
        in_panels = _at_once(args, layout, again)
    task = _Task(
        operation, a, b, plan, faults_of(args, n_ranks), output, restart, layout, in_panels
    )
    if args.resume and not args.dry_run and restart.complete(layout.shape):
        task.complete = True
        return task
    restart.probe()
    needed = int(np.prod(shape, dtype=object)) * plan.dtype.itemsize
    output.check(needed - restart.allocated())
    if args.report is not None:
        check_text(Path(args.report), force=args.force)
        for path in (output.path, a.path, b.path):
            if os.path.realpath(args.report) == os.path.realpath(path):
                raise UsageError(
                    f"a report needs a file of its own; got {args.report}, which is an operand or "
                    "the product; choose another name"
                )
    if args.trace is not None or args.timeline is not None:
        from codedla.cli.timeline import check_outputs

        check_outputs(args)
    return task


def _at_once(args: argparse.Namespace, layout: Layout, again: bool) -> bool:
    """Return False, for a product that is not computed in panels, or refuse it."""
    if again or layout.out_of_core or args.panel_rows or args.panel_columns:
        raise UsageError(
            "--encode workers computes a product at once, in memory; it cannot be used with "
            "--resume, --panel-rows, --panel-columns or a product larger than memory; leave "
            "--encode out"
        )
    return False


# ---------------------------------------------------------------- outside MPI


def _start_job(args: argparse.Namespace, task: _Task) -> int:
    """Start the same command on MPI ranks and hand on what the master says."""
    code = start_job(args)
    if code and task.in_panels:
        _say_what_is_safe(args, task, task.restart.tidy())
    return code


def _say_what_is_safe(args: argparse.Namespace, task: _Task, entries: Sequence[Entry]) -> None:
    """After a run without success: say how to go on, if there is something to go on from."""
    if not entries:
        return
    total = len(entries) + len(task.panels(entries))
    again = "the same command" if args.resume else "the same command with --resume"
    say(
        f"{len(entries)} of {total} panels are safe: {again} continues; if you do not want them, "
        f"delete {task.restart.part} and {task.restart.journal}"
    )


# ---------------------------------------------------------------- inside MPI


def _multiply(args: argparse.Namespace, task: _Task, pool: Any) -> None:
    pool.trace = args.trace is not None or args.timeline is not None
    pool.overhead = _OVERHEAD
    if task.in_panels:
        report, reports = _multiply_in_panels(args, task, pool)
    else:
        report = _multiply_at_once(args, task, pool)
        reports = [report]
    if args.report is not None:
        write_text(Path(args.report), report.to_json())
    if pool.trace:
        from codedla.cli.timeline import write_timeline, write_trace

        if args.trace is not None:
            write_trace(Path(args.trace), reports)
        if args.timeline is not None:
            write_timeline(Path(args.timeline), reports)
    if args.json:
        print(report.to_json(), end="", flush=True)
    elif not args.quiet:
        parts = report.panels
        saved = f"{parts['total']} panels, {parts['resumed']} of an earlier run\n" if parts else ""
        print(f"{report.summary()}\n{saved}written to {task.output.spec}", flush=True)


def _multiply_at_once(args: argparse.Namespace, task: _Task, pool: Any) -> Report:
    from codedla.cli.progress import progress
    from codedla.linalg.matmul import matmul
    from codedla.linalg.matvec import matvec

    product: Any = matmul if task.operation == "matmul" else matvec
    a, b = task.a.load(), task.b.load()
    dtype = np.result_type(a.dtype, b.dtype)
    if task.restart.left():
        task.restart.abandon()
    with (
        task.output.receive(task.shape, dtype) as out,
        progress(args.quiet) as bar,
    ):
        _, report = product(
            a,
            b,
            pool=pool,
            out=out,
            verify=args.verify,
            encode=args.encode,
            return_report=True,
            timeout=args.timeout,
            progress=bar,
            **code_arguments(args),
        )
    return report


def _multiply_in_panels(
    args: argparse.Namespace, task: _Task, pool: Any
) -> tuple[Report, list[Report]]:
    """Compute what an earlier run has not; return the report of it all, and of each panel."""
    from codedla.cli.progress import progress
    from codedla.linalg.merge import merge_reports
    from codedla.linalg.panels import Panels

    if task.layout.out_of_core:
        # What MPI takes was assumed; now it is known.
        now = layout_for(args, task.plan, task.a, task.b, mpi=False)
        if now.allowed.bytes < task.layout.allowed.bytes:
            task.layout = now
    # A product that is larger than memory is not mapped, either: a map counts against its limits.
    a, b = (each.open() if task.layout.out_of_core else each.load() for each in (task.a, task.b))
    dtype = np.result_type(a.dtype, b.dtype)
    reports: list[Report] = []
    with task.restart.session(task.shape, dtype, resume=args.resume) as session:
        try:
            resumed = list(session.entries)
            panels = Panels(
                a,
                b,
                pool=pool,
                operation=task.operation,
                ranges=task.panels(resumed),
                **code_arguments(args),
            )
            if task.layout.out_of_core:
                panels.check_memory(task.layout.allowed)

            def done(panel: Panel, report: Report, block: Any) -> None:
                session.save(panel, block, report.verified)
                reports.append(report)

            with progress(args.quiet) as bar:
                panels.run(done, verify=args.verify, timeout=args.timeout, progress=bar)
            session.finish()
        except BaseException:
            # Whoever started the job says it when everything is over.
            if "CODEDLA_PART" not in os.environ:
                _say_what_is_safe(args, task, session.entries)
            raise
    counts = {
        "total": len(resumed) + len(reports),
        "resumed": len(resumed),
        "computed": len(reports),
    }
    report = merge_reports(panels.plan, task.layout.shape, reports, counts)
    checks = {entry.verified for entry in resumed} | {part.verified for part in reports}
    report.verified = checks.pop() if len(checks) == 1 else "partly"
    return report, reports
