r"""Systematic MatDot: the inner dimension is cut, and without stragglers nothing is decoded.

**Any ``2 p - 1`` of ``N`` workers decode, and so do workers ``0 .. p-1`` alone.** ``A`` is cut into
``p`` column blocks, ``B`` into ``p`` row blocks (grid ``1 x p x 1``). With the Lagrange polynomials
:math:`L_l` of the points of the first ``p`` workers, worker ``w`` multiplies, at its point ``x``,

.. math:: \tilde A = \sum_l A_l L_l(x), \qquad \tilde B = \sum_l B_l L_l(x), \qquad
          C = \sum_{l<p} \tilde A \tilde B (x_l).

So workers ``0 .. p-1`` hold plain blocks, and ``C`` is the plain sum of their replies. If one of
them is late the product polynomial of degree ``2 p - 2`` is interpolated. The points of the first
``p`` workers are spread evenly among those of all, so that the coefficients of the others stay of
the order of 1.

========== ============================================================================
threshold  ``2 p - 1``, or the first ``p``
field      real (``chebyshev``); complex (``unity``)
cost       worker ``1/p`` of the flops, but a reply as large as ``C``; decoding ``p`` (plain
           sum) or ``2 p - 1`` blocks the size of ``C``
weakness   one late plain worker makes ``p - 1`` further replies necessary
========== ============================================================================

References
----------
Dutta, Fahim, Haddadpour, Jeong, Cadambe, Grover, "On the optimal recovery threshold of coded matrix
multiplication", IEEE Trans. Inf. Theory 66 (2020), arXiv 1801.10292.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.registry import register
from codedla.codes.solve import least_noise

__all__ = ["SystematicMatDot"]


@register
class SystematicMatDot(Code):
    """``p`` inner blocks, plain on the first ``p`` workers, whose replies just add up."""

    name = "systematic-matdot"
    operation = "matmul"
    splits = ("p",)
    threshold_formula = "2*p - 1, or workers 0 to p-1"
    field = "real"
    citation = "Dutta et al., IEEE Trans. Inf. Theory 66 (2020)"
    weakness = (
        "one late plain worker makes p - 1 further replies necessary; nodes chebyshev lose 6 "
        "digits by 5 losses at p=9 and 9 at p=16, unity 7 at p=64"
    )
    node_choices = ("chebyshev", "unity")

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``p``: the plain workers suffice."""
        return grid.p

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return ``N - (2 p - 1)``: any ``2 p - 1`` replies suffice. 0 if only ``p`` work."""
        if n_workers < grid.p:
            return n_workers - grid.p
        return max(0, n_workers - (2 * grid.p - 1))

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return ``N``, but ``p`` where the others could never replace a plain worker."""
        return grid.p if n_workers < 2 * grid.p - 1 else n_workers

    def _places(self) -> NDArray[np.integer]:
        """The point of each active worker: evenly spread ones for the first ``p``, then others."""
        workers, plain = self.active, self.grid.p
        if self.nodes == "unity":
            even = (2 * np.arange(plain) + 1) * workers // (2 * plain)
        else:
            # Both ends belong to the plain ones: Lagrange polynomials are large outside.
            even = np.arange(plain) * (workers - 1) // max(1, plain - 1)
        rest = np.setdiff1d(np.arange(workers), even)
        # Neighbouring workers fail together: part their points.
        return np.concatenate([_parted(even), _parted(rest)])

    def _basis(self, degrees: NDArray[np.integer]) -> NDArray[Any]:
        if self.nodes == "unity":
            return points.unity_powers(self._places(), degrees, self.active)
        return points.chebyshev_basis(self._places(), degrees, self.active)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        plain = self.grid.p
        basis = self._basis(np.arange(plain))
        lagrange = np.linalg.solve(basis[:plain].T, basis[plain:].T).T
        rows = np.zeros((self.n_workers, plain), dtype=basis.dtype)
        rows[: self.active] = np.concatenate([np.eye(plain), lagrange])
        return rows, rows

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        basis = self._basis(np.arange(2 * self.grid.p - 1))
        generator = np.zeros((self.n_workers, basis.shape[1]), dtype=basis.dtype)
        generator[: self.active] = basis
        return generator, basis[: self.grid.p].sum(axis=0, keepdims=True)

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether all plain workers have replied, or ``2 p - 1`` of any."""
        replied = {worker for worker in responders if worker < self.active}
        return len(replied) >= 2 * self.grid.p - 1 or replied.issuperset(range(self.grid.p))

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        plain, rows = self.grid.p, self.generator[list(survivors)]
        if survivors[:plain] == tuple(range(plain)):
            weights = np.zeros((1, len(survivors)), dtype=rows.dtype)
            weights[0, :plain] = 1.0
            return weights
        # The one functional is far better conditioned than the interpolation of all unknowns:
        # solve for it alone, with the weights of least noise.
        noise = self.norms[list(survivors)]
        scaled = least_noise(rows / noise[:, None], self.wanted)
        found: NDArray[Any] = scaled / noise
        return found

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        plain = "its only worker" if self.grid.p == 1 else f"workers 0 to {self.grid.p - 1}"
        if self.active == self.grid.p:
            return plain
        return f"any {self.threshold} of {self.active} workers, or {plain}"


def _parted(places: NDArray[np.integer]) -> NDArray[np.integer]:
    """The same points, neighbours far apart."""
    count = len(places)
    return places[points.spread(count, min(5, count // 2))] if count else places
