r"""Batches: one coded operand, every worker replies after each part of its work.

**Any ``4 k`` of all ``4 N`` replies decode**, so all replies of any ``k`` of ``N`` workers do, and
what the slow workers have finished by then counts. ``A`` is cut into ``k`` row blocks of four parts
each, ``B`` goes to everybody; share ``s`` is :math:`\sum_j G_{sj} A_j B`, and worker ``w`` computes
the shares ``w, w + N, w + 2 N, w + 3 N``, in this order.

* nodes ``trig`` (default): ``G`` holds the first ``4 k`` real trigonometric functions at ``4 N``
  equally spaced angles, so that any ``4 k`` rows are independent for certain. Shares are spread
  over the angles such that neighbouring ones lie far apart.
* nodes ``random``: ``4 k`` orthonormal random columns; independent with probability 1, and better
  conditioned when many shares are missing that no pattern of angles suits.

========== ================================================================================
threshold  ``4 k`` of ``4 N`` shares
field      real
cost       worker ``1/k`` of the product in four parts; decoding ``O(4 k)`` blocks
weakness   not systematic; with ``trig``, accuracy falls with the number of missing shares: up
           to 5 digits at ``k = 20`` and 4 losses (``random``: 3)
========== ================================================================================

References
----------
Wang, Xie, Lu, Wan, Fu, "On batch-processing based coded computing for heterogeneous distributed
computing systems" (arXiv:1912.12559): replies in batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.codes.draws import orthonormal_columns
from codedla.codes.parts import PartsCode
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Batch"]


@register
class Batch(PartsCode):
    """An MDS code over the parts of all workers' shares."""

    name = "batch"
    threshold_formula = "4k of the 4N replies"
    citation = "Wang, Xie, Lu, Wan, Fu, arXiv:1912.12559"
    weakness = (
        "decodes all blocks even when nobody is late; rare sets of replies lose 5 digits at k=20 "
        "with 4 losses"
    )
    node_choices = ("trig", "random")

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        shares, parts = self.n_shares, self.grid.m
        if self.nodes == "random":
            label = f"batch {shares} {parts}"
            rows = scaled_rows(orthonormal_columns(label, shares, parts))
        else:
            place = points.spread(shares, shares - parts)
            rows = points.trigonometric_basis(place, parts, shares)
        return rows, np.ones((shares, 1))
