"""A stored matrix that is multiplied from both sides, with one set of shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid, Split
from codedla.codes.adjoint import PlainAdjoint, PowersAdjoint, adjoint_of
from codedla.codes.base import Code
from codedla.codes.registry import get
from codedla.engine.ahead import Encoder
from codedla.engine.arguments import block_counts, check_pool, whole_number
from codedla.engine.choose import default_tolerate
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import Facts
from codedla.engine.plan import Plan
from codedla.engine.round import Pool
from codedla.errors import PoolClosed, UsageError
from codedla.linalg.matvec import CodedMatrix
from codedla.linalg.operands import Checked, as_operand, combinable, plan_product
from codedla.linalg.product import Product, reply_dtype, run_product

__all__ = ["TwoWayMatrix", "store_two_way"]

Array = NDArray[Any]

_BOTH_WAYS = ("uncoded", "replication", "entangled")

_REAL_POINTS = 1e4
"""Real points are taken where the worst replies do not enlarge rounding errors more than this."""


def store_two_way(
    a: Checked,
    *,
    pool: Pool,
    code: str = "auto",
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    encode: str = "master",
    **options: Any,
) -> TwoWayMatrix:
    """Store a matrix so that its shares serve ``A @ x`` and ``y^T A``.

    Parameters
    ----------
    a : Checked
        Floating or complex.
    pool, tolerate, nodes, encode, options
        As of :func:`codedla.store`.
    code : {"auto", "uncoded", "replication", "entangled"}
        auto: whichever stores least; copies where that is as good.
    blocks : int or (m, p, 1), optional
        Rows and columns that the matrix is cut into; by default those that store least while both
        ways survive the losses.

    Raises
    ------
    UsageError
        As by :func:`codedla.store`; or NaN or Inf in the matrix, or a code or a grid that does not
        serve both ways.
    """
    check_pool(pool)
    workers = pool.n_workers
    if not a.facts.finite:
        raise UsageError(
            "a matrix whose shares serve both ways must be finite, because blocks are added up; "
            "got NaN or Inf; use adjoint='separate'"
        )
    losses = default_tolerate(workers) if tolerate is None else tolerate
    losses = whole_number(losses, "tolerate", least=0)
    if code not in ("auto", *_BOTH_WAYS):
        raise UsageError(
            f"shares that serve A @ x and A^H @ y are those of {', '.join(_BOTH_WAYS)}; got code "
            f"{code!r}; choose one of these, or adjoint='separate'"
        )
    if blocks is None:
        code, grid = _smallest(code, workers, losses, sparse=a.nnz is not None)
    else:
        grid = _grid(blocks)
        code = "entangled" if code == "auto" else code
    if code == "entangled" and nodes is None and a.dtype.kind != "c":
        nodes = _real_points(workers, grid)
    plan = plan_product(
        a,
        Checked(np.broadcast_to(np.zeros((), a.dtype), (a.shape[1], 1)), Facts(True, 1.0, 1.0)),
        pool,
        operation="matvec",
        code=code,
        blocks=(grid.m, grid.p, 1),
        nodes=nodes,
        resident=True,
        **options,
    )
    back = adjoint_of(plan.code)
    if (tolerate is not None or blocks is None) and back.tolerates < losses:
        raise UsageError(
            f"A^H @ y from shares of blocks {plan.code.blocks} needs {back.threshold} of {workers} "
            f"workers; got tolerate={losses}; leave blocks out, or use adjoint='separate'"
        )
    return TwoWayMatrix(a, plan, pool, encode=encode, back=back)


class TwoWayMatrix(CodedMatrix):
    """A stored matrix that is multiplied from the left, too; made by :func:`store_two_way`.

    Parameters
    ----------
    a, plan, pool, encode
        As of :class:`CodedMatrix`.
    back : Code
        The way back, of :func:`codedla.codes.adjoint.adjoint_of`.
    """

    def __init__(self, a: Checked, plan: Plan, pool: Pool, *, encode: str, back: Code) -> None:
        super().__init__(a, plan, pool, encode=encode)
        rows, inner, _ = plan.shape
        self.back = replace(
            plan,
            operation="rmatvec",
            code=back,
            shape=(1, rows, inner),
            density=(1.0, plan.density[0]),
            request=None,
            reason="the stored shares of the matrix serve both ways",
        )

    def left(self, y: Array, *, timeout: float | None = None) -> Array:
        """Return ``A^T @ y``, of shape (L, c), for ``y`` of shape (M, c).

        Raises
        ------
        UsageError, NotDecodable, WorkerError, PoolClosed
            As by :meth:`CodedMatrix.matvec`.
        """
        if self._closed:
            raise PoolClosed("this coded matrix is closed; store it again")
        turned = as_operand(y.T, "y")
        columns, rows = turned.shape
        dtype = np.result_type(self.plan.dtype, turned.dtype)
        if not combinable(turned, self._a, dtype):
            raise UsageError(
                "y must be finite and not so large that sums could overflow: A^H @ y from the "
                "stored shares of A adds up what workers reply; use adjoint='separate'"
            )
        plan = replace(self.back, shape=(columns, *self.back.shape[1:]), dtype=dtype)
        cuts = Split(columns, 1), Split(rows, plan.grid.p)
        vectors: Any = make_encoder(turned.matrix, *cuts, reply_dtype(plan))
        stored: Any = self._encoder
        if isinstance(plan.code, PlainAdjoint):
            vectors, stored = _Blocks(vectors), _Blocks(stored)
        product = Product(plan, self._pool, encoder_a=vectors, encoder_b=stored, keys_b=self._keys)
        result, self._last = run_product(product, turned, self._a, timeout=timeout)
        return result.T


class _Blocks:
    """An encoder whose combinations are blocks as they are, without the zeros that pad them.

    Parameters
    ----------
    encoder : Encoder
    """

    threads = 1

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.given: set[bytes] = set()
        self.ready: dict[bytes, Any] = {}

    def plain(self, block: int) -> Any:
        """Return a block."""
        return self._encoder.plain(block)

    def coded(self, weights: Array, across: int = 1) -> Any:
        """Return the one block that has a weight, which is 1."""
        return self._encoder.plain(int(np.argmax(weights)))

    def coded_together(self, shares: Sequence[Array], across: int = 1) -> list[Any]:
        """Return one block for each row of weights."""
        return [self.coded(weights) for weights in shares]


def _smallest(code: str, workers: int, losses: int, *, sparse: bool) -> tuple[str, Grid]:
    """Return the code and the grid that store least while both ways survive the losses."""
    plain = ("replication" if losses else "uncoded", Grid(max(workers // (losses + 1), 1), 1, 1))
    if code in ("uncoded", "replication"):
        return code, plain[1]
    replies = workers - losses
    family = get("entangled")
    best = Grid(1, 1, 1)
    for m in range(1, replies + 1):
        for p in range(1, replies + 1):
            grid = Grid(m, p, 1)
            needed = max(family.needs(grid), PowersAdjoint.needs(Grid(1, m, p)))
            # Of grids that store as little, the one of the fewest columns: replies are short then.
            if needed <= replies and (m * p, m) > (best.m * best.p, best.m):
                best = grid
    # A combination of sparse blocks is about as large as all of them.
    if code == "auto" and (sparse or best.m * best.p <= plain[1].m):
        return plain
    return "entangled", best


def _grid(blocks: int | tuple[int, ...]) -> Grid:
    counts = block_counts(blocks)
    given = (counts,) if isinstance(counts, int) else counts
    m, p, n = given if len(given) == 3 else (given[0], 1, (*given, 1)[1])
    if n != 1:
        raise UsageError(
            f"a stored matrix is multiplied by vectors, which are not cut; got blocks {blocks}; "
            "use blocks=m or (m, p, 1)"
        )
    return Grid(m, p, 1)


def _real_points(workers: int, grid: Grid) -> str | None:
    """Return the real points where they are accurate enough: complex shares are twice as large."""
    try:
        forward = get("entangled")(workers, grid, nodes="chebyshev")
        worst = max(code.worst_amplification()[0] for code in (forward, adjoint_of(forward)))
    except UsageError:
        return None  # which is said when the matrix is stored
    return "chebyshev" if worst < _REAL_POINTS else None
