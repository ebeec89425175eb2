"""What ``solve`` does: check everything, start MPI if need be, iterate, write."""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli.checkpoint import EVERY, Checkpoint, check_resume
from codedla.cli.files import Operand, inspect
from codedla.cli.jobs import carry_out, count_ranks, faults_of
from codedla.cli.messages import counted, overflow_is_said, say
from codedla.cli.options import code_arguments
from codedla.cli.output import Output, check_text
from codedla.cli.restart import identity_of
from codedla.errors import UsageError
from codedla.writing import write_text

if TYPE_CHECKING:
    from codedla.cli.krylov import Krylov
    from codedla.engine.stragglers import Fault
    from codedla.linalg.operator import CodedOperator

__all__ = ["solve_system"]

SCHEMA = "codedla.solve/1"

_LEAST_SQUARES = ("lsqr", "lsmr")
_RESTART = 20
_PER_UNKNOWN = 10
"""Iterations allowed by default, for each unknown."""
_DEFAULT_RTOL = {"d": 1e-8, "s": 1e-4}


@dataclass
class _Task:
    """A checked system."""

    a: Operand
    b: Operand
    method: str
    dtype: np.dtype[Any]
    rtol: float
    maxiter: int
    faults: list[Fault]
    output: Output
    checkpoint: Checkpoint | None


def solve_system(args: argparse.Namespace) -> int:
    """Solve on the master, or start the job that does; return the exit code."""
    return carry_out(args, _check, _solve, saved="the iterate")


def _check(args: argparse.Namespace, world: tuple[int, int] | None) -> _Task:
    """Find every error that can be found before MPI starts and before anything is computed."""
    n_ranks = count_ranks(args, world, "solve", "a solver")
    a, b = inspect(args.a, "A"), inspect(args.b, "b")
    _check_shapes(a, b)
    method = _method(args, a)
    _check_options(args, method)
    _check_code(args, a, n_ranks - 1)
    dtype = np.result_type(
        *(np.float64 if each.dtype.kind in "iub" else each.dtype for each in (a, b)), np.float32
    )
    single = dtype in (np.float32, np.complex64)
    check_resume(args)
    identity = identity_of("solve", a, b, output := Output(args.output, force=args.force))
    checkpoint = None
    if args.checkpoint is not None:
        names = {"A": identity["a"], "b": identity["b"]}
        checkpoint = Checkpoint(Path(args.checkpoint), args.command, names)
        if args.resume and checkpoint.load() is not None:
            # What an earlier run has written without reaching the solution may be replaced.
            output = Output(args.output, force=True)
    output.check(int(np.prod((a.shape[1], *b.shape[1:]))) * dtype.itemsize)
    if args.report is not None:
        check_text(Path(args.report), force=args.force or output.force)
    _check_names(args, a, b)
    return _Task(
        a=a,
        b=b,
        method=method,
        dtype=dtype,
        rtol=args.rtol or _DEFAULT_RTOL["s" if single else "d"],
        maxiter=args.maxiter or _PER_UNKNOWN * max(a.shape),
        faults=faults_of(args, n_ranks),
        output=output,
        checkpoint=checkpoint,
    )


def _check_shapes(a: Operand, b: Operand) -> None:
    if len(a.shape) != 2 or 0 in a.shape:
        raise UsageError(
            f"A must be a matrix with rows and columns; got shape {a.shape} in {a.spec}; "
            "check the file"
        )
    if len(b.shape) not in (1, 2) or b.shape[1:] not in ((), (1,)):
        raise UsageError(
            f"b must be one vector; got shape {b.shape} in {b.spec}; solve for one column at a time"
        )
    if b.shape[0] != a.shape[0]:
        raise UsageError(
            f"b must have as many entries as A has rows; got A {a.shape[0]}x{a.shape[1]} in "
            f"{a.spec} and {b.shape[0]} entries in {b.spec}; check the files"
        )
    for operand, name in ((a, "A"), (b, "b")):
        if operand.dtype.kind not in "iubfc":
            raise UsageError(
                f"{name} must hold numbers; got {operand.dtype} in {operand.spec}; convert it"
            )


def _check_options(args: argparse.Namespace, method: str) -> None:
    """Refuse options that the method does not have: they would be ignored."""
    chosen = f"--method {method}" if args.method != "auto" else f"{method}, which auto takes here"
    for name, of in (("restart", ("gmres",)), ("adjoint", _LEAST_SQUARES)):
        value = getattr(args, name)
        if value is not None and method not in of:
            raise UsageError(
                f"--{name} is of {' and '.join(of)}; got --{name} {value} with {chosen}; leave it "
                f"out, or take --method {of[0]}"
            )


def _check_code(args: argparse.Namespace, a: Operand, n_workers: int) -> None:
    """Refuse options that no code can meet; with --adjoint shared, later, when A is stored."""
    from codedla.engine.plan import make_plan

    if args.adjoint != "shared":
        make_plan(
            (a.shape[0], a.shape[1]),
            (a.shape[1], 1),
            np.float64 if a.dtype.kind in "iub" else a.dtype,
            n_workers,
            operation="matvec",
            nnz=(a.nnz, None),
            resident=True,
            **code_arguments(args),
        )


def _check_names(args: argparse.Namespace, a: Operand, b: Operand) -> None:
    """Refuse outputs that are operands or each other."""
    written = [
        ("the solution", None if ":" in args.output else args.output),
        ("a report", args.report),
        ("a checkpoint", args.checkpoint),
    ]
    taken = {os.path.realpath(each.path) for each in (a, b)}
    for what, name in written:
        if name is None:
            continue
        place = os.path.realpath(name)
        if place in taken:
            raise UsageError(
                f"{what} needs a file of its own; got {name}, which has another use in this "
                "command; choose another name"
            )
        taken.add(place)


def _method(args: argparse.Namespace, a: Operand) -> str:
    """Choose the method, or check that the one asked for fits the matrix."""
    method: str = args.method
    assumed, square = args.assume or _said_by(a), a.shape[0] == a.shape[1]
    if args.assume in ("symmetric", "spd") and not square:
        raise UsageError(
            f"--assume {args.assume} is for square matrices; got {a.shape[0]}x{a.shape[1]} in "
            f"{a.spec}; leave it out"
        )
    if args.assume == "general" and method in ("cg", "minres"):
        raise UsageError(
            f"--method {method} is for symmetric (Hermitian) matrices; got --assume general; leave "
            "one of them out"
        )
    if method == "auto":
        if not square:
            return "lsqr"
        if assumed == "symmetric" and a.dtype.kind == "c":
            return "gmres"
        return {"spd": "cg", "symmetric": "minres"}.get(assumed, "gmres")
    if not square and method in ("cg", "minres", "gmres"):
        raise UsageError(
            f"--method {method} is for square matrices; got {a.shape[0]}x{a.shape[1]} in {a.spec}; "
            "use lsqr or lsmr, for least squares"
        )
    if method == "minres" and a.dtype.kind == "c":
        raise UsageError(
            f"--method minres is for real matrices; got {a.dtype} in {a.spec}; use cg or gmres"
        )
    return method


def _said_by(a: Operand) -> str:
    """Return what a file says of its matrix."""
    if a.format != "mtx":
        return "general"
    import scipy.io

    symmetry = scipy.io.mminfo(a.path)[5]
    return "symmetric" if symmetry in ("symmetric", "hermitian") else "general"


# ---------------------------------------------------------------- inside MPI


def _solve(args: argparse.Namespace, task: _Task, pool: Any) -> None:
    from codedla.cli.krylov import Krylov, not_reached
    from codedla.cli.progress import status
    from codedla.linalg.operands import as_operand
    from codedla.linalg.operator import aslinearoperator, asymmetry

    began = time.monotonic()
    a = task.a.load()
    b = np.asarray(task.b.load()).reshape(-1) if task.b.nnz is None else _dense(task.b.load())
    b = b.astype(task.dtype)
    facts = as_operand(a, "A")
    if not (facts.facts.finite and np.isfinite(b).all()):
        raise UsageError("a system must be finite; got NaN or Inf in A or b; take them out")
    gap = asymmetry(facts) if task.method in ("cg", "minres") else 0.0
    if gap:
        raise UsageError(
            f"method {task.method} is for symmetric (Hermitian) matrices; {task.a.spec} is none, "
            f"|A - A^H| is about {gap:.1e} |A|; use --method gmres"
        )
    point = task.checkpoint
    found = point.load() if args.resume and point is not None else None
    earlier, x0, methods = _start(args, task, found)
    options = {**code_arguments(args), "encode": args.encode}

    def save(x: NDArray[Any], done: int) -> None:
        if point is not None:
            names = np.array(list(dict.fromkeys([*methods, task.method])))
            point.save(earlier + done, x=x, methods=names)

    with (
        aslinearoperator(a, pool=pool, adjoint=args.adjoint or "separate", **options) as op,
        warnings.catch_warnings(),
        status(args.quiet) as show,
    ):
        overflow_is_said()  # residuals are looked at
        krylov = Krylov(
            op,
            b,
            method=task.method,
            rtol=task.rtol,
            maxiter=task.maxiter,
            restart=args.restart or _RESTART,
            timeout=args.timeout,
            show=show,
            save=None if point is None else save,
            every=args.checkpoint_every or EVERY,
        )
        try:
            reached = krylov.run(x0)
        except BaseException:
            if krylov.iterations:
                save(krylov.x, krylov.iterations)
            raise
        report = _report(task, krylov, op, reached, earlier, time.monotonic() - began)
        report["earlier_methods"] = methods
    shape = (task.a.shape[1], *task.b.shape[1:])
    with task.output.receive(shape, task.dtype) as out:
        out[...] = krylov.x.reshape(shape)
    if point is not None:
        if reached:
            point.remove()
        else:
            save(krylov.x, krylov.iterations)
    _tell(args, task, report)
    if not reached:
        raise not_reached(krylov, task.output.spec)


def _start(
    args: argparse.Namespace, task: _Task, found: tuple[int, dict[str, NDArray[Any]]] | None
) -> tuple[int, NDArray[Any] | None, list[str]]:
    """Return how many iterations were done before, where they led to, and by which methods.

    Any method can go on from there: what it keeps besides ``x`` is begun anew in any case.
    """
    if found is None:
        return 0, None, []
    earlier, arrays = found
    x, methods = arrays["x"], [str(name) for name in arrays["methods"]]
    if not args.quiet:
        before = ", ".join(methods)
        other = "" if before == task.method else f", by {task.method}, {before} before"
        say(f"going on from iteration {earlier} in {args.checkpoint}{other}")
    return earlier, x, methods


def _dense(matrix: Any) -> Any:
    return matrix.toarray().reshape(-1)


def _report(
    task: _Task, krylov: Krylov, op: CodedOperator, reached: bool, earlier: int, seconds: float
) -> dict[str, Any]:
    """Return what happened, ready for JSON."""
    last = op.last_report
    return {
        "schema": SCHEMA,
        "method": task.method,
        "converged": reached,
        "iterations": krylov.iterations,
        "earlier_iterations": earlier,
        "residual": krylov.residual if np.isfinite(krylov.residual) else None,
        "rtol": task.rtol,
        "shape": list(op.shape),
        "dtype": str(task.dtype),
        **op.totals.to_dict(),
        "total_seconds": round(seconds, 6),
        "last_round": None if last is None else last.to_dict(),
    }


def _tell(args: argparse.Namespace, task: _Task, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    if args.report is not None:
        write_text(Path(args.report), text)
    if args.json:
        print(text, end="", flush=True)
    elif not args.quiet and report["converged"]:
        more = ""
        if report["earlier_iterations"]:
            others = [name for name in report["earlier_methods"] if name != task.method]
            more = f", {report['earlier_iterations']} before"
            more += f" by {' and '.join(report['earlier_methods'])}" if others else ""
        print(
            f"solved by {task.method} in {counted(report['iterations'], 'iteration')}{more}: "
            f"residual {report['residual']:.1e} |b|\n"
            f"{counted(report['rounds'], 'round')} in {report['seconds']:.3f} s; late: "
            f"{_late(report)}\nwritten to {task.output.spec}",
            flush=True,
        )


def _late(report: dict[str, Any]) -> str:
    """Name the ranks whose replies were not needed in most rounds."""
    often = (rank for rank, count in report["stragglers"].items() if 2 * count > report["rounds"])
    names = ", ".join(often)
    return (
        f"rank{'s' * (',' in names)} {names} in most of them" if names else "nobody in most of them"
    )
