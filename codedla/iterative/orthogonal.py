r"""Orthogonal iteration on coded products: several eigenpairs, the truncated SVD, PCA.

With ``p`` orthonormal columns ``Q``, a few more than are wanted,

.. math:: Y = A Q, \qquad Q \leftarrow \mathrm{qr}(Y),

and Rayleigh-Ritz in the span of ``Q`` after every product. For singular triplets the products are
by ``A`` and by ``A^H`` in turns. Column ``j`` converges like :math:`|\sigma_{p+1} / \sigma_j|` to
the power of the rounds (squared, for the SVD).

References
----------
G. H. Golub, C. F. Van Loan, "Matrix Computations", 4th ed. (2013), sections 7.3 and 8.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.engine.arguments import positive, whole_number
from codedla.engine.norms import column_norms
from codedla.engine.report import Report
from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.power import SEED, Callback, check_square, start_block, tell_unfinished
from codedla.iterative.products import Exact, Products, open_products
from codedla.iterative.tally import Tally
from codedla.linalg.operands import as_array

__all__ = [
    "Eigenpairs",
    "SingularTriplets",
    "iterate_triplets",
    "open_both",
    "orthogonal_iteration",
    "truncated_svd",
]

Array = NDArray[Any]

_TOL = 1e-8
_ROUNDS = 1000
EXTRA = 8
"""Columns iterated beyond those that are wanted: they make the wanted ones converge faster."""


@dataclass
class Eigenpairs:
    """What :func:`orthogonal_iteration` found.

    Parameters
    ----------
    values : ndarray (k,)
        By falling magnitude.
    vectors : ndarray (n, k)
        Orthonormal.
    residual : float
        Largest ``||A v - value v||``, relative to the largest value.
    rounds : int
        Products.
    converged : bool
    tally : Tally
    """

    values: Array
    vectors: Array
    residual: float
    rounds: int
    converged: bool
    tally: Tally = field(repr=False)


@dataclass
class SingularTriplets:
    """What :func:`truncated_svd` found: ``A`` is nearly ``U @ diag(s) @ Vh``.

    Parameters
    ----------
    U : ndarray (M, k)
    s : ndarray (k,)
        Falling.
    Vh : ndarray (k, N)
    residual : float
        Largest ``||A v - s u||``, relative to the largest singular value.
    rounds : int
        Products, by A and by its adjoint.
    converged : bool
    tally : Tally
    """

    U: Array
    s: Array
    Vh: Array
    residual: float
    rounds: int
    converged: bool
    tally: Tally = field(repr=False)


def orthogonal_iteration(
    A: Any,
    k: int,
    *,
    pool: Pool | None = None,
    tol: float = _TOL,
    rounds: int = _ROUNDS,
    extra: int = EXTRA,
    start: ArrayLike | None = None,
    seed: int = SEED,
    callback: Callback | None = None,
    decode: str = "exact",
    **options: Any,
) -> Eigenpairs:
    """Find the ``k`` eigenpairs of largest magnitude of a real symmetric or Hermitian matrix.

    Parameters
    ----------
    A : array_like, scipy.sparse, CodedMatrix or LinearOperator (n, n)
        Not checked for symmetry: of another matrix the iteration does not converge.
    k : int
        Wanted pairs.
    pool, rounds, seed, callback, decode, **options
        As in :func:`codedla.power_iteration`.
    tol : float
        Stop when every wanted ``||A v - value v||`` is at most this times the largest magnitude.
    extra : int
        Columns iterated besides.
    start : array_like (n, k + extra), optional
        Where to begin.

    Returns
    -------
    Eigenpairs

    Raises
    ------
    UsageError, NotDecodable, WorkerError
        As in :func:`codedla.power_iteration`.
    """
    tol, rounds = positive(tol, "tol"), whole_number(rounds, "rounds", least=1)
    products = open_products(A, pool, decode, **options)
    try:
        check_square(products.shape)
        k, columns = _columns(k, extra, products.shape)
        q = start_block(products, columns, seed, start)
        return _iterate(products, q, k, tol, rounds, callback)
    finally:
        products.close()


def _columns(k: int, extra: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the wanted and the iterated numbers of columns."""
    k, extra = whole_number(k, "k", least=1), whole_number(extra, "extra", least=0)
    if k > min(shape):
        raise UsageError(
            f"k is at most the smaller dimension; got k={k} for shape {shape}; use a smaller one"
        )
    return k, min(k + extra, *shape)


def _iterate(
    products: Products, q: Array, k: int, tol: float, rounds: int, callback: Callback | None
) -> Eigenpairs:
    tally = Tally()
    before = y = q
    residual, converged = np.inf, False
    while True:
        y = products.multiply(q, y @ (before.conj().T @ q))
        ritz = q.conj().T @ y
        values, turn = np.linalg.eigh(ritz / 2 + ritz.conj().T / 2)
        order = np.argsort(-np.abs(values), kind="stable")
        values, turn = values[order], turn[:, order]
        vectors = q @ turn
        errors = column_norms(y @ turn - vectors * values)[:k]
        size = float(np.abs(values[0]))
        residual = float(errors.max()) / size if size else float(errors.max())
        tally.add(products.last_report)
        converged = products.settled(bool(errors.max() <= tol * size))
        if callback is not None:
            callback(tally.rounds, residual, products.last_report)
        if converged or tally.rounds >= rounds:
            break
        before, q = q, np.linalg.qr(y)[0]
    if not converged:
        tell_unfinished("orthogonal iteration", tally.rounds, residual, tol)
    return Eigenpairs(values[:k], vectors[:, :k], residual, tally.rounds, converged, tally)


def truncated_svd(
    A: Any,
    k: int,
    *,
    pool: Pool | None = None,
    tol: float = _TOL,
    rounds: int = _ROUNDS,
    extra: int = EXTRA,
    seed: int = SEED,
    callback: Callback | None = None,
    decode: str = "exact",
    **options: Any,
) -> SingularTriplets:
    """Find the ``k`` largest singular triplets of a matrix.

    Parameters
    ----------
    A : array_like, scipy.sparse or LinearOperator (M, N)
        A plain matrix is stored twice, once as its adjoint; of an operator ``A.H`` is used.
    k : int
        Wanted triplets.
    pool, rounds, extra, seed, callback, decode, **options
        As in :func:`codedla.orthogonal_iteration`; rounds count products by A and by its adjoint.
    tol : float
        Stop when every wanted ``||A v - s u||`` is at most this times the largest singular value.

    Returns
    -------
    SingularTriplets

    Raises
    ------
    UsageError, NotDecodable, WorkerError
        As in :func:`codedla.power_iteration`.
    """
    forward, backward = open_both(A, pool, decode, **options)
    try:
        return iterate_triplets(
            forward,
            backward,
            k,
            tol=tol,
            rounds=rounds,
            extra=extra,
            seed=seed,
            callback=callback,
        )
    finally:
        close_all((forward, backward))


def open_both(A: Any, pool: Pool | None, decode: str, **options: Any) -> tuple[Products, Products]:
    """Store a matrix and its adjoint for an iteration; see :func:`open_products`."""
    if hasattr(A, "matvec"):
        if not hasattr(A, "rmatvec"):
            raise UsageError(
                "singular values need products by the adjoint, too; got a stored matrix without "
                "them; pass the plain matrix, or codedla.aslinearoperator(A)"
            )
        return open_products(A, pool, decode, **options), Exact(A.H, owned=False)
    plain = A if hasattr(A, "tocsr") else as_array(A, "A")
    if plain.ndim != 2:
        raise UsageError(f"A must be a matrix; got {plain.ndim} dimensions; reshape it")
    forward = open_products(plain, pool, decode, **options)
    try:
        return forward, open_products(plain.conj().T, pool, decode, **options)
    except BaseException:
        forward.close()
        raise


def close_all(products: Sequence[Products]) -> None:
    """Free what was stored."""
    for each in products:
        each.close()


def iterate_triplets(
    forward: Products,
    backward: Products,
    k: int,
    *,
    tol: float,
    rounds: int,
    extra: int,
    seed: int,
    callback: Callback | None,
) -> SingularTriplets:
    """Iterate with products by A and by its adjoint; parameters as of :func:`truncated_svd`."""
    tol, rounds = positive(tol, "tol"), whole_number(rounds, "rounds", least=3)
    k, columns = _columns(k, extra, forward.shape)
    tally = Tally()
    reports: list[Report | None] = []

    def product(of: Products, x: Array, guess: Array) -> Array:
        y = of.multiply(x, guess)
        reports.append(of.last_report)
        tally.add(of.last_report)
        return y

    v = start_block(forward, columns, seed)
    y = product(forward, v, np.zeros((forward.shape[0], columns), v.dtype))
    left = np.linalg.qr(y)[0]
    z = product(backward, left, np.zeros((forward.shape[1], columns), y.dtype))
    while True:
        # A is nearly left @ z^H in the span of left: its SVD is that of a small matrix.
        turned, s, right = np.linalg.svd(z.conj().T, full_matrices=False)
        u, before, v = left @ turned, v, right.conj().T
        y = product(forward, v, y @ (before.conj().T @ v))
        errors = column_norms(y - u * s)[:k]
        residual = float(errors.max() / s[0]) if s[0] else float(errors.max())
        small = bool(errors.max() <= tol * s[0])
        # Both kinds of products are asked: each keeps count of what it has seen.
        converged = all([forward.settled(small), backward.settled(small)])
        if callback is not None:
            callback(tally.rounds, residual, reports[-1])
        if converged or tally.rounds + 1 >= rounds:
            break
        last, left = left, np.linalg.qr(y)[0]
        z = product(backward, left, z @ (last.conj().T @ left))
    if not converged:
        tell_unfinished("orthogonal iteration", tally.rounds, residual, tol)
    return SingularTriplets(
        u[:, :k], s[:k], v[:, :k].conj().T, residual, tally.rounds, converged, tally
    )
