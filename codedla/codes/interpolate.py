r"""Lagrange codes for batches: a polynomial function of every data block, from coded blocks.

Data blocks :math:`X_1 \dots X_K` are the values of a polynomial ``u`` at points :math:`\beta_i`,
``T`` masks its values at further points; workers apply a function ``f`` of degree ``d`` to the
values of ``u`` at their own points. As :math:`f(u(z))` has degree ``d (K + T - 1)``, any
``d (K + T - 1) + 1`` replies determine every :math:`f(X_i) = f(u(\beta_i))`. All operands of ``f``
are coded alike, by ``generator_a``.

Not in the table of codes, whose entries are for products of two matrices; the families there are
``lagrange`` and ``lagrange-real``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codedla import nodes as points
from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.private import PrivateCode
from codedla.galois import Field

__all__ = ["BatchOverField", "BatchOverReals", "batch_family", "values_between"]

CITATION = "Yu, Li, Raviv, Kalan, Soltanolkotabi, Avestimehr, AISTATS 2019 (PMLR 89)"


def values_between(
    field: Field, known: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the values at some points in terms of those at as many points as coefficients.

    Parameters
    ----------
    field : Field
    known, wanted : ndarray of int
        Points; the known ones differ from each other.

    Returns
    -------
    ndarray (wanted, known), int64
        The Lagrange polynomials of the known points, at the wanted ones.
    """
    count = known.size
    at_known, at_wanted = (field.vandermonde(where, count) for where in (known, wanted))
    return field.solve(at_known.T, at_wanted.T).T


class BatchOverField(PrivateCode):
    """``K`` blocks and ``T`` masks over GF(p), for a function of degree ``d``."""

    name = "lagrange"
    operation = "map"
    splits = ("m",)
    threshold_formula = "d*(K + T - 1) + 1"
    citation = CITATION
    weakness = "integers only; every share mixes all blocks"
    degree: ClassVar[int] = 1

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of the polynomial that workers evaluate."""
        return cls.degree * (grid.m + cls.colluders - 1) + 1

    def smallest_prime(self) -> int:
        """Return a bound from which on data, masks and workers have points of their own."""
        return self.n_workers + self.grid.m + self.colluders

    @property
    def points(self) -> NDArray[np.int64]:
        """Where the workers evaluate: none of the points of the data."""
        return self.grid.m + self.colluders + np.arange(self.n_workers)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        held = np.arange(self.grid.m + self.colluders)
        alike = np.ones((self.n_workers, 1), dtype=np.int64)
        return values_between(self.galois, held, self.points), alike

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        count = self.needs(self.grid)
        data = np.arange(self.grid.m)
        return self.galois.vandermonde(self.points, count), self.galois.vandermonde(data, count)


class BatchOverReals(Code):
    """``K`` blocks over the reals at Chebyshev points, for a function of degree ``d``."""

    name = "lagrange-real"
    operation = "map"
    splits = ("m",)
    threshold_formula = "d*(K - 1) + 1"
    citation = CITATION
    weakness = "no privacy; digits are lost fast with the number of missing replies"
    degree: ClassVar[int] = 1

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the number of coefficients of the polynomial that workers evaluate."""
        return cls.degree * (grid.m - 1) + 1

    def _at_workers(self, count: int) -> NDArray[Any]:
        return points.at_workers("chebyshev", np.arange(count), self.n_workers, self.tolerates)

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        blocks = np.arange(self.grid.m)
        # The discrete orthogonality of the Chebyshev polynomials: no system has to be solved.
        at_data = points.chebyshev_basis(blocks, blocks, blocks.size)
        return self._at_workers(blocks.size) @ at_data.T / blocks.size, np.ones((self.n_workers, 1))

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        count, blocks = self.needs(self.grid), np.arange(self.grid.m)
        return self._at_workers(count), points.chebyshev_basis(
            blocks, np.arange(count), len(blocks)
        )

    @property
    def norms(self) -> NDArray[np.float64]:
        """Noise scale of each reply, which grows with the degree."""
        return np.asarray(np.linalg.norm(self.generator_a, axis=1) ** self.degree)


@lru_cache(maxsize=256)
def batch_family(real: bool, degree: int, colluders: int) -> type[Code]:
    """Return the family of batch codes for a function of this degree."""
    base: Any = BatchOverReals if real else BatchOverField.variant(str(colluders))
    return type(base.__name__, (base,), {"__doc__": base.__doc__, "degree": degree})
