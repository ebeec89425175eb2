r"""Check replies and products against the operands, by random projection.

A product ``C = A B`` is right with near certainty when ``C r = A (B r)`` for a random vector ``r``
(Freivalds): quadratic work checks cubic work. The same holds for the reply of one share,

.. math:: R_w r = \tilde A_w (\tilde B_w r), \qquad
          \tilde A_w = \sum_p G^A_{wp} A_p, \quad \tilde B_w = \sum_q G^B_{wq} B_q,

and the right-hand sides of all shares come from the blocks themselves, with nothing encoded:
``B_q r`` for every block of B, then all combinations of these times A in one pass over A. Where a
share is a stack of combinations, so are its right-hand sides; the vector is ``r`` for every column
of sub-blocks, times a random number.

Let :math:`\varepsilon` be the unit roundoff, ``s`` the scales of the columns (one over the largest
entry) and :math:`r_j = s_j \rho_j` with independent signs and :math:`3/4 \le |\rho_j| \le 1`. Usual
roundings of a row stay below

.. math:: \varepsilon \, (16 + \sqrt{L} + \text{blocks}) \sum_l |\tilde a_{il}| c_l,
          \qquad c_l = \| \tilde b_l \circ s \|_2,

because neither they nor the signs of ``r``, which the worker does not know, are correlated. Since
``|A|`` itself appears, rows and inner indices of very different sizes are no weakness, and ``s``
does the same for columns. A row above that bound is only *suspicious*: long sums of equal numbers
round in one direction. The most suspicious rows are computed again, one pass over B, and the reply
is wrong if an entry differs by more than rounding explains in whatever order the terms are added,

.. math:: | R_{ij} - \tilde a_i \tilde b_j | > (L + \text{blocks}) \, \varepsilon \sum_l
          |\tilde a_{il}| |\tilde b_{lj}|.

So nobody is accused because of rounding, whichever BLAS it has. One wrong entry becomes suspicious
for certain when it is off by the first bound over ``3 s_j / 4``; several in a row stay unnoticed
with probability of the order of that bound over the largest of them.

Wrap-around integers are compared exactly, modulo ``2**64``.

References
----------
R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress (1977).
N. Higham, "Accuracy and Stability of Numerical Algorithms", SIAM (2002), sections 3.1 and 3.5.
N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput.
41 (2019).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine.plan import Plan, machine_epsilon
from codedla.linalg.operands import Checked
from codedla.linalg.tiles import (
    column_peaks,
    mixed_product,
    row_product,
    row_squares,
    scale_columns,
    tiled_product,
    tiles,
)

__all__ = [
    "LARGEST_INTEGER",
    "MODULAR_COLUMNS",
    "Modular",
    "Partition",
    "Rounded",
    "random_integers",
    "random_vector",
    "right_sides",
]

Array = NDArray[Any]

LARGEST_INTEGER = 2.0**62
"""What is as large, or NaN, in floating point is not the integer that it stands for."""

ROWS_AGAIN = 4
"""Suspicious rows of a reply that are computed again."""
MODULAR_COLUMNS = 4
"""Projections of wrap-around integers: one of odd numbers sees any single wrong entry, the others
see several that are wrong in their highest bits only, each with probability 1/2."""


class Partition:
    """Where the blocks of the operands are, and how the shares combine them.

    Parameters
    ----------
    plan : Plan
    a, b : Checked
        The operands.

    Attributes
    ----------
    rows, inner, cols : Split
        How the three dimensions are cut.
    weights_a : ndarray (shares, u, q, blocks)
    weights_b : ndarray (shares, q, v, blocks)
        The combinations a share is made of; see :attr:`codedla.codes.Code.stack`.
    is_plain : ndarray of bool (shares,)
        Which shares are blocks as they are.
    """

    def __init__(self, plan: Plan, a: Checked, b: Checked) -> None:
        m, inner, n = plan.shape
        self.plan, self.a, self.b = plan, a, b
        self.grid = plan.grid
        self.rows, self.inner = Split(m, self.grid.m), Split(inner, self.grid.p)
        self.cols = Split(n, self.grid.n)
        code = plan.code
        self.stack = u, q, v = code.stack
        self.weights_a = code.generator_a.reshape(code.n_shares, u, q, -1)
        self.weights_b = code.generator_b.reshape(code.n_shares, q, v, -1)
        self.is_plain = np.array(
            [code.plain_block(share) is not None for share in range(code.n_shares)], dtype=bool
        )

    def fits(self, share: int, reply: Array) -> bool:
        """Tell whether the reply has the shape of the share's product."""
        padded = (self.stack[0] * self.rows.size, self.stack[2] * self.cols.size)
        block = self.plan.code.plain_block(share)
        if block is None or reply.shape == padded:
            return reply.shape == padded
        i, j = divmod(block, self.grid.n)
        height, width = self.rows.slice(i), self.cols.slice(j)
        return reply.shape == (height.stop - height.start, width.stop - width.start)

    @cached_property
    def _sliced_b(self) -> Any:
        """B in a form of which blocks are cheap."""
        matrix = self.b.matrix
        if isinstance(matrix, np.ndarray):
            return matrix
        return matrix.tocsr() if self.grid.n == 1 else matrix.tocsc()

    def blocks_of_b(self) -> Iterator[tuple[int, Any]]:
        """Yield the number of every block of B, and the block."""
        for v in range(self.grid.p * self.grid.n):
            k, j = divmod(v, self.grid.n)
            yield v, self._sliced_b[self.inner.slice(k), self.cols.slice(j)]

    def tiles_of_b(self, wanted: Iterable[int]) -> Iterator[tuple[int, slice, slice, Any]]:
        """Yield the tiles of these blocks of B: the block's number, rows, columns, entries."""
        numbers = {int(v) for v in wanted}
        for v, block in self.blocks_of_b():
            if v in numbers:
                for rows, cols, tile in tiles(block, np.float64):
                    yield v, rows, cols, tile

    def strips_of_a(self) -> Iterator[tuple[int, Any, list[tuple[int, slice]]]]:
        """Yield an inner index, a strip of A, and which rows of it belong to which row block.

        Sparse A is not cut by rows, because what is left over of a product with few columns is
        small and slices of a sparse matrix are copies.
        """
        matrix, p, m = self.a.matrix, self.grid.p, self.grid.m
        for k in range(p):
            columns = self.inner.slice(k)
            if isinstance(matrix, np.ndarray):
                for i in range(m):
                    rows = self.rows.slice(i)
                    block = matrix[rows, columns]
                    yield k, block, [(i * p + k, slice(0, rows.stop - rows.start))]
            else:
                strip = matrix if p == 1 else matrix[:, columns]
                yield k, strip, [(i * p + k, self.rows.slice(i)) for i in range(m)]

    def row_of_a(self, share: int, row: int, column: int) -> tuple[Array, Array]:
        """Return one row of one column of sub-blocks of a share of A, and the sizes behind it.

        Parameters
        ----------
        share, row, column : int

        Returns
        -------
        entries, sizes : ndarray (inner.size,)
            The sizes are sums of the absolute values that the entries are sums of.
        """
        down, row = divmod(row, self.rows.size)
        weights = self.weights_a[share, down, column]
        kind = np.result_type(weights, self.a.dtype, np.float64)
        total, sizes = np.zeros(self.inner.size, kind), np.zeros(self.inner.size)
        for u in np.flatnonzero(weights):
            i, k = divmod(int(u), self.grid.p)
            rows, weight = self.rows.slice(i), weights[u]
            if rows.start + row >= rows.stop:
                continue
            entries = self.a.matrix[[rows.start + row], self.inner.slice(k)]
            if not isinstance(entries, np.ndarray):
                entries = entries.toarray()
            entries = entries.reshape(-1)
            total[: entries.size] += weight * entries
            # Not abs(integers): the smallest has no opposite.
            sizes[: entries.size] += np.abs(weight * entries)
        return total, sizes


class Projected(ABC):
    """The right-hand sides of some shares: what their replies times the random vectors must be.

    Each share's stack is taken apart into products of one combination of A and one of B times the
    random vector: ``u q`` of them, of which ``q`` are added up in each row of sub-blocks.

    Parameters
    ----------
    partition : Partition
    shares : ndarray of int
    across : ndarray (v,)
        Random factors of the columns of sub-blocks.
    weights_a, weights_b : ndarray (shares, u, q, blocks), (shares, q, v, blocks)
        The combinations that these shares are made of.

    Attributes
    ----------
    products_a, products_b : ndarray (shares * u * q, blocks)
        The two combinations of each of these products.
    """

    def __init__(
        self,
        partition: Partition,
        shares: NDArray[np.intp],
        across: Array,
        weights_a: Array,
        weights_b: Array,
    ) -> None:
        self.partition, self.shares, self.across = partition, shares, across
        self.place = {int(share): index for index, share in enumerate(shares)}
        u, q, _ = partition.stack
        self.products_a = weights_a.reshape(shares.size * u * q, -1)
        mixed = np.tensordot(across, weights_b, ([0], [2]))[:, None]
        whole = (shares.size, u, q, mixed.shape[-1])
        self.products_b = np.broadcast_to(mixed, whole).reshape(shares.size * u * q, -1)

    def add(self, strip: Any, right: Array, rows: list[tuple[int, slice]], top: int) -> None:
        """Add a strip of A times the right sides to the expectations of the shares it is in."""
        product = mixed_product(strip, right)
        for u, part in rows:
            held = np.flatnonzero(self.products_a[:, u])
            if held.size:
                piece = product[part]
                self.accumulate(held, u, piece, slice(top, top + piece.shape[0]))

    @abstractmethod
    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the products that hold it."""

    def _sum_up(self, expected: Array, held: NDArray[np.intp], rows: slice, part: Array) -> None:
        """Add to what is expected of each row of sub-blocks the parts of products it is made of."""
        q = self.partition.stack[1]
        if q == 1:
            expected[held, rows] += part
        else:
            np.add.at(expected[:, rows], held // q, part)


class Rounded(Projected):
    """Floating point: equal up to what rounding explains.

    Attributes
    ----------
    rho : ndarray (columns of a share of B,)
        The random vector, before it is scaled.
    scales : ndarray (blocks of B + 1, columns)
        Of each block's columns; the last row is for mixtures of blocks.
    expected : ndarray (shares, rows of a share of A)
        What the replies' rows times the scaled vector must be.
    across : ndarray (v,)
        Factors of the random vector in the columns of sub-blocks.
    bounds : ndarray (blocks of A, rows)
        ``sum_l |a[i, l]| c[l]`` of every block.
    of_b : iterator
        The steps that concern B only; what they leave is taken over from ``like``, a projection of
        the same B and the same code, where that is given.
    """

    scales: Array
    norms: Array
    right: Array
    coefficients: Array

    def __init__(
        self,
        partition: Partition,
        shares: NDArray[np.intp],
        rng: np.random.Generator,
        like: Rounded | None = None,
    ) -> None:
        weights_a, weights_b = partition.weights_a[shares], partition.weights_b[shares]
        v = partition.stack[2]
        if like is None:
            across = np.ones(1) if v == 1 else random_vector(rng, v)
            self.rho = random_vector(rng, partition.cols.size)
        else:
            across, self.rho = like.across, like.rho
        super().__init__(partition, shares, across, weights_a, weights_b)
        # Of the numbers a share is made of, the sizes.
        self.gains_a, self.gains_b = np.abs(weights_a), np.abs(weights_b).sum(axis=(2, 3))
        # With one block of B, its own scales are the common ones. A plain share is no stack.
        plain = partition.is_plain[shares] & (self.products_b.shape[1] > 1)
        self.plain = np.repeat(plain, self.products_a.shape[0] // max(1, shares.size))
        self.coded = ~self.plain
        self.of_b = self._steps_of_b() if like is None else self._steps_of(like)

    def steps(self) -> Iterator[bool]:
        """Compute the right-hand sides; yield after every tile."""
        yield from self.of_b
        yield from self._project_a()

    def _steps_of(self, like: Rounded) -> Iterator[bool]:
        # Whoever comes first does it, and all are done at the same time.
        yield from like.of_b
        self.scales, self.norms = like.scales, like.norms
        self.right, self.coefficients = like.right, like.coefficients

    def _steps_of_b(self) -> Iterator[bool]:
        partition = self.partition
        count = partition.grid.p * partition.grid.n
        peaks = np.zeros((count, partition.cols.size))
        for v, block in partition.blocks_of_b():
            for _, cols, tile in tiles(block, np.float64):
                peak = peaks[v, cols]
                np.maximum(peak, column_peaks(tile), out=peak)
                yield True
        self.scales = self._scales(peaks)
        yield from self._project_b()

    def _scales(self, peaks: Array) -> Array:
        """Return scales of the columns: one row per block of B, the last row for mixtures."""
        partition = self.partition
        together = np.vstack([peaks, peaks.max(axis=0)])
        # A power of two loses nothing. Columns far smaller than the largest are not blown up to
        # its size, nor beyond the range of the exponent: there underflow would drown everything.
        _, exponent = np.frexp(together)
        filled = exponent[together > 0]
        # Nothing but zeros has the scale 1: a wrong number must not vanish there.
        top, least = (int(filled.max()), int(filled.min())) if filled.size else (0, 0)
        exponent = np.where(together > 0, exponent, least)
        span = -int(np.finfo(partition.plan.compute).minexp) // 4
        scales = np.clip(-exponent, None, min(span - top, 1000)).astype(np.float64)
        # A times the scaled B must stay in range, too.
        size = partition.a.facts.max_abs * 2.0**-200
        reach = math.frexp(size * partition.plan.shape[1] * partition.cols.size)[1] + 200
        return np.exp2(scales - max(0, reach - 900))

    def _project_b(self) -> Iterator[bool]:
        """Multiply the blocks of B by the random vector; find the norms of their rows."""
        partition = self.partition
        count, size = partition.grid.p * partition.grid.n, partition.inner.size
        kind = np.complex128 if partition.b.dtype.kind == "c" else np.float64
        width = count if self.plain.any() else 0
        own, mixed = np.zeros((size, width), kind), np.zeros((size, count), kind)
        squares = np.zeros((2, size, count))
        for v, block in partition.blocks_of_b():
            for rows, cols, tile in tiles(block, np.float64):
                cases = [(own, v)] if self.plain.any() else []
                cases += [(mixed, count)] if self.coded.any() else []
                for which, (target, row) in enumerate(cases):
                    scaled = scale_columns(tile, self.scales[row, cols])
                    target[rows, v] += mixed_product(scaled, self.rho[cols])
                    squares[which, rows, v] += row_squares(scaled)
                yield True
        # One column for all shares: what differs between blocks of B is left out, not much.
        self.norms = np.sqrt(squares.max(axis=(0, 2)))
        rights, mixing = right_sides(self.products_b[self.coded])
        of_mixed = mixed @ rights.T
        self.right = np.hstack([own, of_mixed])
        products = len(self.products_b)
        self.coefficients = np.zeros((products, self.right.shape[1]), mixing.dtype)
        if width:
            self.coefficients[self.plain, :width] = self.products_b[self.plain].real
        self.coefficients[self.coded, width:] = mixing

    def _project_a(self) -> Iterator[bool]:
        """Multiply A by all of these at once, and its absolute values by the norms."""
        partition = self.partition
        heights = partition.rows.size
        kind = np.result_type(
            self.right, partition.a.dtype, self.coefficients, self.products_a, np.float64
        )
        down = partition.stack[0]
        self.expected = np.zeros((self.shares.size * down, heights), kind)
        self.bounds = np.zeros((partition.grid.m * partition.grid.p, heights))
        for _, strip, parts in partition.strips_of_a():
            for rows, cols, tile in tiles(strip, np.float64):
                dense = isinstance(tile, np.ndarray)
                pieces = [(u, slice(None) if dense else part) for u, part in parts]
                top = rows.start if dense else 0
                self.add(tile, self.right[cols], pieces, top)
                bound = mixed_product(abs(tile), self.norms[cols])
                for u, part in pieces:
                    piece = bound[part]
                    self.bounds[u, top : top + piece.shape[0]] += piece
                yield True
        self.expected = self.expected.reshape(self.shares.size, down * heights)

    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the products that hold it."""
        weighted = self.products_a[held, u, None] * self.coefficients[held]
        self._sum_up(self.expected, held, rows, weighted @ piece.T)

    def agrees(self, share: int, reply: Array) -> bool:
        """Tell whether every row is as expected, up to what rounding explains."""
        index = self.place[share]
        height, width = reply.shape
        scales = self.scales[-1]
        # A plain share is one product.
        if len(self.plain) == self.shares.size and self.plain[index]:
            scales = self.scales[np.argmax(self.products_b[index] != 0)]
        vector = np.outer(self.across, scales * self.rho).reshape(-1)[:width]
        with np.errstate(all="ignore"):
            found = tiled_product(reply, vector)
            difference = np.abs(found - self.expected[index, :height])
            if not np.isfinite(difference).all():
                return False
            usual = self._usual(index, np.tile(scales, self.across.size)[:width])[:height]
            suspects = np.flatnonzero(difference > usual)
            if suspects.size > ROWS_AGAIN:
                worst = np.argsort(difference[suspects] / usual[suspects])
                suspects = suspects[worst[-ROWS_AGAIN:]]
            return not suspects.size or self._explained(share, reply, suspects)

    def _usual(self, index: int, scales: Array) -> Array:
        """Return what the projected rows of an honest reply usually stay below."""
        partition, plan = self.partition, self.partition.plan
        gain_a, gain_b = self.gains_a[index], self.gains_b[index]
        q, blocks = len(gain_b), gain_a.shape[-1] + self.products_b.shape[1]
        terms = 16 + math.sqrt(q * partition.inner.size) + blocks + (q - 1)
        # The worker's roundings, and the master's own, which are in double precision.
        roundings = terms * (machine_epsilon(plan.compute) / 2 + 2.0**-53)
        rows = np.tensordot(gain_b, gain_a, ([0], [1])) @ self.bounds
        usual: Array = self._factor() * roundings * rows.reshape(-1)
        return usual + self._underflow(gain_a, gain_b, float(np.abs(scales).sum()))

    def _explained(self, share: int, reply: Array, rows: NDArray[np.intp]) -> bool:
        """Compute these rows again; tell whether rounding explains all differences."""
        partition, plan = self.partition, self.partition.plan
        _, q, v = partition.stack
        weights = partition.weights_b[share]
        shape = (rows.size, v, partition.cols.size)
        exact = np.zeros(shape, np.result_type(self.expected, np.float64))
        allowed = np.zeros(shape)
        for column, of_column in enumerate(weights):
            made = [partition.row_of_a(share, int(row), column) for row in rows]
            left, sizes = (np.stack(part) for part in zip(*made, strict=True))
            used = np.flatnonzero(of_column.any(axis=0))
            for block, tile_rows, cols, tile in partition.tiles_of_b(used):
                weight = of_column[:, block, None]
                exact[:, :, cols] += weight * row_product(left[:, tile_rows], tile)[:, None]
                size = row_product(sizes[:, tile_rows], abs(tile))
                allowed[:, :, cols] += np.abs(weight) * size[:, None]
        gain_a, gain_b = np.abs(partition.weights_a[share]), np.abs(weights)
        terms = q * partition.inner.size + gain_a.shape[-1] + gain_b.shape[-1] + 8
        roundings = terms * (machine_epsilon(plan.compute) / 2 + 2.0**-53)
        allowed *= self._factor() * roundings
        allowed += self._underflow(gain_a, gain_b, 1 + partition.b.facts.max_abs)
        width = reply.shape[1]
        difference = np.abs(reply[rows] - exact.reshape(rows.size, -1)[:, :width])
        return bool((difference <= allowed.reshape(rows.size, -1)[:, :width]).all())

    def _factor(self) -> float:
        """Return how many more roundings complex arithmetic has."""
        return 4.0 if self.partition.plan.compute.kind == "c" else 1.0

    def _underflow(self, gain_a: Array, gain_b: Array, scales: float) -> float:
        """Bound what gradual underflow does, whose errors do not shrink with the numbers."""
        partition = self.partition
        smallest = float(np.finfo(partition.plan.compute).smallest_subnormal)
        gain = 8 * (1 + gain_a.sum()) * (1 + gain_b.sum()) * (partition.inner.size + 4)
        # Scales first, because they may be as large as the smallest number is small.
        scaled = smallest * scales * (1 + partition.a.facts.max_abs)
        return float(gain * (scaled + smallest * (1 + partition.cols.size)))


class Modular(Projected):
    """Integers: equal modulo 2**64.

    Attributes
    ----------
    r : ndarray of int64 (columns of a share of B, MODULAR_COLUMNS)
        The random vectors.
    across : ndarray of int64 (v,)
        Odd factors of these in the columns of sub-blocks.
    expected : ndarray of int64 (shares, rows of a share of A, MODULAR_COLUMNS)
        What the replies times these must be.
    of_b : iterator
        See :class:`Rounded`.
    """

    right: Array
    coefficients: Array

    def __init__(
        self,
        partition: Partition,
        shares: NDArray[np.intp],
        rng: np.random.Generator,
        like: Modular | None = None,
    ) -> None:
        weights_a, weights_b = (
            (weights if weights.dtype.kind == "i" else np.rint(weights.real)).astype(np.int64)
            for weights in (partition.weights_a[shares], partition.weights_b[shares])
        )
        v = partition.stack[2]
        if like is None:
            across = np.ones(1, np.int64) if v == 1 else random_integers(rng, v)[:, 0]
            self.r = random_integers(rng, partition.cols.size)
        else:
            across, self.r = like.across, like.r
        super().__init__(partition, shares, across, weights_a, weights_b)
        self.of_b = self._steps_of_b() if like is None else self._steps_of(like)

    def steps(self) -> Iterator[bool]:
        """Compute the right-hand sides; yield after every tile."""
        yield from self.of_b
        yield from self._steps_of_a()

    def _steps_of(self, like: Modular) -> Iterator[bool]:
        # Whoever comes first does it, and all are done at the same time.
        yield from like.of_b
        self.right, self.coefficients = like.right, like.coefficients

    def _steps_of_b(self) -> Iterator[bool]:
        partition = self.partition
        rights, coefficients = right_sides(self.products_b)
        count, size = rights.shape[1], partition.inner.size
        projected = np.zeros((size, count, MODULAR_COLUMNS), np.int64)
        for v, block in partition.blocks_of_b():
            for rows, cols, tile in tiles(block, np.int64):
                projected[rows, v] += mixed_product(tile, self.r[cols])
                yield True
        self.right = np.einsum("lvc,zv->lzc", projected, rights).reshape(size, -1)
        self.coefficients = coefficients

    def _steps_of_a(self) -> Iterator[bool]:
        partition = self.partition
        down, heights = partition.stack[0], partition.rows.size
        self.expected = np.zeros(
            (self.shares.size * down, heights, MODULAR_COLUMNS), dtype=np.int64
        )
        for _, strip, parts in partition.strips_of_a():
            for rows, cols, tile in tiles(strip, np.int64):
                dense = isinstance(tile, np.ndarray)
                pieces = [(u, slice(None) if dense else part) for u, part in parts]
                self.add(tile, self.right[cols], pieces, rows.start if dense else 0)
                yield True
        self.expected = self.expected.reshape(self.shares.size, -1, MODULAR_COLUMNS)

    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the products that hold it."""
        weighted = self.products_a[held, u, None] * self.coefficients[held]
        # In full: a block without rows leaves nothing to find a length from.
        cut = piece.reshape(len(piece), piece.shape[1] // MODULAR_COLUMNS, MODULAR_COLUMNS)
        self._sum_up(self.expected, held, rows, np.einsum("wz,rzc->wrc", weighted, cut))

    def agrees(self, share: int, reply: Array) -> bool:
        """Tell whether the reply is equal to the product in every row."""
        height, width = reply.shape
        if reply.dtype.kind not in "iu":
            # What is not an integer, or too large for one, is wrong. Coded by a complex code the
            # integers stand in the real parts.
            with np.errstate(all="ignore"):
                if (
                    not (np.abs(reply) < LARGEST_INTEGER).all()
                    or (reply != np.rint(reply.real)).any()
                ):
                    return False
        vectors = (self.across[:, None, None] * self.r).reshape(-1, MODULAR_COLUMNS)
        found = tiled_product(reply, vectors[:width])
        return bool((found == self.expected[self.place[share], :height]).all())


def right_sides(weights: Array) -> tuple[Array, Array]:
    """Return combinations to multiply A by, and how each share is made of them.

    Either the combinations the shares hold, those that are equal once, or the blocks themselves,
    whichever are fewer. Real even for complex weights, so that a real A is multiplied by real
    numbers only.

    Parameters
    ----------
    weights : ndarray (shares, blocks)

    Returns
    -------
    combinations : ndarray (z, blocks)
    coefficients : ndarray (shares, z)
        ``coefficients @ combinations == weights``.
    """
    blocks = weights.shape[1]
    distinct, place = np.unique(weights, axis=0, return_inverse=True)
    place = place.reshape(-1)
    parts = 2 if weights.dtype.kind == "c" else 1
    if parts * len(distinct) >= blocks:
        return np.eye(blocks, dtype=weights.real.dtype), weights
    units = np.eye(len(distinct), dtype=weights.dtype)[place]
    if parts == 1:
        return distinct, units
    return np.vstack([distinct.real, distinct.imag]), np.hstack([units, 1j * units])


def random_vector(rng: np.random.Generator, count: int) -> Array:
    """Return random numbers of either sign, none of them small: no wrong entry is passed over."""
    size = rng.uniform(0.75, 1.0, count)
    return np.where(rng.random(count) < 0.5, -size, size)


def random_integers(rng: np.random.Generator, count: int) -> Array:
    """Return columns of random 64-bit integers, the first of them odd."""
    r = rng.integers(-(2**63), 2**63 - 1, (count, MODULAR_COLUMNS), endpoint=True)
    r[:, 0] |= 1
    return r
