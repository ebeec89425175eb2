"""``verify="spares"``: replies checked against each other, not against the operands.

More replies than the threshold are waited for. While they fit together the round ends with a few
spare ones; if they do not, it goes on until there are twice as many, and the wrong replies are
named and left out (:mod:`codedla.codes.locate`). Of the operands only the sizes of their rows and
columns matter, which tell what rounding explains; over finite fields nothing does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes.base import Code
from codedla.codes.exact import ModularCode
from codedla.codes.locate import Located, largest_hidden, locatable, locate
from codedla.engine import arithmetic
from codedla.engine.collector import Collector
from codedla.engine.decoder import DenseDecoder
from codedla.engine.exact_decoder import ModularDecoder
from codedla.engine.plan import Plan, machine_epsilon
from codedla.engine.round import Event, Outcome
from codedla.errors import UsageError, VerificationFailed
from codedla.linalg.operands import Checked

__all__ = ["ModularSpares", "SpareDecoder", "check_spares", "make_spare_decoder"]

logger = logging.getLogger("codedla")
Array = NDArray[Any]

_LEAST_SIZE = 1e-12
"""Rows and columns that are smaller than the largest by more are checked as if they were not."""
_ALMOST_OVERFLOW = 1e140
"""Squares of larger numbers could overflow."""


def check_spares(plan: Plan) -> None:
    """Raise UsageError unless the replies of the plan's code tell which of them are wrong."""
    reason = locatable(plan.code)
    if not reason and plan.compute.kind in "iu":
        reason = "sums of integers wrap around, where replies have no unique explanation"
    if reason:
        raise UsageError(
            f"wrong replies are found by spare ones; got verify='spares' although {reason}; use "
            "verify='locate', or another code (code='galois' for integers)"
        )


class SpareDecoder(DenseDecoder):
    """Keep all replies, find the wrong ones, and decode from the rest.

    Parameters
    ----------
    code : Code
    output : ndarray (M, N)
    dtype : numpy.dtype
    most : int, optional
        Wrong replies that are to be named; by default as many as can be if all workers reply.
    bound, noise, scales : optional
        As in :func:`codedla.codes.locate.locate`.
    smallest : float, optional
        The smallest error that matters, in the units of the scaled replies: if rounding could
        hide one as large, nothing is claimed.

    Attributes
    ----------
    found : Located
        The wrong shares, and whether the rest fits together.
    """

    def __init__(
        self,
        code: Code,
        output: Array,
        dtype: np.dtype,
        *,
        most: int | None = None,
        bound: float | None = None,
        noise: float | None = None,
        scales: tuple[Array, Array] | None = None,
        smallest: float | None = None,
    ) -> None:
        super().__init__(code, output, dtype)
        self.found = Located((), True)
        self._most = max(1, code.tolerates // 2) if most is None else most
        self._bound, self._noise, self._scales = bound, noise, scales
        self._smallest = smallest
        self._whole: dict[int, Array] = {}

    def _make_target(self, share: int) -> Array:
        whole = arithmetic.empty(self.reply_shape, self.dtype)
        block = self.code.plain_block(share)
        if block is None:
            return whole
        # A plain reply is as large as its block, which may be one row or column short.
        whole[...] = 0
        self._whole[share] = whole
        view = self.block(block)
        return whole[: view.shape[0], : view.shape[1]]

    def parts(self, share: int) -> list[Array]:
        """Return the sub-blocks of a reply; see :class:`~codedla.engine.decoder.Decoder`."""
        return [self._whole[share]] if share in self._whole else super().parts(share)

    def agree(self, responders: Sequence[int]) -> bool:
        """Tell whether these replies are enough to trust the product, or more are wanted."""
        spares = len(responders) - self.code.threshold
        if spares < self._most:
            return False
        self.found = self._located(responders)
        right = self.found.certain and not self.found.wrong
        return right or (spares >= 2 * self._most and self.found.certain)

    def finish(self, responders: Iterable[int]) -> None:
        """Decode from the replies that fit together, if there are enough."""
        shares = sorted(set(responders) & self._present)
        self.found = self._located(shares)
        right = [share for share in shares if share not in self.found.wrong]
        if self.found.certain and len(right) > self.code.threshold and self.code.decodable(right):
            self._decode(right)

    def _decode(self, right: list[int]) -> None:
        super().finish(right)

    def judge(self, collector: Collector, outcome: Outcome) -> None:
        """Take wrong replies back, or raise if those that are left are not known to be right.

        Parameters
        ----------
        collector : Collector
            Of the finished round.
        outcome : Outcome

        Raises
        ------
        VerificationFailed
            A reply is wrong and it is not known whose, or nothing was spare.
        """
        wrong, computed_by = self.found.wrong, collector.computed_by
        spare = len(self._present.intersection(computed_by)) - len(wrong) - self.code.threshold
        named = ", ".join(f"rank {computed_by[share] + 1}" for share in wrong)
        handed = "the product is not handed out; tolerate more losses (--tolerate)"
        if not self.found.certain:
            besides = f" (besides {named})" if named else ""
            count = f"{spare} spare {'reply does' if spare == 1 else 'replies do'}"
            raise VerificationFailed(
                f"a reply is wrong{besides}, but {count} not tell whose it is: one wrong worker "
                f"is named by two spare replies, two by four; {handed}"
            )
        if spare < 1:
            without = f"without {named}, which answered wrongly, " if named else ""
            raise VerificationFailed(
                f"{without}no reply was left to compare with, and wrong ones cannot be found; "
                f"{handed}"
            )
        right = self._present.intersection(computed_by).difference(wrong)
        if self._smallest is not None and self._noise is not None:
            hidden = largest_hidden(self.code, right, self._noise)
            if not hidden < self._smallest:
                raise VerificationFailed(
                    "integers this large are decoded by rounding, in which an error of one could "
                    "hide; use code='galois', or verify='locate'"
                )
        for share in wrong:
            worker = collector.exclude(share, "answered wrongly")
            logger.warning("rank %d answered wrongly; its reply is not used", worker + 1)
            outcome.events.append(Event(outcome.total, "wrong", worker))

    def _located(self, responders: Iterable[int]) -> Located:
        shares = sorted(responders)
        replies = [self.target(share) for share in shares]
        return locate(
            self.code,
            shares,
            replies,
            bound=self._bound,
            noise=self._noise,
            scales=self._scales,
        )


class ModularSpares(ModularDecoder, SpareDecoder):
    """The same over GF(p)."""

    def _decode(self, right: list[int]) -> None:
        # Not before: of what is no integer, residues say nothing.
        for share in right:
            self._reduce(share)
        super()._decode(right)


def make_spare_decoder(
    plan: Plan, output: Array, dtype: np.dtype, a: Checked, b: Checked
) -> SpareDecoder:
    """Return the decoder of a product that finds wrong replies by spare ones.

    Raises
    ------
    VerificationFailed
        The operands hold NaN, Inf or numbers near overflow.
    """
    if isinstance(plan.code, ModularCode):
        return ModularSpares(plan.code, output, dtype)
    bound = a.facts.norm * b.facts.norm
    if not (a.facts.finite and b.facts.finite) or not bound < _ALMOST_OVERFLOW:
        raise VerificationFailed(
            "replies that hold NaN, Inf or numbers near overflow cannot be compared; scale "
            "the operands down or use verify='off'"
        )
    grid = plan.grid
    scales = (
        _sizes(a.matrix, 1, Split(plan.shape[0], grid.m)),
        _sizes(b.matrix, 0, Split(plan.shape[2], grid.n)),
    )
    eps = max(machine_epsilon(plan.compute), 2.0**-52)
    roundings = eps * (16 + math.sqrt(plan.shape[1] / grid.p))
    # Where products are tiny, gradual underflow errs by more than their digits.
    tiny = float(np.finfo(plan.compute).tiny) * plan.shape[1]
    tiny /= float(scales[0].min() * scales[1].min())
    noise = (roundings + tiny) * math.sqrt(scales[0].size * scales[1].size)
    whole = plan.dtype.kind in "iub"
    return SpareDecoder(
        plan.code,
        output,
        dtype,
        bound=bound,
        noise=noise,
        scales=scales,
        smallest=1.0 / float(scales[0].max() * scales[1].max()) if whole else None,
    )


def _sizes(matrix: Any, axis: int, split: Split) -> Array:
    """Return how large the rows (axis 1) or columns (axis 0) of coded blocks can be, per norm."""
    if isinstance(matrix, np.ndarray):
        wide = matrix.astype(np.result_type(matrix, np.float64), copy=False)
        lengths = np.linalg.norm(wide, axis=axis)
    else:
        squares = abs(matrix.astype(np.result_type(matrix.dtype, np.float64))).power(2)
        lengths = np.sqrt(np.asarray(squares.sum(axis=axis)).ravel())
    squares = np.zeros(split.size)
    for block in range(split.parts):
        part = lengths[split.slice(block)]
        squares[: part.size] += part**2
    sizes = np.sqrt(squares)
    largest = float(sizes.max(initial=0.0)) or 1.0
    # Nothing is to be blown up without end: rows of zeros have the size of very small ones.
    return np.maximum(sizes, largest * _LEAST_SIZE)
