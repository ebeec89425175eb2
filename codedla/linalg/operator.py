"""A coded matrix as SciPy's linear operator: Krylov solvers run on it unchanged.

Every product that a solver asks for is one coded round on shares that stay on the workers, so that
late and lost workers delay no iteration. Where ``A^H @ y`` comes from is a choice:

separate
    A second set of shares, of ``A^T``, made when it is first needed: each worker holds twice as
    much. Any code; both products are equally cheap.
shared
    The one set of shares serves both (:mod:`codedla.codes.adjoint`). With the code "entangled" on
    an ``m x p`` grid ``m p + p - 1`` replies give ``A @ x``, and ``2 m p - p`` give ``A^H @ y``.
hermitian
    ``A^H = A``, as the caller says; one random vector is multiplied both ways to see.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from codedla.engine.arguments import check_choice, check_pool, positive
from codedla.engine.norms import norm
from codedla.engine.report import Report
from codedla.engine.round import Pool
from codedla.errors import PoolClosed, UsageError
from codedla.linalg.from_files import check_encode, mapped
from codedla.linalg.matvec import CodedMatrix, store
from codedla.linalg.operands import Checked, as_array, as_operand
from codedla.linalg.two_way import TwoWayMatrix, store_two_way

__all__ = ["CodedOperator", "Totals", "aslinearoperator", "asymmetry"]

Array = NDArray[Any]

ADJOINTS = ("separate", "shared", "hermitian")
"""Values of ``adjoint=``."""

_ASYMMETRY = 1e4
"""A matrix may differ from its adjoint by this many roundings, relative to its norm."""
_SEED = 60217


def aslinearoperator(
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
    adjoint: str = "separate",
    timeout: float | None = None,
) -> CodedOperator:
    """Store a matrix on the workers of a pool and return it as a SciPy linear operator.

    Parameters
    ----------
    A : array_like, scipy.sparse, memory map or h5py.Dataset (M, N)
        Floating or complex, kept in its own precision; integers and booleans are cast to float64
        (integers above ``2**53`` are rounded then). Do not change it while the operator is open.
    pool, code, blocks, tolerate, nodes, tolerance, speculate
        As in :func:`codedla.store`.
    memory : float, optional
        Bytes that the shares and replies of one worker may take, for each set of shares.
    encode : {"master", "workers"}
        workers: they read A themselves from its file, so that it may be larger than the master's
        memory; the master maps it and reads it once, in passing, to see that it is finite.
    verify : {"off", "locate"}
        As in :func:`codedla.store`; not with ``adjoint="shared"``.
    adjoint : {"separate", "shared", "hermitian"}
        Where ``A^H @ y`` comes from: a second set of shares, made on first use, so that workers
        hold twice as much; the same shares (codes uncoded, replication and entangled; without
        quick rounds); or the promise that ``A^H = A``.
    timeout : float, optional
        Seconds that each product may take.

    Returns
    -------
    CodedOperator
        A context manager; leaving it frees the workers' memory.

    Raises
    ------
    UsageError
        As by :func:`codedla.store`; or the matrix is not Hermitian, as was promised, or no code
        serves both ways as asked.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> from scipy.sparse.linalg import cg
    >>> A = np.diag(np.arange(1.0, 9.0)) + 0.1
    >>> with codedla.SerialPool(4) as pool, codedla.aslinearoperator(A, pool=pool) as op:
    ...     x, info = cg(op, np.ones(8))
    >>> info, bool(np.allclose(A @ x, 1, atol=1e-4))
    (0, True)
    """
    check_pool(pool)
    check_choice(adjoint, "adjoint", ADJOINTS)
    check_encode(encode, verify)
    if timeout is not None:
        timeout = positive(timeout, "timeout")
    matrix = mapped(A, "A") if encode == "workers" else A
    operand = as_operand(matrix, "A")
    if operand.dtype.kind in "iub":
        if encode == "workers":
            raise UsageError(
                "A must be floating or complex for workers to encode it; got "
                f"{operand.dtype}; convert the file, or use encode='master'"
            )
        operand = as_operand(operand.matrix.astype(np.float64), "A")
    options: dict[str, Any] = {
        "pool": pool,
        "code": code,
        "blocks": blocks,
        "tolerate": tolerate,
        "nodes": nodes,
        "tolerance": tolerance,
        "memory": memory,
        "speculate": speculate,
        "encode": encode,
    }
    if adjoint == "shared":
        if verify != "off":
            raise UsageError(
                f"replies of shares that serve both ways are not checked; got verify={verify!r}; "
                "use verify='off', or adjoint='separate'"
            )
        return CodedOperator(operand, store_two_way(operand, **options), timeout=timeout)
    if adjoint == "hermitian":
        _check_hermitian(operand)
    options["verify"] = verify
    forward = store(operand.matrix, **options)
    return CodedOperator(
        operand, forward, options, hermitian=adjoint == "hermitian", timeout=timeout
    )


@dataclass
class Totals:
    """What all products of an operator took.

    Parameters
    ----------
    rounds : int
        Products with A, its transpose or its adjoint.
    seconds : float
        Wall time in them, on the master.
    stragglers : Counter of int
        By rank, the products that were complete without its reply.
    """

    rounds: int = 0
    seconds: float = 0.0
    stragglers: Counter[int] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON-ready data."""
        return {
            "rounds": self.rounds,
            "seconds": round(self.seconds, 6),
            "stragglers": {str(rank): self.stragglers[rank] for rank in sorted(self.stragglers)},
        }


class CodedOperator(LinearOperator):  # type: ignore[misc]
    """A linear operator whose matrix lies on workers; made by :func:`aslinearoperator`.

    ``op @ x``, ``op.matvec``, ``rmatvec``, ``matmat``, ``rmatmat``, ``op.H``, ``op.T`` and all that
    SciPy builds of operators. Results are new arrays, the caller's to change. A context manager:
    leaving it, or :meth:`close`, frees the workers' memory.

    Parameters
    ----------
    a : Checked
    forward : CodedMatrix or TwoWayMatrix
        The latter serves the adjoint, too.
    options : dict, optional
        With which the transpose is stored when it is needed.
    hermitian : bool
        The adjoint is the operator itself.
    timeout : float, optional
        Seconds that each product may take.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    last_report : Report or None
        What happened in the latest product.
    totals : Totals
        What happened in all of them.
    """

    def __init__(
        self,
        a: Checked,
        forward: CodedMatrix,
        options: dict[str, Any] | None = None,
        *,
        hermitian: bool = False,
        timeout: float | None = None,
    ) -> None:
        super().__init__(forward.dtype, forward.shape)
        self.forward = forward
        self.hermitian = hermitian
        self.timeout = timeout
        self.totals = Totals()
        self._a, self._options = a, options
        self._backward: CodedMatrix | None = None
        self._latest: CodedMatrix | None = None
        self._closed = False

    @property
    def last_report(self) -> Report | None:
        """What happened in the latest product; None before the first."""
        return None if self._latest is None else self._latest.last_report

    def close(self) -> None:
        """Free the workers' memory; idempotent."""
        self._closed = True
        try:
            self.forward.close()
        finally:
            if self._backward is not None:
                self._backward.close()

    def __enter__(self) -> CodedOperator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- what SciPy asks for -------------------------------------------------------------------

    def _matvec(self, x: Any) -> Array:
        return self._multiply(x)

    def _matmat(self, X: Any) -> Array:
        return self._multiply(X)

    def _rmatvec(self, x: Any) -> Array:
        return self._multiply_adjoint(x)

    def _rmatmat(self, X: Any) -> Array:
        return self._multiply_adjoint(X)

    def _adjoint(self) -> LinearOperator:
        return self if self.hermitian else super()._adjoint()

    # -- rounds --------------------------------------------------------------------------------

    def _multiply(self, x: Any) -> Array:
        """Return ``A @ x``."""
        x = self._vectors(x)
        began = time.perf_counter()
        y = self.forward.matvec(x, timeout=self.timeout)
        self._note(self.forward, began)
        return y

    def _multiply_adjoint(self, y: Any) -> Array:
        """Return ``A^H @ y``, the conjugate of ``A^T`` times the conjugate of y."""
        if self.hermitian:
            return self._multiply(y)
        y = self._vectors(y)
        turned = y.conj() if y.dtype.kind == "c" else y
        began = time.perf_counter()
        if isinstance(self.forward, TwoWayMatrix):
            columns = turned if turned.ndim == 2 else turned[:, None]
            x = self.forward.left(columns, timeout=self.timeout)
            self._note(self.forward, began)
            x = x if turned.ndim == 2 else x[:, 0]
        else:
            if self._backward is None:
                self._backward = store(self._a.matrix.T, **(self._options or {}))
                began = time.perf_counter()  # of the product: storing is none
            x = self._backward.matvec(turned, timeout=self.timeout)
            self._note(self._backward, began)
        return x.conj() if x.dtype.kind == "c" else x

    def _vectors(self, x: Any) -> Array:
        """Return vectors in a dtype that workers compute with; refuse them after :meth:`close`."""
        if self._closed:
            raise PoolClosed("this coded operator is closed; make it again")
        x = as_array(x, "x")
        return x.astype(np.float64) if x.dtype.kind in "iub" else x

    def _note(self, matrix: CodedMatrix, began: float) -> None:
        self._latest = matrix
        self.totals.rounds += 1
        self.totals.seconds += time.perf_counter() - began
        report = matrix.last_report
        if report is not None:
            self.totals.stragglers.update(report.stragglers)


def _check_hermitian(a: Checked) -> None:
    """Refuse a matrix that is plainly not its own adjoint.

    Raises
    ------
    UsageError
    """
    rows, cols = a.shape
    if rows != cols:
        raise UsageError(
            f"a Hermitian matrix is square; got {rows} x {cols}; use adjoint='separate'"
        )
    gap = asymmetry(a)
    if gap:
        raise UsageError(
            "adjoint='hermitian' promises that A is its own adjoint; a random vector shows "
            f"||A - A^H|| / ||A|| = {gap:.1e}; use adjoint='separate' or 'shared'"
        )


def asymmetry(a: Checked) -> float:
    """Return about ``||A - A^H|| / ||A||`` of a square matrix; 0.0 where rounding explains it.

    A random vector ``u`` is multiplied both ways: with normal entries, the norm of
    ``(A - A^H) u`` is about that of ``A - A^H``. Of a matrix with NaN or Inf nothing can be told.
    """
    if not a.facts.finite or not a.facts.norm:
        return 0.0
    precision = np.empty(0, a.dtype).real.dtype
    probe = np.random.default_rng(_SEED).standard_normal(a.shape[0]).astype(precision)
    with np.errstate(all="ignore"):
        # Not A^H: its conjugate would be a copy of the whole matrix.
        gap = norm(a.matrix @ probe - (a.matrix.T @ probe).conj())
    gap /= a.facts.norm
    return gap if gap > _ASYMMETRY * float(np.finfo(a.dtype).eps) else 0.0
