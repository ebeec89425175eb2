"""A product in panels of C: each one a coded product, B's shares resident in between.

What is finished can be brought to disk before the rest is computed, so that a job that is ended
half-way has not worked for nothing, and of operands in files only what is being multiplied need be
in memory: the columns of B that belong to the panels, and the rows of A of those under way.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.exact import ModularCode
from codedla.engine.arguments import positive
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import together
from codedla.engine.memory import OPEN_ROUNDS, panel_memory, too_small
from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Outcome, Pool, Progress, Round
from codedla.errors import CodedlaWarning
from codedla.linalg.exact import runner
from codedla.linalg.operands import Checked, plan_product
from codedla.linalg.product import (
    Product,
    ProductRound,
    check_options,
    reply_dtype,
)
from codedla.linalg.resident import resident_keys
from codedla.linalg.sources import MemorySource, Range, Source, as_source, survey
from codedla.linalg.verify import SharedCheck, worthwhile
from codedla.measured.memory import Budget
from codedla.measured.speeds import speeds

__all__ = ["SAVED_SECONDS", "Panel", "Panels", "automatic_rows", "fit_panels"]

SAVED_SECONDS = 10.0
"""What a panel that is saved should take: far more than saving costs, little to lose."""
MOST_SAVED = 64
LENT_BYTES = 1 << 28
"""Panels up to this size are the caller's memory: no late reply ends up in finished rows. Larger
ones, in files that may be larger than memory, are received in place as a whole product is."""
_ROUND_SECONDS = 5e-3
"""What a panel costs besides its bytes and flops: its round, and the disk that it is saved to."""

Panel = tuple[Range, Range]
"""Rows and columns of C."""
Done = Callable[[Panel, Report, NDArray[Any]], None]
"""``done(panel, report, block)``: what is called when a panel is complete."""


def automatic_rows(plan: Plan) -> int:
    """Return the rows of C in a panel, such that it takes about :data:`SAVED_SECONDS`.

    Parameters
    ----------
    plan : Plan
        Of the whole product.

    Returns
    -------
    int
        All rows when the product is small.
    """
    rows = plan.shape[0]
    panels = min(int(plan.seconds / SAVED_SECONDS), MOST_SAVED)
    if panels <= 1:
        return max(rows, 1)
    # Whole blocks, so that no share is padded.
    m = plan.grid.m
    return max(-(-math.ceil(rows / panels) // m) * m, 1)


def fit_panels(
    plan: Plan,
    dtypes: tuple[np.dtype, np.dtype],
    allowed: Budget,
    *,
    rows: int,
    cols: int | None = None,
    in_memory: tuple[bool, bool] = (False, False),
    worker: float | None = None,
) -> tuple[int, int]:
    """Return rows and columns of panels that fit into the master's memory.

    Of all widths the one that takes least time: the wider the panels, the fewer times A is read
    by the master, and the lower they must be, the more often a worker goes through its B.

    Parameters
    ----------
    plan : Plan
        Of the whole product.
    dtypes, in_memory
        See :func:`codedla.engine.memory.panel_memory`.
    allowed : Budget
    rows, cols : int
        At the most; all columns by default.
    worker : float, optional
        Bytes that one worker may take.

    Returns
    -------
    (int, int)

    Raises
    ------
    UsageError
        Not even the smallest panels fit; with the memory that is needed.
    """
    m, _, n = plan.shape
    down, across = min(plan.grid.m, m), min(plan.grid.n, n)

    def size(height: int, width: int) -> tuple[float, bool]:
        panel = replace(plan, shape=(height, plan.shape[1], width))
        needed = panel_memory(panel, dtypes, in_memory=in_memory)
        fits = needed.master <= allowed.bytes
        return needed.master, fits and (worker is None or needed.worker <= worker)

    def highest(width: int) -> int:
        """Rows, in whole blocks, of the highest panel of this width that fits; 0 for none."""
        least, most = 0, -(-rows // down)
        while least < most:
            middle = (least + most + 1) // 2
            if size(min(middle * down, m), width)[1]:
                least = middle
            else:
                most = middle - 1
        return min(least * down, rows)

    found, best = (0, 0), math.inf
    widest = n if cols is None else min(cols, n)
    of_a = m * plan.shape[1] * plan.density[0] * dtypes[0].itemsize
    of_b = plan.shape[1] * n * plan.density[1] * plan.compute.itemsize / plan.grid.n
    parts, width = 1, widest
    while True:
        height = highest(width)
        if height:
            # A is read and sent once for every range of columns; for every panel a worker reads
            # its share of B in its own memory, which low panels do not repay; and it is a round.
            ranges, strips = -(-n // width), -(-m // height)
            moved = ranges * 2 * of_a + strips * of_b
            seconds = moved / speeds().bandwidth + ranges * strips * _ROUND_SECONDS
            if seconds < best:
                found, best = (height, width), seconds
        if width <= across:
            break
        # Finer where it matters: 1, 2, 3, 4, 5, 6, 8, 10, 13, ... ranges.
        parts = max(parts + 1, parts * 4 // 3)
        width = min(math.ceil(widest / parts / across) * across, width)
    if not found[0]:
        raise too_small(size(down, across)[0], allowed, "the smallest panel of this product")
    return found


class Panels:
    """A product of which some panels are to be computed.

    Parameters
    ----------
    A : Source, array_like or scipy.sparse (M, L)
        Only the rows of the panels are looked at.
    B : Source, array_like or scipy.sparse (L, N) or array_like (L,)
    pool : Pool
    operation : str
        ``"matmul"`` or ``"matvec"``.
    ranges : sequence of (int, int) or of ((int, int), (int, int))
        Of each panel the rows, from and to (without), or the rows and the columns. Panels of the
        same columns follow each other: while they do, the workers keep their shares of B.
    options
        ``code, blocks, tolerate, nodes, tolerance, memory`` as in :func:`codedla.matmul`.

    Attributes
    ----------
    plan : Plan
        Of the largest panel; the others have the same code and grid.

    Raises
    ------
    UsageError
        As by :func:`codedla.matmul`, for all panels: nothing was computed.
    """

    def __init__(
        self,
        A: Any,
        B: Any,
        *,
        pool: Pool,
        operation: str,
        ranges: Sequence[Range] | Sequence[Panel],
        **options: Any,
    ) -> None:
        self.pool = pool
        self._a, self._b = as_source(A, "A"), as_source(B, "B")
        self.panels = [_panel(each, self._b.shape[1]) for each in ranges]
        rows, cols = (list(dict.fromkeys(panel[axis] for panel in self.panels)) for axis in (0, 1))
        # One pass over each operand; each panel's own facts give its own error estimate.
        self._facts_a = dict(zip(rows, survey(self._a, rows, 0), strict=True))
        self._facts_b = dict(zip(cols, survey(self._b, cols, 1), strict=True))
        a = Checked(_model(self._a, rows, 0), together(self._facts_a.values()))
        b = Checked(
            _model(self._b, sorted(cols, key=_length)[-1:], 1), together(self._facts_b.values())
        )
        self.plan = self._planned(a, b, operation=operation, **options)
        self._cheap = worthwhile(self.plan, a, b, pool.overhead)

    @classmethod
    def of_plan(
        cls, plan: Plan, a: Checked, b: Checked, pool: Pool, ranges: Sequence[Range]
    ) -> Panels:
        """Cut a product of operands in memory, which is planned already, into ranges of rows.

        Parameters
        ----------
        plan : Plan
            Of the whole product.
        a, b : Checked
        pool : Pool
        ranges : sequence of (int, int)
        """
        panels = cls.__new__(cls)
        panels.pool = pool
        panels._a, panels._b = MemorySource(a.matrix), MemorySource(b.matrix)
        cols = (0, b.shape[1])
        panels.panels = [(rows, cols) for rows in ranges]
        panels._facts_a = dict(zip(ranges, survey(panels._a, ranges, 0), strict=True))
        panels._facts_b = {cols: b.facts}
        panels.plan = replace(plan, shape=(max(map(_length, ranges)), *plan.shape[1:]))
        panels._cheap = worthwhile(plan, a, b, pool.overhead)
        return panels

    def _planned(
        self, a: Checked, b: Checked, *, memory: float | None = None, **options: Any
    ) -> Plan:
        """Plan all panels of the same columns as one product: B is sent once for all of them."""
        plan = plan_product(a, b, self.pool, **options)
        height, width = (
            max((_length(panel[axis]) for panel in self.panels), default=whole)
            for axis, whole in ((0, a.shape[0]), (1, b.shape[1]))
        )
        largest = replace(plan, shape=(height, a.shape[1], width))
        if memory is None or largest.memory_worker <= memory:
            return largest
        # Another code takes less of a worker's memory, or the error says how much is needed.
        rows = Checked(_model(self._a, [(0, height)], 0), a.facts)
        cols = Checked(_model(self._b, [(0, width)], 1), b.facts)
        return plan_product(rows, cols, self.pool, memory=memory, **options)

    def check_memory(self, allowed: Budget) -> None:
        """Make sure that the panels fit into the master's memory, now that the code is known.

        Raises
        ------
        UsageError
            They do not; with what is needed and what there is.
        """
        needed = panel_memory(
            self.plan,
            (self._a.dtype, self._b.dtype),
            in_memory=(self._a.in_memory, self._b.in_memory),
        )
        if needed.master > allowed.bytes:
            rows, _, cols = self.plan.shape
            what = f"a panel of {rows} rows and {cols} columns by code {self.plan.code.name}"
            raise too_small(needed.master, allowed, what)

    def run(
        self,
        done: Done,
        *,
        out: NDArray[Any] | None = None,
        verify: str = "auto",
        timeout: float | None = None,
        progress: Progress | None = None,
        lent: bool = True,
    ) -> None:
        """Compute the panels.

        Parameters
        ----------
        done : callable
            ``done(panel, report, block)`` after each panel, in any order; what it raises ends the
            run. The block is the panel's part of ``out``, or new memory.
        out : ndarray (M, N) or (M,), optional
            Receives the panels; what is in none of them is left alone.
        verify, timeout, progress
            As in :func:`codedla.matmul`, ``timeout`` and ``progress`` for all panels together.
        lent : bool
            ``out`` is the caller's. If it is not, replies arrive where they belong, and the block
            may be new memory when one stopped half-way.
        """
        if verify == "auto":
            # Once for all, also for a low last panel.
            verify = "locate" if self._cheap else "off"
        run = _Run(
            done,
            out=out[:, None] if out is not None and out.ndim == 1 else out,
            verify=verify,
            end=None if timeout is None else time.monotonic() + positive(timeout, "timeout"),
            tally=_Tally(progress, len(self.panels)),
            lent=lent,
        )
        texts, told = self.plan.warnings, set[int]()  # what is said once
        for cols, panels in _by_columns(self.panels):
            self._columns(run, replace(self.plan, warnings=texts), panels, cols, told)
            texts = ()

    def _columns(
        self, run: _Run, plan: Plan, panels: Sequence[Range], cols: Range, told: set[int]
    ) -> None:
        """Compute the panels of some columns; their part of B is forgotten in the end."""
        b = Checked(self._b.read((0, self._b.shape[0]), cols), self._facts_b[cols])
        plan = replace(
            plan,
            shape=(*plan.shape[:2], _length(cols)),
            density=(plan.density[0], _density(b)),
        )
        product = replace(self._product(plan, b), told=told)
        try:
            if 0 in plan.shape or isinstance(plan.code, ModularCode):
                self._one_by_one(run, product, b, panels, cols)
            else:
                self._together(run, product, b, panels, cols)
        finally:
            self.pool.drop(sorted(set(product.keys_b)))

    def _together(
        self, run: _Run, product: Product, b: Checked, panels: Sequence[Range], cols: Range
    ) -> None:
        """Compute panels of the same columns, a few at a time."""
        for text in product.plan.warnings:
            warnings.warn(text, CodedlaWarning, stacklevel=4)
        under_way: dict[int, tuple[Range, ProductRound]] = {}

        def jobs() -> Iterator[Round]:
            for index, rows in enumerate(panels):
                a, panel, out = self._begin(run, product, rows, cols, first=index == 0)
                check_options(panel.plan, out, run.verify, None)
                whole = ProductRound(
                    panel,
                    a,
                    b,
                    out=out,
                    verify=run.verify,
                    timeout=run.left(),
                    progress=run.tally.of_next(),
                    lent=run.lent,
                )
                under_way[index] = rows, whole
                yield whole.job
                del a, panel, out, whole

        def complete(index: int, outcome: Outcome) -> None:
            rows, whole = under_way.pop(index)
            block, report = whole.complete(outcome)
            run.done((rows, cols), report, block)

        # Of operands in memory, more panels under way are no more memory.
        window = None if self._a.in_memory else OPEN_ROUNDS
        self.pool.run_all(jobs(), complete, window)

    def _one_by_one(
        self, run: _Run, product: Product, b: Checked, panels: Sequence[Range], cols: Range
    ) -> None:
        """Compute panels that are several rounds each, or none."""
        for index, rows in enumerate(panels):
            a, panel, out = self._begin(run, product, rows, cols, first=index == 0)
            block, report = runner(panel.plan)(
                panel,
                a,
                b,
                out=out,
                verify=run.verify,
                timeout=run.left(),
                progress=run.tally.of_next(),
            )
            run.done((rows, cols), report, block)

    def _begin(
        self, run: _Run, product: Product, rows: Range, cols: Range, *, first: bool
    ) -> tuple[Checked, Product, NDArray[Any] | None]:
        """Read the rows of A that a panel needs; return them, its product and its part of out."""
        plan = product.plan
        a = Checked(self._a.read(rows, (0, plan.shape[1])), self._facts_a[rows])
        panel = replace(
            plan,
            shape=(_length(rows), *plan.shape[1:]),
            density=(_density(a), plan.density[1]),
            warnings=plan.warnings if first else (),
        )
        out = None if run.out is None else _part(run.out, rows, cols)
        return a, replace(product, plan=panel), out

    def _product(self, plan: Plan, b: Checked) -> Product:
        """Return what all panels of the same columns have in common."""
        if isinstance(plan.code, ModularCode):
            # Every prime has other residues of B, which are made when they are needed.
            return Product(plan, self.pool)
        _, inner, width = plan.shape
        splits = Split(inner, plan.grid.p), Split(width, plan.grid.n)
        return Product(
            plan,
            self.pool,
            keys_b=resident_keys(plan.code, self.pool),
            encoder_b=make_encoder(b.matrix, *splits, reply_dtype(plan)),
            shared=SharedCheck(together(self._facts_a.values())),
        )


@dataclass
class _Run:
    """What was asked of one run of the panels."""

    done: Done
    out: NDArray[Any] | None
    verify: str
    end: float | None
    tally: _Tally
    lent: bool

    def left(self) -> float | None:
        """Seconds that are left, on this machine's clock."""
        # Without any left, a round ends with the error that says so.
        return None if self.end is None else max(self.end - time.monotonic(), 1e-9)


class _Tally:
    """Progress of several rounds as of one."""

    def __init__(self, progress: Progress | None, rounds: int) -> None:
        self._progress, self._rounds = progress, rounds
        self._done: list[int] = []

    def of_next(self) -> Progress | None:
        """Return what reports the progress of one more round."""
        if self._progress is None:
            return None
        whole, index, done = self._progress, len(self._done), self._done
        done.append(0)

        def report(replies: int, needed: int, total: int) -> None:
            done[index] = min(replies, needed)
            whole(sum(done), self._rounds * needed, self._rounds * total)

        return report


def _by_columns(panels: Iterable[Panel]) -> list[tuple[Range, list[Range]]]:
    """Group panels of the same columns that follow each other."""
    groups: list[tuple[Range, list[Range]]] = []
    for rows, cols in panels:
        if not groups or groups[-1][0] != cols:
            groups.append((cols, []))
        groups[-1][1].append(rows)
    return groups


def _panel(given: Any, width: int) -> Panel:
    """Return rows and columns of a panel of which perhaps only the rows were given."""
    first, second = given
    if isinstance(first, tuple):
        return first, second
    return (first, second), (0, width)


def _part(target: NDArray[Any], rows: Range, cols: Range) -> NDArray[Any]:
    part = target[slice(*rows), slice(*cols)]
    if part.nbytes <= LENT_BYTES:
        part = np.asarray(part)  # no memory map any more
    return part


def _model(source: Source, ranges: Sequence[Range], axis: int) -> Any:
    """Return a matrix as large as these ranges of an operand; of a dense one only that counts."""
    count = sum(stop - start for start, stop in ranges) if ranges else source.shape[axis]
    whole = [(0, source.shape[0]), (0, source.shape[1])]
    whole[axis] = (0, count)
    if source.nnz is not None:
        return source.read(whole[0], whole[1])
    shape = tuple(stop - start for start, stop in whole)
    return np.broadcast_to(np.zeros((), source.dtype), shape)


def _length(part: Range) -> int:
    return part[1] - part[0]


def _density(operand: Checked) -> float:
    rows, cols = operand.shape
    return 1.0 if operand.nnz is None else operand.nnz / max(rows * cols, 1)
