"""Integer products over several prime fields, one round each, put together by the CRT.

The operands' residues are balanced and held in float64, so that workers compute an ordinary
product. What is combined in the end is exactly the integer product: NumPy's, which wraps around,
or in Python's integers, which do not (:func:`integer_matmul`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.blocks import Split
from codedla.codes.exact import ModularCode
from codedla.engine.arguments import positive
from codedla.engine.exact_encoder import modular_encoder, residues
from codedla.engine.facts import Facts
from codedla.engine.plan import Plan
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.errors import UsageError, VerificationFailed
from codedla.galois import Field
from codedla.linalg.field_check import FieldCheck
from codedla.linalg.masks import draw_masks
from codedla.linalg.merge import merge_reports, shifted, time_left
from codedla.linalg.operands import Checked, as_array, as_operand, largest_integer, plan_product
from codedla.linalg.product import Product, check_options, run_product
from codedla.linalg.verify import verify_product, worthwhile
from codedla.remainders import crt

__all__ = ["check_residues", "integer_matmul", "run_modular", "runner"]

Array = NDArray[Any]

_UNKNOWN = Facts(False, 0.0, 0.0)
"""Facts of residues: nobody asks how large they are or estimates errors from them."""


def runner(plan: Plan) -> Callable[..., tuple[Array, Report]]:
    """Return what runs a planned product: :func:`run_modular` over finite fields."""
    return run_modular if isinstance(plan.code, ModularCode) else run_product


def run_modular(
    product: Product,
    a: Checked,
    b: Checked,
    *,
    out: Array | None = None,
    verify: str = "off",
    timeout: float | None = None,
    progress: Progress | None = None,
) -> tuple[Array, Report]:
    """Run a product of integers that was planned with a code over GF(p).

    Parameters
    ----------
    product : Product
        Resident shares are not used: every prime has others.
    a, b : Checked
        Integer operands.
    out, verify, timeout, progress
        As in :func:`codedla.matmul`.

    Returns
    -------
    C : ndarray (M, N)
        Exactly NumPy's product, wrap-around included.
    report : Report
        Of all rounds together.

    Raises
    ------
    UsageError, NotDecodable, WorkerError, VerificationFailed
    """
    plan = product.plan
    if 0 in plan.shape:
        return run_product(product, a, b, out=out, verify=verify, timeout=timeout)
    check_options(plan, out, verify, progress)
    if verify == "auto":
        verify = "locate" if worthwhile(plan, a, b, product.pool.overhead) else "off"
    parts, primes, report = _rounds(
        plan, product.pool, a, b, largest_integer(a, b), verify, timeout, progress
    )
    check_residues(parts)
    whole = crt(parts, primes)
    if verify not in ("off", "spares"):
        verify_product(a, b, whole)
    report.verified = verify
    result = whole != 0 if plan.dtype.kind == "b" else whole.astype(plan.dtype, copy=False)
    if out is not None:
        out[...] = result
        return out, report
    return result, report


def check_residues(parts: Sequence[NDArray[Any]]) -> None:
    """Raise VerificationFailed if what was decoded cannot come from right replies."""
    for part in parts:
        if part.dtype.kind == "f" and not np.array_equal(part, np.rint(part)):
            raise VerificationFailed(
                "replies in a prime field must be whole numbers; got fractions or NaN; a rank "
                "computes wrongly: verify='locate' or 'spares' finds it"
            )


def integer_matmul(
    A: ArrayLike,
    B: ArrayLike,
    *,
    pool: Pool,
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    verify: str = "off",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Array | tuple[Array, Report]:
    """Multiply integer matrices without overflow: the product holds Python integers.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
        Integers of any size: bool, int8 to uint64, or Python integers (dtype object).
    B : array_like or scipy.sparse (L, N)
    pool, blocks, tolerate, return_report, timeout, progress
        As in :func:`codedla.matmul`.
    verify : {"off", "locate"}
        "locate": check every reply, and go on without workers that answer wrongly.

    Returns
    -------
    C : ndarray (M, N), dtype object
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError, NotDecodable, WorkerError
        As in :func:`codedla.matmul`.

    Examples
    --------
    >>> import codedla
    >>> with codedla.SerialPool(4) as pool:
    ...     int(codedla.integer_matmul([[2**62, 3]], [[2**62], [-1]], pool=pool)[0, 0])
    21267647932558653966460912964485513213
    """
    if verify not in ("off", "locate"):
        raise UsageError(f"verify must be 'off' or 'locate' here; got {verify!r}; choose one")
    a, b = _integers(A, "A"), _integers(B, "B")
    largest = _magnitude(a.matrix) * _magnitude(b.matrix) * max(a.shape[1], 1)
    # Only the shapes matter here: this code is right for integers of any size.
    unit = np.zeros((), np.int8)
    plan = plan_product(
        Checked(np.broadcast_to(unit, a.shape), _UNKNOWN),
        Checked(np.broadcast_to(unit, b.shape), _UNKNOWN),
        pool,
        operation="matmul",
        code="galois",
        blocks=blocks,
        tolerate=tolerate,
        largest=largest,
    )
    plan = replace(plan, dtype=np.dtype(object))
    check_options(plan, None, verify, progress)
    if 0 in plan.shape:
        # An empty sum is the integer 0.
        product: Array = np.zeros((plan.shape[0], plan.shape[2]), dtype=object)
        report = merge_reports(plan, plan.shape[0], [], {})
    else:
        parts, primes, report = _rounds(plan, pool, a, b, largest, verify, timeout, progress)
        check_residues(parts)
        product = crt(parts, primes, wrap=False)
        report.verified = verify
    return (product, report) if return_report else product


def _rounds(
    plan: Plan,
    pool: Pool,
    a: Checked,
    b: Checked,
    largest: int,
    verify: str,
    timeout: float | None,
    progress: Progress | None,
) -> tuple[list[Array], tuple[int, ...], Report]:
    """Run one round for each prime; return residues, primes, and the report of all rounds."""
    timeout = None if timeout is None else positive(timeout, "timeout")
    rows, inner, cols = plan.shape
    grid, code = plan.grid, plan.code
    assert isinstance(code, ModularCode)
    splits = Split(rows, grid.m), Split(inner, grid.p), Split(cols, grid.n)
    primes = code.primes(splits[1].size * code.stack[1], largest)
    parts: list[Array] = []
    reports: list[Report] = []
    for index, p in enumerate(primes):
        field, of_prime = Field(p), code.modulo(p)
        left, right = residues(a.matrix, field), residues(b.matrix, field)
        masks = draw_masks(
            of_prime, (splits[0].size, splits[1].size), (splits[1].size, splits[2].size)
        )
        check = FieldCheck(of_prime, left, right, masks).check if verify == "locate" else None
        product = Product(
            replace(
                plan,
                code=of_prime,
                dtype=np.dtype(np.float64),
                compute=np.dtype(np.float64),
                tolerance=1.0,
                # Said once, before the first.
                warnings=() if index else plan.warnings,
            ),
            pool,
            encoder_a=modular_encoder(left, splits[0], splits[1], field, masks[0]),
            encoder_b=modular_encoder(right, splits[1], splits[2], field, masks[1]),
            check=check,
        )
        values, report = run_product(
            product,
            Checked(left, _UNKNOWN),
            Checked(right, _UNKNOWN),
            verify="spares" if verify == "spares" else "off",
            timeout=time_left(timeout, reports),
            progress=shifted(progress, index, len(primes)),
        )
        parts.append(values)
        reports.append(report)
    merged = merge_reports(plan, rows, reports, {})
    merged.amplification, merged.error_estimate = 1.0, 0.0
    return parts, primes, merged


def _integers(value: Any, name: str) -> Checked:
    """Check an operand of any integers, those of Python included."""
    sparse = hasattr(value, "tocsr")
    array = value if sparse else as_array(value, name)
    if sparse or array.dtype != object:
        operand = as_operand(array, name)
        if operand.dtype.kind not in "iub":
            raise UsageError(f"{name} must hold integers; got {operand.dtype}; round and cast it")
        return operand
    kinds = int | np.integer | np.bool_
    odd = [type(entry).__name__ for entry in array.flat if not isinstance(entry, kinds)]
    if array.ndim != 2 or odd:
        raise UsageError(
            f"{name} must be a matrix of integers; got {array.ndim} dimensions of "
            f"{odd[0] if odd else 'integers'}; reshape or convert it"
        )
    # Of Python, all of them: NumPy's own would wrap around, or refuse to meet larger ones.
    whole = np.array([int(entry) for entry in array.flat], dtype=object).reshape(array.shape)
    return Checked(whole, _UNKNOWN)


def _magnitude(matrix: Any) -> int:
    """Return the largest magnitude in a matrix of integers, as a Python integer."""
    entries = matrix if isinstance(matrix, np.ndarray) else matrix.data
    if entries.size == 0:
        return 0
    return max(int(entries.max()), -int(entries.min()))
