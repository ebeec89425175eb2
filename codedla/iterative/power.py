r"""Power iteration on coded products: the eigenvalue of largest magnitude, and its eigenvector.

.. math:: x \leftarrow A x / \|A x\|, \qquad \lambda = x^H A x
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.engine.arguments import positive, whole_number
from codedla.engine.norms import norm, unit
from codedla.engine.report import Report
from codedla.engine.round import Pool
from codedla.errors import CodedlaWarning, UsageError
from codedla.iterative.products import Products, open_products
from codedla.iterative.tally import Tally
from codedla.linalg.operands import as_array

__all__ = ["Callback", "Eigenpair", "power_iteration", "start_block"]

Array = NDArray[Any]
Callback = Callable[[int, float, Report | None], object]
"""``callback(round, residual, report)``, called on the master after every round."""

SEED = 314_159
_TOL = 1e-10
_ROUNDS = 1000


@dataclass
class Eigenpair:
    """What :func:`power_iteration` found.

    Parameters
    ----------
    value : float or complex
        Eigenvalue estimate (Rayleigh quotient).
    vector : ndarray (n,)
        Of norm 1.
    residual : float
        ``||A x - value x||``, relative to the value.
    rounds : int
    converged : bool
    tally : Tally
        What happened in the rounds.
    """

    value: float | complex
    vector: Array
    residual: float
    rounds: int
    converged: bool
    tally: Tally = field(repr=False)


def power_iteration(
    A: Any,
    *,
    pool: Pool | None = None,
    tol: float = _TOL,
    rounds: int = _ROUNDS,
    start: ArrayLike | None = None,
    seed: int = SEED,
    callback: Callback | None = None,
    decode: str = "exact",
    **options: Any,
) -> Eigenpair:
    """Find the eigenvalue of largest magnitude of a square matrix.

    Parameters
    ----------
    A : array_like, scipy.sparse, CodedMatrix or LinearOperator (n, n)
        Stored on the pool's workers for the iteration, unless it is already.
    pool : Pool, optional
        Where to store a plain matrix.
    tol : float
        Stop when ``||A x - value x|| <= tol * |value|``.
    rounds : int
        Largest number of products.
    start : array_like (n,), optional
        Where to begin; by default a random vector of the seed.
    seed : int
    callback : callable, optional
        ``callback(round, residual, report)`` after every round.
    decode : {"exact", "substitute", "stale", "least-squares"}
        "substitute": no round waits for decodability, see :class:`SubstituteMatrix`.
    **options
        Of :func:`codedla.store`, or for the other decodings of :class:`SubstituteMatrix`.

    Returns
    -------
    Eigenpair
        Not ``converged``, and a warning, when the rounds were not enough.

    Raises
    ------
    UsageError
        Not square, or an option that does not exist.
        Or products are not finite.
    NotDecodable, WorkerError
        As in :func:`codedla.matmul`.
    """
    tol, rounds = positive(tol, "tol"), whole_number(rounds, "rounds", least=1)
    products = open_products(A, pool, decode, **options)
    try:
        return _iterate(products, tol, rounds, start, seed, callback)
    finally:
        products.close()


def _iterate(
    products: Products,
    tol: float,
    rounds: int,
    start: ArrayLike | None,
    seed: int,
    callback: Callback | None,
) -> Eigenpair:
    check_square(products.shape)
    x = start_block(products, 1, seed, start)
    y = x
    tally = Tally()
    value: Any = 0.0
    residual, converged = np.inf, False
    before = x
    while not converged and tally.rounds < rounds:
        # What the product would be if nothing but the scale of x had changed.
        y = products.multiply(x, y * np.vdot(before, x))
        value = np.vdot(x, y)
        size = float(abs(value))
        error = norm(y - value * x)
        residual = error / size if size else error
        tally.add(products.last_report)
        converged = products.settled(error <= tol * size)
        if callback is not None:
            callback(tally.rounds, residual, products.last_report)
        if not converged and y.any():
            before, x = x, unit(y)
    if not converged:
        tell_unfinished("power iteration", tally.rounds, residual, tol)
    number = complex(value) if np.iscomplexobj(value) else float(value)
    return Eigenpair(number, x[:, 0], residual, tally.rounds, bool(converged), tally)


def check_square(shape: tuple[int, int]) -> None:
    """Raise UsageError unless a matrix of this shape has eigenvalues."""
    if shape[0] != shape[1] or shape[0] == 0:
        raise UsageError(
            f"eigenvalues are those of a square matrix; got shape {shape}; use truncated_svd"
        )


def start_block(
    products: Products, columns: int, seed: int, start: ArrayLike | None = None
) -> Array:
    """Return orthonormal columns (n, columns) to start from: the caller's, or random ones.

    Raises
    ------
    UsageError
        The caller's have another shape, or are not finite or linearly dependent.
    """
    n = products.shape[1]
    dtype = np.result_type(products.dtype, np.float32)
    if start is None:
        drawn = np.random.default_rng(seed).standard_normal((n, columns))
        return np.linalg.qr(drawn.astype(dtype))[0]
    given = as_array(start, "start")
    given = given[:, None] if given.ndim == 1 else given
    fits = given.shape == (n, columns) and given.dtype.kind in "iubfc"
    if not fits or not np.isfinite(given).all():
        raise UsageError(
            f"start must be {columns} finite column(s) of {n} entries; got {given.dtype} of shape "
            f"{given.shape}; leave it out"
        )
    kind = np.result_type(dtype, given.dtype)
    if kind.char in "gG":  # LAPACK has none of these
        kind = np.dtype(np.complex128 if kind.kind == "c" else np.float64)
    q, r = np.linalg.qr(given.astype(kind))
    diagonal = np.abs(np.diag(r))
    if not diagonal.min() > np.finfo(dtype).eps * diagonal.max():
        raise UsageError(
            "columns of start must be linearly independent; got dependent ones; leave it out"
        )
    return q


def tell_unfinished(what: str, rounds: int, reached: float, tol: float) -> None:
    """Warn that an iteration ended before it had converged."""
    warnings.warn(
        f"{what} ended after {rounds} rounds at {reached:.1e}, above {tol:.1e}; allow more rounds",
        CodedlaWarning,
        stacklevel=4,
    )
