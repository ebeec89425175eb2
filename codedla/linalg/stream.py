"""A large product in panels of rows, several under way at once: what ``matmul`` does by itself.

While a panel is computed the next one's operands travel and the last one is decoded; any threshold
of the workers decodes a panel, not the same ones each time; and one that stops costs the time of a
panel, not of its whole share.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.exact import ModularCode
from codedla.engine import arithmetic
from codedla.engine.arguments import positive
from codedla.engine.report import Report
from codedla.engine.round import Progress
from codedla.linalg.merge import merge_reports
from codedla.linalg.operands import Checked
from codedla.linalg.panels import Panel, Panels
from codedla.linalg.product import Product, check_options
from codedla.measured.speeds import speeds

__all__ = ["MOST_PANELS", "PANEL_SECONDS", "panel_rows", "run_streamed", "usual_rows"]

Array = NDArray[Any]

PANEL_SECONDS = 0.1
"""What a worker should need for its share of a panel: far more than the round costs, and little to
compute again."""
MOST_PANELS = 32
LEAST_ROWS = 256
"""Rows of a share below which matrix products get slower."""


def panel_rows(product: Product, verify: str) -> int:
    """Return how many rows of C a panel of this product should have.

    Parameters
    ----------
    product : Product
    verify : str
        As in :func:`codedla.matmul`.

    Returns
    -------
    int
        All rows where panels do not pay, or the code needs the product as a whole.
    """
    plan, whole = product.plan, product.plan.shape[0]
    resident = bool(product.keys_a or product.keys_b)
    if not product.pool.streams or resident or verify == "spares" or 0 in plan.shape:
        return whole
    # Late tasks are judged by the others' times, which do not include waiting for one's turn.
    if isinstance(plan.code, ModularCode) or plan.speculate or plan.code.speculative:
        return whole
    return usual_rows(whole, plan.grid.m, plan.flops_worker)


def usual_rows(rows: int, blocks: int, flops: float) -> int:
    """Return the rows of a panel: all of them where panels do not pay.

    Parameters
    ----------
    rows : int
        Of the product.
    blocks : int
        Row blocks into which each panel is cut.
    flops : float
        Of one worker, for the whole product.
    """
    panels = min(
        int(flops / speeds().flops / PANEL_SECONDS), MOST_PANELS, rows // (blocks * LEAST_ROWS)
    )
    if panels < 2:
        return rows
    # Whole blocks, so that no share is padded but the last.
    return math.ceil(rows / panels / blocks) * blocks


def run_streamed(
    product: Product,
    a: Checked,
    b: Checked,
    rows: int,
    *,
    out: Array | None,
    verify: str,
    timeout: float | None,
    progress: Progress | None,
) -> tuple[Array, Report]:
    """Run a planned product in panels.

    Parameters
    ----------
    product : Product
        Without resident parts.
    a, b : Checked
    rows : int
        Of a panel; see :func:`panel_rows`.
    out, verify, timeout, progress
        As in :func:`codedla.matmul`.

    Returns
    -------
    C : ndarray (M, N)
    report : Report
        Of all panels together.

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
    """
    plan = product.plan
    check_options(plan, out, verify, progress)
    if timeout is not None:
        timeout = positive(timeout, "timeout")
    height, _, width = plan.shape
    # An operand that is written to while its other rows are still to be read would be lost.
    overlaps = out is not None and any(
        np.may_share_memory(out, array) for operand in (a, b) for array in operand.arrays
    )
    lent = out is not None and not overlaps
    target = out if out is not None and lent else arithmetic.empty((height, width), plan.dtype)
    reports: list[Report] = []
    elsewhere: list[tuple[Panel, Array]] = []

    def done(panel: Panel, report: Report, block: Array) -> None:
        reports.append(report)
        if not np.may_share_memory(block, target):
            elsewhere.append((panel, block))

    ranges = [(top, min(top + rows, height)) for top in range(0, height, rows)]
    Panels.of_plan(plan, a, b, product.pool, ranges).run(
        done, out=target, verify=verify, timeout=timeout, progress=progress, lent=lent
    )
    if elsewhere:
        # What stopped half-way may go on arriving in the memory that was meant for the product.
        target = target.copy()
        for (down, across), block in elsewhere:
            target[slice(*down), slice(*across)] = block
    if out is not None and out is not target:
        out[...] = target
        target = out
    report = merge_reports(plan, height, sorted(reports, key=lambda each: each.began), {})
    # Whom a panel could do without was not late if it has answered for another.
    report.stragglers = sorted({*report.stragglers} - {*report.responders})
    return target, report
