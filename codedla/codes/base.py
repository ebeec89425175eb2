"""What every code is: generators, and from them, once for all, decodability, weights and accuracy.

Block products are numbered in C order: block ``(i, j)`` of ``C`` is output ``i * n + j``. Worker
``w`` multiplies its two shares

    share_a = sum_u generator_a[w, u] A_u,      share_b = sum_v generator_b[w, v] B_v

and replies with the product, which is ``generator[w] @ unknowns`` for some ``K'`` unknown blocks.
The outputs are ``wanted @ unknowns``. For most families the unknowns are the outputs themselves,
``generator`` is the row-wise Kronecker product of the two generators and ``wanted`` the identity.

A family states its class attributes and :meth:`Code._generators`, seldom more; see
``docs/adding-a-code.md``.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes import accuracy, limits
from codedla.codes.cache import Recent
from codedla.codes.rows import frozen, row_kronecker
from codedla.codes.solve import Completion, Parity
from codedla.errors import NotDecodable, UsageError

__all__ = ["Code"]

Matrix = NDArray[Any]

# Weights kept per code: a survivor set repeats round after round when one worker is slow.
_CACHE_SETS = 64
_CACHE_BYTES = 64 * 2**20


class Code(abc.ABC):
    """An erasure code for a matrix product, on ``n_workers`` workers and one block grid.

    Parameters
    ----------
    n_workers : int
        Number of workers (the master does not count).
    grid : Grid
        How the operands are cut.
    nodes : str, optional
        One of :attr:`node_choices`; the first is the default.

    Attributes
    ----------
    threshold : int
        ``K``: any ``K`` replies of the :attr:`active` workers decode.
    tolerates : int
        Number of workers that may be lost whoever they are, ``active - threshold``.
    active : int
        Workers ``0 .. active - 1`` hold a share; any others have nothing to do.
    field : str
        "real" or "complex": complex shares need complex blocks.

    Raises
    ------
    UsageError
        Wrong node name, a grid this family cannot cut, or too few workers.
    """

    name: ClassVar[str]
    operation: ClassVar[str] = "matmul"
    splits: ClassVar[tuple[str, ...]] = ("m", "n")
    """Which grid dimensions the family may cut: any of "m", "p", "n"."""
    threshold_formula: ClassVar[str]
    citation: ClassVar[str]
    weakness: ClassVar[str]
    node_choices: ClassVar[tuple[str, ...]] = ()
    approximate: ClassVar[bool] = False
    field: str = "real"
    systematic: bool = False
    integral: bool = False
    """All coefficients are -1, 0 or 1: wrap-around integers decode exactly."""

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        self.n_workers = operator.index(n_workers)
        self.grid = grid
        self.nodes = limits.checked_nodes(type(self), nodes)
        limits.check_grid(type(self), self.n_workers, grid)
        self.active = self.active_workers(self.n_workers, grid)
        self.tolerates = self.survives(self.n_workers, grid)
        self.threshold = self.active - self.tolerates
        self._weights_cache: Recent[Matrix] = Recent(_CACHE_SETS)

    # -- what a family states ------------------------------------------------------------------

    @abc.abstractmethod
    def _generators(self) -> tuple[Matrix, Matrix]:
        """Return the generators of A (N, m*p) and of B (N, p*n), float64 or complex128."""

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        """Return ``(generator, wanted)``; overridden where the replies mix other unknowns."""
        return row_kronecker(self.generator_a, self.generator_b), np.eye(self.grid.outputs)

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the recovery threshold ``K`` on ``grid``: the fewest workers that suffice."""
        return grid.outputs

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return how many lost workers are survived for certain; negative: too few workers."""
        return n_workers - cls.needs(grid)

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return how many of the workers get a share."""
        return n_workers

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the replies of these workers determine every output block.

        Overridden where it matters who replied, not only how many.
        """
        return len({w for w in responders if w < self.active}) >= self.threshold

    def _weights(self, survivors: tuple[int, ...]) -> Matrix:
        """Return the weights (m*n, len(survivors)) of a decodable, sorted survivor set.

        Overridden where something better is known than to solve for them.

        Raises
        ------
        numpy.linalg.LinAlgError
            The system is singular in double precision.
        """
        holders = np.array([w for w in survivors if w < self.active])
        weights = np.zeros((self.grid.outputs, len(survivors)), dtype=self.generator.dtype)
        weights[:, : holders.size] = self.solver.weights(holders)
        return weights

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        if self.tolerates == 0:
            one = self.active == 1
            return "its only worker" if one else f"all {self.active} workers that hold a share"
        return f"any {self.threshold} of {self.active} workers"

    # -- generators ----------------------------------------------------------------------------

    @cached_property
    def _factors(self) -> tuple[Matrix, Matrix]:
        a, b = self._generators()
        rows, inner, columns = self.grid.m, self.grid.p, self.grid.n
        for part, width in ((a, rows * inner), (b, inner * columns)):
            if part.shape != (self.n_workers, width):
                raise ValueError(
                    f"code {self.name}: a generator of shape {(self.n_workers, width)} is due, "
                    f"got {part.shape}"
                )
        return frozen(a), frozen(b)

    @property
    def generator_a(self) -> Matrix:
        """Row ``w``: the combination of the blocks of A that worker ``w`` stores, (N, m*p)."""
        return self._factors[0]

    @property
    def generator_b(self) -> Matrix:
        """Row ``w``: the combination of the blocks of B that worker ``w`` stores, (N, p*n)."""
        return self._factors[1]

    @cached_property
    def _system(self) -> tuple[Matrix, Matrix]:
        generator, wanted = self._unknowns()
        return frozen(generator), frozen(wanted)

    @property
    def generator(self) -> Matrix:
        """Row ``w``: worker ``w``'s reply as a combination of the unknown blocks, (N, K')."""
        return self._system[0]

    @property
    def wanted(self) -> Matrix:
        """The output blocks as combinations of the unknown blocks, (m*n, K')."""
        return self._system[1]

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """Noise scale of each reply: ``||generator_a[w]|| * ||generator_b[w]||``, (N,)."""
        return np.linalg.norm(self.generator_a, axis=1) * np.linalg.norm(self.generator_b, axis=1)

    @cached_property
    def _plain(self) -> NDArray[np.int64]:
        """Output block each worker's reply simply is, -1 for none."""
        plain = np.full(self.n_workers, -1)
        outputs = self.grid.outputs
        if self.wanted.shape == (outputs, outputs) and np.array_equal(self.wanted, np.eye(outputs)):
            rows = np.count_nonzero(self.generator, axis=1) == 1
            place = np.argmax(self.generator != 0, axis=1)
            units = rows & (self.generator[np.arange(self.n_workers), place] == 1)
            plain[units] = place[units]
        return plain

    def plain_block(self, worker: int) -> int | None:
        """Return the output block that ``worker``'s reply simply is, or None if it is coded."""
        block = int(self._plain[worker])
        return None if block < 0 else block

    @cached_property
    def only_plain(self) -> bool:
        """Whether every reply simply is an output block, NaN and all: nothing is ever mixed."""
        return self.field == "real" and bool((self._plain[: self.active] >= 0).all())

    # -- decoding ------------------------------------------------------------------------------

    def weights(self, responders: Iterable[int]) -> Matrix:
        """Return the matrix that turns these workers' replies into the output blocks.

        Parameters
        ----------
        responders : iterable of int
            Workers that replied, in any order.

        Returns
        -------
        ndarray (m * n, len(responders)), float64 or complex128, read-only
            Columns in the order of ``sorted(responders)``; ``weights @ generator[S] == wanted``.
            With more than ``K`` replies, the weights of least noise.

        Raises
        ------
        NotDecodable
            Too few replies, or a system that is singular in double precision.
        """
        survivors = self._survivors(responders)
        cached = self._weights_cache.get(survivors)
        if cached is not None:
            return cached
        if not self.decodable(survivors):
            raise NotDecodable(
                f"code {self.name} needs {self.suffices}, {len(survivors)} replied: "
                f"wait for more of them, or plan for more losses (--tolerate)",
                have=survivors,
                need=self.threshold,
            )
        try:
            found = self._weights(survivors)
        except np.linalg.LinAlgError as error:
            raise NotDecodable(
                f"code {self.name}: the replies of these {len(survivors)} workers are linearly "
                "dependent in double precision; wait for one more, or choose other nodes",
                have=survivors,
                need=self.threshold,
            ) from error
        found.setflags(write=False)
        self._weights_cache.put(survivors, found, _CACHE_BYTES // max(1, found.nbytes))
        return found

    def amplification(self, responders: Iterable[int]) -> float:
        r"""Return how much these workers' rounding errors grow on the way to the output.

        .. math:: \alpha(S) = \sqrt{\frac1{mnp} \sum_{o} \sum_{i\in S} |W_{oi}|^2 r_i^2},
                  \qquad r_i = \|G^A_i\| \, \|G^B_i\|

        About 1 for plain replies; ``log10(alpha)`` is the number of decimal digits lost. Infinite
        when the system is singular in double precision.

        Raises
        ------
        NotDecodable
            Too few replies.
        """
        survivors = self._survivors(responders)
        try:
            weights = self.weights(survivors)
        except NotDecodable:
            if self.decodable(survivors):
                return math.inf
            raise
        products = self.grid.outputs * self.grid.p
        return accuracy.amplification(weights, self.norms[list(survivors)], products)

    def worst_amplification(self) -> tuple[float, tuple[int, ...]]:
        """Return the largest amplification of any ``K`` replies, and who replied.

        Every set is tried when there are few; otherwise runs of neighbours, a seeded sample and
        a climb from the worst of these; an adversary may find a worse set then. Infinite when
        some set is singular in double precision.
        """
        return self._worst

    @cached_property
    def _worst(self) -> tuple[float, tuple[int, ...]]:
        return accuracy.worst_amplification(self)

    @cached_property
    def solver(self) -> Parity | Completion:
        """What turns survivor sets of the active workers into weights, and rates loss patterns."""
        generator, norms = self.generator[: self.active], self.norms[: self.active]
        if self.systematic:
            return Parity(generator[self.grid.outputs :], norms[self.grid.outputs :])
        return Completion(generator, self.wanted, norms)

    def _survivors(self, responders: Iterable[int]) -> tuple[int, ...]:
        """Sort the workers, each once, and check their numbers."""
        members = tuple(sorted({operator.index(w) for w in responders}))
        if members and not (members[0] >= 0 and members[-1] < self.n_workers):
            bad = members[0] if members[0] < 0 else members[-1]
            raise UsageError(f"workers are numbered 0 to {self.n_workers - 1}, got {bad}")
        return members

    # -- what users are told -------------------------------------------------------------------

    @classmethod
    def grids(cls, n_workers: int, tolerate: int = 0) -> list[Grid]:
        """Return the grids on which any ``tolerate`` of ``n_workers`` workers may be lost."""
        return limits.grids(cls, n_workers, tolerate)

    def require(self, tolerate: int) -> None:
        """Raise UsageError, with what would work, unless any ``tolerate`` workers may be lost."""
        limits.check_losses(self, tolerate)

    def digits_warning(self, eps: float = 2.0**-52, tolerance: float = 1e-6) -> str | None:
        """Return a sentence when the worst loss pattern may cost too many digits, else None."""
        return accuracy.digits_warning(self, eps, tolerance)
