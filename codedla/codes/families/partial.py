r"""Partial stragglers: one coded operand, plain parts first and coded ones at the end.

**Any ``4 k`` of all ``4 N`` replies decode, with probability 1**, so all replies of any ``k`` of
``N`` workers do. ``A`` is cut into ``k`` row blocks of four parts each, ``B`` goes to everybody.
Share ``s`` belongs to worker ``s mod N``, which computes its shares in ascending order: the first
``4 k`` shares are the parts themselves, one for one, the last ``4 (N - k)`` are sums

.. math:: \sum_j P_{tj} A_j B, \qquad t = 0, \ldots, 4 (N - k) - 1,

with orthonormal random rows ``P`` (orthonormal columns where there are more coded parts than plain
ones). A slow worker contributes plain parts, the quick ones make up for the rest with coded parts;
if all are equally quick, nearly everything is there as it is. Plain parts of sparse operands stay
sparse, and only the last parts are dense.

========== ================================================================================
threshold  ``4 k`` of ``4 N`` shares
field      real
cost       worker ``1/k`` of the product in four parts; decoding ``O(e)`` blocks for ``e``
           missing plain parts
weakness   3 to 4 digits are lost in the worst patterns, which are known by search only
========== ================================================================================

References
----------
Das and Ramamoorthy, "Coded sparse matrix computation schemes that leverage partial stragglers",
IEEE Trans. Inf. Theory 68 (2022) (arXiv:2012.06065): uncoded parts first, coded ones afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.draws import orthonormal_columns
from codedla.codes.parts import PartsCode
from codedla.codes.registry import register
from codedla.codes.rows import scaled_rows

__all__ = ["Partial"]


@register
class Partial(PartsCode):
    """All plain parts, and random sums of them for whoever is quick."""

    name = "partial"
    threshold_formula = "4k of the 4N replies, with probability 1"
    systematic = True
    citation = "Das and Ramamoorthy, IEEE Trans. Inf. Theory 68 (2022)"
    weakness = "the worst pattern is known by search only; about 4 digits are lost at k=36"

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        plain = self.grid.m
        coded = self.n_shares - plain
        tall, thin = max(plain, coded), min(plain, coded)
        columns = orthonormal_columns(f"partial {plain} {coded}", tall, thin)
        sums = scaled_rows(columns.T if coded <= plain else columns)
        return np.concatenate([np.eye(plain), sums]), np.ones((self.n_shares, 1))
