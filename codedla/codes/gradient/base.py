r"""What every gradient code is: an assignment matrix, and from it, once for all, the decoding.

The data are cut into ``k`` parts with gradients :math:`g_1 \ldots g_k`, and only their sum is
wanted. Worker ``w`` of ``n`` computes the gradients of the parts where row ``w`` of the assignment
matrix :math:`B` (n x k) is not zero, and replies with their combination :math:`\sum_j B_{wj} g_j`,
one vector. From the replies of the survivors ``S`` the sum is

.. math:: \sum_{w \in S} a_w \sum_j B_{wj} g_j, \qquad a^T B_S \approx 1^T,

exactly where :math:`a^T B_S = 1^T` can be solved. The *residual* :math:`\|B_S^T a - 1\|` bounds the
relative error otherwise.

References
----------
R. Tandon, Q. Lei, A. Dimakis, N. Karampatziakis, "Gradient coding: avoiding stragglers in
distributed learning", ICML 2017, PMLR 70.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes.base import Code
from codedla.errors import UsageError

if TYPE_CHECKING:
    from codedla.codes.gradient.spanned import Spanned

__all__ = ["GradientCode"]

Matrix = NDArray[np.float64]


class GradientCode(Code):
    """A code for a sum of gradients.

    Parameters
    ----------
    n_workers : int
    stragglers : int
        ``s``: any so many workers need not reply.
    errors : int
        ``a``: so many of those that reply may be wrong. Exact codes get redundancy for
        :attr:`reach` ``= s + 2 a`` losses; the decoding that uses it is
        :mod:`codedla.iterative.robust`'s.
    seed : int
        Of families that draw at random: the same seed, the same code.

    Attributes
    ----------
    B : ndarray (n_workers, n_parts), float64, read-only
        The assignment matrix.
    n_parts : int

    Raises
    ------
    UsageError
        Numbers that the family has no code for.
    """

    scheme: ClassVar[str]
    """The name that users give."""
    options: ClassVar[tuple[str, ...]] = ()
    """What the family's constructor has besides."""
    splits: ClassVar[tuple[str, ...]] = ("p",)
    operation = "gradient"

    def __init__(
        self,
        n_workers: int,
        stragglers: int = 0,
        *,
        errors: int = 0,
        seed: int = 0,
        n_parts: int | None = None,
    ) -> None:
        if stragglers < 0 or errors < 0:
            raise UsageError(
                f"stragglers and errors must be at least 0; got {stragglers} and {errors}; "
                "give how many workers may be late, and how many wrong"
            )
        self.stragglers, self.errors, self.seed = stragglers, errors, seed
        if n_workers <= self.reach:
            raise UsageError(
                f"a gradient code for {stragglers} straggler{'s' * (stragglers != 1)} and {errors} "
                f"wrong worker{'s' * (errors != 1)} needs more than {self.reach} "
                f"worker{'s' * (self.reach != 1)}; got {n_workers}; use {self.reach + 2} ranks or "
                "more, or fewer stragglers"
            )
        super().__init__(n_workers, Grid(1, n_parts or n_workers, 1))
        self.tolerates = stragglers
        self.n_parts = self.grid.p

    @property
    def reach(self) -> int:
        """Losses that the assignment itself can bear, ``s + 2 a``."""
        return self.stragglers + 2 * self.errors

    @abc.abstractmethod
    def _assignment(self) -> Matrix:
        """Return the assignment matrix (n_workers, n_parts)."""

    @property
    def B(self) -> Matrix:
        """The assignment matrix; see :class:`GradientCode`."""
        return self.generator

    def parts(self, worker: int) -> tuple[int, ...]:
        """Return the parts whose gradients a worker computes, ascending."""
        return tuple(int(part) for part in np.flatnonzero(self.B[worker]))

    def residual(self, survivors: Iterable[int]) -> float:
        r"""Return :math:`\|B_S^T a - 1\|` for the weights that these survivors get."""
        rows = sorted(set(survivors))
        return float(np.linalg.norm(self.weights(rows)[0] @ self.B[rows] - 1.0))

    def bound(self, lost: int | None = None) -> float:
        r"""Return a bound of the squared residual, whoever the lost workers are.

        Zero for exact codes. Otherwise that of equal weights ``n / (n - s)``, which those of least
        squares cannot exceed: they are :math:`1 + u` with :math:`u \perp 1` and
        :math:`\|u\|^2 = n s / (n - s)`, so that

        .. math:: \|B^T a - 1\| \le \|B^T 1 - 1\| + \sigma \sqrt{n s / (n - s)},

        where :math:`\sigma` is the norm of :math:`B^T` on the vectors orthogonal to 1. For a
        d-regular graph this is :math:`(\lambda / d)^2 n s / (n - s)`.

        Parameters
        ----------
        lost : int, optional
            ``s``; the code's stragglers by default.
        """
        s, n = self.stragglers if lost is None else lost, self.n_workers
        if not self.approximate and s <= self.reach:
            return 0.0
        if not 0 <= s < n:
            raise UsageError(f"a bound needs a survivor; got {s} lost of {n}; give fewer")
        mean = float(np.linalg.norm(self.B.sum(axis=0) - 1.0))
        return float((mean + self._spread * math.sqrt(n * s / (n - s))) ** 2)

    @cached_property
    def _spread(self) -> float:
        """Norm of ``B.T`` on the vectors orthogonal to 1."""
        return float(np.linalg.norm(self.B - self.B.mean(axis=0), 2))

    @cached_property
    def spanned(self) -> Spanned:
        """The same code, of as many unknowns as its replies span.

        Raises
        ------
        UsageError
            They span too much to check each other.
        """
        # It is made of codes of this kind.
        from codedla.codes.gradient.spanned import Spanned

        return Spanned(self)

    # -- the contract of codes -----------------------------------------------------------------

    def _generators(self) -> tuple[NDArray[Any], NDArray[Any]]:
        assignment = self._assignment()
        return assignment, (assignment != 0).astype(float)

    def _unknowns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        # A combination of gradients is no product of two combinations: the rows of B are it.
        return self.generator_a, np.ones((1, self.n_parts))

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """Norms of the rows of B: what rounding in a reply is proportional to, (n_workers,)."""
        return np.linalg.norm(self.B, axis=1)

    def rate(self, lost: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return None: survivor sets are rated one by one."""
        return None

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        """Return the shortest of the weights of least squares, (1, survivors)."""
        rows = list(survivors)
        # Workers of equal standing have equal weights, however long their rows are.
        scale = self.norms[rows]
        found, *_ = np.linalg.lstsq(
            (self.B[rows] / scale[:, None]).T, np.ones(self.n_parts), rcond=1e-12
        )
        return (found / scale)[None, :]
