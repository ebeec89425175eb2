"""Check replies and products against the operands, by random projection.

How it is done, and why nobody is accused because of rounding: :mod:`codedla.linalg.projection`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.facts import Facts
from codedla.engine.plan import Plan
from codedla.errors import VerificationFailed
from codedla.linalg.operands import Checked, combinable
from codedla.linalg.projection import (
    LARGEST_INTEGER,
    MODULAR_COLUMNS,
    Modular,
    Partition,
    Rounded,
    random_integers,
    random_vector,
    right_sides,
)
from codedla.linalg.tiles import tiled_product
from codedla.measured.speeds import speeds

__all__ = [
    "CHEAP",
    "ReplyCheck",
    "SharedCheck",
    "obstacle",
    "unverifiable",
    "verification_seconds",
    "verify_product",
    "worthwhile",
]

Array = NDArray[Any]

CHEAP = 0.05
"""``verify="auto"`` checks every reply when that costs less than this part of the run."""
_NOT_FINITE = "a product with NaN or Inf cannot be verified by random projection; use verify='off'"
_NEAR_OVERFLOW = (
    "a product near overflow cannot be verified by random projection; scale the operands down or "
    "use verify='off'"
)
TILES_AT_ONCE = 8
"""Tiles handled by one call of :meth:`ReplyCheck.prepare`: a few milliseconds."""
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
    like : ReplyCheck, optional
        Of the same B and code, and an A whose facts are the same: B is then read once for both.

    Raises
    ------
    VerificationFailed
        The operands hold NaN, Inf or entries near overflow and cannot be projected.
    """

    def __init__(
        self,
        plan: Plan,
        a: Checked,
        b: Checked,
        rng: np.random.Generator | None = None,
        like: ReplyCheck | None = None,
    ) -> None:
        reason = obstacle(plan, a, b)
        if reason:
            raise VerificationFailed(reason)
        rng = np.random.default_rng() if rng is None else rng
        partition = Partition(plan, a, b)
        exact, rounded = _divide(plan, a, b)
        self._partition = partition
        self._projections: list[Rounded | Modular] = []
        known = {} if like is None else {type(each): each for each in like._projections}
        if exact.size:
            model = known.get(Modular)
            self._projections.append(
                Modular(partition, exact, rng, model if isinstance(model, Modular) else None)
            )
        if rounded.size:
            model = known.get(Rounded)
            self._projections.append(
                Rounded(partition, rounded, rng, model if isinstance(model, Rounded) else None)
            )
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
        if not self._partition.fits(share, reply):
            return False
        return self._of_share[share].agrees(share, reply)


class SharedCheck:
    """What the checks of several products with the same B and code have in common.

    Parameters
    ----------
    facts : Facts
        Of the rows of A in all products together.
    rng : numpy.random.Generator, optional
        Source of the random vectors; by default one nobody can foresee.
    """

    def __init__(self, facts: Facts, rng: np.random.Generator | None = None) -> None:
        self._facts = facts
        self._rng = np.random.default_rng() if rng is None else rng
        self._model: ReplyCheck | None = None
        self._right: tuple[Array, Array] | None = None

    def of_replies(self, plan: Plan, a: Checked, b: Checked) -> ReplyCheck:
        """Return the check of one product's replies; B's part of it is made once for all.

        Raises
        ------
        VerificationFailed
            As by :class:`ReplyCheck`.
        """
        if self._model is None:
            # Of no rows: it keeps nobody's rows of A in memory.
            nothing = Checked(np.empty((0, a.shape[1]), a.dtype), self._facts)
            _, inner, cols = plan.shape
            self._model = ReplyCheck(replace(plan, shape=(0, inner, cols)), nothing, b, self._rng)
        return ReplyCheck(plan, Checked(a.matrix, self._facts), b, self._rng, self._model)

    def right(self, b: Checked, *, exact: bool) -> tuple[Array, Array]:
        """Return the random vector ``r`` of :func:`verify_product` and ``B r``, the same always."""
        if self._right is None:
            self._right = _random_right(b, self._rng, exact=exact)
        return self._right


def unverifiable(plan: Plan, a: Checked, b: Checked) -> str:
    """Return why no product of these operands can be verified, or an empty string."""
    finite = a.facts.finite and b.facts.finite
    return "" if plan.dtype.kind in "iub" or finite else _NOT_FINITE


def obstacle(plan: Plan, a: Checked, b: Checked) -> str:
    """Return why replies to these operands cannot be projected, or an empty string."""
    if plan.dtype.kind in "fc" and a.facts.finite and b.facts.finite:
        return "" if combinable(a, b, plan.dtype) else _NEAR_OVERFLOW
    return unverifiable(plan, a, b)


def verification_seconds(plan: Plan) -> float:
    """Predict what checking every reply costs the master, by the assumptions of the choice.

    A is read once, B twice and each reply once; the flops of the projections count too.
    """
    m, inner, n = plan.shape
    entries_a, entries_b = m * inner * plan.density[0], inner * n * plan.density[1]
    columns: float = len(right_sides(plan.code.generator_b)[0])
    if plan.compute.kind in "iu":
        columns *= MODULAR_COLUMNS * MODULAR_COST
    # One more column for what rounding explains, and two more passes over B for its scales.
    flops = 2.0 * (entries_a * (columns + 1) + 3 * entries_b)
    return _traffic_seconds(plan) + flops / speeds().flops


def worthwhile(plan: Plan, a: Checked, b: Checked, beside: float = 0.0) -> bool:
    """Tell whether checking every reply is possible and cheap: what ``verify="auto"`` means.

    Parameters
    ----------
    plan : Plan
    a, b : Checked
    beside : float
        Seconds of the run besides the product itself: starting ranks, reading and writing.
    """
    allowed = CHEAP * (plan.seconds + beside)
    # The first is enough for small products, and quickly found.
    if _traffic_seconds(plan) >= allowed or 0 in plan.shape or obstacle(plan, a, b):
        return False
    return verification_seconds(plan) < allowed


def _traffic_seconds(plan: Plan) -> float:
    """Predict how long it takes to read the operands and the replies."""
    m, inner, n = plan.shape
    (down, _, across), grid = plan.code.stack, plan.grid
    rows, cols = down * -(-m // grid.m), across * -(-n // grid.n)
    entries = m * inner * plan.density[0] + 2 * inner * n * plan.density[1]
    return (
        plan.compute.itemsize * (entries + len(plan.code.shares) * rows * cols) / speeds().bandwidth
    )


def verify_product(
    a: Checked,
    b: Checked,
    decoded: Array,
    *,
    alpha: float = 1.0,
    eps: float = 2.0**-52,
    lost_bits: int = 0,
    rng: np.random.Generator | None = None,
    shared: SharedCheck | None = None,
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
    lost_bits : int
        Highest bits of decoded int64 that mean nothing.
    rng : numpy.random.Generator, optional
    shared : SharedCheck, optional
        Of products with the same B, which is then read once for all of them.

    Raises
    ------
    VerificationFailed
        A row differs by more than rounding can explain, or the operands cannot be projected.
    """
    rng = np.random.default_rng() if rng is None else rng
    # Not so of int64 times uint64, which is a product in floating point.
    exact = np.result_type(a.dtype, b.dtype).kind in "iub"
    if not exact and not (a.facts.finite and b.facts.finite):
        raise VerificationFailed(_NOT_FINITE)
    r, of_b = _random_right(b, rng, exact=exact) if shared is None else shared.right(b, exact=exact)
    if exact:
        _verify_modular(a, decoded, lost_bits, r, of_b)
        return
    scale = max(a.facts.norm * b.facts.norm * float(np.linalg.norm(r)), 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = tiled_product(a.matrix, of_b)
        difference = np.abs(tiled_product(decoded, r) - expected).ravel()
    if not (np.isfinite(scale) and np.isfinite(expected).all()):
        raise VerificationFailed(_NEAR_OVERFLOW)
    # Gradual underflow errs by an amount that does not shrink with the numbers.
    least = float(np.finfo(decoded.dtype).tiny) * (a.shape[1] + b.shape[1])
    explained = 32 * (1 + alpha) * (eps * scale + least)
    worst = int(np.argmax(difference)) if difference.size else 0
    # NaN in the product must fail, hence "not <=".
    if difference.size and not difference[worst] <= explained:
        raise VerificationFailed(
            f"the product failed the Freivalds check in row {worst}: "
            f"off by {difference[worst]:.1e} where rounding explains {explained:.1e}; "
            "a worker answered wrongly; the product is not handed out"
        )


def _random_right(b: Checked, rng: np.random.Generator, *, exact: bool) -> tuple[Array, Array]:
    """Return a random vector (of integers: a few) and the product of B and it."""
    if exact:
        r = random_integers(rng, b.shape[1])
    else:
        r = random_vector(rng, b.shape[1])[:, None]
    # What overflows is found where the products are compared.
    with np.errstate(over="ignore", invalid="ignore"):
        return r, tiled_product(b.matrix, r)


def _verify_modular(a: Checked, decoded: Array, lost_bits: int, r: Array, of_b: Array) -> None:
    expected = tiled_product(a.matrix, of_b)
    # Shifted out, the highest bits do not count.
    differs = ((tiled_product(decoded, r) - expected) << lost_bits != 0).any(axis=1)
    if decoded.dtype.kind in "fc":
        # Where floating point holds no integer at all, nothing said about one counts.
        differs |= np.array([not (abs(row) < LARGEST_INTEGER).all() for row in decoded], bool)
    wrong = np.flatnonzero(differs)
    if wrong.size:
        raise VerificationFailed(
            f"the product failed the Freivalds check in row {wrong[0]}: it is not equal modulo "
            f"2**{64 - lost_bits}; a worker answered wrongly; the product is not handed out"
        )


def _divide(plan: Plan, a: Checked, b: Checked) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the shares that are compared exactly, and those that are compared up to rounding."""
    shares = np.array(plan.code.shares)
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
        rows = generator.reshape(plan.code.n_shares, -1)[shares]
        whole &= (rows == np.rint(rows.real)).all(axis=1)
        size *= np.abs(rows).sum(axis=1)
    # Integer operands are held in floating point only while 8 times any entry is exact.
    whole &= size <= 8
    return shares[whole], shares[~whole]
