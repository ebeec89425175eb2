r"""Rotation-entangled: all three dimensions cut, on the unit circle, in real arithmetic.

**Any ``p m n + p - 1`` of ``N`` workers decode.** ``A`` is cut into ``m x p`` blocks, ``B`` into
``p x n``, each of these into ``2 x 2`` quarters, and worker ``w``, with the angle
:math:`\theta_w = 2 \pi w / N`, turns the quarters from both sides (:math:`R` the rotation of the
plane, :math:`\otimes I` left out):

.. math:: \tilde A = \sum_{il} R(p i \theta) A_{il} R(-l \theta), \qquad
          \tilde B = \sum_{lj} R(l \theta) B_{lj} R(-p m j \theta).

The inner rotations are those of RotMatDot, the outer ones those of the rotation code. A reply
``Y``, ``2 x 2`` as well, falls apart into

.. math:: Y_{00} \mp Y_{11} + \mathrm i (Y_{10} \pm Y_{01}) =
          \sum_e U^\pm_e \mathrm e^{\mathrm i e \theta}, \qquad
          e = p i \pm p m j + d, \quad |d| < p,

two polynomials with ``p m n + p - 1`` consecutive exponents each. The coefficients at
:math:`e = p i \pm p m j` are block ``(i, j)`` of ``C``; the others mix products nobody wants.

========== =======================================================================
threshold  ``p m n + p - 1``
field      real
cost       worker ``1/(p m n)`` of the flops; replies ``1/(m n)`` of ``C``
weakness   about ``N**s`` of accuracy is lost by ``s`` neighbouring angles
========== =======================================================================

References
----------
The threshold: Yu, Maddah-Ali, Avestimehr, "Straggler mitigation in distributed matrix
multiplication: fundamental limits and optimal coding", IEEE Trans. Inf. Theory 66 (2020). Rotations
in codes: Ramamoorthy and Tang, IEEE Trans. Inf. Theory 68 (2022). Their union is not taken from
a paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["RotationEntangled"]


@register
class RotationEntangled(Code):
    """``m x p x n`` blocks, whose quarters are turned from both sides."""

    name = "rotation-entangled"
    operation = "matmul"
    splits = ("m", "p", "n")
    threshold_formula = "p*m*n + p - 1"
    field = "real"
    stack = (2, 2, 2)
    citation = "entangled: Yu et al. (2020), by rotations as in Ramamoorthy and Tang (2022)"
    weakness = (
        "decodes all blocks even when nobody is late; rare patterns of 5 lost workers cost more "
        "than 6 digits from 99 replies on"
    )

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Return the grid of quarters, each of which is turned with its neighbours."""
        return Grid(2 * blocks.m, 2 * blocks.p, 2 * blocks.n)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of consecutive exponents of each polynomial."""
        return grid.p * grid.outputs + grid.p - 1

    @property
    def _place(self) -> NDArray[np.int64]:
        return points.spread(self.n_workers, self.tolerates)

    def _turned(self, multiples: NDArray[np.integer]) -> NDArray[np.float64]:
        return points.rotations(self._place, multiples, self.n_workers)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.blocks.m, self.blocks.p, self.blocks.n
        inner = self._turned(np.arange(p))
        rows, columns = self._turned(p * np.arange(m)), self._turned(p * m * np.arange(n))
        # Turning from the right by -a takes the same coefficients as from the left by a.
        a = np.einsum("wiab,wlcd->wacibld", rows, inner)
        b = np.einsum("wlab,wjcd->waclbjd", inner, columns)
        return a.reshape(4 * self.n_workers, -1), b.reshape(4 * self.n_workers, -1)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, p, n = self.blocks.m, self.blocks.p, self.blocks.n
        count = self.needs(self.blocks)
        i, j = np.divmod(np.arange(m * n), n)
        generator = np.empty((self.n_workers, 2, 2, 2, count, 2))
        wanted = np.zeros((m, 2, n, 2, 2, count, 2))
        for side, sign in enumerate((1, -1)):
            first = 1 - p - (p * m * (n - 1) if sign < 0 else 0)
            # Multiplying real and imaginary part of a coefficient by a power is a rotation.
            powers = self._turned(first + np.arange(count))
            generator[:, :, :, side] = np.einsum("bcx,wexy->wbcey", _PARTS[side], powers)
            exponent = p * i + sign * p * m * j
            wanted[i, :, j, :, side, exponent - first] = _PARTS[side]
        unknowns = 4 * count
        return generator.reshape(-1, unknowns), wanted.reshape(-1, unknowns)


# Y[b, c] of real and imaginary part of a polynomial's value; the two together are orthonormal.
_PARTS = np.sqrt(0.5) * np.array(
    [[[[1, 0], [0, 1]], [[0, 1], [-1, 0]]], [[[1, 0], [0, -1]], [[0, 1], [1, 0]]]]
)
