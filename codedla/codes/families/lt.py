r"""LT: a rateless code, one coded operand; whatever any worker has finished counts.

**About ``k`` replies of any workers decode**: each is a sum or difference of a few of the ``k`` row
blocks of ``A``, ``B`` goes to everybody. A fast worker answers many shares, a slow one few, and
none of it is wasted; ``k`` should be some 20 times the number of workers or more.

* nodes ``soliton`` (default): share ``s`` mixes :math:`d_s` blocks with signs, where the degrees
  follow the robust soliton distribution (with :math:`R = c \sqrt k \ln(k / \delta)`, ``c = 0.05``,
  ``delta = 0.05``),

  .. math:: \rho(1) = \frac1k, \quad \rho(d) = \frac{1}{d (d - 1)}, \qquad
            \tau(d) = \frac{R}{dk} \;\; (d < k/R), \quad \tau(k/R) = \frac{R \ln(R/\delta)}{k}.

* nodes ``plain-first``: the first ``k`` shares are the blocks themselves, then come sums of about
  ``7 ln k`` blocks (``k/2``, if that is less). Most of what arrives is plain, all of it if nobody
  is slower than another: less to decode, and a digit more. Few blocks on few workers need up to
  40 % more replies.

Blocks are taken from one shuffled order after another, so that all are mixed in equally often; with
that, and signs, next to no reply is in vain, and a precode in front (Raptor codes) would gain
nothing. Each worker's first ``2 k / N`` shares (at least 4) are of this kind, seeded, the same on
every machine. After these come plain blocks; each is on three different workers in all: whatever
two workers are lost, the others decode, for certain. Two workers hold two copies.

========== ================================================================================
threshold  ``k`` in the best case; usually a few more (about 0.2 % at ``k = 1000``, 1 % at 100)
field      real; coefficients -1, 0, 1
cost       encoding about 10 blocks a share; decoding about 20 ``k``
           block additions by peeling and inactivation from ``k > 100`` on, least squares of
           everything that came below
weakness   that few more than ``k`` suffice is an average, nothing certain; unbalanced work of the
           last share: with ``k`` of a few times ``N`` some 10 % above the ideal time
========== ================================================================================

References
----------
Luby, "LT codes", FOCS 2002. Mallick, Chaudhari, Sheth, Palanikumar, Joshi, "Rateless codes for
near-perfect load balancing in distributed matrix-vector multiplication", SIGMETRICS 2020
(arXiv:1804.10331).
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.peeling import PeelingCode
from codedla.codes.registry import register

__all__ = ["LT", "soliton"]

_COPIES = 3
_DEGREE = 7  # times ln k: no missing block is then likely to be in none of the sums that come


@register
class LT(PeelingCode):
    """A stream of sparse sums of row blocks, of which about ``k`` decode."""

    name = "lt"
    threshold_formula = "k in the best case"
    citation = "Luby, FOCS 2002; Mallick et al., SIGMETRICS 2020"
    weakness = "some replies more than k may be needed; only two losses are survived for certain"
    blocks_per_worker = 20
    node_choices = ("soliton", "plain-first")

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        super().__init__(n_workers, grid, nodes=nodes)
        per_worker = -(-grid.m // self.n_workers)
        self.coded = max(2 * per_worker, 4)
        """Shares of every worker before the last plain ones."""
        self.copies = self.tolerates + (self.nodes == "soliton")
        self.load = self.coded + self.copies * per_worker

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return the number of spare plain copies of every block."""
        return min(n_workers, _COPIES) - 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        workers, blocks = self.n_workers, self.grid.m
        rows = np.zeros((self.n_shares, blocks))
        mixed = rows[: self.coded * workers]
        if self.nodes == "plain-first":
            mixed[:blocks] = np.eye(blocks)
            mixed = mixed[blocks:]
        self._mix(mixed)
        per_worker, plain = -(-blocks // workers), np.arange(blocks)
        for copy in range(self.copies):
            task = self.coded + copy * per_worker + plain // workers
            # Where plain blocks come first, each is on the worker of its own number already.
            worker = (plain + copy + (self.nodes == "plain-first")) % workers
            rows[task * workers + worker, plain] = 1.0
        return rows, np.ones((self.n_shares, 1))

    def _mix(self, rows: NDArray[Any]) -> None:
        """Draw the blocks and signs of these shares."""
        blocks = self.grid.m
        draw = random.Random(f"lt {self.n_workers} {blocks}")  # the same numbers on every Python
        steps = list(itertools.accumulate(soliton(blocks)))
        order: list[int] = []
        for row in rows:
            degree = min(math.ceil(_DEGREE * math.log(blocks) + 1), -(-blocks // 2))
            if self.nodes == "soliton":
                degree = 1 + bisect.bisect(steps, draw.random() * steps[-1], hi=blocks - 1)
            if len(order) < degree:
                # Those left over come first, and are not taken twice.
                left = set(order)
                fresh = [block for block in range(blocks) if block not in left]
                rest = list(order)
                draw.shuffle(fresh)
                draw.shuffle(rest)
                order += fresh + rest
            for block in order[:degree]:
                row[block] = draw.choice((-1.0, 1.0))
            del order[:degree]


def soliton(blocks: int, c: float = 0.05, delta: float = 0.05) -> list[float]:
    """Return the robust soliton distribution of the degrees ``1 .. blocks``."""
    size = c * math.sqrt(blocks) * math.log(blocks / delta)
    spike = min(max(round(blocks / size), 1), blocks)
    weights = [1.0 / blocks, *(1.0 / (d * (d - 1)) for d in range(2, blocks + 1))]
    for degree in range(1, spike):
        weights[degree - 1] += size / (degree * blocks)
    weights[spike - 1] += max(size * math.log(size / delta) / blocks, 0.0)
    total = sum(weights)
    return [weight / total for weight in weights]
