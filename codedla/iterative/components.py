"""Principal components of data whose rows are samples, by orthogonal iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.report import Report
from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.orthogonal import EXTRA, close_all, iterate_triplets, open_both
from codedla.iterative.power import SEED, Callback
from codedla.iterative.products import Products
from codedla.iterative.tally import Tally
from codedla.linalg.operands import as_array, check_kind

__all__ = ["Components", "pca"]

Array = NDArray[Any]


@dataclass
class Components:
    """What :func:`pca` found.

    Parameters
    ----------
    components : ndarray (k, n)
        Orthonormal rows; the entry of largest magnitude of each is positive.
    explained_variance : ndarray (k,)
        Variance of the samples along each component, with ``M - 1`` degrees of freedom.
    singular_values : ndarray (k,)
        Of the centred samples.
    mean : ndarray (n,)
    residual : float
        As of :class:`SingularTriplets`.
    rounds : int
    converged : bool
    tally : Tally
    """

    components: Array
    explained_variance: Array
    singular_values: Array
    mean: Array
    residual: float
    rounds: int
    converged: bool
    tally: Tally = field(repr=False)


class _Centred:
    """Products by ``X - 1 mean^T``, or by its adjoint, from products by ``X``: nothing fills up.

    Parameters
    ----------
    products : Products
        By ``X``, or with ``adjoint`` by its adjoint.
    left, right : ndarray
        Products are those by the matrix minus ``left @ right^H``.
    """

    def __init__(self, products: Products, left: Array, right: Array) -> None:
        self._products, self._left, self._right = products, left[:, None], right[:, None]
        self.shape, self.dtype = products.shape, products.dtype

    @property
    def last_report(self) -> Report | None:
        """What happened in the latest product."""
        return self._products.last_report

    def multiply(self, x: Array, previous: Array) -> Array:
        """Return the product; see :class:`Products`."""
        shift = self._left @ (self._right.conj().T @ x)
        return self._products.multiply(x, previous + shift) - shift

    def settled(self, small: bool) -> bool:
        """Ask the products."""
        return self._products.settled(small)

    def close(self) -> None:
        """Close the products."""
        self._products.close()


def pca(
    X: Any,
    k: int,
    *,
    pool: Pool | None = None,
    tol: float = 1e-8,
    rounds: int = 1000,
    extra: int = EXTRA,
    seed: int = SEED,
    callback: Callback | None = None,
    decode: str = "exact",
    **options: Any,
) -> Components:
    """Find the ``k`` directions of largest variance.

    Parameters
    ----------
    X : array_like or scipy.sparse (M, n)
        One sample a row, at least two. It is not centred in memory: sparse samples stay sparse.
    k, pool, tol, rounds, extra, seed, callback, decode, **options
        As in :func:`codedla.truncated_svd`.

    Returns
    -------
    Components

    Raises
    ------
    UsageError, NotDecodable, WorkerError
        As in :func:`codedla.truncated_svd`.
    """
    plain = X if hasattr(X, "tocsr") else as_array(X, "X")
    check_kind(np.dtype(plain.dtype), "X")
    if plain.ndim != 2 or plain.shape[0] < 2:
        raise UsageError(
            f"samples are the rows of a matrix, at least two; got shape {plain.shape}; reshape it"
        )
    mean = np.asarray(plain.mean(axis=0)).ravel()
    ones = np.ones(plain.shape[0], mean.dtype)
    forward, backward = open_both(plain, pool, decode, **options)
    try:
        found = iterate_triplets(
            _Centred(forward, ones, mean.conj()),
            _Centred(backward, mean.conj(), ones),
            k,
            tol=tol,
            rounds=rounds,
            extra=extra,
            seed=seed,
            callback=callback,
        )
    finally:
        close_all((forward, backward))
    rows = found.Vh
    largest = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    signs = np.where(largest == 0, 1, largest / np.where(largest == 0, 1, np.abs(largest)))
    with np.errstate(over="ignore", under="ignore"):  # the variance of 1e200 is no number
        variance = found.s**2 / (plain.shape[0] - 1)
    return Components(
        rows / signs[:, None],
        variance,
        found.s,
        mean,
        found.residual,
        found.rounds,
        found.converged,
        found.tally,
    )
