"""What ``codedla pagerank`` does: check, start MPI if need be, iterate, save, write."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codedla.cli.checkpoint import EVERY, Checkpoint, check_resume
from codedla.cli.graphs import check_graph, load_graph
from codedla.cli.jobs import carry_out, count_ranks, faults_of
from codedla.cli.messages import as_options, counted, say
from codedla.cli.options import code_arguments
from codedla.cli.output import check_distinct, check_text
from codedla.errors import CodedlaError, CodedlaWarning, NotDecodable, UsageError
from codedla.iterative.graphs import Graph
from codedla.iterative.pagerank import PageRank, State, pagerank, preference
from codedla.iterative.products import GENERATOR_OF
from codedla.iterative.substitute import check_mixtures
from codedla.iterative.tally import Tally
from codedla.writing import write_bytes, write_text

__all__ = ["rank_nodes"]

_SHOWN = 5
"""Highest ranks in the summary."""
_MIXTURES = ("blocks", "weight", "tolerate", "seed")
_STATUS_EVERY = 0.1
"""Seconds between two lines of the status."""


@dataclass
class _Task:
    """A checked command; the graph is read where the master is known to be."""

    faults: list[Any]
    options: dict[str, Any]
    personalize: list[int] | None
    graph: Graph | None = None
    start: State | None = None
    checkpoint: Checkpoint | None = None


def rank_nodes(args: argparse.Namespace) -> int:
    """Carry out the command on the master, or start the job that does; return the exit code."""
    return carry_out(args, _check, _iterate, saved="the iterate")


def _check(args: argparse.Namespace, world: tuple[int, int] | None) -> _Task:
    """Find every error that can be found before a worker computes."""
    n_ranks = count_ranks(args, world, "pagerank", "PageRank")
    check_graph(args.graph)
    output = Path(args.output)
    if output.suffix not in (".csv", ".npy"):
        raise UsageError(f"ranks go to .csv or .npy; got {args.output!r}; choose one of them")
    check_text(output, force=args.force)
    if args.report is not None:
        check_text(Path(args.report), force=args.force)
    check_resume(args)
    named = [args.graph, args.output, args.report, args.checkpoint]
    check_distinct("the graph, the ranks, the report and the checkpoint", named)
    task = _Task(faults_of(args, n_ranks), _options(args, n_ranks - 1), _ids(args.personalize))
    if world is not None:
        task.graph = load_graph(args.graph)
        preference(task.graph, task.personalize)
        if args.checkpoint is not None:
            task.checkpoint = Checkpoint(
                Path(args.checkpoint), args.command, _identity(args, task.graph)
            )
        if args.resume:
            task.start = _load(args, task.checkpoint)
    return task


def _options(args: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Return the options of the decoding, for so many workers."""
    substitute = {
        "weight": args.weight,
        "deadline": args.round_deadline,
        "erasures": args.erasures,
    }
    given = {name: value for name, value in substitute.items() if value is not None}
    code = code_arguments(args)
    if args.decode == "exact":
        if given:
            raise UsageError(
                f"{' and '.join(_called(given))} {'are' if len(given) > 1 else 'is'} for decoding "
                "from any replies; got --decode exact; use --decode substitute"
            )
        return code
    if args.decode == "stale" and args.weight is not None:
        raise UsageError(
            f"--weight is of mixtures; got --weight {args.weight} with --decode stale, which has "
            "copies; leave it out, or use --decode substitute"
        )
    usual = {"code": "auto", "speculate": False}
    blocks, tolerate = code.pop("blocks"), code.pop("tolerate")
    strange = [name for name, value in code.items() if value != usual.get(name)]
    if strange or isinstance(blocks, tuple):
        raise UsageError(
            f"with --decode {args.decode} there are --blocks (one number) and --tolerate; got "
            f"{', '.join('--' + name for name in strange) or '--blocks ' + args.blocks}; leave it "
            "out"
        )
    given.update({} if blocks is None else {"blocks": blocks})
    given.update({} if tolerate is None else {"tolerate": tolerate})
    given.update({} if args.seed is None else {"seed": args.seed})
    shape = {name: value for name, value in given.items() if name in _MIXTURES}
    try:
        check_mixtures(workers, generator=GENERATOR_OF[args.decode], **shape)
    except UsageError as error:
        raise as_options(error, _MIXTURES) from error
    return given


def _called(given: dict[str, Any]) -> list[str]:
    names = {"deadline": "round-deadline"}
    return [f"--{names.get(name, name)} {value:g}" for name, value in given.items()]


def _ids(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--personalize must be integer ids, separated by commas; got {text!r}; write it like "
            "30,1412"
        ) from None


# ---------------------------------------------------------------- on the master


def _iterate(args: argparse.Namespace, task: _Task, pool: Any) -> None:
    """Compute and write the ranks.

    Raises
    ------
    CodedlaError
        They are written, but have not settled.
    """
    from codedla.cli.progress import status

    assert task.graph is not None
    latest: list[State] = []
    with status(args.quiet) as show, warnings.catch_warnings():
        # Said below, as what is wrong.
        warnings.filterwarnings("ignore", "PageRank ended", CodedlaWarning)
        watch = _watch(args, task, show, latest)
        try:
            found = pagerank(
                task.graph,
                pool=pool,
                damping=args.damping,
                personalization=task.personalize,
                tol=args.tol,
                rounds=args.rounds,
                decode=args.decode,
                start=task.start,
                callback=watch,
                **task.options,
            )
        except BaseException:
            if latest:
                _save(task, latest[-1])
            raise
    _write(Path(args.output), found, args.top)
    if not found.converged:
        _save(task, latest[-1])
    elif task.checkpoint is not None:
        task.checkpoint.remove()
    report = _report(args, task.graph, found)
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    if args.report is not None:
        write_text(Path(args.report), text)
    if args.json:
        print(text, end="", flush=True)
    elif not args.quiet:
        print(_summary(args, task.graph, found), flush=True)
    if not found.converged:
        raise CodedlaError(
            f"the ranks did not settle in {counted(found.rounds, 'round')}: the last change was "
            f"{found.change:.1e}, above {args.tol:.1e}; they are written all the same; allow more "
            "--rounds"
        )


def _watch(
    args: argparse.Namespace, task: _Task, show: Callable[[str], None], latest: list[State]
) -> Callable[[State], None]:
    """Return the callback that shows how it goes, saves it, and looks at the clock."""
    shown = saved = time.monotonic()
    every = args.checkpoint_every or EVERY

    def watch(state: State) -> None:
        nonlocal shown, saved
        latest[:] = [state]
        now = time.monotonic()
        if now - shown >= _STATUS_EVERY:
            shown = now
            report = state.tally.latest
            late = [] if report is None else report.stragglers
            ranks = f", late: ranks {', '.join(map(str, late))}" if late else ""
            show(
                f"round {state.rounds}: change {state.change:.1e}, "
                f"{state.tally.rate:.0f} rounds/s{ranks}"
            )
        if now - saved >= every:
            saved = now
            _save(task, state)
        if args.timeout is not None and state.tally.seconds > args.timeout:
            raise NotDecodable(
                f"the ranks did not settle within {args.timeout:g} s: "
                f"{counted(state.rounds, 'round')}, the last change was {state.change:.1e}; give "
                "more --timeout"
            )

    return watch


def _write(path: Path, found: PageRank, top: int | None) -> None:
    """Write ids and ranks, highest first."""
    pairs = found.top(top)
    if path.suffix == ".npy":
        stream = io.BytesIO()
        np.save(stream, np.array(pairs, [("id", np.int64), ("rank", np.float64)]))
        write_bytes(path, stream.getvalue())
        return
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["id", "rank"])
    writer.writerows(pairs)
    write_text(path, lines.getvalue())


def _report(args: argparse.Namespace, graph: Graph, found: PageRank) -> dict[str, Any]:
    return {
        **found.tally.to_dict(),
        "operation": "pagerank",
        "decode": args.decode,
        "damping": args.damping,
        "nodes": len(graph.nodes),
        "links": int(graph.links.nnz),
        "rounds_in_all": found.rounds,
        "change": found.change,
        "converged": found.converged,
    }


def _summary(args: argparse.Namespace, graph: Graph, found: PageRank) -> str:
    tally = found.tally
    late = ", ".join(f"rank {rank} in {n}" for rank, n in sorted(tally.late.items())) or "none"
    lost = ", ".join(map(str, sorted(tally.lost))) or "none"
    highest = ", ".join(f"{node} ({rank:.3g})" for node, rank in found.top(_SHOWN))
    return (
        f"pagerank of {counted(len(graph.nodes), 'node')} and {counted(graph.links.nnz, 'link')}, "
        f"decoding {args.decode}: {counted(found.rounds, 'round')}, last change "
        f"{found.change:.1e}\n"
        f"time {tally.seconds:.3f} s, {tally.rate:.0f} rounds/s; late (rounds): {late}; "
        f"lost: {lost}\n"
        f"highest: {highest}\nwritten to {args.output}"
    )


# ---------------------------------------------------------------- checkpoints


def _identity(args: argparse.Namespace, graph: Graph) -> dict[str, Any]:
    """Return what must be the same for an iteration to go on; how it decodes may change."""
    digest = hashlib.sha256()
    links = graph.links
    for array in (graph.nodes, links.indptr, links.indices, links.data):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "graph": digest.hexdigest(),
        "damping": args.damping,
        "personalize": args.personalize,
    }


def _save(task: _Task, state: State) -> None:
    if task.checkpoint is not None:
        task.checkpoint.save(state.rounds, x=state.x, y=state.y)


def _load(args: argparse.Namespace, checkpoint: Checkpoint | None) -> State | None:
    """Return where an earlier run ended, if there was one."""
    found = None if checkpoint is None else checkpoint.load()
    if found is None:
        return None
    rounds, arrays = found
    if rounds >= args.rounds:
        raise UsageError(
            f"--rounds counts those of earlier runs; got {args.rounds} after {rounds} in "
            f"{args.checkpoint}; allow more"
        )
    if set(arrays) != {"x", "y"}:
        raise UsageError(
            f"a checkpoint must be of the same graph; got {args.checkpoint}; name another one"
        )
    if not args.quiet:
        say(f"going on from round {rounds} in {args.checkpoint}")
    return State(rounds, arrays["x"], arrays["y"], np.inf, Tally())
