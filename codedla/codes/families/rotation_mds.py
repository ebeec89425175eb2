r"""Rotation for one coded operand: pairs of row blocks turned by an angle of the worker's.

**Any ``k`` of ``N`` workers decode.** ``A`` is cut into ``k`` row blocks, each of these in two,
``B`` goes to everybody, and worker ``w``, with the angle :math:`\theta_w = 2 \pi w / N`, replies
with

.. math:: \sum_j (R(j \theta) \otimes I) \begin{bmatrix} A_{j0} \\ A_{j1} \end{bmatrix} B,
          \qquad R(\theta) = \begin{bmatrix} \cos & -\sin \\ \sin & \cos \end{bmatrix}.

:math:`A_{j0} + \mathrm i A_{j1}` is multiplied by :math:`\mathrm e^{\mathrm i j \theta}`: the
system is the Vandermonde matrix of the ``N``-th roots of unity, without complex numbers. (The
trigonometric frame, code ``trig-frame``, is as well-conditioned and cuts ``A`` into half as many
pieces.)

========== ===========================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(k)`` blocks, whoever is late
weakness   not systematic; about ``N**s`` of accuracy is lost by ``s`` neighbouring angles
========== ===========================================================================

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

__all__ = ["RotationMDS"]


@register
class RotationMDS(Code):
    """``k`` row blocks of one operand, each half of a pair that is turned."""

    name = "rotation-mds"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    stack = (2, 1, 1)
    citation = "Ramamoorthy and Tang, IEEE Trans. Inf. Theory 68 (2022)"
    weakness = (
        "decodes all blocks even when nobody is late; rare patterns of 5 lost workers cost more "
        "than 6 digits from k=100 on"
    )

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Return the grid of half blocks, each of which is turned with its neighbour."""
        return Grid(2 * blocks.m, 1, 1)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        place = points.spread(self.n_workers, self.tolerates)
        turned = points.rotations(place, np.arange(self.blocks.m), self.n_workers)
        a = turned.transpose(0, 2, 1, 3).reshape(2 * self.n_workers, -1)
        return a, np.ones((self.n_workers, 1))
