r"""An exact gradient code in coordinates of what its replies span.

The rows of ``B`` span a space of ``K = n - s - 2 a`` dimensions only, and ``n`` unknown gradients
cannot be told apart. In an orthonormal basis :math:`V` of that space the replies are
:math:`B V^T (V g)`: a code of ``K`` unknowns of which one combination, :math:`1^T V^T`, is wanted,
and every further reply checks the others.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["Spanned"]


class Spanned(Code):
    """The same replies, of ``K`` unknowns.

    Parameters
    ----------
    code : GradientCode
        An exact one of rank ``n - reach``.

    Raises
    ------
    UsageError
        Its replies span more, and so do not check each other.
    """

    name = "gradient-spanned"
    operation = "gradient"
    splits = ("p",)
    threshold_formula = "n - s - 2 a"
    citation = "Chen, Wang, Charles, Papailiopoulos, ICML 2018"
    weakness = "none of its own"

    def __init__(self, code: GradientCode) -> None:
        _, sizes, basis = np.linalg.svd(code.B)
        rank = int(np.count_nonzero(sizes > 1e-9 * sizes[0]))
        if code.approximate or rank != code.n_workers - code.reach:
            raise UsageError(
                f"replies of scheme {code.scheme!r} with stragglers={code.stragglers} do not check "
                f"each other: they span {rank} dimensions, not {code.n_workers - code.reach}; use "
                "scheme 'cyclic'"
            )
        self._spanned, self._basis = code, basis[:rank]
        super().__init__(code.n_workers, Grid(1, rank, 1))

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return ``K``."""
        return grid.p

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        inside = self._spanned.B @ self._basis.T
        return inside, np.ones_like(inside)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.generator_a, self._basis.sum(axis=1)[None, :]

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """Norms of the rows of the assignment matrix, (n_workers,)."""
        return self._spanned.norms
