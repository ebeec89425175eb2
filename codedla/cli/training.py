"""What ``codedla train`` does: check, start MPI if need be, descend, save, write."""

from __future__ import annotations

import argparse
import io
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.cli.checkpoint import EVERY, Checkpoint, check_resume
from codedla.cli.datasets import Labelled, check_data, load_data
from codedla.cli.jobs import carry_out, count_ranks, faults_of
from codedla.cli.messages import as_options, counted, overflow_is_said, say
from codedla.cli.output import check_distinct, check_text
from codedla.errors import CodedlaError, NotDecodable, UsageError
from codedla.iterative.descent import Descent, ScaledNet
from codedla.iterative.gradient import CodedGradient, gradient_code
from codedla.iterative.mlp import MLP
from codedla.writing import write_bytes, write_text

__all__ = ["train"]

_EPOCHS, _BATCH, _HIDDEN = 10, 500, (100,)
_NAMES = ("scheme", "stragglers", "robust", "errors")
_STATUS_EVERY = 0.1
"""Seconds between two lines of the status."""


@dataclass
class _Task:
    """A checked command; the data are read where the master is known to be."""

    faults: list[Any]
    checkpoint: Checkpoint | None = None
    setting: _Setting | None = None


@dataclass
class _Setting:
    """What is trained, on what, for how long."""

    net: ScaledNet
    kept: tuple[NDArray[Any], NDArray[Any]]
    back: tuple[NDArray[Any], NDArray[Any]]
    descent: Descent
    rounds: int
    classes: NDArray[Any]


def train(args: argparse.Namespace) -> int:
    """Carry out the command on the master, or start the job that does; return the exit code."""
    return carry_out(args, _check, _descend, saved="the state")


def _check(args: argparse.Namespace, world: tuple[int, int] | None) -> _Task:
    """Find every error that can be found before a worker computes."""
    n_ranks = count_ranks(args, world, "train", "training")
    if args.model == "logistic" and args.hidden:
        raise UsageError(
            "logistic regression has no hidden units; got --hidden "
            f"{','.join(map(str, args.hidden))}; use --model mlp, or leave it out"
        )
    if args.epochs and args.iterations:
        raise UsageError(
            f"--epochs and --iterations both say how long; got {args.epochs} and "
            f"{args.iterations}; leave one out"
        )
    kind = check_data(args.data, args.labels)
    if args.label is not None and kind != "csv":
        raise UsageError(f"--label is for CSV files; got {args.data}; leave it out")
    try:
        gradient_code(n_ranks - 1, args.scheme, args.stragglers, args.robust, args.errors)
    except UsageError as error:
        raise as_options(error, _NAMES) from error
    if not args.output.endswith(".npz"):
        raise UsageError(f"a model goes to .npz; got {args.output!r}; add the ending")
    check_text(Path(args.output), force=args.force)
    if args.report is not None:
        check_text(Path(args.report), force=args.force)
    check_resume(args)
    named = [args.data, args.labels, args.output, args.report, args.checkpoint]
    check_distinct("the data, the model, the report and the checkpoint", named)
    task = _Task(faults_of(args, n_ranks))
    if world is not None:
        task.setting = _set(args, task)
    return task


def _set(args: argparse.Namespace, task: _Task) -> _Setting:
    """Read the data; begin the descent, or find where it was."""
    data = load_data(args.data, args.labels, args.label)
    seed = args.seed or 0
    order = np.random.default_rng(seed).permutation(len(data.X))
    X, y = data.X[order], data.y[order]
    back = int(args.validation * len(X))
    rows = len(X) - back
    if rows < 1:
        raise UsageError(
            f"some rows are needed to train on; got {len(X)} with --validation "
            f"{args.validation:g}; keep fewer back"
        )
    shift, scale = Labelled(X, y, data.classes).scaling(rows)
    hidden = args.hidden or (_HIDDEN if args.model == "mlp" else ())
    net = MLP((X.shape[1], *hidden, len(data.classes)))
    batches = max(1, round(rows / (args.batch or _BATCH)))
    descent = Descent(net.start(seed), args.learning_rate, batches, seed)
    rounds = args.iterations or (args.epochs or _EPOCHS) * batches
    if args.checkpoint is not None:
        files = [Path(name).stat() for name in (args.data, args.labels) if name]
        identity = {
            "data": [[each.st_size, each.st_mtime_ns] for each in files],
            "sizes": list(net.sizes),
            "batches": batches,
            "validation": args.validation,
            "learning rate": args.learning_rate,
            "label": args.label,
            "seed": seed,
        }
        task.checkpoint = Checkpoint(Path(args.checkpoint), args.command, identity)
        if args.resume:
            _go_on(args, task.checkpoint, descent, rounds)
    return _Setting(
        ScaledNet(net, shift, scale),
        (X[:rows], y[:rows]),
        (X[rows:], y[rows:]),
        descent,
        rounds,
        data.classes,
    )


def _go_on(args: argparse.Namespace, checkpoint: Checkpoint, descent: Descent, rounds: int) -> None:
    """Take over where an earlier run ended, if there was one."""
    found = checkpoint.load()
    if found is None:
        return
    done, arrays = found
    if done >= rounds:
        raise UsageError(
            f"--epochs or --iterations count those of earlier runs; got "
            f"{counted(rounds, 'round')} after {done} in {args.checkpoint}; allow more"
        )
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != dict.fromkeys(("theta", "velocity"), descent.theta.shape):
        raise UsageError(
            f"a checkpoint must be of the same model; got {args.checkpoint}; name another one"
        )
    descent.theta, descent.velocity, descent.rounds = arrays["theta"], arrays["velocity"], done
    if not args.quiet:
        say(f"going on from round {done} in {args.checkpoint}")


# ---------------------------------------------------------------- on the master


def _descend(args: argparse.Namespace, task: _Task, pool: Any) -> None:
    """Train, write the model, and say what happened."""
    from codedla.cli.progress import status

    setting = task.setting
    assert setting is not None
    descent, epochs = setting.descent, []
    began = time.monotonic()
    with (
        warnings.catch_warnings(),
        status(args.quiet) as show,
        CodedGradient(
            setting.net,
            setting.kept,
            pool=pool,
            scheme=args.scheme,
            stragglers=args.stragglers,
            robust=args.robust,
            errors=args.errors,
            seed=args.seed or 0,
        ) as gradient,
    ):
        overflow_is_said()  # the loss is looked at in every round
        watch = _watch(args, task, setting, gradient, show)
        try:
            for ended in descent.run(gradient, setting.rounds):
                if ended or descent.rounds == setting.rounds:
                    epochs.append(_measure(setting, time.monotonic() - began))
                watch(epochs[-1] if epochs else None)
        except BaseException:
            if descent.losses:
                _save(task, descent)
            raise
        seconds = time.monotonic() - began
        report = _report(args, setting, gradient, epochs, seconds)
    _write(args, setting)
    if task.checkpoint is not None:
        task.checkpoint.remove()
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    if args.report is not None:
        write_text(Path(args.report), text)
    if args.json:
        print(text, end="", flush=True)
    elif not args.quiet:
        print(_summary(args, setting, report), flush=True)


def _measure(setting: _Setting, seconds: float) -> dict[str, Any]:
    """Return the loss of the rounds since the last measurement's epoch began, and the accuracy."""
    descent = setting.descent
    latest = descent.losses[-(((descent.rounds - 1) % descent.batches) + 1) :]
    loss = float(np.mean(latest))
    X, y = setting.back
    return {
        "round": descent.rounds,
        "seconds": round(seconds, 6),
        "loss": loss if np.isfinite(loss) else None,
        "accuracy": setting.net.accuracy(descent.theta, X, y) if len(X) else None,
    }


def _watch(
    args: argparse.Namespace,
    task: _Task,
    setting: _Setting,
    gradient: CodedGradient,
    show: Callable[[str], None],
) -> Callable[[dict[str, Any] | None], None]:
    """Return what shows how it goes, saves it, and looks at the clock."""
    began = shown = saved = time.monotonic()
    descent, first = setting.descent, setting.descent.rounds
    every = args.checkpoint_every or EVERY

    def watch(epoch: dict[str, Any] | None) -> None:
        nonlocal shown, saved
        now = time.monotonic()
        if not np.isfinite(descent.losses[-1]):
            raise CodedlaError(
                f"the loss must stay finite; in round {descent.rounds} with --learning-rate "
                f"{args.learning_rate:g} it did not; use a smaller one"
            )
        if now - shown >= _STATUS_EVERY:
            shown = now
            late = [] if gradient.last_report is None else gradient.last_report.stragglers
            ranks = f", late: ranks {', '.join(map(str, late))}" if late else ""
            right = None if epoch is None else epoch["accuracy"]
            found = "" if right is None else f", accuracy {right:.1%}"
            rate = (descent.rounds - first) / (now - began)
            show(
                f"round {descent.rounds} of {setting.rounds}: loss {descent.losses[-1]:.4f}"
                f"{found}, {rate:.0f} rounds/s{ranks}"
            )
        if now - saved >= every:
            saved = now
            _save(task, descent)
        if args.timeout is not None and now - began > args.timeout:
            raise NotDecodable(
                f"training did not end within {args.timeout:g} s: {descent.rounds} of "
                f"{counted(setting.rounds, 'round')}; give more --timeout"
            )

    return watch


def _save(task: _Task, descent: Descent) -> None:
    velocity = descent.velocity
    if task.checkpoint is not None and velocity is not None and np.isfinite(velocity).all():
        task.checkpoint.save(descent.rounds, theta=descent.theta, velocity=velocity)


def _write(args: argparse.Namespace, setting: _Setting) -> None:
    stream = io.BytesIO()
    np.savez(
        stream,
        sizes=np.array(setting.net.net.sizes),
        theta=setting.descent.theta,
        shift=setting.net.shift,
        scale=setting.net.scale,
        classes=setting.classes,
    )
    write_bytes(Path(args.output), stream.getvalue())


def _report(
    args: argparse.Namespace,
    setting: _Setting,
    gradient: CodedGradient,
    epochs: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    sent = gradient.bytes
    counts = {"stragglers": gradient.stragglers, "lost": gradient.lost, "wrong": gradient.wrong}
    return {
        "schema": "codedla.training/1",
        "operation": "train",
        "sizes": list(setting.net.net.sizes),
        "rows": {"trained": len(setting.kept[0]), "kept back": len(setting.back[0])},
        "scheme": args.scheme,
        "n_workers": gradient.code.n_workers,
        "threshold": gradient.code.threshold,
        "tolerated": gradient.code.stragglers,
        "batches": setting.descent.batches,
        "rounds": gradient.rounds,
        "rounds_in_all": setting.descent.rounds,
        "seconds": round(seconds, 6),
        "bytes": dict(sent),
        **{name: {str(r): n for r, n in sorted(c.items())} for name, c in counts.items()},
        "epochs": epochs,
    }


def _summary(args: argparse.Namespace, setting: _Setting, report: dict[str, Any]) -> str:
    late = ", ".join(f"rank {rank} in {n}" for rank, n in report["stragglers"].items()) or "none"
    gone = ", ".join(report["lost"]) or "none"
    wrong = f"; wrong: {', '.join(report['wrong'])}" if report["wrong"] else ""
    last = report["epochs"][-1]
    right = last["accuracy"]
    back = counted(len(setting.back[0]), "row")
    found = "" if right is None else f", accuracy {right:.2%} of {back}"
    rate = report["rounds"] / max(report["seconds"], 1e-9)
    return (
        f"{'-'.join(map(str, report['sizes']))} trained on "
        f"{counted(report['rows']['trained'], 'row')} by scheme {args.scheme}, any "
        f"{report['threshold']} of {counted(report['n_workers'], 'worker')}: loss "
        f"{last['loss']:.4f}{found}\n"
        f"time {report['seconds']:.3f} s, {counted(report['rounds'], 'round')}, {rate:.0f} "
        f"rounds/s; late (rounds): {late}; lost: {gone}{wrong}\n"
        f"written to {args.output}"
    )
