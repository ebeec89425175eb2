"""What every code is: generators, and from them, once for all, decodability, weights and accuracy.

Block products are numbered in C order: block ``(i, j)`` of ``C`` is output ``i * n + j``. Worker
``w`` multiplies its two shares

    share_a = sum_u generator_a[w, u] A_u,      share_b = sum_v generator_b[w, v] B_v

and replies with the product, which is ``generator[w] @ unknowns`` for some ``K'`` unknown blocks.
The outputs are ``wanted @ unknowns``. For most families the unknowns are the outputs themselves,
``generator`` is the row-wise Kronecker product of the two generators and ``wanted`` the identity.

Three numbers make that general, and are 1 for most families:

* ``stack = (u, q, v)``: a worker's share of A is an array of ``u x q`` combinations, its share of B
  one of ``q x v``; the reply holds ``u x v`` sub-blocks, each a row of ``generator``. So a block
  can be turned and mixed with its neighbour (rotation codes), or several products be summed.
* ``load``: shares per worker. Share ``s`` has its home on worker ``s % N``, which answers them one
  by one: what a slow worker has done by then counts.
* ``refine``: the grid that is really cut, where it is finer than the one the user names.

A family states its class attributes and :meth:`Code._generators`, seldom more; see
``docs/adding-a-code.md``.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Collection, Iterable
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
        Blocks as the user counts them; see :attr:`blocks` and :meth:`refine`.
    nodes : str, optional
        One of :attr:`node_choices`; the first is the default.

    Attributes
    ----------
    blocks : Grid
        Blocks as the user counts them.
    grid : Grid
        How the operands are cut: ``blocks``, or finer.
    threshold : int
        ``K``: any ``K`` replies of the :attr:`active` workers decode. Where workers have several
        shares (:attr:`load`), the fewest replies that can suffice.
    tolerates : int
        Number of workers that may be lost whoever they are; with one share each,
        ``active - threshold``.
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
    purpose: ClassVar[str] = ""
    """Why ``code="auto"`` chooses the family, where it is the cheapest; empty: it never does."""
    preserves_sparsity: ClassVar[bool] = False
    """Made for sparse operands: every share combines few blocks."""
    field: str = "real"
    systematic: bool = False
    integral: bool = False
    """All coefficients are -1, 0 or 1: wrap-around integers decode exactly."""
    local_decoding: ClassVar[bool] = False
    """:meth:`decodable` tells what decoding by lines or groups can do; algebra might do more."""
    method_error: float = 0.0
    """Error without any rounding, at most this times ``||A||_F ||B||_F``; 0 unless approximate."""
    stack: tuple[int, int, int] = (1, 1, 1)
    """Sub-blocks of a share of A (``u x q``), of a share of B (``q x v``) and so of a reply."""
    load: int = 1
    """Shares of each worker."""
    speculative: ClassVar[bool] = False
    """Shares of late workers are always given to idle ones, too."""
    blocks_per_worker: ClassVar[int] = 1
    """Row blocks offered per worker, where the user names none: many for codes of small shares."""
    masks: tuple[int, int] = (0, 0)
    """Random blocks mixed into the shares of A, and of B: further columns of the generators."""

    def __init__(self, n_workers: int, grid: Grid, *, nodes: str | None = None) -> None:
        self.n_workers = operator.index(n_workers)
        self.blocks = grid
        self.nodes = limits.checked_nodes(type(self), nodes)
        if self.nodes is not None:
            self.field = "complex" if self.nodes == "unity" else "real"
        limits.check_grid(type(self), self.n_workers, grid)
        self.grid = self.refine(grid)
        self.active = self.active_workers(self.n_workers, grid)
        self.tolerates = self.survives(self.n_workers, grid)
        self._weights_cache: Recent[Matrix] = Recent(_CACHE_SETS)

    # -- what a family states ------------------------------------------------------------------

    @abc.abstractmethod
    def _generators(self) -> tuple[Matrix, Matrix]:
        """Return the generators of A (N, m*p) and of B (N, p*n), float64 or complex128.

        One row a share; with a :attr:`stack`, ``u * q`` rows of A and ``q * v`` of B a share, in C
        order. A share whose rows of A are all zero does not exist.
        """

    def _unknowns(self) -> tuple[Matrix, Matrix]:
        """Return ``(generator, wanted)``; overridden where the replies mix other unknowns."""
        return self._products(), np.eye(self.grid.outputs)

    @classmethod
    def refine(cls, blocks: Grid) -> Grid:
        """Return the grid that is cut for these blocks; finer where a family needs parts."""
        return blocks

    @classmethod
    def needs(cls, grid: Grid) -> int:
        """Return the recovery threshold ``K`` on ``grid``: the fewest replies that suffice."""
        return grid.outputs

    @classmethod
    def survives(cls, n_workers: int, grid: Grid) -> int:
        """Return how many lost workers are survived for certain; negative: too few workers."""
        return n_workers - cls.needs(grid)

    @classmethod
    def active_workers(cls, n_workers: int, grid: Grid) -> int:
        """Return how many of the workers get a share."""
        return n_workers

    @classmethod
    def variant(cls, parameter: str) -> type[Code]:
        """Return the family that users name ``name:parameter``, where a family has variants.

        Raises
        ------
        UsageError
            It has none, or not this one.
        """
        raise UsageError(
            f"code {cls.name} has no variants; got {cls.name}:{parameter}; name it {cls.name}"
        )

    @property
    def threshold(self) -> int:
        """The recovery threshold; see :class:`Code`."""
        if self.load > 1:
            return self.needs(self.blocks)
        return self.active - self.tolerates

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the replies to these shares determine every output block.

        Overridden where it matters who replied, not only how many.
        """
        return len(self._existing.intersection(responders)) >= self.threshold

    def watch(self) -> Callable[[int], bool]:
        """Return a function that is told each reply once, and tells whether all so far suffice.

        Overridden where asking :meth:`decodable` after every reply would take too long.
        """
        told: set[int] = set()
        existing, threshold, counting = self._existing, self.threshold, self.counts
        # Fewer replies never decode, whoever they are from.
        fewest = self.needs(self.blocks)

        def suffice(share: int) -> bool:
            if share in existing:
                told.add(share)
            if counting:
                return len(told) >= threshold
            return len(told) >= fewest and self.decodable(told)

        return suffice

    def _weights(self, survivors: tuple[int, ...]) -> Matrix:
        """Return the weights (m*n, rows of the replies) of a decodable, sorted set of shares.

        Overridden where something better is known than to solve for them.

        Raises
        ------
        numpy.linalg.LinAlgError
            The system is singular in double precision.
        """
        _, _, parts = self._parts
        exist = np.array([w in self._existing for w in survivors])
        rows = self._solved_rows(np.array(survivors)[exist])
        weights = np.zeros((self.grid.outputs, len(survivors) * parts), dtype=self.generator.dtype)
        weights[:, np.repeat(exist, parts)] = self.solver.weights(rows)
        return weights

    def _solved_rows(self, shares: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which rows of the :attr:`solver` belong to these existing shares, sorted."""
        _, _, parts = self._parts
        holders = np.searchsorted(np.array(self.shares), shares)
        rows: NDArray[np.int64] = (holders[:, None] * parts + np.arange(parts)).ravel()
        return rows

    def rough_amplification(self, shares: tuple[int, ...]) -> float:
        """Return the amplification of existing shares that decode, without finding weights.

        For searches; good to as many digits as are left when the system is solved.
        """
        solver, kind = self.solver, type(self)
        plainly = kind._weights is Code._weights and kind.amplification is Code.amplification
        if not (plainly and isinstance(solver, Completion)):
            return self.amplification(shares)
        noise = solver.noise(self._solved_rows(np.array(shares)))
        return math.sqrt(noise / (self.grid.outputs * self.grid.p))

    def rate(self, lost: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the squared noise, summed over the outputs, of many patterns of lost workers.

        None where patterns can only be rated one by one. Overridden where something quicker is
        known than the :attr:`solver`; then :attr:`rating_cost` is, too.

        Parameters
        ----------
        lost : ndarray (patterns, tolerates) of int
            As many losses as the code can bear.
        """
        parts = self._parts[2]
        spare = len(self.shares) * parts - self.generator.shape[1]
        if self.load > 1 or not self.counts or spare != self.tolerates * parts:
            return None
        rows = lost[:, :, None] * parts + np.arange(parts)
        return self.solver.rate(rows.reshape(lost.shape[0], -1))

    @property
    def rating_cost(self) -> float:
        """How much longer it takes to rate a pattern than with one number a reply."""
        return float(self._parts[2] ** 2)

    @property
    def suffices(self) -> str:
        """Which replies suffice, in words."""
        if self.load > 1:
            return f"any {self.threshold} of {len(self.shares)} shares of {self.active} workers"
        if self.tolerates == 0:
            one = self.active == 1
            return "its only worker" if one else f"all {self.active} workers that hold a share"
        return f"any {self.threshold} of {self.active} workers"

    # -- shares --------------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        """Whether only the number of replies matters, not whose they are."""
        return type(self).decodable is Code.decodable

    @property
    def n_shares(self) -> int:
        """Numbers of shares are below this; not all of them need exist."""
        return self.n_workers * self.load

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """The shares there are, ascending: in this order workers compute theirs."""
        if self.load == 1:
            return tuple(range(self.active))
        per_share = self.stack[0] * self.stack[1]
        filled = self.generator_a.reshape(self.n_shares, per_share, -1).any(axis=(1, 2))
        return tuple(int(share) for share in np.flatnonzero(filled))

    @cached_property
    def _existing(self) -> frozenset[int]:
        return frozenset(self.shares)

    def home(self, share: int) -> int:
        """Return the worker that is to compute a share."""
        return share % self.n_workers

    def shares_without(self, lost: Iterable[int]) -> tuple[int, ...]:
        """Return the shares whose homes are not among these lost workers."""
        gone = set(lost)
        return tuple(share for share in self.shares if self.home(share) not in gone)

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Numbers of combinations in a share of A, in a share of B, and in a reply."""
        u, q, v = self.stack
        return u * q, q * v, u * v

    # -- generators ----------------------------------------------------------------------------

    @cached_property
    def _factors(self) -> tuple[Matrix, Matrix]:
        a, b = self._generators()
        rows, inner, columns = self.grid.m, self.grid.p, self.grid.n
        held_a, held_b, _ = self._parts
        for part, held, width in ((a, held_a, rows * inner), (b, held_b, inner * columns)):
            due = (self.n_shares * held, width)
            if part.shape != due:
                raise ValueError(
                    f"code {self.name}: a generator of shape {due} is due, got {part.shape}"
                )
        return frozen(a), frozen(b)

    @property
    def generator_a(self) -> Matrix:
        """Row ``w``: the combination of the blocks of A that share ``w`` holds, (N, m*p).

        With a :attr:`stack`, ``u * q`` rows a share.
        """
        return self._factors[0]

    @property
    def generator_b(self) -> Matrix:
        """Row ``w``: the combination of the blocks of B that share ``w`` holds, (N, p*n).

        With a :attr:`stack`, ``q * v`` rows a share.
        """
        return self._factors[1]

    @cached_property
    def _system(self) -> tuple[Matrix, Matrix]:
        generator, wanted = self._unknowns()
        return frozen(generator), frozen(wanted)

    @property
    def generator(self) -> Matrix:
        """Row ``w``: the reply to share ``w`` as a combination of the unknown blocks, (N, K').

        With a :attr:`stack`, ``u * v`` rows a share.
        """
        return self._system[0]

    @property
    def wanted(self) -> Matrix:
        """The output blocks as combinations of the unknown blocks, (m*n, K')."""
        return self._system[1]

    def rows_a(self, share: int) -> Matrix:
        """Return the combinations that make up a share of A, (u*q, m*p).

        Products that are zero in every part are left out: ``q`` may be smaller than in the stack.
        """
        held, _, _ = self._parts
        rows = self.generator_a[share * held : (share + 1) * held]
        return rows.reshape(*self.stack[:2], -1)[:, self._multiplied(share)].reshape(
            -1, rows.shape[1]
        )

    def rows_b(self, share: int) -> Matrix:
        """Return the combinations that make up a share of B, (q*v, p*n); as :meth:`rows_a`."""
        _, held, _ = self._parts
        rows = self.generator_b[share * held : (share + 1) * held]
        return rows.reshape(*self.stack[1:], -1)[self._multiplied(share)].reshape(-1, rows.shape[1])

    def _multiplied(self, share: int) -> Any:
        """Which of the ``q`` products of a share there are: all, if it does not exist."""
        u, q, _ = self.stack
        if q == 1:
            return slice(None)
        held = u * q
        parts = self.generator_a[share * held : (share + 1) * held].reshape(u, q, -1)
        exist = np.flatnonzero(parts.any(axis=(0, 2)))
        return exist if exist.size else slice(None)

    def _products(self) -> Matrix:
        """Return what the replies are in terms of all products of an A block and a B block.

        Blocks that do not meet (inner indices differ) count here too: the families that cut the
        inner dimension state their unknowns themselves.
        """
        u, q, v = self.stack
        if (u, q, v) == (1, 1, 1):
            return row_kronecker(self.generator_a, self.generator_b)
        a = self.generator_a.reshape(self.n_shares, u, q, -1)
        b = self.generator_b.reshape(self.n_shares, q, v, -1)
        products: Matrix = np.einsum("wacx,wcby->wabxy", a, b)
        return products.reshape(self.n_shares * u * v, -1)

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        r"""Noise scale of each row of the replies, (N,): products of norms of what it is made of.

        :math:`\|G^A_w\| \, \|G^B_w\|`, added in squares over the ``q`` products of a stack.
        """
        u, q, v = self.stack
        squares_a = (np.abs(self.generator_a) ** 2).sum(axis=1).reshape(self.n_shares, u, q)
        squares_b = (np.abs(self.generator_b) ** 2).sum(axis=1).reshape(self.n_shares, q, v)
        return np.sqrt(squares_a @ squares_b).reshape(-1)

    @cached_property
    def _plain(self) -> NDArray[np.int64]:
        """Output block the reply to each share simply is, -1 for none.

        Only in a systematic code: the others are decoded from replies of one, padded, shape.
        """
        plain = np.full(self.n_shares, -1)
        if self.stack != (1, 1, 1) or not self.systematic:
            return plain
        outputs = self.grid.outputs
        if self.wanted.shape == (outputs, outputs) and np.array_equal(self.wanted, np.eye(outputs)):
            rows = np.count_nonzero(self.generator, axis=1) == 1
            place = np.argmax(self.generator != 0, axis=1)
            units = rows & (self.generator[np.arange(self.n_shares), place] == 1)
            plain[units] = place[units]
        return plain

    def plain_block(self, share: int) -> int | None:
        """Return the output block that the reply to ``share`` simply is, or None if it is coded."""
        block = int(self._plain[share])
        return None if block < 0 else block

    @cached_property
    def only_plain(self) -> bool:
        """Whether every reply simply is an output block, NaN and all: nothing is ever mixed."""
        return self.field == "real" and bool((self._plain[list(self.shares)] >= 0).all())

    # -- decoding ------------------------------------------------------------------------------

    def weights(self, responders: Iterable[int]) -> Matrix:
        """Return the matrix that turns these replies into the output blocks.

        Parameters
        ----------
        responders : iterable of int
            Shares that were answered, in any order; the workers' numbers where each has one.

        Returns
        -------
        ndarray (m * n, len(responders) * u * v), float64 or complex128, read-only
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
        _, _, parts = self._parts
        norms = self.norms.reshape(-1, parts)[list(survivors)].ravel()
        return accuracy.amplification(weights, norms, products)

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
        """What turns survivor sets of existing shares into weights, and rates loss patterns."""
        _, _, parts = self._parts
        rows = (np.array(self.shares)[:, None] * parts + np.arange(parts)).ravel()
        generator, norms = self.generator[rows], self.norms[rows]
        if self.systematic:
            return Parity(generator[self.grid.outputs :], norms[self.grid.outputs :])
        return Completion(generator, self.wanted, norms)

    def _survivors(self, responders: Iterable[int]) -> tuple[int, ...]:
        """Sort the shares, each once, and check their numbers."""
        members = tuple(sorted({operator.index(w) for w in responders}))
        if members and not (members[0] >= 0 and members[-1] < self.n_shares):
            bad = members[0] if members[0] < 0 else members[-1]
            what = "workers" if self.load == 1 else "shares"
            raise UsageError(f"{what} are numbered 0 to {self.n_shares - 1}, got {bad}")
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
