r"""Exponential parities: one coded operand, totally positive coefficients.

**Any ``k`` of ``N`` workers decode.** ``A`` is cut into ``k`` row blocks (grid ``k x 1 x 1``) and
``B`` goes to everybody. Workers ``0 .. k-1`` hold plain blocks, the ``s = N - k`` others parities

.. math:: P_{rj} = \mathrm e^{\lambda_r t_j}, \qquad \lambda_r = -1 \dots 1, \quad
          t_j = -\frac s2 \dots \frac s2 ,

both equally spaced, the rows scaled to norm ``sqrt(k)``. The kernel :math:`\mathrm e^{xy}` is
totally positive: all minors of ``P`` are positive, hence none is zero and every survivor set
decodes. They become small all the same, because neighbouring columns are nearly parallel. The range
of ``t`` is near the best one for two to five losses.

========== ================================================================================
threshold  ``k``
field      real
cost       worker ``1/k`` of the product; decoding ``O(e)`` blocks for ``e`` lost ones
weakness   neighbouring blocks lost together cost up to two digits more than with ``mds``
========== ================================================================================

References
----------
Karlin, "Total positivity", Stanford University Press (1968): the kernel. Bloemer et al. (1995)
have parities below an identity, there of Cauchy matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Exponential"]

_FARTHEST = 8.0  # beyond, the coefficients of a row are too different


@register
class Exponential(Code):
    """``k`` plain row blocks of one operand, and parities with exponential coefficients."""

    name = "exponential"
    operation = "matvec"
    splits = ("m",)
    threshold_formula = "k"
    field = "real"
    systematic = True
    citation = "Karlin, Total positivity (1968)"
    weakness = (
        "neighbouring blocks that are lost together cost 4 digits at k=64 with 3 losses, 7 with 5 "
        "(mds: 3 and 5)"
    )

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks, losses = self.grid.m, self.tolerates
        reach = min(losses / 2, _FARTHEST)
        rates = np.linspace(-1.0, 1.0, losses) if losses > 1 else np.zeros(losses)
        parity = scaled_rows(np.exp(np.outer(rates, np.linspace(-reach, reach, blocks))))
        return np.concatenate([np.eye(blocks), parity]), np.ones((self.n_workers, 1))
