r"""Check replies and products against the operands, by random projection.

A product ``C = A B`` is right with near certainty when ``C r = A (B r)`` for a random vector ``r``
(Freivalds): quadratic work checks cubic work. The same holds for the reply of one share,

.. math:: R_w r = \tilde A_w (\tilde B_w r), \qquad
          \tilde A_w = \sum_u G^A_{wu} A_u, \quad \tilde B_w = \sum_v G^B_{wv} B_v,

and the right-hand sides of all shares come from the blocks themselves, with nothing encoded:
``B_v r`` for every block of B, then all combinations of these times A in one pass over A.

Let ``u`` be the unit roundoff, ``s`` the scales of the columns (one over the largest entry) and
:math:`r_j = s_j \rho_j` with independent signs and :math:`3/4 \le |\rho_j| \le 1`. Usual roundings
of a row stay below

.. math:: u \, (16 + \sqrt{L} + \text{blocks}) \sum_l |\tilde a_{il}| c_l,
          \qquad c_l = \| \tilde b_l \circ s \|_2,

because neither they nor the signs of ``r``, which the worker does not know, are correlated. Since
``|A|`` itself appears, rows and inner indices of very different sizes are no weakness, and ``s``
does the same for columns. A row above that bound is only *suspicious*: long sums of equal numbers
round in one direction. The most suspicious rows are computed again, one pass over B, and the reply
is wrong if an entry differs by more than rounding explains in whatever order the terms are added,

.. math:: | r_{ij} - \tilde a_i \tilde b_j | > (L + \text{blocks}) \, u \sum_l
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
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.engine import choose
from codedla.engine.plan import Plan, unit_roundoff
from codedla.engine.work import COST, SPARSE_COST
from codedla.errors import VerificationFailed
from codedla.linalg.operands import Checked, combinable

__all__ = [
    "CHEAP",
    "ReplyCheck",
    "obstacle",
    "verification_seconds",
    "verify_product",
    "worthwhile",
]

Array = NDArray[Any]

CHEAP = 0.05
"""``verify="auto"`` checks every reply when that costs less than this part of the run."""
ROWS_AGAIN = 4
"""Suspicious rows of a reply that are computed again."""
TILE_BYTES = 1 << 20
"""Operands are read in tiles that stay in the cache while they are used several times."""
TILES_AT_ONCE = 8
"""Tiles handled by one call of :meth:`ReplyCheck.prepare`: a few milliseconds."""
MODULAR_COLUMNS = 4
"""Projections of wrap-around integers: one of odd numbers sees any single wrong entry, the others
see several that are wrong in their highest bits only, each with probability 1/2."""
MODULAR_COST = 4.0
"""An integer product of a matrix and a few columns runs at this fraction of the assumed speed."""


class ReplyCheck:
    """Tell right replies from wrong ones; see the module's text for how.

    Parameters
    ----------
    plan : Plan
    a, b : Checked
        The operands, which must not change while replies are checked.
    rng : numpy.random.Generator, optional
        Source of the random vector; by default one nobody can foresee.

    Raises
    ------
    VerificationFailed
        The operands hold NaN, Inf or entries near overflow and cannot be projected.
    """

    def __init__(
        self, plan: Plan, a: Checked, b: Checked, rng: np.random.Generator | None = None
    ) -> None:
        reason = obstacle(plan, a, b)
        if reason:
            raise VerificationFailed(reason)
        rng = np.random.default_rng() if rng is None else rng
        layout = _Layout(plan, a, b)
        exact, rounded = _divide(plan, a, b)
        self._layout = layout
        self._projections: list[_Rounded | _Modular] = []
        if exact.size:
            self._projections.append(_Modular(layout, exact, rng))
        if rounded.size:
            self._projections.append(_Rounded(layout, rounded, rng))
        self._of_share = {
            int(share): projection
            for projection in self._projections
            for share in projection.shares
        }
        self._steps = (step for projection in self._projections for step in projection.steps())
        self._ready = False

    def prepare(self) -> bool:
        """Do a few milliseconds of the work that comes before the first check.

        Returns
        -------
        bool
            Whether there was anything to do.
        """
        if self._ready:
            return False
        for _ in range(TILES_AT_ONCE):
            if next(self._steps, None) is None:
                self._ready = True
                break
        return True

    def check(self, share: int, reply: Array) -> bool:
        """Tell whether ``reply`` can be the product of the operands of ``share``.

        Parameters
        ----------
        share : int
        reply : ndarray, 2-D
            As it was received; the last block of a plain share may be cropped.

        Returns
        -------
        bool
            True for every honest reply; False for NaN and for the wrong shape, too.
        """
        while self.prepare():
            pass
        if not self._layout.fits(share, reply):
            return False
        return self._of_share[share].agrees(share, reply)


def obstacle(plan: Plan, a: Checked, b: Checked) -> str:
    """Return why products of these operands cannot be projected, or an empty string."""
    if plan.dtype.kind in "iub":
        return ""
    if not (a.facts.finite and b.facts.finite):
        return "a product with NaN or Inf cannot be verified by random projection; use verify='off'"
    if not combinable(a, b, plan.dtype):
        return (
            "a product near overflow cannot be verified by random projection; scale the operands "
            "down or use verify='off'"
        )
    return ""


def verification_seconds(plan: Plan) -> float:
    """Predict what checking every reply costs the master, by the assumptions of the choice.

    A is read once, B twice and each reply once; the flops of the projections count too.
    """
    m, inner, n = plan.shape
    item = plan.compute.itemsize
    rows, cols = -(-m // plan.grid.m), -(-n // plan.grid.n)
    density_a, density_b = plan.density
    entries_a, entries_b = m * inner * density_a, inner * n * density_b
    replies = plan.code.active * rows * cols
    columns: float = len(_right_sides(plan.code.generator_b[: plan.code.active])[0])
    if plan.compute.kind in "iu":
        columns *= MODULAR_COLUMNS * MODULAR_COST
    # One more column for what rounding explains, and two more passes over B for its scales.
    flops = 2.0 * (entries_a * (columns + 1) + 3 * entries_b + replies)
    traffic = item * (entries_a + 2 * entries_b + replies)
    return traffic / choose.BANDWIDTH + flops / choose.FLOPS


def worthwhile(plan: Plan, a: Checked, b: Checked, beside: float = 0.0) -> bool:
    """Tell whether checking every reply is possible and cheap: what ``verify="auto"`` means.

    Parameters
    ----------
    plan : Plan
    a, b : Checked
    beside : float
        Seconds of the run besides the product itself: starting ranks, reading and writing.
    """
    if 0 in plan.shape or obstacle(plan, a, b):
        return False
    return verification_seconds(plan) < CHEAP * (_round_seconds(plan) + beside)


def _round_seconds(plan: Plan) -> float:
    """Predict the round: one worker's flops, then all bytes through the master."""
    slowness = COST[plan.compute.kind] if plan.compute.kind in "iu" else 1.0
    if min(plan.density) < 1.0:
        slowness = max(slowness, SPARSE_COST)
    bytes_moved = plan.bytes_sent + plan.bytes_received
    return slowness * plan.flops_worker / choose.FLOPS + bytes_moved / choose.BANDWIDTH


def verify_product(
    a: Checked,
    b: Checked,
    decoded: Array,
    *,
    alpha: float = 1.0,
    eps: float = 2.0**-52,
    rng: np.random.Generator | None = None,
) -> None:
    """Compare ``C r`` with ``A (B r)`` for a random ``r``; a wrong block is seen for certain.

    Parameters
    ----------
    a, b : Checked
    decoded : ndarray (M, N)
        The product, before it is brought to the result's dtype. Of integer operands it is rounded
        to integers, as the result is, and compared exactly.
    alpha, eps : float
        Amplification of the decoding and eps of its dtype.
    rng : numpy.random.Generator, optional

    Raises
    ------
    VerificationFailed
        A row differs by more than rounding can explain, or the operands cannot be projected.
    """
    rng = np.random.default_rng() if rng is None else rng
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        _verify_modular(a, b, decoded, rng)
        return
    if not (a.facts.finite and b.facts.finite):
        raise VerificationFailed(
            "a product with NaN or Inf cannot be verified by random projection; use verify='off'"
        )
    r = _signs(rng, b.shape[1])[:, None]
    scale = max(a.facts.norm * b.facts.norm * float(np.linalg.norm(r)), 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = _times(a.matrix, _times(b.matrix, r))
        difference = np.abs(_times(decoded, r) - expected).ravel()
    if not (np.isfinite(scale) and np.isfinite(expected).all()):
        raise VerificationFailed(
            "a product near overflow cannot be verified by random projection; scale the operands "
            "down or use verify='off'"
        )
    explained = 32 * (1 + alpha) * eps * scale
    worst = int(np.argmax(difference)) if difference.size else 0
    # NaN in the product must fail, hence "not <=".
    if difference.size and not difference[worst] <= explained:
        raise VerificationFailed(
            f"the product failed the Freivalds check in row {worst}: "
            f"off by {difference[worst]:.1e} where rounding explains {explained:.1e}; "
            "a worker answered wrongly; the product is not handed out"
        )


def _verify_modular(a: Checked, b: Checked, decoded: Array, rng: np.random.Generator) -> None:
    r = _odd(rng, b.shape[1])
    wrong = np.flatnonzero(
        (_times(decoded, r) != _times(a.matrix, _times(b.matrix, r))).any(axis=1)
    )
    if wrong.size:
        raise VerificationFailed(
            f"the product failed the Freivalds check in row {wrong[0]}: it is not equal modulo "
            "2**64; a worker answered wrongly; the product is not handed out"
        )


def _divide(plan: Plan, a: Checked, b: Checked) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the shares that are compared exactly, and those that are compared up to rounding."""
    shares = np.arange(plan.code.active)
    nobody = shares[:0]
    if plan.compute.kind in "iu":
        return shares, nobody
    if plan.dtype.kind not in "iub":
        return nobody, shares
    # Integers held in floating point: as long as rounding explains far less than one unit, the
    # ordinary check is as good as an exact one, and much faster.
    _, inner, n = plan.shape
    roundings = inner + (16 + math.sqrt(inner)) * math.sqrt(max(n, 1))
    explained = 2.0**-52 * roundings * a.facts.max_abs * b.facts.max_abs * inner
    if explained < 0.1:
        return nobody, shares
    whole = np.ones(shares.size, dtype=bool)
    size = np.ones(shares.size)
    for generator in (plan.code.generator_a, plan.code.generator_b):
        rows = generator[: shares.size]
        whole &= (rows == np.rint(rows.real)).all(axis=1)
        size *= np.abs(rows).sum(axis=1)
    # Integer operands are held in floating point only while 8 times any entry is exact.
    whole &= size <= 8
    return shares[whole], shares[~whole]


class _Layout:
    """Where the blocks are, and how the shares combine them."""

    def __init__(self, plan: Plan, a: Checked, b: Checked) -> None:
        m, inner, n = plan.shape
        self.plan, self.a, self.b = plan, a, b
        self.grid = plan.grid
        self.rows, self.inner = Split(m, self.grid.m), Split(inner, self.grid.p)
        self.cols = Split(n, self.grid.n)
        self.generator_a = plan.code.generator_a[: plan.code.active]
        self.generator_b = plan.code.generator_b[: plan.code.active]
        self.is_plain = np.array(
            [plan.code.plain_block(w) is not None for w in range(plan.code.active)], dtype=bool
        )

    def fits(self, share: int, reply: Array) -> bool:
        """Tell whether the reply has the shape of the share's product."""
        padded = (self.rows.size, self.cols.size)
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

    def row_of_a(self, share: int, row: int) -> tuple[Array, Array]:
        """Return one row of a share of A, and the absolute values it is made of."""
        kind = np.result_type(self.generator_a, self.a.dtype, np.float64)
        total, sizes = np.zeros(self.inner.size, kind), np.zeros(self.inner.size)
        for u in np.flatnonzero(self.generator_a[share]):
            i, k = divmod(int(u), self.grid.p)
            rows, weight = self.rows.slice(i), self.generator_a[share, u]
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


class _Projected:
    """The right-hand sides of some shares: what their replies times the random vectors must be."""

    def __init__(self, layout: _Layout, shares: NDArray[np.intp]) -> None:
        self.layout, self.shares = layout, shares
        self.place = {int(share): index for index, share in enumerate(shares)}
        self.weights_a = layout.generator_a[shares]
        self.weights_b = layout.generator_b[shares]

    def add(self, strip: Any, right: Array, rows: list[tuple[int, slice]], top: int) -> None:
        """Add a strip of A times the right sides to the expectations of the shares it is in."""
        product = _product(strip, right)
        for u, part in rows:
            held = np.flatnonzero(self.weights_a[:, u])
            if held.size:
                piece = product[part]
                self.accumulate(held, u, piece, slice(top, top + piece.shape[0]))

    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the shares that hold it."""
        raise NotImplementedError


class _Rounded(_Projected):
    """Floating point: equal up to what rounding explains."""

    def __init__(self, layout: _Layout, shares: NDArray[np.intp], rng: np.random.Generator) -> None:
        super().__init__(layout, shares)
        self.rho = _signs(rng, layout.cols.size)
        plain = layout.is_plain[shares]
        # With one block of B, its own scales are the common ones.
        self.plain = plain & (self.weights_b.shape[1] > 1)
        self.coded = ~self.plain

    def steps(self) -> Iterator[bool]:
        """Compute the right-hand sides; yield after every tile."""
        layout = self.layout
        count = layout.grid.p * layout.grid.n
        peaks = np.zeros((count, layout.cols.size))
        for v, block in layout.blocks_of_b():
            for _, cols, tile in _tiles(block, np.float64):
                peak = peaks[v, cols]
                np.maximum(peak, _peaks(tile), out=peak)
                yield True
        self.scales = self._scales(peaks)
        yield from self._project_b()
        yield from self._project_a()

    def _scales(self, peaks: Array) -> Array:
        """Return scales of the columns: one row per block of B, the last row for mixtures."""
        layout = self.layout
        together = np.vstack([peaks, peaks.max(axis=0)])
        # A power of two loses nothing. Columns far smaller than the largest are not blown up to
        # its size, nor beyond the range of the exponent: there underflow would drown everything.
        _, exponent = np.frexp(together)
        filled = exponent[together > 0]
        top, least = int(filled.max(initial=-1000)), int(filled.min(initial=1000))
        exponent = np.where(together > 0, exponent, least)
        span = -int(np.finfo(layout.plan.compute).minexp) // 4
        scales = np.clip(-exponent, None, min(span - top, 1000)).astype(np.float64)
        # A times the scaled B must stay in range, too.
        size = layout.a.facts.max_abs * 2.0**-200
        reach = math.frexp(size * layout.plan.shape[1] * layout.cols.size)[1] + 200
        return np.exp2(scales - max(0, reach - 900))

    def _project_b(self) -> Iterator[bool]:
        """Multiply the blocks of B by the random vector; find the norms of their rows."""
        layout = self.layout
        count, size = layout.grid.p * layout.grid.n, layout.inner.size
        kind = np.complex128 if layout.b.dtype.kind == "c" else np.float64
        width = count if self.plain.any() else 0
        own, mixed = np.zeros((size, width), kind), np.zeros((size, count), kind)
        squares = np.zeros((2, size, count))
        for v, block in layout.blocks_of_b():
            for rows, cols, tile in _tiles(block, np.float64):
                cases = [(own, v)] if self.plain.any() else []
                cases += [(mixed, count)] if self.coded.any() else []
                for which, (target, row) in enumerate(cases):
                    scaled = _scaled(tile, self.scales[row, cols])
                    target[rows, v] += _product(scaled, self.rho[cols])
                    squares[which, rows, v] += _row_squares(scaled)
                yield True
        # One column for all shares: what differs between blocks of B is left out, not much.
        self.norms = np.sqrt(squares.max(axis=(0, 2)))
        rights, mixing = _right_sides(self.weights_b[self.coded])
        of_mixed = mixed @ rights.T
        self.right = np.hstack([own, of_mixed])
        self.coefficients = np.zeros((self.shares.size, self.right.shape[1]), mixing.dtype)
        if width:
            self.coefficients[self.plain, :width] = self.weights_b[self.plain].real
        self.coefficients[self.coded, width:] = mixing

    def _project_a(self) -> Iterator[bool]:
        """Multiply A by all of these at once, and its absolute values by the norms."""
        layout = self.layout
        heights = layout.rows.size
        kind = np.result_type(
            self.right, layout.a.dtype, self.coefficients, self.weights_a, np.float64
        )
        self.expected = np.zeros((self.shares.size, heights), kind)
        self.bounds = np.zeros((layout.grid.m * layout.grid.p, heights))
        for _, strip, parts in layout.strips_of_a():
            for rows, cols, tile in _tiles(strip, np.float64):
                dense = isinstance(tile, np.ndarray)
                pieces = [(u, slice(None) if dense else part) for u, part in parts]
                top = rows.start if dense else 0
                self.add(tile, self.right[cols], pieces, top)
                bound = _product(abs(tile), self.norms[cols])
                for u, part in pieces:
                    piece = bound[part]
                    self.bounds[u, top : top + piece.shape[0]] += piece
                yield True

    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the shares that hold it."""
        weighted = self.weights_a[held, u, None] * self.coefficients[held]
        self.expected[held, rows] += weighted @ piece.T

    def agrees(self, share: int, reply: Array) -> bool:
        """Tell whether every row is as expected, up to what rounding explains."""
        index = self.place[share]
        height, width = reply.shape
        scales = self.scales[np.argmax(self.weights_b[index] != 0) if self.plain[index] else -1]
        with np.errstate(all="ignore"):
            found = _times(reply, scales[:width] * self.rho[:width])
            difference = np.abs(found - self.expected[index, :height])
            if not np.isfinite(difference).all():
                return False
            usual = self._usual(index, scales[:width])[:height]
            suspects = np.flatnonzero(difference > usual)
            if suspects.size > ROWS_AGAIN:
                worst = np.argsort(difference[suspects] / usual[suspects])
                suspects = suspects[worst[-ROWS_AGAIN:]]
            return not suspects.size or self._explained(share, reply, suspects)

    def _usual(self, index: int, scales: Array) -> Array:
        """Return what the projected rows of an honest reply usually stay below."""
        layout, plan = self.layout, self.layout.plan
        gain_a, gain_b = np.abs(self.weights_a[index]), np.abs(self.weights_b[index])
        terms = 16 + math.sqrt(layout.inner.size) + gain_a.size + gain_b.size
        # The worker's roundings, and the master's own, which are in double precision.
        roundings = terms * (unit_roundoff(plan.compute) / 2 + 2.0**-53)
        usual: Array = self._factor() * roundings * gain_b.sum() * (gain_a @ self.bounds)
        return usual + self._underflow(gain_a, gain_b, float(np.abs(scales).sum()))

    def _explained(self, share: int, reply: Array, rows: NDArray[np.intp]) -> bool:
        """Compute these rows again; tell whether rounding explains all differences."""
        layout, plan = self.layout, self.layout.plan
        weights = layout.generator_b[share]
        made = [layout.row_of_a(share, int(row)) for row in rows]
        left, sizes = (np.stack(part) for part in zip(*made, strict=True))
        exact = np.zeros((rows.size, layout.cols.size), np.result_type(self.expected, np.float64))
        allowed = np.zeros((rows.size, layout.cols.size))
        for v, block in layout.blocks_of_b():
            if weights[v] == 0:
                continue
            for inner, cols, tile in _tiles(block, np.float64):
                exact[:, cols] += weights[v] * _product_by(left[:, inner], tile)
                allowed[:, cols] += np.abs(weights[v]) * _product_by(sizes[:, inner], abs(tile))
        gain_a, gain_b = np.abs(layout.generator_a[share]), np.abs(weights)
        terms = layout.inner.size + gain_a.size + gain_b.size + 8
        roundings = terms * (unit_roundoff(plan.compute) / 2 + 2.0**-53)
        allowed *= self._factor() * roundings
        allowed += self._underflow(gain_a, gain_b, 1 + layout.b.facts.max_abs)
        width = reply.shape[1]
        return bool((np.abs(reply[rows] - exact[:, :width]) <= allowed[:, :width]).all())

    def _factor(self) -> float:
        """Return how many more roundings complex arithmetic has."""
        return 4.0 if self.layout.plan.compute.kind == "c" else 1.0

    def _underflow(self, gain_a: Array, gain_b: Array, scales: float) -> float:
        """Bound what gradual underflow does, whose errors do not shrink with the numbers."""
        layout = self.layout
        smallest = float(np.finfo(layout.plan.compute).smallest_subnormal)
        gain = 8 * (1 + gain_a.sum()) * (1 + gain_b.sum()) * (layout.inner.size + 4)
        # Scales first, because they may be as large as the smallest number is small.
        scaled = smallest * scales * (1 + layout.a.facts.max_abs)
        return float(gain * (scaled + smallest * (1 + layout.cols.size)))


class _Modular(_Projected):
    """Integers: equal modulo 2**64."""

    def __init__(self, layout: _Layout, shares: NDArray[np.intp], rng: np.random.Generator) -> None:
        super().__init__(layout, shares)
        self.r = _odd(rng, layout.cols.size)
        self.weights_a, self.weights_b = (
            np.rint(weights.real).astype(np.int64) for weights in (self.weights_a, self.weights_b)
        )

    def steps(self) -> Iterator[bool]:
        """Compute the right-hand sides; yield after every tile."""
        layout = self.layout
        rights, coefficients = _right_sides(self.weights_b)
        count, size = rights.shape[1], layout.inner.size
        projected = np.zeros((size, count, MODULAR_COLUMNS), np.int64)
        for v, block in layout.blocks_of_b():
            for rows, cols, tile in _tiles(block, np.int64):
                projected[rows, v] += _product(tile, self.r[cols])
                yield True
        right = np.einsum("lvc,zv->lzc", projected, rights).reshape(size, -1)
        self.coefficients = coefficients
        self.expected = np.zeros(
            (self.shares.size, layout.rows.size, MODULAR_COLUMNS), dtype=np.int64
        )
        for _, strip, parts in layout.strips_of_a():
            for rows, cols, tile in _tiles(strip, np.int64):
                dense = isinstance(tile, np.ndarray)
                pieces = [(u, slice(None) if dense else part) for u, part in parts]
                self.add(tile, right[cols], pieces, rows.start if dense else 0)
                yield True

    def accumulate(self, held: NDArray[np.intp], u: int, piece: Array, rows: slice) -> None:
        """Add one block's part, for the shares that hold it."""
        weighted = self.weights_a[held, u, None] * self.coefficients[held]
        cut = piece.reshape(piece.shape[0], -1, MODULAR_COLUMNS)
        self.expected[held, rows] += np.einsum("wz,rzc->wrc", weighted, cut)

    def agrees(self, share: int, reply: Array) -> bool:
        """Tell whether the reply is equal to the product in every row."""
        height, width = reply.shape
        if reply.dtype.kind not in "iu":
            # What is not an integer, or too large for one, is wrong. Coded by a complex code the
            # integers stand in the real parts.
            with np.errstate(all="ignore"):
                if not (np.abs(reply) < 2.0**62).all() or (reply != np.rint(reply.real)).any():
                    return False
        found = _times(reply, self.r[:width])
        return bool((found == self.expected[self.place[share], :height]).all())


def _right_sides(weights: Array) -> tuple[Array, Array]:
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


def _signs(rng: np.random.Generator, count: int) -> Array:
    """Return random numbers of either sign, none of them small: no wrong entry is passed over."""
    size = rng.uniform(0.75, 1.0, count)
    return np.where(rng.random(count) < 0.5, -size, size)


def _odd(rng: np.random.Generator, count: int) -> Array:
    """Return columns of random 64-bit integers, the first of them odd."""
    r = rng.integers(-(2**63), 2**63 - 1, (count, MODULAR_COLUMNS), endpoint=True)
    r[:, 0] |= 1
    return r


def _tiles(block: Any, dtype: Any) -> Iterator[tuple[slice, slice, Any]]:
    """Cut a block into tiles along its memory; yield rows, columns and the tile in ``dtype``.

    ``dtype`` is float64 (complex128 for complex blocks) or int64. A sparse block is one tile.
    """
    rows, cols = block.shape
    if rows == 0 or cols == 0:
        return
    if block.dtype.kind == "c":
        dtype = np.complex128
    if not isinstance(block, np.ndarray):
        yield slice(0, rows), slice(0, cols), block.astype(dtype, copy=False)
        return
    item = np.dtype(dtype).itemsize
    if abs(block.strides[0]) < abs(block.strides[1]):
        step = max(1, TILE_BYTES // (item * rows))
        for left in range(0, cols, step):
            part = slice(left, min(left + step, cols))
            yield slice(0, rows), part, block[:, part].astype(dtype, copy=False)
        return
    step = max(1, TILE_BYTES // (item * cols))
    for top in range(0, rows, step):
        part = slice(top, min(top + step, rows))
        yield part, slice(0, cols), block[part].astype(dtype, copy=False)


def _times(matrix: Any, right: Array) -> Array:
    """Multiply a matrix of any dtype by a vector or a few columns, tile by tile."""
    exact = right.dtype.kind == "i"
    # Integers may be held in floating point.
    rounding = exact and matrix.dtype.kind not in "iub"
    kind = np.result_type(matrix.dtype if not rounding else right, right)
    product = np.zeros((matrix.shape[0], *right.shape[1:]), right.dtype if exact else kind)
    for rows, cols, tile in _tiles(matrix, np.float64 if rounding or not exact else np.int64):
        if rounding:
            with np.errstate(invalid="ignore"):
                tile = np.rint(tile.real).astype(np.int64)
        product[rows] += _product(tile, right[cols])
    return product


def _product(left: Any, right: Array) -> Array:
    """Multiply without casting a real factor to complex numbers."""
    if left.dtype.kind != "c" and right.dtype.kind == "c":
        product = np.empty((left.shape[0], *right.shape[1:]), right.dtype)
        product.real, product.imag = left @ right.real, left @ right.imag
        return product
    result: Array = left @ right
    return result


def _product_by(left: Array, right: Any) -> Array:
    """Multiply a few rows by a matrix, dense or sparse."""
    if isinstance(right, np.ndarray):
        return _product(right.T, left.T).T
    return np.asarray((right.T @ left.T).T)


def _peaks(tile: Any) -> Array:
    """Return the largest absolute value of every column."""
    if isinstance(tile, np.ndarray):
        return np.asarray(np.abs(tile).max(axis=0))
    return np.asarray(abs(tile).max(axis=0).toarray()).reshape(-1)


def _scaled(tile: Any, scales: Array) -> Any:
    """Return the tile with its columns multiplied by the scales."""
    if isinstance(tile, np.ndarray):
        return tile * scales
    columns = tile.tocsr()
    return type(columns)(
        (columns.data * scales[columns.indices], columns.indices, columns.indptr), columns.shape
    )


def _row_squares(tile: Any) -> Array:
    """Return the squared norm of every row."""
    if not isinstance(tile, np.ndarray):
        squares = type(tile)((np.abs(tile.data) ** 2, tile.indices, tile.indptr), tile.shape)
        return np.asarray(squares.sum(axis=1)).reshape(-1)
    parts = (tile.real, tile.imag) if tile.dtype.kind == "c" else (tile,)
    return np.sum([np.einsum("ij,ij->i", part, part) for part in parts], axis=0)
