"""A product in row panels of C: each one a coded product, B's shares resident in between.

What is finished can be brought to disk before the rest is computed, so that a job that is ended
half-way has not worked for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine.arguments import positive
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import Facts
from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.linalg.exact import runner
from codedla.linalg.merge import merge_reports, shifted
from codedla.linalg.operands import Checked, as_array, as_operand, plan_product
from codedla.linalg.product import Product, reply_dtype
from codedla.linalg.resident import resident_keys
from codedla.linalg.verify import worthwhile

__all__ = ["PANEL_SECONDS", "Panels", "automatic_rows", "merge_reports"]

PANEL_SECONDS = 10.0
"""What a panel should take: far more than its round costs, little to lose."""
MOST_PANELS = 64
LENT_BYTES = 1 << 28
"""Panels up to this size are the caller's memory: no late reply ends up in finished rows. Larger
ones, in files that may be larger than memory, are received in place as a whole product is."""

Range = tuple[int, int]


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


class Panels:
    """A product of which some ranges of rows are to be computed.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
        Only the rows of the ranges are looked at.
    B : array_like or scipy.sparse (L, N) or array_like (L,)
    pool : Pool
    operation : str
        ``"matmul"`` or ``"matvec"``.
    ranges : sequence of (int, int)
        Rows of each panel, from and to (without).
    options
        ``code, blocks, tolerate, nodes, tolerance`` as in :func:`codedla.matmul`.

    Attributes
    ----------
    plan : Plan
        Of the tallest panel; the others have the same code and grid.

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
        ranges: Sequence[Range],
        **options: Any,
    ) -> None:
        self.pool = pool
        self.ranges = list(ranges)
        self._a = as_operand(A, "A").matrix.tocsr() if hasattr(A, "tocsr") else as_array(A, "A")
        b = B if hasattr(B, "tocsr") else as_array(B, "B")
        self._b = as_operand(b[:, None] if b.ndim == 1 else b, "B")
        # One pass over A; each panel's own facts give its own error estimate.
        self._facts = [as_operand(self._a[i:j], "A").facts for i, j in self.ranges]
        tallest = max(self.ranges, key=lambda r: r[1] - r[0], default=(0, self._a.shape[0]))
        together = Facts(
            all(facts.finite for facts in self._facts),
            max((facts.max_abs for facts in self._facts), default=0.0),
            math.hypot(*(facts.norm for facts in self._facts)),
        )
        self._model = Checked(self._a[slice(*tallest)], together)
        self.plan = plan_product(self._model, self._b, pool, operation=operation, **options)

    def run(
        self,
        out: NDArray[Any],
        *,
        verify: str = "auto",
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Generator[tuple[Range, Report], None, None]:
        """Compute the panels one after the other.

        Parameters
        ----------
        out : ndarray (M, N) or (M,)
            Receives the rows of the ranges; the others are left alone.
        verify, timeout, progress
            As in :func:`codedla.matmul`, ``timeout`` and ``progress`` for all panels together.

        Yields
        ------
        (start, stop), Report
            After each panel.
        """
        end = None if timeout is None else time.monotonic() + positive(timeout, "timeout")
        plan, keys = self.plan, resident_keys(self.plan.code, self.pool)
        if verify == "auto":
            # Once for all, also for a low last panel.
            verify = (
                "locate" if worthwhile(plan, self._model, self._b, self.pool.overhead) else "off"
            )
        _, inner, cols = plan.shape
        grid = plan.grid
        dtype = reply_dtype(plan)
        encoder = make_encoder(self._b.matrix, Split(inner, grid.p), Split(cols, grid.n), dtype)
        target = out[:, None] if out.ndim == 1 else out
        try:
            for index, (start, stop) in enumerate(self.ranges):
                a = Checked(self._a[start:stop], self._facts[index])
                panel = replace(
                    plan,
                    shape=(stop - start, inner, cols),
                    density=(_density(a), plan.density[1]),
                    # Said once, before the first.
                    warnings=() if index else plan.warnings,
                )
                rows = target[start:stop]
                if rows.nbytes <= LENT_BYTES:
                    rows = np.asarray(rows)  # no memory map any more
                _, report = runner(plan)(
                    Product(panel, self.pool, keys_b=keys, encoder_b=encoder),
                    a,
                    self._b,
                    out=rows,
                    verify=verify,
                    timeout=None if end is None else max(end - time.monotonic(), 1e-3),
                    progress=shifted(progress, index, len(self.ranges)),
                )
                yield (start, stop), report
        finally:
            self.pool.drop(sorted(set(keys)))


def _density(a: Checked) -> float:
    return 1.0 if a.nnz is None else a.nnz / max(a.shape[0] * a.shape[1], 1)
