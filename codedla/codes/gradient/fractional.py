"""Fractional repetition: groups of ``s + 1`` workers that all do the same.

**Any ``n - s`` of ``n`` workers decode, and so does one of every group.** ``s + 1`` must divide
``n``. The workers of a group have the same ``s + 1`` parts and reply with the same sum, so decoding
adds and never amplifies; and of ``2 a + 1`` equal replies ``a`` wrong ones are outvoted.

References
----------
R. Tandon, Q. Lei, A. Dimakis, N. Karampatziakis, "Gradient coding: avoiding stragglers in
distributed learning", ICML 2017, PMLR 70. Majorities: L. Chen, H. Wang, Z. Charles, D.
Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant gradients", ICML
2018, PMLR 80.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["FractionalRepetition"]


class FractionalRepetition(GradientCode):
    """Copies of a sum; worker ``w`` is in group ``w // (s + 1)``."""

    name = "gradient-fractional"
    scheme = "fractional"
    threshold_formula = "n - s, or one of every group"
    citation = "Tandon, Lei, Dimakis, Karampatziakis, ICML 2017"
    weakness = "s + 1 must divide the number of workers"

    def __init__(
        self, n_workers: int, stragglers: int = 0, *, errors: int = 0, seed: int = 0
    ) -> None:
        super().__init__(n_workers, stragglers, errors=errors, seed=seed)
        copies = self.reach + 1
        if n_workers % copies:
            fewer = n_workers - n_workers % copies
            raise UsageError(
                f"fractional repetition needs a multiple of s + 2 a + 1 = {copies} workers; got "
                f"{n_workers}; use {fewer} or {fewer + copies}, or scheme 'cyclic'"
            )
        self.groups = np.arange(n_workers) // copies

    def _assignment(self) -> NDArray[np.float64]:
        return (self.groups[:, None] == self.groups[None, :]).astype(float)

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether of every group enough have replied for a majority, if one is asked for."""
        members = self.groups[list(self._existing.intersection(responders))]
        counts = np.bincount(members, minlength=int(self.groups[-1]) + 1)
        return bool((counts >= 2 * self.errors + 1).all())

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        counts = np.bincount(self.groups[list(survivors)], minlength=int(self.groups[-1]) + 1)
        return 1.0 / counts[self.groups[list(survivors)]][None, :]
