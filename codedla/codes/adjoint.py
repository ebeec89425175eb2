r"""The way back through stored shares: ``A^T y`` from the shares of ``A`` that give ``A x``.

A worker that holds :math:`\tilde A_w = \sum_{ik} g_{w,ik} A_{ik}` can multiply it from the left,
too. With :math:`\tilde y_w = \sum_i h_{w,i}\, y_i` it replies :math:`\tilde y_w^T \tilde A_w`, and
what is wanted are the blocks :math:`c_k = \sum_i y_i^T A_{ik}`.

*Plain shares* (uncoded, replication; ``A`` cut by rows): the replies are the terms of the sum.

*Entangled shares* (generalised PolyDot), of an ``m x p`` grid:
:math:`\tilde A = \sum_{ik} A_{ik} x^{k + ip}` was made to be multiplied from the right, where any
``m p + p - 1`` replies decode. From the left, with

.. math:: \tilde y = \sum_i y_i\, x^{p (m - 1 - i)},

block ``c_k`` stands at exponent ``p (m - 1) + k``, and the product has ``2 m p - p`` coefficients:
**any** ``2 m p - p`` **replies decode**. No share is made anew.

References
----------
Dutta, Bai, Jeong, Low, Grover, "A unified coded deep neural network training strategy based on
generalized PolyDot codes", ISIT 2019, arXiv 1811.10751.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.errors import UsageError

__all__ = ["PlainAdjoint", "PowersAdjoint", "adjoint_of"]

Matrix = NDArray[Any]


class PowersAdjoint(Code):
    """The way back through shares of the code "entangled".

    Parameters
    ----------
    forward : Code
        On a grid ``m x p x 1``.
    """

    name = "entangled-adjoint"
    operation = "rmatvec"
    splits = ("p", "n")
    threshold_formula = "2*m*p - p"
    field = "complex"
    citation = "Dutta, Bai, Jeong, Low, Grover, ISIT 2019"
    weakness = "nearly twice the replies of the product"
    node_choices = ("unity", "chebyshev", "equispaced")

    def __init__(self, forward: Code) -> None:
        self._forward = forward
        grid = Grid(1, forward.grid.m, forward.grid.p)
        super().__init__(forward.n_workers, grid, nodes=forward.nodes)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``2 m p - p`` of the stored grid, whose rows are the inner blocks here."""
        return 2 * grid.p * grid.n - grid.n

    def _powers(self, exponents: NDArray[np.integer]) -> Matrix:
        forward = self._forward
        return points.powers_at_workers(
            forward.nodes, exponents, forward.n_workers, forward.tolerates
        )

    def _generators(self) -> tuple[Matrix, Matrix]:
        rows, cols = self.grid.p, self.grid.n
        return self._powers(cols * np.arange(rows)[::-1]), self._forward.generator_a

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        count = self.needs(self.grid)
        wanted = self.grid.n * (self.grid.p - 1) + np.arange(self.grid.n)
        return self._powers(np.arange(count)), np.eye(count)[wanted]


class PlainAdjoint(Code):
    """The way back through shares that are row blocks: the replies are added up.

    Parameters
    ----------
    forward : Code
        "uncoded" or "replication", on a grid ``m x 1``.
    """

    name = "plain-adjoint"
    operation = "rmatvec"
    splits = ("p",)
    threshold_formula = "that of the product"
    field = "real"
    citation = "folklore"
    weakness = "replies are as long as the result, and m of them are needed"

    def __init__(self, forward: Code) -> None:
        self._forward = forward
        super().__init__(forward.n_workers, Grid(1, forward.grid.m, 1))
        self.active, self.tolerates = forward.active, forward.tolerates

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of row blocks."""
        return grid.p

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the responders hold every row block."""
        return self._forward.decodable(responders)

    def _generators(self) -> tuple[Matrix, Matrix]:
        rows = self._forward.generator_a
        return rows, rows

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        return self._forward.generator_a, np.ones((1, self.grid.p))

    def _weights(self, survivors: tuple[int, ...]) -> Matrix:
        weights: Matrix = self._forward.weights(survivors).sum(axis=0, keepdims=True)
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        return self._forward.suffices


def adjoint_of(forward: Code) -> Code:
    """Return the code of the way back through the shares of a stored matrix.

    Raises
    ------
    UsageError
        The shares of this code do not serve both ways, or there are too few workers for it.
    """
    if forward.only_plain and forward.grid.p == 1:
        return PlainAdjoint(forward)
    if forward.name == "entangled":
        return PowersAdjoint(forward)
    raise UsageError(
        "shares that serve A @ x and A^H @ y are those of the codes uncoded, replication and "
        f"entangled; got {forward.name}; choose one of these, or adjoint='separate'"
    )
