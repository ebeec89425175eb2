"""What ``codedla bench`` measured, as data, as a table, and in plain words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from codedla.cli.placement import oversubscribed, troubles

__all__ = ["SCHEMA", "Case", "Figures", "doubt", "slow_ranks", "table", "verdict"]

SCHEMA = "codedla.bench/1"
SLOWER = 1.2
"""A rank is called slow when the median rank computes more than this many times as fast."""
SCATTERED = 1.5
"""Runs are rough figures when the second slowest takes this many times the second fastest."""
_ALIKE = 1.05
"""Times that differ by less are called equal."""


@dataclass
class Case:
    """One way to compute the product.

    Parameters
    ----------
    name : str
    options : str
        How the command line asks for it.
    code : str
        Code and grid, and what suffices; empty where it is not possible.
    impossible : str
        Why not; empty where it is possible.
    healthy, slow : list of float
        Seconds of every run, without and with a slow rank.
    """

    name: str
    options: str
    code: str = ""
    impossible: str = ""
    healthy: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)


@dataclass
class Figures:
    """Everything that was measured.

    Parameters
    ----------
    size : int
        Rows and columns of the operands.
    n_workers, threads : int
    slow_rank : int
        The rank that was made slow, and by which ``factor``.
    factor : float
    cases : list of Case
        The uncoded one first.
    matvec : Case
        A round of a matrix-vector product with resident shares.
    numpy, numpy_matvec : list of float
        Seconds of the same products on the master, with ``numpy_threads`` threads.
    flops : dict of int to float
        flop/s of each worker rank.
    bandwidth_out, bandwidth_in : float
        bytes/s from the master to all workers together, and back.
    latency : float
        Seconds of the smallest round.
    bytes : float
        Operands and result of the uncoded product, sent and received.
    ranks : list of dict
        Where each rank runs; see :func:`codedla.mpi.cores.describe`.
    seconds : float
        All of it.
    """

    size: int
    n_workers: int
    threads: int
    slow_rank: int
    factor: float
    cases: list[Case]
    matvec: Case
    numpy: list[float] = field(default_factory=list)
    numpy_matvec: list[float] = field(default_factory=list)
    numpy_threads: int = 1
    flops: dict[int, float] = field(default_factory=dict)
    bandwidth_out: float = 0.0
    bandwidth_in: float = 0.0
    latency: float = 0.0
    bytes: float = 0.0
    ranks: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def possible(self) -> list[Case]:
        """The cases that were measured."""
        return [case for case in self.cases if case.healthy]

    @property
    def bandwidth(self) -> float:
        """bytes/s of messages that go out and come back in equal parts."""
        return 2.0 / (1.0 / self.bandwidth_out + 1.0 / self.bandwidth_in)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, their medians and the verdict as JSON-ready data."""
        medians = {
            case.name: {"healthy": _median(case.healthy), "slow": _median(case.slow)}
            for case in [*self.cases, self.matvec]
        }
        medians["numpy"] = {"healthy": _median(self.numpy)}
        medians["numpy matvec"] = {"healthy": _median(self.numpy_matvec)}
        return {
            "schema": SCHEMA,
            **asdict(self),
            "medians": medians,
            "slow_ranks": slow_ranks(self.flops),
            "troubles": [trouble._asdict() for trouble in troubles(self.ranks)],
            "verdict": verdict(self),
        }


def slow_ranks(flops: dict[int, float]) -> list[int]:
    """Return the ranks that are more than 20 % slower than the median rank."""
    if len(flops) < 2:
        return []
    usual = statistics.median(flops.values())
    return sorted(rank for rank, speed in flops.items() if speed * SLOWER < usual)


def table(figures: Figures) -> str:
    """Return the measurements as lines of text: medians, and ratios to the uncoded product."""
    base = _median(figures.cases[0].healthy)
    heads = ("", "healthy", "", f"rank {figures.slow_rank} slow", "", "code")
    rows: list[Sequence[str]] = [heads]
    alone = f"{figures.numpy_threads} thread{'s' * (figures.numpy_threads != 1)}"
    rows.append(("NumPy, master", *_times(figures.numpy, base), "", "", alone))
    for case in figures.cases:
        what = f"not possible: {case.impossible}" if case.impossible else case.code
        rows.append((case.name, *_times(case.healthy, base), *_times(case.slow, base), what))
    base = _median(figures.matvec.healthy)
    rows.append(("NumPy, A @ x", *_times(figures.numpy_matvec, base), "", "", alone))
    case = figures.matvec
    rows.append((case.name, *_times(case.healthy, base), *_times(case.slow, base), case.code))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 0 < place < 5 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    speeds = ", ".join(f"{rank}: {speed / 1e9:.3g}" for rank, speed in figures.flops.items())
    link = (
        f"{figures.bandwidth_out / 1e9:.3g} GB/s from the master, "
        f"{figures.bandwidth_in / 1e9:.3g} GB/s to it; smallest round "
        f"{figures.latency * 1e3:.2g} ms"
    )
    lines += ["", f"link     {link}", f"workers  Gflop/s of rank {speeds}"]
    return "\n".join(lines)


def verdict(figures: Figures) -> list[str]:
    """Return what the figures mean, in sentences."""
    said = [_cost(figures), _benefit(figures), _advice(figures), _alone(figures), doubt(figures)]
    slow = slow_ranks(figures.flops)
    if slow:
        usual = statistics.median(figures.flops.values())
        each = ", ".join(f"rank {rank} ({figures.flops[rank] / usual:.0%})" for rank in slow)
        said.append(
            f"Slow beside the median rank: {each}. Have {_them(slow)} looked at or left out; until "
            f"then --tolerate {len(slow)} does not wait for {_them(slow)}."
            + " Workers share cores here, though, and it may be chance."
            * oversubscribed(figures.ranks)
        )
    elif len(figures.flops) > 1:
        said.append("No rank is more than 20 % slower than the median rank.")
    said += [
        f"{_capital(trouble.text)}. Cure: {trouble.cure}." for trouble in troubles(figures.ranks)
    ]
    return [text for text in said if text]


def _cost(figures: Figures) -> str:
    """What redundancy costs when nothing goes wrong."""
    uncoded, *others = figures.possible
    if not others:
        return "With one worker there is nobody who could do another one's work."
    parts = [
        f"{case.name} takes {_ratio(case.healthy, uncoded.healthy):.2f} times" for case in others
    ]
    return f"When all ranks are well, {_listed(parts)} as long as uncoded."


def _benefit(figures: Figures) -> str:
    """What it buys when one rank is slow."""
    uncoded, *others = figures.possible
    if not others:
        return ""
    parts = [f"{case.name} {_ratio(case.slow, case.healthy):.2f} times" for case in others]
    return (
        f"With rank {figures.slow_rank} made {figures.factor:g} times slower, uncoded takes "
        f"{_ratio(uncoded.slow, uncoded.healthy):.2f} times its healthy time, {_listed(parts)}."
    )


def _advice(figures: Figures) -> str:
    """Which code to use."""
    uncoded, *others = figures.possible
    if not others:
        return "Start at least two workers (--ranks 3) to measure codes."
    best = min(others, key=lambda case: _median(case.slow))
    lost = _median(best.healthy) - _median(uncoded.healthy)
    won = _median(uncoded.slow) - _median(best.slow)
    name = f"{best.name} ({best.options})"
    if won <= 0 or _median(uncoded.slow) < _ALIKE * _median(best.slow):
        return (
            "Use --code uncoded for products of this size: here no redundancy makes up for a slow "
            "rank. Workers that are lost, though, are only survived with --tolerate."
        )
    if _median(best.healthy) < _ALIKE * _median(uncoded.healthy):
        return f"Use {name}: it costs next to nothing and does not wait for a slow rank."
    share = lost / (lost + won)
    if share > 0.5:
        return (
            f"Use --code uncoded as long as all ranks are well; {name} is faster only where more "
            f"than {share:.0%} of the products meet a rank this slow."
        )
    return (
        f"Use {name} where more than {share:.0%} of the products meet a rank this slow, or a "
        "rank may be lost; else --code uncoded."
    )


def _alone(figures: Figures) -> str:
    """Whether distributing a product of this size is worth it, and what limits it."""
    uncoded = figures.cases[0]
    alone = _median(figures.numpy)
    best = _median(uncoded.healthy)
    moving = min(figures.bytes / figures.bandwidth / best, 1.0)
    moved = f"moving operands and result takes about {moving:.0%} of the uncoded time"
    if alone < best:
        return (
            f"NumPy on the master alone is {best / alone:.2g} times as fast as uncoded at this "
            f"size; {moved}. Distribute larger products, or iterate on resident shares."
        )
    return f"Uncoded is {alone / best:.2g} times as fast as NumPy on the master alone; {moved}."


def doubt(figures: Figures) -> str:
    """Return why the figures are worth little, or an empty string."""
    runs = sorted(figures.cases[0].healthy)
    if len(runs) < 3:
        many = "A single turn says" if len(runs) == 1 else f"{len(runs)} turns say"
        return f"{many} little: there was no time for more, or --repeats asked for no more."
    middle = runs[1:-1] if len(runs) > 3 else runs
    if middle[-1] < SCATTERED * middle[0]:
        return ""
    return (
        f"The uncoded runs took from {middle[0]:.2g} to {middle[-1]:.2g} s: something else keeps "
        "the machine busy, and the ratios above are rough."
    )


def _times(seconds: Sequence[float], base: float | None) -> tuple[str, str]:
    if not seconds:
        return "-", ""
    value = _median(seconds)
    text = f"{value:.3g} s" if value >= 0.1 else f"{value * 1e3:.3g} ms"
    return text, f"{value / base:.2f}" if base else ""


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0


def _ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """Median of the ratios run by run: what drifts in time cancels out."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
