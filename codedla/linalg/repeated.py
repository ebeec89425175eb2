r"""Products of a stored matrix that repeat: what does not change from one to the next is kept.

The first product with vectors of one shape and dtype goes the ordinary way
(:mod:`codedla.linalg.product`). The next ones ask the pool for a *quick* round
(:mod:`codedla.engine.quick`). Replies are decoded by the code's weights,

.. math:: C_o = \sum_{i \in S} W_{oi} Y_i,

which are kept by the set ``S`` of shares that were answered, together with whether they are
accurate enough. Blocks that a share plainly is are taken over as they are. What is not as usual is
left to the ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Split
from codedla.codes import error_estimate
from codedla.codes.base import Code
from codedla.engine.facts import Facts
from codedla.engine.plan import Plan, compute_dtype, machine_epsilon
from codedla.engine.quick import Quick, QuickPool
from codedla.engine.report import Report
from codedla.engine.round import Check, Event
from codedla.linalg.operands import COMBINATION_GROWTH, Checked, combinable
from codedla.linalg.product import USUAL_SPREAD, reply_dtype
from codedla.linalg.reporting import new_report

__all__ = ["Repeated"]

Array = NDArray[Any]

_PATIENCE = 10.0
"""Times its usual seconds that a quick round may take before it is given up ..."""
_LEAST, _MOST = 0.05, 0.25
"""... but at least and at most so many seconds."""
_LATEST = 1 / 8
"""Weight of the latest round in the usual seconds."""
_PAUSE = 256
"""Products that go the ordinary way, at most, after quick rounds that came to nothing."""
_DECODINGS = 256
"""Sets of shares for which it is kept how they decode."""
_TINY = 1e-280
"""Sums of squares below this have lost digits to underflow."""


@dataclass(frozen=True)
class _Decoding:
    """How the replies to one set of shares make up the product.

    Parameters
    ----------
    plain : list of (slice, int)
        Rows of the product, and the share that they are the reply to.
    mixed : list of slice
        Rows of the blocks that are combinations ...
    weights : ndarray (len(mixed), len(shares))
        ... with these weights ...
    shares : list of int
        ... of these shares' replies.
    alpha : float
        Amplification.
    """

    plain: list[tuple[slice, int]]
    mixed: list[slice]
    weights: Array
    shares: list[int]
    alpha: float


class Repeated:
    """Multiply one stored matrix by vectors of one shape and dtype.

    Parameters
    ----------
    a : Checked
        The matrix.
    plan : Plan
        For these vectors.
    pool : QuickPool
    first_key : int
        Worker ``w`` keeps its share under ``first_key + w``.
    """

    def __init__(self, a: Checked, plan: Plan, pool: QuickPool, first_key: int) -> None:
        self._a, self._plan, self._pool, self._first_key = a, plan, pool, first_key
        self._rows = Split(plan.shape[0], plan.grid.m)
        self._eps = machine_epsilon(plan.compute)
        self._replies = np.zeros((plan.code.n_shares, self._rows.size, plan.shape[2]), plan.dtype)
        # Where each reply goes; what lies below a shorter one stays zero.
        self._places = [self._replies[w, : self._length(w)] for w in plan.code.shares]
        self._decodings: dict[int, _Decoding | None] = {}
        self._everybody = (1 << plan.code.n_shares) - 1
        self._largest = _largest_norm(a, plan)
        self._usual = 0.0
        self._pause = self._skipped = 0

    @staticmethod
    def possible(plan: Plan, n_workers: int) -> bool:
        """Tell whether products by this plan can be done in quick rounds.

        Every worker has one share, all get the same vector, and blocks are sums of replies.
        """
        code = plan.code
        simple = (
            code.load == 1
            and not plan.speculate
            and tuple(code.shares) == tuple(range(n_workers))
            and tuple(code.stack) == (1, 1, 1)
            and not any(code.masks)
            and plan.grid.p == plan.grid.n == 1
            and code.field == "real"
            and reply_dtype(plan) == plan.dtype
            and 0 not in plan.shape
        )
        return simple and all(_whole(code, share) for share in code.shares)

    def multiply(
        self, x: Array, check_of: Callable[[Checked], Check] | None, limit: float | None
    ) -> tuple[Array, Callable[[], Report]] | None:
        """Return the product and what makes its report, or None: go the ordinary way.

        Parameters
        ----------
        x : ndarray (L, c)
        check_of : callable, optional
            Makes the check of the replies for one ``x``.
        limit : float, optional
            Seconds that the caller waits.
        """
        if self._skipped < self._pause:
            self._skipped += 1
            return None
        patience = min(max(_LEAST, _PATIENCE * self._usual), _MOST)
        x = np.ascontiguousarray(x, self._plan.dtype)
        norm = _norm(x)
        if norm is None or (limit is not None and limit < 2 * patience):
            return None
        if not norm < self._largest:
            return None
        check = None if check_of is None else check_of(Checked(x, Facts(True, norm, norm)))
        attempt = _Attempt(self, check)
        job = Quick(self._first_key, x, attempt.take, patience)
        if not self._pool.quick(job) or attempt.product is None:
            self._pause, self._skipped = min(2 * self._pause + 1, _PAUSE), 0
            return None
        seconds = job.decided - job.began
        self._usual += (seconds - self._usual) * (_LATEST if self._usual else 1.0)
        self._pause = 0
        self._skipped = 0
        verified = "off" if check_of is None else "locate"
        total = _norm(attempt.product)
        return attempt.product, partial(self._report, job, attempt.decoding, norm, total, verified)

    # -- decoding ------------------------------------------------------------------------------

    def keep(self, share: int, reply: Array) -> bool:
        """Keep a reply; return whether it is of the right kind."""
        place = self._places[share]
        if reply.dtype != place.dtype or reply.shape != place.shape:
            return False
        place[...] = reply
        return True

    def _length(self, share: int) -> int:
        block = self._plan.code.plain_block(share)
        if block is None:
            return self._rows.size
        rows = self._rows.slice(block)
        return rows.stop - rows.start

    def decoding(self, mask: int) -> _Decoding | None:
        """Return how a set of shares (bits) decodes; None when not, or not accurately enough."""
        if mask not in self._decodings:
            if len(self._decodings) >= _DECODINGS:
                self._decodings.clear()
            self._decodings[mask] = self._find(mask)
        return self._decodings[mask]

    def _find(self, mask: int) -> _Decoding | None:
        code = self._plan.code
        shares = [share for share in code.shares if mask >> share & 1]
        if not code.decodable(shares):
            return None
        alpha = code.amplification(shares)
        if not alpha * self._eps <= self._plan.tolerance:
            return None
        sources = {code.plain_block(share): share for share in shares}
        rows = self._rows.slices
        plain = [(rows[block], sources[block]) for block in range(len(rows)) if block in sources]
        mixed = [block for block in range(len(rows)) if block not in sources]
        weights = code.weights(shares)[mixed] if mixed else np.empty((0, len(shares)))
        if mixed and alpha * self._eps * self._spread() > self._plan.tolerance:
            return None  # which the ordinary way warns of
        return _Decoding(plain, [rows[block] for block in mixed], weights, shares, alpha)

    def _spread(self) -> float:
        spread = self._a.row_spread
        return spread if spread > USUAL_SPREAD else 0.0

    def decode(self, decoding: _Decoding) -> Array:
        """Put the product together."""
        rows, _, cols = self._plan.shape
        product = np.empty((rows, cols), self._plan.dtype)
        for place, share in decoding.plain:
            product[place] = self._replies[share, : place.stop - place.start]
        if decoding.mixed:
            known = self._replies[decoding.shares].reshape(len(decoding.shares), -1)
            blocks = (decoding.weights @ known).reshape(len(decoding.mixed), -1, cols)
            for place, block in zip(decoding.mixed, blocks, strict=True):
                product[place] = block[: place.stop - place.start]
        return product

    @property
    def everybody(self) -> int:
        """The set of all shares."""
        return self._everybody

    @property
    def threshold(self) -> int:
        """Fewer replies than this never suffice."""
        return self._plan.code.threshold if self._plan.code.counts else 1

    # -- the report ----------------------------------------------------------------------------

    def _report(
        self, job: Quick, decoding: _Decoding, x_norm: float, norm: float | None, verified: str
    ) -> Report:
        plan, report = self._plan, new_report(self._plan)
        report.responders = [worker + 1 for _, worker, _ in job.replies]
        late = set(range(1, plan.code.n_shares + 1)) - set(report.responders)
        report.stragglers = sorted(late)
        report.times = {
            "encode": 0.0,
            "send": job.sent - job.began,
            "wait": job.replies[-1][0] - job.sent,
            "decode": job.decided - job.replies[-1][0],
            "after_threshold": job.decided - job.replies[-1][0],
            "total": job.decided - job.began,
        }
        sizes = [self._length(worker) for _, worker, _ in job.replies]
        width = plan.shape[2] * plan.dtype.itemsize
        report.bytes = {"sent": plan.code.n_shares * job.x.nbytes, "received": sum(sizes) * width}
        report.amplification, report.verified = decoding.alpha, verified
        if self._a.facts.finite and norm is not None:
            scale = max(self._a.facts.norm * x_norm / norm if norm else 1.0, 1.0)
            estimate = error_estimate(decoding.alpha, self._eps, scale)
            estimate += plan.code.method_error * scale
            report.error_estimate = estimate if math.isfinite(estimate) else None
        report.began = job.began
        report.events = [
            Event(when - job.began, "reply", worker, f"computed {seconds:.6f} s")
            for when, worker, seconds in job.replies
        ]
        return report


class _Attempt:
    """Replies of one quick round."""

    def __init__(self, repeated: Repeated, check: Check | None) -> None:
        self._repeated, self._check = repeated, check
        self._mask, self._count = 0, 0
        self._threshold = repeated.threshold
        self.product: Array | None = None
        self.decoding: Any = None

    def take(self, worker: int, reply: Array) -> bool | None:
        """Keep a reply, and decode when they suffice; see :class:`codedla.engine.quick.Quick`."""
        repeated = self._repeated
        if not repeated.keep(worker, reply):
            return None
        if self._check is not None and not self._check(worker, reply):
            return None
        self._mask |= 1 << worker
        self._count += 1
        if self._count < self._threshold:
            return False
        decoding = repeated.decoding(self._mask)
        if decoding is None:
            return None if self._mask == repeated.everybody else False
        self.decoding, self.product = decoding, repeated.decode(decoding)
        return True


def _largest_norm(a: Checked, plan: Plan) -> float:
    """Return the norm below which no product with a vector can overflow.

    No entry is larger than the norm; where that is too careful, the ordinary way is not.
    """
    unit = Checked(np.zeros((plan.shape[1], plan.shape[2]), plan.dtype), Facts(True, 1.0, 1.0))
    if not combinable(a, unit, plan.dtype):
        return 0.0
    ceiling = float(np.finfo(compute_dtype(plan.dtype)).max) / COMBINATION_GROWTH
    return ceiling / max(1.0, a.facts.max_abs * plan.shape[1])


def _whole(code: Code, share: int) -> bool:
    """Tell whether a share of the vector is the vector itself."""
    rows = code.rows_b(share)
    return rows.size == 1 and rows[0, 0] == 1


def _norm(values: Array) -> float | None:
    """Return the Euclidean norm; None when it cannot be had from the sum of squares."""
    flat = values.reshape(-1)
    if flat.dtype.itemsize < 8 or flat.dtype == np.complex64:
        flat = flat.astype(np.complex128 if flat.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        total = float(np.vdot(flat, flat).real)
    if _TINY < total < math.inf or (total == 0.0 and not flat.any()):
        return math.sqrt(total)
    return None
