"""The products of an iteration behind one face: decoded exactly, or by substitution."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import check_choice
from codedla.engine.report import Report
from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.substitute import SubstituteMatrix, check_product
from codedla.linalg.matvec import store

__all__ = ["DECODINGS", "GENERATOR_OF", "Exact", "Products", "open_products"]

Array = NDArray[Any]

DECODINGS = ("exact", "substitute", "stale", "least-squares")
"""How products are decoded. The last one, which fills what is unknown with zeros, is there to be
compared with: iterations do not converge with it."""
GENERATOR_OF = {"substitute": "sparse", "stale": "replication", "least-squares": "sparse"}
"""What the shares are of decodings that are not exact."""
_SUBSTITUTE_OPTIONS = ("blocks", "weight", "tolerate", "deadline", "erasures", "seed")
_EXACT_OPTIONS = ("code", "blocks", "tolerate", "nodes", "tolerance", "memory", "speculate")


class Products(Protocol):
    """Products with one matrix, again and again."""

    shape: tuple[int, int]
    dtype: np.dtype

    @property
    def last_report(self) -> Report | None:
        """What happened in the latest product."""
        ...

    def multiply(self, x: Array, previous: Array) -> Array:
        """Return ``A @ x`` for columns ``x``, or an estimate that starts from ``previous``."""
        ...

    def settled(self, small: bool) -> bool:
        """Tell whether a change of the iterate, ``small`` or not, shows that it has converged."""
        ...

    def close(self) -> None:
        """Free what was stored for the iteration; idempotent."""
        ...


class Exact:
    """Products by a stored matrix, or anything else with ``@`` and ``shape``.

    Parameters
    ----------
    matrix : CodedMatrix or LinearOperator
    owned : bool
        Whether it is closed with this.
    """

    def __init__(self, matrix: Any, *, owned: bool) -> None:
        self._matrix, self._owned = matrix, owned
        self.shape: tuple[int, int] = tuple(matrix.shape)
        self.dtype = np.dtype(matrix.dtype)

    @property
    def last_report(self) -> Report | None:
        """What happened in the latest product."""
        return getattr(self._matrix, "last_report", None)

    def multiply(self, x: Array, previous: Array) -> Array:
        """Return ``A @ x``; see :class:`Products`."""
        y: Array = self._matrix @ x
        check_product(y)
        return y

    def settled(self, small: bool) -> bool:
        """Return ``small``: exact products can be believed."""
        return small

    def close(self) -> None:
        """Close the matrix if it was stored here."""
        if self._owned:
            self._matrix.close()


class _Forgetful(SubstituteMatrix):
    """Plain least squares: nothing is known from before."""

    def multiply(self, x: Array, previous: Array) -> Array:
        """Return the estimate of least norm; see :class:`SubstituteMatrix`."""
        return super().multiply(x, np.zeros_like(previous))


def open_products(A: Any, pool: Pool | None, decode: str, **options: Any) -> Products:
    """Store a matrix for an iteration.

    Parameters
    ----------
    A : array_like, scipy.sparse, CodedMatrix or LinearOperator
        What is stored already, or need not be stored, is used as it is.
    pool : Pool or None
        None only with a matrix that is stored already.
    decode : str
        One of :data:`DECODINGS`.
    **options
        Of :func:`codedla.store` or :class:`SubstituteMatrix`.

    Raises
    ------
    UsageError
        An option that this decoding does not have, or what storing raises.
    """
    check_choice(decode, "decode", DECODINGS)
    ready = hasattr(A, "matvec") and hasattr(A, "shape")
    if ready:
        if options or decode != "exact":
            raise UsageError(
                "a matrix that is stored already is used as it is; got "
                f"decode={decode!r} and {sorted(options)}; pass the plain matrix"
            )
        return Exact(A, owned=False)
    if pool is None:
        raise UsageError("a matrix needs a pool to be stored on; got pool=None; pass one")
    known = _EXACT_OPTIONS if decode == "exact" else _SUBSTITUTE_OPTIONS
    if strange := sorted(set(options) - set(known)):
        raise UsageError(
            f"decode={decode!r} has the options {', '.join(known)}; got {', '.join(strange)}; "
            "leave them out"
        )
    if decode == "exact":
        if np.dtype(A.dtype if hasattr(A, "dtype") else np.asarray(A).dtype).kind in "iub":
            A = A.astype(np.float64) if hasattr(A, "astype") else np.asarray(A, np.float64)
        return Exact(store(A, pool=pool, **options), owned=True)
    kind = _Forgetful if decode == "least-squares" else SubstituteMatrix
    return kind(A, pool=pool, generator=GENERATOR_OF[decode], **options)
