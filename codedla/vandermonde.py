"""Vandermonde systems in O(k^2): solve, invert, order the nodes.

Any k distinct nodes determine a polynomial of degree below k: the recovery condition of every
evaluation code. The solvers work on many right-hand sides at once, in the monomial or the
Chebyshev basis. They are accurate ways to a badly conditioned answer, no cure for it: the
rounding of the replies times the condition of the matrix is the floor, whichever solver is used.

Throughout, ``M = matrix(nodes)`` has one row per node: ``M[i, j] = nodes[i]**j`` or
``T_j(nodes[i])``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla import kernels
from codedla.errors import UsageError

__all__ = ["barycentric_weights", "inverse", "leja_order", "matrix", "solve"]

Array = NDArray[Any]
Basis = Literal["monomial", "chebyshev"]

_BASES = ("monomial", "chebyshev")


def _numeric(name: str, value: ArrayLike) -> Array:
    """Array of numbers that float64 or complex128 can hold without loss of digits."""
    array = np.asarray(value)
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.float64)  # an empty list has no dtype of its own
    if array.dtype.kind not in "iufc" or array.dtype.itemsize > (
        16 if array.dtype.kind == "c" else 8
    ):
        raise UsageError(
            f"{name} must hold integers, reals or complex numbers of at most double precision, "
            f"got dtype {array.dtype}; convert with astype(float)"
        )
    return array


def _nodes(nodes: ArrayLike, *, distinct: bool) -> Array:
    """Nodes as C-ordered float64 or complex128."""
    array = _numeric("nodes", nodes)
    if array.ndim != 1:
        raise UsageError(f"nodes must be 1-D, got shape {array.shape}; use numpy.ravel")
    array = np.ascontiguousarray(
        array, dtype=np.complex128 if array.dtype.kind == "c" else np.float64
    )
    if not np.isfinite(array).all():
        bad = int(np.argmin(np.isfinite(array)))
        raise UsageError(f"nodes must be finite, got nodes[{bad}] = {array[bad]}")
    if distinct and len(array) > 1:
        order = np.lexsort((array.imag, array.real))
        equal = np.flatnonzero(array[order[1:]] == array[order[:-1]])
        if equal.size:
            first, second = sorted(int(i) for i in order[equal[0] : equal[0] + 2])
            raise UsageError(
                f"nodes must be distinct: nodes[{first}] and nodes[{second}] are both "
                f"{array[first]}; drop one of them"
            )
    return array


def _check_basis(basis: str) -> None:
    if basis not in _BASES:
        raise UsageError(f"basis must be one of {', '.join(_BASES)}, got {basis!r}")


def matrix(nodes: ArrayLike, columns: int | None = None, basis: Basis = "monomial") -> Array:
    """Vandermonde matrix of the nodes.

    Parameters
    ----------
    nodes : array_like (k,)
        Real or complex; they may repeat.
    columns : int, optional
        Number of columns, k by default.
    basis : {"monomial", "chebyshev"}, optional

    Returns
    -------
    ndarray (k, columns), float64 or complex128

    Raises
    ------
    UsageError
        Nodes of wrong shape or dtype, negative ``columns``, unknown basis.

    Notes
    -----
    ``M[i, j] = nodes[i]**j``, or the Chebyshev polynomial ``T_j(nodes[i])`` from
    ``T_{j+1}(t) = 2 t T_j(t) - T_{j-1}(t)``. For nodes on the unit circle take the angles from
    reduced integer exponents instead: powers of a rounded root of unity drift.

    Examples
    --------
    >>> import codedla.vandermonde as vm
    >>> vm.matrix([2.0, 3.0], 3)
    array([[1., 2., 4.],
           [1., 3., 9.]])
    """
    _check_basis(basis)
    points = _nodes(nodes, distinct=False)
    if columns is None:
        columns = len(points)
    if not isinstance(columns, (int, np.integer)) or columns < 0:
        raise UsageError(f"columns must be an integer of at least 0, got {columns!r}")
    result = np.ones((len(points), int(columns)), points.dtype)
    for j in range(1, int(columns)):
        result[:, j] = points * result[:, j - 1]
        if basis == "chebyshev" and j > 1:
            result[:, j] = 2 * result[:, j] - result[:, j - 2]
    return result


def solve(
    nodes: ArrayLike,
    rhs: ArrayLike,
    *,
    basis: Basis = "monomial",
    transpose: bool = False,
    order: Literal["leja"] | None = "leja",
) -> Array:
    """Solve a Vandermonde system for one or many right-hand sides.

    Parameters
    ----------
    nodes : array_like (k,)
        Distinct, real or complex.
    rhs : array_like (k,) or (k, width)
        Integers, float32, float64, complex64 or complex128; never modified.
    basis : {"monomial", "chebyshev"}, optional
        Basis of the polynomials.
    transpose : bool, optional
        False: ``M @ x = rhs``, coefficients of the interpolating polynomial. True:
        ``M.T @ x = rhs``, weights at the nodes that reproduce given moments.
    order : {"leja", None}, optional
        Order in which the nodes are used. Leja's makes the algorithm as reliable as Gaussian
        elimination with row exchanges; None keeps the given order, which for monomials and
        increasing positive nodes gives results far more accurate than the condition suggests.

    Returns
    -------
    ndarray, shape of ``rhs``
        Single precision for single-precision ``rhs``, else double; complex if anything is. The
        computation itself runs in double precision.

    Raises
    ------
    UsageError
        Repeated or infinite nodes, shapes that do not match, dtypes that are not numbers, unknown
        ``basis`` or ``order``.

    Notes
    -----
    The algorithms of Bjorck and Pereyra [1]_ for monomials and of Higham [2]_ for polynomials
    with a three-term recurrence: divided differences and a change from Newton's basis,
    ``O(k^2)`` operations per right-hand side. The order follows Higham [3]_.

    References
    ----------
    .. [1] A. Bjorck and V. Pereyra, Solution of Vandermonde systems of equations, Math. Comp. 24
       (1970) 893-903.
    .. [2] N. J. Higham, Fast solution of Vandermonde-like systems involving orthogonal
       polynomials, IMA J. Numer. Anal. 8 (1988) 473-486.
    .. [3] N. J. Higham, Stability analysis of algorithms for solving confluent Vandermonde-like
       systems, SIAM J. Matrix Anal. Appl. 11 (1990) 23-41.

    Examples
    --------
    The parabola through (0, 1), (1, 2) and (2, 5) is 1 + t^2:

    >>> import codedla.vandermonde as vm
    >>> vm.solve([0, 1, 2], [1.0, 2.0, 5.0])
    array([1., 0., 1.])
    """
    _check_basis(basis)
    if order not in ("leja", None):
        raise UsageError(f"order must be 'leja' or None, got {order!r}")
    points = _nodes(nodes, distinct=True)
    values = _numeric("rhs", rhs)
    if values.ndim not in (1, 2) or values.shape[0] != len(points):
        raise UsageError(
            f"rhs must have shape ({len(points)},) or ({len(points)}, width) for {len(points)} "
            f"nodes, got {values.shape}"
        )
    is_complex = "c" in (points.dtype.kind, values.dtype.kind)
    single = values.dtype in (np.dtype(np.float32), np.dtype(np.complex64))
    working = np.complex128 if is_complex else np.float64
    taken = kernels.leja_order(points) if order == "leja" else np.arange(len(points))
    columns = values.reshape(len(points), -1) if values.size else values.reshape(len(points), 0)
    # Indexing with an array copies, so the kernel may overwrite.
    work = columns[taken] if not transpose else columns.copy()
    work = np.ascontiguousarray(work, dtype=working)
    kernels.vandermonde_solve(
        points[taken], work, transpose=transpose, chebyshev=basis == "chebyshev"
    )
    if transpose:
        solution = np.empty_like(work)
        solution[taken] = work
    else:
        solution = work
    if single:
        solution = solution.astype(np.complex64 if is_complex else np.float32)
    return solution.reshape(values.shape)


def inverse(nodes: ArrayLike) -> Array:
    """Inverse of the monomial Vandermonde matrix by the Parker-Traub algorithm.

    Parameters
    ----------
    nodes : array_like (k,)
        Distinct, real or complex.

    Returns
    -------
    ndarray (k, k), float64 or complex128
        Column ``i`` holds the coefficients of the Lagrange polynomial of node ``i``.

    Raises
    ------
    UsageError
        Repeated or infinite nodes, wrong shape or dtype.

    Notes
    -----
    ``inv[j, i] = w_i q_i[j]`` with ``sum_j q_i[j] t^j = prod_m (t - nodes[m]) / (t - nodes[i])``
    by synthetic division and the barycentric weights ``w``; ``O(k^2)`` operations [1]_. Intended
    for decoding weights of moderate size; products of nodes may overflow for hundreds of large
    nodes.

    References
    ----------
    .. [1] I. Gohberg and V. Olshevsky, The fast generalized Parker-Traub algorithm for inversion
       of Vandermonde and related matrices, J. Complexity 13 (1997) 208-234.

    Examples
    --------
    >>> import codedla.vandermonde as vm
    >>> vm.inverse([0.0, 1.0])
    array([[ 1.,  0.],
           [-1.,  1.]])
    """
    points = _nodes(nodes, distinct=True)
    taken = kernels.leja_order(points)
    result = np.empty((len(points), len(points)), points.dtype)
    result[:, taken] = kernels.parker_traub_inverse(points[taken])
    return result


def barycentric_weights(nodes: ArrayLike) -> Array:
    """Weights of the barycentric interpolation formula.

    Parameters
    ----------
    nodes : array_like (k,)
        Distinct, real or complex.

    Returns
    -------
    ndarray (k,), float64 or complex128

    Raises
    ------
    UsageError
        Repeated or infinite nodes, wrong shape or dtype.

    Notes
    -----
    ``w_i = 1 / prod_{j != i} (nodes[i] - nodes[j])``; the polynomial through values ``f`` is
    ``sum_i w_i f_i / (t - nodes[i])`` over ``sum_i w_i / (t - nodes[i])`` [1]_.

    References
    ----------
    .. [1] J.-P. Berrut and L. N. Trefethen, Barycentric Lagrange interpolation, SIAM Review 46
       (2004) 501-517.
    """
    return kernels.barycentric_weights(_nodes(nodes, distinct=True))


def leja_order(nodes: ArrayLike) -> NDArray[np.intp]:
    """Order in which each node is as far as possible from those before it.

    Parameters
    ----------
    nodes : array_like (k,)
        Real or complex; they may repeat.

    Returns
    -------
    ndarray (k,), intp
        Indices into ``nodes``: first the node of largest modulus, then always the one with the
        largest product of distances to those chosen. The lowest index wins a tie.

    Raises
    ------
    UsageError
        Infinite nodes, wrong shape or dtype.
    """
    return kernels.leja_order(_nodes(nodes, distinct=False))
