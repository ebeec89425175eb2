r"""RotMatDot: MatDot on the unit circle, in real arithmetic.

**Any ``2 p - 1`` of ``N`` workers decode.** The inner dimension is cut into ``p`` pairs of blocks
and worker ``w``, with the angle :math:`\theta_w = 2 \pi w / N`, turns the pairs of both operands
alike (:math:`R` the rotation of the plane):

.. math:: \tilde A = \sum_l \begin{bmatrix} A_{l0} & A_{l1} \end{bmatrix} (R(-l \theta) \otimes I),
          \qquad
          \tilde B = \sum_l (R(l \theta) \otimes I) \begin{bmatrix} B_{l0} \\ B_{l1} \end{bmatrix}.

In the product the pairs ``l, l'`` meet turned by :math:`(l' - l) \theta`. It is a real
trigonometric polynomial of degree ``p - 1``, with ``2 p - 1`` real unknowns, whose constant term is
:math:`\sum_l A_{l0} B_{l0} + A_{l1} B_{l1} = C`. When all reply, the mean of the replies is ``C``.

========== =======================================================================
threshold  ``2 p - 1``
field      real
cost       worker ``1/p`` of the flops, as MatDot, but a reply as large as ``C``;
           decoding ``s + 1`` accumulators the size of ``C``
weakness   about ``N**s`` of accuracy is lost by ``s`` neighbouring angles
========== =======================================================================

References
----------
The threshold: Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold
of coded matrix multiplication", IEEE Trans. Inf. Theory 66 (2020). Rotations in codes: Ramamoorthy
and Tang, IEEE Trans. Inf. Theory 68 (2022). Their union is not taken from a paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["RotMatDot"]


@register
class RotMatDot(Code):
    """``p`` inner pairs of blocks, turned alike; every reply is as large as ``C``."""

    name = "rotmatdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p - 1"
    field = "real"
    stack = (1, 2, 1)
    citation = "MatDot: Dutta et al. (2020), by rotations as in Ramamoorthy and Tang (2022)"
    purpose = "only the inner dimension is cut, which is long against the others"
    weakness = (
        "every reply is as large as C; rare patterns of 5 lost workers cost more than 6 digits "
        "from p=50 on"
    )

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Return the grid of half inner blocks, each of which is turned with its neighbour."""
        return Grid(1, 2 * blocks.p, 1)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``2 p - 1``, the number of coefficients of the trigonometric polynomial."""
        return 2 * grid.p - 1

    @property
    def _place(self) -> NDArray[np.int64]:
        return points.spread(self.n_workers, self.tolerates)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        turned = points.rotations(self._place, np.arange(self.blocks.p), self.n_workers)
        # A is turned by the inverse from the other side: its coefficients are the same.
        rows = turned.transpose(0, 2, 1, 3).reshape(2 * self.n_workers, -1)
        return rows, rows

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        unknowns = 2 * self.blocks.p - 1
        wanted = np.zeros((1, unknowns))
        wanted[0, 0] = 1.0
        return points.trigonometric_basis(self._place, unknowns, self.n_workers), wanted
