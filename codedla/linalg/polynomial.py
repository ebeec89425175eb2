"""What polynomial functions are called with: residues on the workers, and a trace beforehand.

A function built from ``+ - * @ **`` and ``.T`` works on arrays, on :class:`Residues` (exactly,
modulo a prime) and on :class:`Trace`, which finds its degree, the shape of its result and how large
that can be, with nothing computed. What would mean something else on one of the three, such as a
comparison or a NumPy function, is refused by the trace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.galois import Field

__all__ = ["Residues", "Trace", "over_field", "over_reals", "trace"]

Array = NDArray[Any]

MOST_POWER = 100_000
"""Larger exponents would need as many workers."""


class _Symbol:
    """Stands for a matrix; whatever is not defined for it is refused rather than guessed."""

    # Arrays on the left leave the operation to the right.
    __array_ufunc__ = None

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("that is not one of + - * @ ** and .T, or works in place (as += does)")

    # Else NumPy would take this for a number, and call the product of two of them a matrix's.
    __array__ = __array_function__ = _refuse
    # Else all of these have a meaning that has nothing to do with the entries.
    __bool__ = __eq__ = __ne__ = __hash__ = _refuse
    # Of arrays these change what other names and views see.
    __iadd__ = __isub__ = __imul__ = __imatmul__ = __ipow__ = _refuse


class Residues(_Symbol):
    """A matrix modulo a prime that behaves like an array of integers.

    Parameters
    ----------
    field : Field
    values : array_like of int
    """

    def __init__(self, field: Field, values: Any) -> None:
        self.field, self.values = field, field.reduce(values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return self.values.shape

    @property
    def T(self) -> Residues:
        """The transposed matrix."""
        return Residues(self.field, self.values.T)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any], swapped: bool) -> Residues:
        right = other.values if isinstance(other, Residues) else self.field.reduce(other)
        pair = (right, self.values) if swapped else (self.values, right)
        return Residues(self.field, operation(*pair))

    def __add__(self, other: Any) -> Residues:
        return self._with(other, operator.add, False)

    def __radd__(self, other: Any) -> Residues:
        return self._with(other, operator.add, True)

    def __sub__(self, other: Any) -> Residues:
        return self._with(other, operator.sub, False)

    def __rsub__(self, other: Any) -> Residues:
        return self._with(other, operator.sub, True)

    def __mul__(self, other: Any) -> Residues:
        return self._with(other, self.field.multiply, False)

    def __rmul__(self, other: Any) -> Residues:
        return self._with(other, self.field.multiply, True)

    def __matmul__(self, other: Any) -> Residues:
        return self._with(other, self.field.matmul, False)

    def __rmatmul__(self, other: Any) -> Residues:
        return self._with(other, self.field.matmul, True)

    def __neg__(self) -> Residues:
        return Residues(self.field, -self.values)

    def __pow__(self, exponent: int) -> Residues:
        return Residues(self.field, self.field.power(self.values, exponent))


class Trace(_Symbol):
    """A matrix of which only shape, degree in the data and largest entry are known.

    Parameters
    ----------
    shape : tuple of int
    degree : int
    largest : int or float
        No entry is larger in magnitude.
    """

    def __init__(self, shape: tuple[int, ...], degree: int, largest: Any) -> None:
        self.shape, self.degree, self.largest = shape, degree, largest

    @property
    def T(self) -> Trace:
        """The transposed matrix."""
        return Trace(self.shape[::-1], self.degree, self.largest)

    def _sum(self, other: Any) -> Trace:
        right = _as_trace(other)
        shape = np.broadcast_shapes(self.shape, right.shape)
        return Trace(shape, max(self.degree, right.degree), self.largest + right.largest)

    def __mul__(self, other: Any) -> Trace:
        right = _as_trace(other)
        shape = np.broadcast_shapes(self.shape, right.shape)
        return Trace(shape, self.degree + right.degree, self.largest * right.largest)

    __add__ = __radd__ = __sub__ = __rsub__ = _sum
    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Trace:
        return _product(self, _as_trace(other))

    def __rmatmul__(self, other: Any) -> Trace:
        return _product(_as_trace(other), self)

    def __neg__(self) -> Trace:
        return self

    def __pow__(self, exponent: int) -> Trace:
        count = operator.index(exponent)
        if count < 0:
            raise TypeError("only powers from 0 on are polynomials")
        if count > MOST_POWER:
            raise TypeError(f"powers can be up to {MOST_POWER}")
        return Trace(self.shape, count * self.degree, self.largest**count)


def _product(a: Trace, b: Trace) -> Trace:
    if len(a.shape) != 2 or len(b.shape) not in (1, 2) or a.shape[1] != b.shape[0]:
        raise TypeError(f"shapes {a.shape} and {b.shape} cannot be multiplied")
    terms = a.shape[1] * a.largest * b.largest
    return Trace((a.shape[0], *b.shape[1:]), a.degree + b.degree, terms)


def _as_trace(value: Any) -> Trace:
    """Return a constant of the function as a trace of degree 0."""
    if isinstance(value, Trace):
        return value
    if isinstance(value, int):
        # One of Python's may be larger than any of NumPy's.
        return Trace((), 0, abs(value))
    if isinstance(value, np.matrix | np.ma.MaskedArray):
        # Their products are of another kind, which the workers' would not be.
        raise TypeError(f"constants must be plain arrays, not {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype.kind not in "iubf" or array.size == 0:
        raise TypeError(f"constants must be real numbers, not {array.dtype} of {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise TypeError("constants must be finite, not NaN or Inf")
    whole = array.dtype.kind in "iub"
    largest = max(int(array.max()), -int(array.min())) if whole else float(np.abs(array).max())
    return Trace(array.shape, 0, largest)


def _called(function: Callable[..., Any]) -> str:
    """Return a function's name, not its address."""
    return getattr(function, "__qualname__", None) or repr(function)


def trace(function: Callable[..., Any], operands: list[Trace]) -> Trace:
    """Return what is known of the result of a function; for all operands of degree 1.

    Raises
    ------
    UsageError
        It is not built from ``+ - * @ **`` and ``.T``, or the result is not a matrix of the data.
    """
    try:
        found = function(*operands)
    except OverflowError as error:
        raise UsageError(
            "a function's results must be far from overflow of float64; got "
            f"{_called(function)} of blocks this large; scale them down, or use integers"
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise UsageError(
            "a function must be a polynomial built from + - * @ ** and .T on matrices; got "
            f"{_called(function)}: {type(error).__name__}: {text}; write it with these"
        ) from error
    if not isinstance(found, Trace) or len(found.shape) != 2 or found.degree < 1:
        what = type(found).__name__
        if isinstance(found, Trace):
            what = f"shape {found.shape} and degree {found.degree}"
        raise UsageError(
            f"a function must return a matrix that depends on its arguments; got {what}; give "
            "the result two dimensions"
        )
    return found


def over_field(function: Callable[..., Any], p: int, *shares: Array) -> Array:
    """Call a function of residues; what a worker does."""
    field = Field(p)
    result = function(*(Residues(field, share) for share in shares))
    return field.balanced(result.values)


def over_reals(function: Callable[..., Any], *shares: Array) -> Array:
    """Call a function of arrays; what a worker does."""
    return np.asarray(function(*shares), dtype=np.float64)
