r"""Cauchy parities: the classical choice over finite fields, weak over the reals.

**Any ``k`` of ``N`` workers decode.** ``A`` is cut into ``k`` row blocks (grid ``k x 1 x 1``),
``B`` goes to everybody. Workers ``0 .. k-1`` hold plain blocks, ``s = N - k`` others parities

.. math:: P_{rj} = \frac1{x_r - y_j}, \qquad \text{rows scaled to norm } \sqrt k.

Every minor of a Cauchy matrix is a Cauchy matrix and has a nonzero determinant in closed form,
whatever the distinct points; that is why storage systems use it. But over the reals determinants
that are not zero may be tiny: neighbouring rows look alike.

* nodes ``spread``: the integers ``0 .. N-1`` with the ``s`` points ``x`` evenly among them.
* nodes ``classical``: ``y_j = j`` and ``x_r = k + r``, as in the textbooks.

========== ========================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(e)`` blocks for ``e`` lost ones
weakness   5 losses cost 6 digits at ``k = 36`` (``classical``: 12), 8 at ``k = 100``
========== ========================================================================

References
----------
Bloemer, Kalfane, Karp, Karpinski, Luby, Zuckerman, "An XOR-based erasure-resilient coding scheme",
ICSI technical report TR-95-048 (1995): Cauchy parities, over finite fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Cauchy"]


@register
class Cauchy(Code):
    """``k`` plain row blocks of one operand and Cauchy parities; for comparison, not for use."""

    name = "cauchy"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    systematic = True
    citation = "Bloemer et al., ICSI TR-95-048 (1995)"
    weakness = (
        "weak over the reals: 5 losses cost 6 digits at k=36 (nodes classical: 12), where mds "
        "loses 4; for comparison only"
    )
    node_choices = ("spread", "classical")

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks, losses, workers = self.grid.m, self.tolerates, self.n_workers
        if self.nodes == "classical":
            x, y = blocks + np.arange(losses), np.arange(blocks)
        else:
            x = (2 * np.arange(losses) + 1) * workers // max(1, 2 * losses)
            y = np.setdiff1d(np.arange(workers), x)
        parity = scaled_rows(1.0 / np.subtract.outer(x, y))
        return np.concatenate([np.eye(blocks), parity]), np.ones((workers, 1))
