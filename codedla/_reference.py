"""Slow NumPy twin of every compiled kernel: the oracle of the tests and the fallback.

Each function has the name, the arguments and the meaning of the compiled one in
``codedla._kernels``; :mod:`codedla.kernels` checks the arguments and chooses between the two.
Like the compiled kernels these functions check nothing. ``isa``, ``first`` and ``last`` are
accepted so that both sides can be called alike; the twin has no instruction sets, and it works
on the columns ``first:last`` of the last axis.

No weight is skipped: a zero weight times an infinity is a NaN here and in the compiled kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "addresses",
    "barycentric_weights",
    "combine",
    "combine_mod",
    "combine_wide",
    "fold",
    "leja_order",
    "parker_traub_inverse",
    "stream_copy",
    "vandermonde_solve",
]

Array = NDArray[Any]

# Elements of one column tile: the stacked tile of 64 blocks stays in a second-level cache.
_TILE = 4096


def addresses(blocks: Sequence[Array]) -> list[int]:
    """Address of the first element of every block."""
    return [int(block.__array_interface__["data"][0]) for block in blocks]


def _real_view(block: Array) -> Array:
    """Complex block as real pairs along the last axis; a real block as it is."""
    if block.dtype.kind != "c":
        return block
    return block.view(np.float32 if block.dtype == np.complex64 else np.float64)


def _combine_tile(W: Array, ins: Sequence[Array], outs: Sequence[Array], accumulate: bool) -> None:
    stacked = np.stack([block.reshape(-1) for block in ins])
    if W.dtype.kind == "c":
        # Four real products: BLAS may form complex ones differently where infinities meet.
        weights = W.astype(outs[0].dtype)
        real, imag = stacked.real, stacked.imag
        result = np.empty((len(outs), stacked.shape[1]), outs[0].dtype)
        result.real = weights.real @ real - weights.imag @ imag
        result.imag = weights.real @ imag + weights.imag @ real
    else:
        result = W.astype(outs[0].dtype) @ stacked
    for out, row in zip(outs, result, strict=True):
        if accumulate:
            out += row.reshape(out.shape)
        else:
            out[...] = row.reshape(out.shape)


def combine(
    W: Array,
    ins: Sequence[Array],
    outs: Sequence[Array],
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None:
    """``outs[i] (+)= sum_j W[i, j] * ins[j]`` on the columns ``first:last``.

    Parameters
    ----------
    W : ndarray (n_out, n_in), float64 or complex128
    ins : sequence of n_in ndarrays, 1-D or 2-D, one shape and one dtype
    outs : sequence of n_out ndarrays of the same shape and dtype
    accumulate : bool
        Add to the outputs instead of replacing them.
    isa : int
        Ignored.
    first, last : int
        Columns of the last axis to work on.
    """
    outs = [out[..., first:last] for out in outs]
    ins = [block[..., first:last] for block in ins]
    if not outs or outs[0].size == 0:
        return
    if not ins:
        if not accumulate:
            for out in outs:
                out[...] = 0
        return
    if W.dtype.kind != "c":
        ins = [_real_view(block) for block in ins]
        outs = [_real_view(out) for out in outs]
    columns = outs[0].shape[-1]
    rows = max(1, outs[0].size // columns)
    width = max(1, _TILE // rows)
    for start in range(0, columns, width):
        part = (..., slice(start, start + width))
        _combine_tile(W, [b[part] for b in ins], [o[part] for o in outs], accumulate)


def combine_wide(
    W: Array,
    ins: Sequence[Array],
    outs: Sequence[Array],
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None:
    """As :func:`combine`, with sums in double precision whatever the blocks hold.

    Parameters
    ----------
    W, ins, outs, accumulate, isa, first, last
        As of :func:`combine`.
    """
    if not outs or outs[0].dtype in (np.float64, np.complex128):
        combine(W, ins, outs, accumulate, isa, first, last)
        return
    double = np.dtype(np.complex128 if outs[0].dtype.kind == "c" else np.float64)
    columns = max(1, _TILE * outs[0].shape[-1] // max(outs[0].size, 1))
    for start in range(first, last, columns):
        part = (..., slice(start, min(start + columns, last)))
        targets = [out[part] for out in outs]
        sources = [block[part].astype(double) for block in ins]
        sums = [np.zeros(target.shape, double) for target in targets]
        if accumulate:
            for total, target in zip(sums, targets, strict=True):
                total[...] = target
        combine(W, sources, sums, accumulate, isa, 0, targets[0].shape[-1])
        # What does not fit into single precision becomes Inf, as it does in the kernel.
        with np.errstate(over="ignore"):
            for target, total in zip(targets, sums, strict=True):
                target[...] = total


def combine_mod(
    W: Array,
    ins: Sequence[Array],
    outs: Sequence[Array],
    p: float,
    accumulate: bool,
    isa: int,
    first: int,
    last: int,
) -> None:
    """As :func:`combine` on float64 integers; the outputs become balanced residues modulo ``p``.

    Parameters
    ----------
    W : ndarray (n_out, n_in), float64
    ins, outs : sequences of float64 ndarrays, 1-D or 2-D, of one shape
    p : float
        A whole number.
    accumulate : bool
        Add to the outputs before they are reduced.
    isa : int
        Ignored.
    first, last : int
        Columns of the last axis to work on.
    """
    combine(W, ins, outs, accumulate, isa, first, last)
    high = p // 2
    for out in outs:
        part = out[..., first:last]
        part -= np.rint(part / p) * p
        # The quotient was rounded: residues next to p/2 may be on the other side.
        part[part > high] -= p
        part[part < high - p + 1] += p


def fold(accs: Sequence[Array], w: Array, block: Array, isa: int, first: int, last: int) -> None:
    """``accs[r] += w[r] * block`` on the columns ``first:last``.

    Parameters
    ----------
    accs : sequence of s ndarrays, the shape and dtype of ``block``
    w : ndarray (s,), float64 or complex128
    block : ndarray, 1-D or 2-D
    isa : int
        Ignored.
    first, last : int
        Columns of the last axis to work on.
    """
    part = (..., slice(first, last))
    if w.dtype.kind == "c":
        weights = w.astype(block.dtype)
        source = block[part]
        for acc, weight in zip(accs, weights, strict=True):
            target = acc[part]
            target.real += weight.real * source.real - weight.imag * source.imag
            target.imag += weight.real * source.imag + weight.imag * source.real
        return
    source = _real_view(block[part])
    for acc, weight in zip(accs, w.astype(source.dtype), strict=True):
        target = _real_view(acc[part])
        target += weight * source


def stream_copy(
    ins: Sequence[Array], outs: Sequence[Array], isa: int, first: int, last: int
) -> None:
    """``outs[i] = ins[i]`` on the columns ``first:last``: the copy limit of the benchmarks."""
    for source, target in zip(ins, outs, strict=True):
        target[..., first:last] = source[..., first:last]


def vandermonde_solve(nodes: Array, x: Array, transpose: bool, chebyshev: bool, isa: int) -> None:
    """Solve ``M y = x`` or ``M.T y = x`` in place.

    ``M[i, j]`` is ``nodes[i]**j``, or the Chebyshev polynomial ``T_j(nodes[i])``.

    Parameters
    ----------
    nodes : ndarray (k,), float64 or complex128
    x : ndarray (k, width), float64 or complex128
        Right-hand sides on entry, solutions on return.
    transpose : bool
        Solve with the transposed matrix (the primal system of Bjorck and Pereyra).
    chebyshev : bool
        Chebyshev polynomials of the first kind instead of monomials.
    isa : int
        Ignored.

    Notes
    -----
    ``M**-1 = N_0 N_1 ... N_{k-2} D_{k-2} ... D_0``: divided differences ``D``, then the change
    from Newton's basis to the wanted one, ``q_j = (t - nodes[j]) q_{j+1} + c_j``, with
    ``t T_0 = T_1`` and ``t T_j = (T_{j-1} + T_{j+1}) / 2``. The transposed system applies the
    transposed factors in the opposite order [1]_, [2]_.

    References
    ----------
    .. [1] A. Bjorck and V. Pereyra, Solution of Vandermonde systems of equations, Math. Comp. 24
       (1970).
    .. [2] N. J. Higham, Fast solution of Vandermonde-like systems involving orthogonal
       polynomials, IMA J. Numer. Anal. 8 (1988).
    """
    k = len(nodes)
    if k == 0 or x.shape[1] == 0:
        return
    column = nodes[:, None]
    if not transpose:
        for level in range(k - 1):
            gaps = column[level + 1 :] - column[: k - level - 1]
            x[level + 1 :] = (x[level + 1 :] - x[level:-1]) / gaps
        for level in range(k - 2, -1, -1):
            tail = x[level:].copy()
            if chebyshev:
                x[level + 2 :] *= 0.5
                x[level : k - 2] += 0.5 * tail[2:]
            x[level : k - 1] -= nodes[level] * tail[1:]
        return
    for level in range(k - 1):
        tail = x[level:].copy()
        if chebyshev:
            x[level + 2 :] *= 0.5
            x[level + 2 :] += 0.5 * tail[:-2]
        x[level + 1 :] -= nodes[level] * tail[:-1]
    for level in range(k - 2, -1, -1):
        x[level + 1 :] /= column[level + 1 :] - column[: k - level - 1]
        x[level : k - 1] -= x[level + 1 :].copy()


def barycentric_weights(nodes: Array) -> Array:
    """``w[i] = 1 / prod_{j != i} (nodes[i] - nodes[j])``, shape (k,)."""
    gaps = nodes[:, None] - nodes[None, :]
    np.fill_diagonal(gaps, 1)
    return np.asarray(1 / np.prod(gaps, axis=1), dtype=nodes.dtype)


def parker_traub_inverse(nodes: Array) -> Array:
    """Inverse of ``V[i, j] = nodes[i]**j``, shape (k, k), by the Parker-Traub algorithm.

    Column ``i`` holds the coefficients of the Lagrange polynomial of node ``i``:
    ``prod_j (t - nodes[j]) / (t - nodes[i])`` by synthetic division, times the barycentric weight.
    """
    k = len(nodes)
    master = np.zeros(k + 1, nodes.dtype)
    master[0] = 1
    for degree, node in enumerate(nodes, start=1):
        master[1 : degree + 1] = master[:degree] - node * master[1 : degree + 1]
        master[0] *= -node
    inverse = np.empty((k, k), nodes.dtype)
    if k:
        inverse[k - 1] = 1
        for power in range(k - 2, -1, -1):
            inverse[power] = master[power + 1] + nodes * inverse[power + 1]
    return np.asarray(inverse * barycentric_weights(nodes))


def leja_order(nodes: Array) -> NDArray[np.intp]:
    """Indices of the nodes in Leja order, shape (k,).

    The first is the node of largest modulus, each next one maximises the product of its
    distances to those chosen before; the lowest index wins a tie.
    """
    k = len(nodes)
    order = np.empty(k, np.intp)
    if k == 0:
        return order
    chosen = int(np.argmax(np.abs(nodes)))
    distance = np.ones(k)
    for position in range(k):
        order[position] = chosen
        distance *= np.abs(nodes - nodes[chosen])
        # Only ratios matter: rescaling keeps the products away from overflow and underflow.
        largest = distance.max()
        if largest > 0:
            distance /= largest
        chosen = int(np.argmax(distance))
    return order
