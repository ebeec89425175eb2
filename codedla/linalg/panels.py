"""A product in panels of C: each one a coded product, B's shares resident in between.

What is finished can be brought to disk before the rest is computed, so that a job that is ended
half-way has not worked for nothing, and of operands in files only what is being multiplied need be
in memory: the columns of B that belong to the panels, and the rows of A of those under way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.exact import ModularCode
from codedla.engine.arguments import positive
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import together
from codedla.engine.memory import Budget, panel_memory, too_small
from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.linalg.exact import runner
from codedla.linalg.merge import merge_reports
from codedla.linalg.operands import Checked, plan_product
from codedla.linalg.product import Product, reply_dtype
from codedla.linalg.resident import resident_keys
from codedla.linalg.sources import Range, Source, as_source, survey
from codedla.linalg.verify import worthwhile

__all__ = ["PANEL_SECONDS", "Panel", "Panels", "automatic_rows", "fit_panels", "merge_reports"]

PANEL_SECONDS = 10.0
"""What a panel should take: far more than its round costs, little to lose."""
MOST_PANELS = 64
LENT_BYTES = 1 << 28
"""Panels up to this size are the caller's memory: no late reply ends up in finished rows. Larger
ones, in files that may be larger than memory, are received in place as a whole product is."""
_ENOUGH_SECONDS = 0.5
"""Predicted time of a panel from which its round costs next to nothing."""

Panel = tuple[Range, Range]
"""Rows and columns of C."""
Done = Callable[[Panel, Report, NDArray[Any]], None]
"""``done(panel, report, block)``: what is called when a panel is complete."""


def automatic_rows(plan: Plan) -> int:
    """Return the rows of C in a panel, such that it takes about :data:`PANEL_SECONDS`.

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
    panels = min(int(plan.seconds / PANEL_SECONDS), MOST_PANELS)
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

    As many columns as leave room for panels that are worth a round, because A is read once for
    every range of columns of B.

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

    found = (0, 0)
    widest = n if cols is None else min(cols, n)
    parts = 1
    while True:
        width = min(math.ceil(widest / parts / across) * across, widest)
        height = highest(width)
        if height * width > found[0] * found[1]:
            found = (height, width)
        panel = replace(plan, shape=(height, plan.shape[1], width))
        if height and (height >= min(rows, m) or panel.seconds >= _ENOUGH_SECONDS):
            found = (height, width)
            break
        if width <= across:
            break
        # Finer where it matters: 1, 2, 3, 4, 6, 8, 12, 16, ...
        parts = max(parts + 1, parts * 4 // 3)
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
        b = Checked(_model(self._b, cols, 1), together(self._facts_b.values()))
        self.plan = plan_product(a, b, pool, operation=operation, **options)
        self._cheap = worthwhile(self.plan, a, b, pool.overhead)

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
        """
        end = None if timeout is None else time.monotonic() + positive(timeout, "timeout")
        if verify == "auto":
            # Once for all, also for a low last panel.
            verify = "locate" if self._cheap else "off"
        target = out[:, None] if out is not None and out.ndim == 1 else out
        tally = _Tally(progress, len(self.panels))
        first = True
        for cols, panels in _by_columns(self.panels):
            b = Checked(self._b.read((0, self._b.shape[0]), cols), self._facts_b[cols])
            _, inner, _ = self.plan.shape
            plan = replace(
                self.plan,
                shape=(self.plan.shape[0], inner, cols[1] - cols[0]),
                density=(self.plan.density[0], _density(b)),
            )
            product = self._product(plan, b)
            try:
                for rows in panels:
                    a = Checked(self._a.read(rows, (0, inner)), self._facts_a[rows])
                    panel = replace(
                        plan,
                        shape=(rows[1] - rows[0], *plan.shape[1:]),
                        density=(_density(a), plan.density[1]),
                        # Said once, before the first.
                        warnings=plan.warnings if first else (),
                    )
                    first = False
                    block, report = runner(panel)(
                        replace(product, plan=panel),
                        a,
                        b,
                        out=None if target is None else _part(target, rows, cols),
                        verify=verify,
                        timeout=None if end is None else max(end - time.monotonic(), 1e-3),
                        progress=tally.of_next(),
                    )
                    del a
                    done((rows, cols), report, block)
            finally:
                self.pool.drop(sorted(set(product.keys_b)))

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
        )


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
    """Return a matrix like the largest part of an operand; of a dense one only the shape counts."""
    largest = max(ranges, key=lambda each: each[1] - each[0], default=(0, source.shape[axis]))
    whole = [(0, source.shape[0]), (0, source.shape[1])]
    whole[axis] = largest
    if source.nnz is not None:
        return source.read(whole[0], whole[1])
    shape = tuple(stop - start for start, stop in whole)
    return np.broadcast_to(np.zeros((), source.dtype), shape)


def _density(operand: Checked) -> float:
    rows, cols = operand.shape
    return 1.0 if operand.nnz is None else operand.nnz / max(rows * cols, 1)
