r"""Trigonometric frame: one coded operand, every share an equal mixture, real arithmetic.

**Any ``k`` of ``N`` workers decode.** ``A`` is cut into ``k`` row blocks (grid ``k x 1 x 1``),
``B`` goes to everybody, and worker ``w`` replies with :math:`\sum_j F_{wj} A_j B`, where the
columns of ``F`` are the first ``k`` of

.. math:: 1, \sqrt2\cos\theta, \sqrt2\sin\theta, \sqrt2\cos2\theta, \sqrt2\sin2\theta, \ldots

at ``N`` equally spaced angles (half-integer frequencies if ``k`` is even). This is the Vandermonde
matrix of the ``N``-th roots of unity in real clothes: the condition number of any ``k`` rows is the
same, without complex numbers. The columns are orthogonal and all rows have norm ``sqrt(k)``.

========== ===========================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(k)`` blocks, whoever is late
weakness   not systematic; about ``N**s`` of accuracy is lost by ``s`` neighbouring angles
========== ===========================================================================

References
----------
Ramamoorthy and Tang, "Numerically stable coded matrix computations via circulant and rotation
matrix embeddings", IEEE Trans. Inf. Theory 68 (2022): the same conditioning by real matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.codes.base import Code
from codedla.codes.registry import register

__all__ = ["TrigFrame"]


@register
class TrigFrame(Code):
    """``k`` row blocks of one operand, mixed by sines and cosines."""

    name = "trig-frame"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    citation = "conditioning: Ramamoorthy and Tang, IEEE Trans. Inf. Theory 68 (2022)"
    weakness = (
        "decodes all blocks even when nobody is late; rare patterns of 5 lost workers cost more "
        "than 6 digits from k=100 on"
    )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        place = points.spread(self.n_workers, self.tolerates)
        frame = points.trigonometric_basis(place, self.grid.m, self.n_workers)
        return frame, np.ones((self.n_workers, 1))
