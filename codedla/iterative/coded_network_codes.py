r"""Three codes on one set of shares: forward, backward and whole, generalised PolyDot.

**One stored matrix serves both directions.** ``W`` is cut into ``m x n`` blocks, and worker ``w``
keeps, at its point ``v`` and with :math:`u = v^n`,

.. math:: \tilde W = \sum_{ij} W_{ij} \, u^i v^j .

========  ==========================================  ==================  ==================
product   what is sent                                result at           threshold
========  ==========================================  ==================  ==================
W x       :math:`\sum_j x_j v^{n-1-j}`                :math:`v^{ni+n-1}`  ``m n + n - 1``
W^T d     :math:`\sum_i d_i u^{m-1-i}`                :math:`v^{n(m-1)+j}`  ``2 m n - n``
W itself  nothing                                     :math:`v^{ni+j}`    ``m n``
========  ==========================================  ==================  ==================

The shares of :math:`W + D X^T` are :math:`\tilde W + (\sum_i D_i u^i)(\sum_j X_j v^j)^T`: workers
update theirs without a matrix being encoded.

Points are real (``chebyshev``): complex ones (``unity``) cost four real products each and twice the
memory, and are worth it only where plain powers of real points lose too many digits, from about 12
blocks on.

References
----------
Dutta, Bai, Jeong, Low, Grover, "A unified coded deep neural network training strategy based on
generalized PolyDot codes", ISIT 2018, arXiv 1811.10751. Dutta, Bai, Low, Grover, "CodeNet: training
large scale neural networks in presence of soft-errors", arXiv 1903.01042.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code

__all__ = ["Backward", "Forward", "Whole"]

_SPREAD = 2
"""Losses that neighbouring points are kept apart for: one number, so that all codes agree."""


class _Stored(Code):
    """What the codes of one stored matrix have in common: a point for each worker."""

    operation = "matvec"
    citation = "Dutta et al., ISIT 2018, arXiv 1811.10751"
    weakness = "plain powers of real points lose digits quickly with the number of blocks"
    node_choices = ("chebyshev", "unity")

    def _powers(self, exponents: NDArray[np.integer]) -> NDArray[Any]:
        return points.powers_at_workers(self.nodes, exponents, self.n_workers, _SPREAD)


class Forward(_Stored):
    """``W x``: grid ``(m, n, 1)``, any ``m n + n - 1`` replies."""

    name = "network-forward"
    splits = ("m", "p")
    threshold_formula = "m*n + n - 1"

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of the product polynomial."""
        return grid.m * grid.p + grid.p - 1

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.p
        return self._powers(np.arange(m * n)), self._powers(np.arange(n)[::-1])

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        count, n = self.needs(self.grid), self.grid.p
        wanted = n * np.arange(self.grid.m) + n - 1
        return self._powers(np.arange(count)), np.eye(count)[wanted]


class Backward(_Stored):
    """``W^T d``: grid ``(n, m, 1)``, any ``2 m n - n`` replies; shares are used transposed."""

    name = "network-backward"
    splits = ("m", "p")
    threshold_formula = "2*m*n - n"

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of the product polynomial."""
        return 2 * grid.p * grid.m - grid.m

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        n, m = self.grid.m, self.grid.p
        # Block (j, i) of the transposed matrix is block (i, j) of the stored one.
        exponents = np.add.outer(np.arange(n), n * np.arange(m))
        return self._powers(exponents.ravel()), self._powers(n * np.arange(m)[::-1])

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        count, n = self.needs(self.grid), self.grid.m
        wanted = n * (self.grid.p - 1) + np.arange(n)
        return self._powers(np.arange(count)), np.eye(count)[wanted]


class Whole(_Stored):
    """``W`` itself, or an update ``D X^T``: grid ``(m, 1, n)``, any ``m n`` replies."""

    name = "network-whole"
    threshold_formula = "m*n"

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        m, n = self.grid.m, self.grid.n
        return self._powers(n * np.arange(m)), self._powers(np.arange(n))
