"""The coded matrix-vector product, once or many times with resident shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.blocks import Split
from codedla.engine.ahead import Encoder
from codedla.engine.encoder import make_encoder
from codedla.engine.facts import Facts
from codedla.engine.plan import Plan
from codedla.engine.quick import QuickPool
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.errors import PoolClosed, UsageError
from codedla.linalg.exact import runner
from codedla.linalg.forgotten import hold
from codedla.linalg.from_files import check_encode, mapped, recipe_encoder
from codedla.linalg.operands import Checked, as_array, as_operand, combinable, plan_product
from codedla.linalg.product import Product, run_product
from codedla.linalg.repeated import Repeated
from codedla.linalg.stored_check import StoredCheck

__all__ = ["CodedMatrix", "matvec", "store"]

_KINDS = 8
"""Kinds of vectors (numbers of columns, dtypes) of one matrix that may take turns."""


def matvec(
    A: ArrayLike,
    x: ArrayLike,
    *,
    pool: Pool,
    code: str = "auto",
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    memory: float | None = None,
    speculate: bool = False,
    encode: str = "master",
    out: NDArray[Any] | None = None,
    verify: str = "auto",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> NDArray[Any] | tuple[NDArray[Any], Report]:
    """Multiply a matrix by a vector on a pool, once.

    For many vectors and one matrix, :func:`store` the matrix and send only the vectors.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
    x : array_like (L,) or (L, c)
        One vector, or a few as columns; sent whole to every worker.
    out : ndarray (M,) or (M, c), optional
        Receives the product.
    pool, code, blocks, tolerate, nodes, tolerance, memory, speculate
        As in :func:`codedla.matmul`.
    encode : {"master", "workers"}
        Who encodes A, as in :func:`codedla.matmul`; the vector is sent by the master.
    verify, return_report, timeout, progress
        As in :func:`codedla.matmul`.

    Returns
    -------
    y : ndarray (M,) or (M, c)
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
        As in :func:`codedla.matmul`.
    """
    verify = check_encode(encode, verify)
    a = as_operand(mapped(A, "A") if encode == "workers" else A, "A")
    vector, b = _as_columns(x)
    plan = plan_product(
        a,
        b,
        pool,
        operation="matvec",
        code=code,
        blocks=blocks,
        tolerate=tolerate,
        nodes=nodes,
        tolerance=tolerance,
        memory=memory,
        speculate=speculate,
    )
    target = _column_of(out, plan) if out is not None and vector else out
    product = Product(plan, pool)
    if encode == "workers":
        product.encoder_a = recipe_encoder(a, "A", plan, *_cuts(plan))
    y, report = runner(plan)(
        product, a, b, out=target, verify=verify, timeout=timeout, progress=progress
    )
    result = out if out is not None else y[:, 0] if vector else y
    return (result, report) if return_report else result


def store(
    A: ArrayLike,
    *,
    pool: Pool,
    code: str = "auto",
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    memory: float | None = None,
    speculate: bool = False,
    encode: str = "master",
    verify: str = "off",
) -> CodedMatrix:
    """Encode a matrix once and keep its shares on the workers.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
        Floating or complex. Do not change it while it is stored: a worker that was late gets its
        share when it is free again.
    pool, code, blocks, tolerate, nodes, tolerance, memory, speculate
        As in :func:`codedla.matmul`. Who computes a late share is sent it, and keeps it.
    encode : {"master", "workers"}
        As in :func:`codedla.matmul`.
    verify : {"off", "locate"}
        "locate": check every reply of every product, in time linear in the vectors, and go on
        without workers that answer wrongly. The matrix is read once more for it, here.

    Returns
    -------
    CodedMatrix

    Raises
    ------
    UsageError
        As in :func:`codedla.matmul`; integer matrices must be cast to float, and one with NaN or
        Inf cannot be verified.
    """
    check_encode(encode, verify)
    a = as_operand(mapped(A, "A") if encode == "workers" else A, "A")
    if verify not in ("off", "locate"):
        raise UsageError(
            f"verify of a stored matrix must be 'off' or 'locate'; got {verify!r}; choose one"
        )
    if verify == "locate" and not a.facts.finite:
        raise UsageError(
            "a matrix that is to be verified must be finite; got NaN or Inf; use verify='off'"
        )
    if a.dtype.kind in "iub":
        raise UsageError(f"a stored matrix must be floating or complex; got {a.dtype}; cast it")
    unit = Checked(np.broadcast_to(np.zeros((), a.dtype), (a.shape[1], 1)), Facts(True, 1.0, 1.0))
    plan = plan_product(
        a,
        unit,
        pool,
        operation="matvec",
        code=code,
        blocks=blocks,
        tolerate=tolerate,
        nodes=nodes,
        tolerance=tolerance,
        memory=memory,
        speculate=speculate,
        resident=True,
    )
    if plan.grid.n != 1:
        raise UsageError(
            f"a stored matrix is multiplied by vectors, which are not cut; got blocks {plan.grid}; "
            "use blocks=(m, 1)"
        )
    check = StoredCheck(plan, a) if verify == "locate" else None
    return CodedMatrix(a, plan, pool, check, encode=encode)


class CodedMatrix:
    """A matrix whose shares live on the workers; made by :func:`store`.

    ``stored @ x`` is ``stored.matvec(x)``. A context manager: leaving it, or :meth:`close`, frees
    the workers' memory.

    Parameters
    ----------
    a : Checked
    plan : Plan
    pool : Pool
    check : StoredCheck, optional
        Given when replies are to be checked.
    encode : str
        Who encodes the matrix, "master" or "workers".

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    plan : Plan
        Code, grid and costs.
    last_report : Report or None
        What happened in the latest product.
    """

    def __init__(
        self,
        a: Checked,
        plan: Plan,
        pool: Pool,
        check: StoredCheck | None = None,
        *,
        encode: str = "master",
    ) -> None:
        rows, inner, _ = plan.shape
        self.plan = plan
        self.shape = (rows, inner)
        self.dtype = plan.dtype
        self._last: Report | Callable[[], Report] | None = None
        self._a, self._pool, self._check = a, pool, check
        # A key of its own for every share: after a loss another worker may hold it.
        self._keys = [pool.new_key() for _ in range(plan.code.n_shares)]
        self._settle = hold(self, pool, self._keys)
        self._encoder: Encoder
        if encode == "workers":
            self._encoder = recipe_encoder(a, "A", plan, *_cuts(plan))
        else:
            self._encoder = make_encoder(a.matrix, *_cuts(plan), plan.compute)
        self._closed = False
        # By columns and dtype of the vectors; None where quick rounds are not possible.
        self._repeated: dict[tuple[int, np.dtype], Repeated | None] = {}

    @property
    def last_report(self) -> Report | None:
        """What happened in the latest product; it is drawn up when it is asked for."""
        if callable(self._last):
            self._last = self._last()
        return self._last

    def matvec(self, x: ArrayLike, *, timeout: float | None = None) -> NDArray[Any]:
        """Return ``A @ x`` for ``x`` of shape (L,) or (L, c).

        Replies are checked if the matrix was stored with ``verify="locate"``, ``x`` is finite and
        the product is far from overflow.

        Raises
        ------
        UsageError
            ``x`` has the wrong length, or holds NaN, Inf or entries near overflow while the code
            mixes blocks.
        NotDecodable, WorkerError
            As in :func:`codedla.matmul`.
        PoolClosed
            After :meth:`close`.
        """
        if self._closed:
            raise PoolClosed("this coded matrix is closed; store it again")
        if (y := self._again(x, timeout)) is not None:
            return y
        vector, b = _as_columns(x)
        if b.shape[0] != self.shape[1]:
            raise UsageError(f"x must have {self.shape[1]} entries; got {b.shape[0]}")
        # The code was chosen for a finite A; what x holds is known only now.
        summable = combinable(self._a, b, self.plan.dtype)
        if not self.plan.code.only_plain and not summable:
            raise UsageError(
                f"x must be finite and not so large that sums could overflow: code "
                f"{self.plan.code.name!r} would spread NaN or Inf to other entries; "
                "store the matrix with code='replication'"
            )
        plan = self._plan_for(b)
        check = self._check.of(b) if self._check is not None and summable else None
        product = Product(plan, self._pool, keys_a=self._keys, encoder_a=self._encoder, check=check)
        y, self._last = run_product(product, self._a, b, timeout=timeout)
        self._note(plan, b)
        return y[:, 0] if vector else y

    def _again(self, x: ArrayLike, timeout: float | None) -> NDArray[Any] | None:
        """Return the product if it is one of many and nothing is out of the ordinary."""
        if type(x) is not np.ndarray or x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            return None
        columns = x if x.ndim == 2 else x[:, None]
        repeated = self._repeated.get((columns.shape[1], x.dtype))
        if repeated is None or (timeout is not None and not timeout > 0):
            return None
        check_of = None if self._check is None else self._check.of
        found = repeated.multiply(columns, check_of, timeout)
        if found is None:
            return None
        y, self._last = found
        return y[:, 0] if x.ndim == 1 else y

    def _note(self, plan: Plan, b: Checked) -> None:
        """Prepare for more products with vectors like this one."""
        kind = (b.shape[1], b.dtype)
        if kind in self._repeated or b.dtype.kind not in "fc" or b.nnz is not None:
            return
        if len(self._repeated) >= _KINDS:
            self._repeated.clear()
        pool, first = self._pool, self._keys[0]
        # Where several threads store matrices, keys need not follow each other.
        in_order = self._keys == list(range(first, first + len(self._keys)))
        if isinstance(pool, QuickPool) and in_order and Repeated.possible(plan, pool.n_workers):
            self._repeated[kind] = Repeated(self._a, plan, pool, first)
        else:
            self._repeated[kind] = None

    def __matmul__(self, x: ArrayLike) -> NDArray[Any]:
        return self.matvec(x)

    def close(self) -> None:
        """Free the workers' shares; idempotent."""
        if not self._closed:
            self._closed = True
            self._settle()
            self._pool.drop(self._keys)

    def __enter__(self) -> CodedMatrix:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _plan_for(self, b: Checked) -> Plan:
        """Return the plan for this vector: the same code, its number of columns and dtype."""
        rows, inner, cols = self.plan.shape
        dtype = np.result_type(self.plan.dtype, b.dtype)
        if cols == b.shape[1] and dtype == self.plan.dtype:
            return self.plan
        return replace(self.plan, shape=(rows, inner, b.shape[1]), dtype=dtype)


def _cuts(plan: Plan) -> tuple[Split, Split]:
    """Return how the rows and the columns of A are cut."""
    rows, inner, _ = plan.shape
    return Split(rows, plan.grid.m), Split(inner, plan.grid.p)


def _column_of(out: NDArray[Any], plan: Plan) -> NDArray[Any]:
    """Return a caller's vector as a column."""
    rows = plan.shape[0]
    if not isinstance(out, np.ndarray) or out.shape != (rows,):
        got = f"{getattr(out, 'dtype', type(out).__name__)} {getattr(out, 'shape', '')}"
        raise UsageError(f"out must be a {plan.dtype} array of shape {(rows,)}; got {got}")
    return out[:, None]


def _as_columns(x: ArrayLike) -> tuple[bool, Checked]:
    """Check a vector; return whether it is one-dimensional, and it as a column."""
    array: Any = x if hasattr(x, "tocsr") else as_array(x, "x")
    if array.ndim not in (1, 2):
        raise UsageError(
            f"x must be a vector or a few columns; got {array.ndim} dimensions, "
            f"shape {tuple(array.shape)}; reshape it"
        )
    if array.ndim == 1:
        return True, as_operand(array[:, None], "x")
    return False, as_operand(array, "x")
