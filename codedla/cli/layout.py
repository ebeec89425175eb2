"""How a product is cut into panels, and what the master's memory has to do with it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from codedla.cli.options import code_arguments
from codedla.errors import UsageError

if TYPE_CHECKING:
    from codedla.engine.memory import PanelMemory
    from codedla.engine.plan import Plan
    from codedla.measured.memory import Budget

__all__ = ["Layout", "Stored", "lay_out"]

#: The journal is written anew after every panel.
_MOST_PANELS = 10_000


@dataclass(frozen=True)
class Stored:
    """What matters here of an operand in a file.

    Parameters
    ----------
    dtype : numpy.dtype
    loaded : float
        Bytes that it takes when it can only be read as a whole (sparse, text), else 0.
    """

    dtype: np.dtype[Any]
    loaded: float = 0.0


@dataclass(frozen=True)
class Layout:
    """Panels of a product.

    Parameters
    ----------
    shape : (int, int)
        Of the product.
    rows, cols : int
        Of a panel.
    out_of_core : bool
        The operands are read panel by panel, because not everything fits into memory at once.
    memory : PanelMemory
        What that takes.
    allowed : Budget
        What the master may take.
    code : str
        Of the panels, and its grid.
    """

    shape: tuple[int, int]
    rows: int
    cols: int
    out_of_core: bool
    memory: PanelMemory
    allowed: Budget
    code: str

    @property
    def whole(self) -> bool:
        """Whether one panel is all."""
        return self.rows >= self.shape[0] and self.cols >= self.shape[1]

    @property
    def count(self) -> int:
        """Number of panels."""
        return -(-self.shape[0] // self.rows) * -(-self.shape[1] // self.cols)

    @property
    def peak(self) -> float:
        """Bytes that the master's process takes at the most, the program itself included."""
        return self.memory.master + self.allowed.base

    def lines(self) -> list[str]:
        """Return what a plan says of the panels."""
        from codedla.engine.cost import in_bytes

        size = f"{self.rows} rows"
        if self.cols < self.shape[1]:
            size = f"{self.rows} rows and {self.cols} columns"
        text = f"{self.count}, of {size}, each saved when it is done"
        if self.out_of_core:
            text += f"; code {self.code}"
        lines = [f"{'panels':<14} {text}"]
        if self.out_of_core:
            left, base = in_bytes(max(self.allowed.bytes, 0)), in_bytes(self.allowed.base)
            told = {
                "out of core": f"{self.allowed.limit} leaves the master {left}",
                "peak": f"{in_bytes(self.peak)} of {self.allowed.measure} on the master rank, "
                f"{base} of it for the program itself",
                "": f"{in_bytes(self.memory.worker)} per worker rank, without the program",
            }
            lines += [f"{name:<14} {text}" for name, text in told.items()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON-ready data."""
        free = self.allowed.bytes
        return {
            "panels": self.count,
            "panel": [self.rows, self.cols],
            "code": self.code,
            "out_of_core": self.out_of_core,
            "peak_master": self.peak,
            "base_master": self.allowed.base,
            "measure": self.allowed.measure,
            "limit": self.allowed.limit,
            "available_master": free if np.isfinite(free) else None,
            "panel_memory_worker": self.memory.worker,
        }


def lay_out(
    args: argparse.Namespace, plan: Plan, a: Stored, b: Stored, *, mpi: bool = True
) -> Layout:
    """Cut a product into panels: as asked, about 10 s each, and within the master's memory.

    Parameters
    ----------
    args : argparse.Namespace
        With ``panel_rows``, ``panel_columns`` and ``master_memory``, where a command has them.
    plan : Plan
        Of the whole product.
    a, b : Stored
    mpi : bool
        MPI is still to be started.

    Raises
    ------
    UsageError
        Too many panels, or not even the smallest ones fit into memory.
    """
    from dataclasses import replace

    from codedla.engine.memory import panel_memory
    from codedla.linalg.panels import automatic_rows, fit_panels
    from codedla.measured.memory import budget

    rows, cols = max(plan.shape[0], 1), max(plan.shape[2], 1)
    dtypes, loaded = (a.dtype, b.dtype), (a.loaded > 0, b.loaded > 0)
    allowed = budget(getattr(args, "master_memory", None), mpi=mpi)
    allowed = replace(allowed, bytes=allowed.bytes - a.loaded - b.loaded)
    at_once = panel_memory(plan, dtypes, in_memory=loaded, rounds=1)
    asked = getattr(args, "panel_rows", None), getattr(args, "panel_columns", None)
    if 0 in plan.shape:
        return Layout((rows, cols), rows, cols, False, at_once, allowed, plan.code.name)
    height = min(asked[0] or automatic_rows(plan), rows)
    width = min(asked[1] or cols, cols)
    out_of_core = at_once.master > allowed.bytes
    made = plan

    def fitted(rows: int, cols: int) -> tuple[int, int]:
        whole = replace(made, shape=plan.shape)
        worker = getattr(args, "memory", None)
        return fit_panels(
            whole, dtypes, allowed, rows=rows, cols=cols, in_memory=loaded, worker=worker
        )

    if out_of_core:
        # Whatever columns there is room for: B is then on the workers, and A what is moved.
        made = _narrower(args, plan, fitted(height, width)[1])
    while out_of_core:
        height, width = fitted(height, width)
        made = _narrower(args, plan, width)
        panel = replace(made, shape=(height, plan.shape[1], width))
        if panel_memory(panel, dtypes, in_memory=loaded).master <= allowed.bytes:
            break
        # That code needs more: smaller panels, until they fit or the smallest do not.
    made = replace(made, shape=(height, plan.shape[1], width))
    memory = panel_memory(made, dtypes, in_memory=loaded)
    code = f"{made.code.name}, grid {made.code.blocks}"
    layout = Layout((rows, cols), height, width, out_of_core, memory, allowed, code)
    if layout.count > _MOST_PANELS:
        least = -(-rows // max(_MOST_PANELS // -(-cols // width), 1))
        given = f"--panel-rows {asked[0]}" if asked[0] else f"{layout.count} panels"
        raise UsageError(
            f"there can be {_MOST_PANELS} panels; got {given} for {rows} rows; use at least {least}"
        )
    return layout


def _narrower(args: argparse.Namespace, plan: Plan, cols: int) -> Plan:
    """Plan the product of all rows and so many columns.

    Panels of the same columns are one product, for which another code may be better.
    """
    from codedla.engine.plan import make_plan

    (rows, inner, _), density = plan.shape, plan.density
    stored = (
        None if share >= 1.0 else round(share * size)
        for share, size in zip(density, (rows * inner, inner * cols), strict=True)
    )
    return make_plan(
        (rows, inner),
        (inner, cols),
        plan.dtype,
        plan.pool_workers,
        operation=plan.operation,
        nnz=(next(stored), next(stored)),
        # What a worker may take is a matter of the panels' size.
        **{**code_arguments(args), "memory": None},
    )
