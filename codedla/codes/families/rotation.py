r"""Rotation: both operands coded on the unit circle, in real arithmetic, optimal threshold.

**Any ``m n`` of ``N`` workers decode.** Each of the ``m`` row blocks of ``A`` and of the ``n``
column blocks of ``B`` is cut in two, and worker ``w`` turns every pair by a multiple of its angle
:math:`\theta_w = 2 \pi w / N`, with :math:`R(\theta)` the rotation of the plane:

.. math:: \tilde A = \sum_i (R(i \theta) \otimes I) \begin{bmatrix} A_{i0} \\ A_{i1} \end{bmatrix},
          \qquad
          \tilde B = \sum_j \begin{bmatrix} B_{j0} & B_{j1} \end{bmatrix}
                     (R(-m j \theta) \otimes I).

With :math:`x = \mathrm e^{\mathrm i \theta}`, the sum :math:`A_{i0} + \mathrm i A_{i1}` is
multiplied by :math:`x^i`, and likewise for ``B``: a reply is two polynomials in ``x`` and their
conjugates, one with the powers :math:`x^{i + m j}`, one with :math:`x^{i - m j}`. Both have ``m n``
consecutive exponents, so both are a Vandermonde system on the ``N``-th roots of unity, as
well-conditioned as that of the polynomial code at complex points.

========== ========================================================================
threshold  ``m n``
field      real
cost       worker one block product, as uncoded; decoding ``O(m n)`` blocks, of
           which each reply holds four quarters
weakness   about ``N**s`` of accuracy is lost by ``s`` neighbouring angles
========== ========================================================================

References
----------
Ramamoorthy and Tang, "Numerically stable coded matrix computations via circulant and rotation
matrix embeddings", IEEE Trans. Inf. Theory 68 (2022), arXiv 1910.06515.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["Rotation"]


@register
class Rotation(Code):
    """``m x n`` blocks, each half of a pair that is turned by an angle of the worker's."""

    name = "rotation"
    operation = "matmul"
    threshold_formula = "m*n"
    field = "real"
    stack = (2, 1, 2)
    citation = "Ramamoorthy and Tang, IEEE Trans. Inf. Theory 68 (2022)"
    purpose = "no survivor set loses many digits, in real arithmetic"
    weakness = (
        "decodes all blocks even when nobody is late; rare patterns of 5 lost workers cost more "
        "than 6 digits from m*n=100 on"
    )

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Return the grid of half blocks, each of which is turned with its neighbour."""
        return Grid(2 * blocks.m, 1, 2 * blocks.n)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.blocks.m, self.blocks.n
        place = points.spread(self.n_workers, self.tolerates)
        # Worker, turned row, block, row of the pair; the angle's sign makes no difference to B.
        a = points.rotations(place, np.arange(m), self.n_workers).transpose(0, 2, 1, 3)
        b = points.rotations(place, m * np.arange(n), self.n_workers).transpose(0, 2, 1, 3)
        return a.reshape(-1, 2 * m), b.reshape(-1, 2 * n)
