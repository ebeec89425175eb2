"""Checked operands: 2-D numeric matrices, dense or sparse, with the facts that coding needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import check_pool
from codedla.engine.facts import Facts, canonical, scan, spread
from codedla.engine.plan import Plan, compute_dtype, make_plan
from codedla.engine.round import Pool
from codedla.errors import UsageError

__all__ = [
    "Checked",
    "as_array",
    "as_operand",
    "check_kind",
    "combinable",
    "largest_integer",
    "plan_product",
]

EXACT_BELOW = 2.0**53
"""Integers of smaller magnitude are exact in float64."""
COMBINATION_GROWTH = 1e4
"""Generous bound on how much coding may enlarge entries; only used to foresee overflow."""


@dataclass(frozen=True)
class Checked:
    """An operand that passed the checks."""

    matrix: Any
    facts: Facts

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        rows, cols = self.matrix.shape
        return int(rows), int(cols)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the caller's matrix."""
        return np.dtype(self.matrix.dtype)

    @cached_property
    def row_spread(self) -> float:
        """How much the rows differ in size; see :func:`codedla.engine.facts.spread`."""
        return spread(self.matrix, 1)

    @cached_property
    def column_spread(self) -> float:
        """How much the columns differ in size."""
        return spread(self.matrix, 0)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The memory that holds the entries."""
        if isinstance(self.matrix, np.ndarray):
            return (self.matrix,)
        return self.matrix.data, self.matrix.indices, self.matrix.indptr

    @property
    def nnz(self) -> int | None:
        """Stored entries of a sparse matrix, None for a dense one."""
        return None if isinstance(self.matrix, np.ndarray) else int(self.matrix.nnz)


def as_operand(value: Any, name: str) -> Checked:
    """Check one operand.

    Parameters
    ----------
    value : array_like or scipy.sparse, 2-D
    name : str
        How messages call it.

    Raises
    ------
    UsageError
        Not two-dimensional, or a dtype that cannot be multiplied.
    """
    matrix = value
    if not (hasattr(value, "tocsr") and hasattr(value, "nnz")):
        matrix = as_array(value, name)
    if matrix.ndim != 2:
        raise UsageError(
            f"{name} must be a matrix (2 dimensions); got {matrix.ndim} dimensions, "
            f"shape {tuple(matrix.shape)}; reshape it"
        )
    check_kind(np.dtype(matrix.dtype), name)
    if not isinstance(matrix, np.ndarray):
        _check_indices(matrix, name)
        matrix = canonical(matrix)
    return Checked(matrix, scan(matrix))


def check_kind(dtype: np.dtype, name: str) -> None:
    """Raise UsageError unless matrices of this dtype can be multiplied."""
    try:
        compute_dtype(dtype)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return anything array-like as an array; a memory map or plain array is kept as it is.

    Raises
    ------
    UsageError
        Rows of different lengths and the like, or a masked array.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            f"{name} is a masked array, whose mask a product would drop; pass .filled(...) or .data"
        )
    try:
        # np.matrix and other subclasses lose their own multiplication.
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} must be an array of numbers; got {type(value).__name__} ({error}); "
            "make it an array first"
        ) from error


def _check_indices(matrix: Any, name: str) -> None:
    """Refuse a compressed matrix that points outside itself: compiled code would write there."""
    if matrix.format not in ("csr", "csc", "bsr"):
        return  # SciPy checks the others when they are made, and converts them with checks
    minor = matrix.shape[0] if matrix.format == "csc" else matrix.shape[1]
    if matrix.format == "bsr":
        minor //= matrix.blocksize[1]
    starts, indices = matrix.indptr, matrix.indices
    sound = (
        starts[0] == 0
        and starts[-1] <= min(len(indices), len(matrix.data))
        and bool((starts[1:] >= starts[:-1]).all())
    )
    used = indices[: starts[-1]]
    if not sound or (used.size and not 0 <= used.min() <= used.max() < minor):
        raise UsageError(
            f"{name} must be a sparse matrix with indices inside it; got {matrix.format} of shape "
            f"{tuple(matrix.shape)} that points outside; build it again, for instance from COO"
        )


def plan_product(a: Checked, b: Checked, pool: Pool, *, operation: str, **options: Any) -> Plan:
    """Plan ``a @ b`` on a pool with what the values of the operands demand.

    Raises
    ------
    UsageError
        No code can compute this product as asked; see :func:`codedla.engine.plan.make_plan`.
    """
    check_pool(pool)
    dtype = np.result_type(a.dtype, b.dtype)
    bound = _largest_entry(a, b)
    arguments: dict[str, Any] = {
        "operation": operation,
        "nnz": (a.nnz, b.nnz),
        **options,
    }
    if dtype.kind in "iub":
        arguments.setdefault("largest", largest_integer(a, b))
        if bound * 8 < EXACT_BELOW:
            # Rounding to the nearest integer is right while decoding errs by less than a half.
            exact_to = 0.05 / max(bound, 1.0)
            tolerance = arguments.get("tolerance")
            arguments["tolerance"] = exact_to if tolerance is None else min(tolerance, exact_to)
            arguments["strict"] = True
        else:
            arguments["exact_integers"] = True
    else:
        arguments["plain_only"] = not combinable(a, b, dtype)
    return make_plan(a.shape, b.shape, dtype, pool.n_workers, **arguments)


def combinable(a: Checked, b: Checked, dtype: np.dtype) -> bool:
    """Tell whether blocks of the operands may be summed: all finite, and far from overflow.

    Parameters
    ----------
    a, b : Checked
    dtype : numpy.dtype
        Floating or complex dtype of the product.
    """
    ceiling = float(np.finfo(compute_dtype(dtype)).max) / COMBINATION_GROWTH
    finite = a.facts.finite and b.facts.finite
    return finite and max(_largest_entry(a, b), a.facts.max_abs, b.facts.max_abs) < ceiling


def largest_integer(a: Checked, b: Checked) -> int:
    """Bound the magnitude of the entries of an integer product, on the safe side of rounding."""
    return math.ceil(_largest_entry(a, b) * (1 + 2.0**-40))


def _largest_entry(a: Checked, b: Checked) -> float:
    """Bound the magnitude of the product's entries."""
    return a.facts.max_abs * b.facts.max_abs * max(a.shape[1], 1)
