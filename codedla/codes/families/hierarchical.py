r"""Hierarchical code: groups with a code of their own, and a code over the groups.

**Any** ``m`` **groups decode of which each has any** ``n`` **of its workers' replies.** The workers
form ``g`` groups of ``q`` neighbours (a machine, a rack); worker ``j`` of group ``i``, number
``i q + j``, multiplies

.. math:: \tilde A_i = \sum_{i'} G_{ii'} A_{i'}, \qquad \tilde B_j = \sum_{j'} H_{jj'} B_{j'},

with ``G`` a ``(g, m)`` and ``H`` a ``(q, n)`` code, both systematic. A group decodes its ``n``
products :math:`\tilde A_i B_{j'}` by itself, the master combines ``m`` groups: two small systems
instead of one of ``m n`` unknowns, whole groups may be lost, and stragglers within a group are made
up for on the spot. A group that is not complete is of no use, hence any
``(g - m + 1)(q - n + 1) - 1`` losses are survived for certain, and many patterns of more.

Of the shapes that fit, ``g x q`` survives most losses whoever they are.

========== ===========================================================================
threshold  ``g q - (g - m + 1)(q - n + 1) + 1`` in the worst case, ``m n`` in the best
field      real
cost       worker one block product; decoding at most ``n`` blocks per lost one in its
           group, then ``m`` per block of a lost group
weakness   a group short of one reply is lost as a whole; ``product`` needs no more workers
           and decodes every pattern that this code does
========== ===========================================================================

References
----------
Park, Lee, Sohn, Suh, Moon, "Hierarchical coding for distributed computing", ISIT 2018.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.lines import LinesCode
from codedla.codes.registry import register

__all__ = ["Hierarchical"]


@register
class Hierarchical(LinesCode):
    """Columns of B coded within groups of workers, rows of A over the groups."""

    name = "hierarchical"
    operation = "matmul"
    threshold_formula = "g*q - (g-m+1)*(q-n+1) + 1, or any n workers of each of any m groups"
    field = "real"
    citation = "Park, Lee, Sohn, Suh, Moon, ISIT 2018"
    weakness = "a group short of one reply is lost; product decodes whatever this does, and more"

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        outer, inner = self.lines
        a, b = np.zeros((self.n_workers, self.grid.m)), np.zeros((self.n_workers, self.grid.n))
        a[: self.active] = np.repeat(outer.generator, inner.size, axis=0)
        b[: self.active] = np.tile(inner.generator, (outer.size, 1))
        return a, b

    def _replied(self, responders: Collection[int]) -> NDArray[np.bool_]:
        """Which workers replied, (groups, size of a group)."""
        outer, inner = self.lines
        replied = np.zeros(self.active, dtype=bool)
        replied[[w for w in responders if w < self.active]] = True
        return replied.reshape(outer.size, inner.size)

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether enough groups have enough replies."""
        complete = self._replied(responders).sum(axis=1) >= self.grid.n
        return bool(complete.sum() >= self.grid.m)

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        outer, inner = self.lines
        replied = self._replied(survivors)
        complete = replied.sum(axis=1) >= self.grid.n
        holders = [column for column, w in enumerate(survivors) if w < self.active]
        made = np.zeros((self.active, len(survivors)))
        made[[survivors[column] for column in holders], holders] = 1.0
        cells = made.reshape(outer.size, inner.size, -1)
        for group in np.flatnonzero(complete):
            cells[group] = inner.completed(replied[group], cells[group])
        blocks = outer.completed(complete, cells[:, : self.grid.n])[: self.grid.m]
        weights: NDArray[Any] = blocks.reshape(self.grid.outputs, -1)
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        outer, inner = self.lines
        return (
            f"any {self.threshold} of {self.active} workers, or any {self.grid.n} of the "
            f"{inner.size} workers in each of any {self.grid.m} of {outer.size} groups"
        )
