"""Decode sparse codes by peeling: additions of a few blocks each instead of one dense combination.

For ``k`` blocks a dense combination takes ``k**2`` block operations, peeling those of about twice
the entries of ``k`` sparse rows, and of a small dense system for the inactive blocks; see
:mod:`codedla.codes.peeling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.peeling import CORRECTIONS, Peeling, PeelingCode
from codedla.engine import arithmetic
from codedla.engine.decoder import Decoder

__all__ = ["PeelingDecoder"]

Array = NDArray[Any]


class PeelingDecoder(Decoder):
    """Keep every reply; at the end solve one sparse equation after the other."""

    code: PeelingCode

    def __init__(self, code: PeelingCode, output: Array, dtype: np.dtype) -> None:
        super().__init__(code, output, dtype)
        self._present: set[int] = set()

    def add(self, share: int) -> None:
        """Keep the reply; see :class:`codedla.engine.decoder.Decoder`."""
        self._present.add(share)

    def finish(self, responders: Iterable[int]) -> None:
        """Peel; see :class:`codedla.engine.decoder.Decoder`."""
        shares = tuple(sorted(set(responders) & self._present))
        peeling = self.code.peeling(shares)
        places = [self._place(index) for index in range(self.code.grid.outputs)]
        replies = [self.target(share) for share in shares]
        inactive = [places[unknown] for unknown in peeling.inactive]
        for place in inactive:
            place[...] = 0
        self._peel(peeling, places, replies)
        for _ in range(CORRECTIONS if inactive else 0):
            left = [self._remainder(peeling, number, places, replies) for number in peeling.checks]
            arithmetic.combine(peeling.fill, left, inactive, accumulate=True)
            self._peel(peeling, places, replies)
        for index, place in enumerate(places):
            view = self.block(index)
            if not np.may_share_memory(place, view):
                view[...] = place[: view.shape[0], : view.shape[1]]

    def _place(self, index: int) -> Array:
        view = self.block(index)
        dtype = arithmetic.accumulating(self.dtype)
        whole = view.shape == self.shape and view.dtype == dtype
        if whole and view.size and view.strides[1] == view.itemsize:
            return view
        return arithmetic.empty(self.shape, dtype)

    @staticmethod
    def _peel(peeling: Peeling, places: Sequence[Array], replies: Sequence[Array]) -> None:
        for number, unknown in peeling.steps:
            members, values = peeling.equations[number]
            own = members.index(unknown)
            others, rest = members[:own] + members[own + 1 :], values[:own] + values[own + 1 :]
            weights = np.array([[1.0, *(-value for value in rest)]]) / values[own]
            sources = [replies[number], *(places[member] for member in others)]
            arithmetic.combine(weights, sources, [places[unknown]])

    @staticmethod
    def _remainder(
        peeling: Peeling, number: int, places: Sequence[Array], replies: Sequence[Array]
    ) -> Array:
        """Return what the blocks do not explain of an unused reply."""
        members, values = peeling.equations[number]
        left = arithmetic.empty(replies[number].shape, places[0].dtype)
        sources = [replies[number], *(places[m] for m in members)]
        arithmetic.combine(np.array([[1.0, *(-v for v in values)]]), sources, [left])
        return left
