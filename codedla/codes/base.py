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
import hashlib
import math
import operator
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid
from codedla.codes import worst
from codedla.codes.solve import Completion, Parity
from codedla.errors import NotDecodable, UsageError
from codedla.nodes import stride

__all__ = ["Code", "error_estimate", "row_kronecker"]

Matrix = NDArray[Any]

# Weights kept per code: a survivor set repeats round after round when one worker is slow.
_CACHE_SETS = 64
_CACHE_BYTES = 64 * 2**20

# Worst amplifications found so far, by the matrices they belong to.
_WORST_KNOWN: dict[bytes, tuple[float, tuple[int, ...]]] = {}
_WORST_SETS = 256


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
        self.nodes = self._checked_nodes(nodes)
        self._check_grid()
        self.active = self.active_workers(self.n_workers, grid)
        self.tolerates = self.survives(self.n_workers, grid)
        self.threshold = self.active - self.tolerates
        self._weights_cache: OrderedDict[tuple[int, ...], Matrix] = OrderedDict()

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
        return _frozen(a), _frozen(b)

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
        return _frozen(generator), _frozen(wanted)

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

    # -- decoding ------------------------------------------------------------------------------

    def decodable(self, responders: Collection[int]) -> bool:
        """Tell whether the replies of these workers determine every output block."""
        return len(set(responders)) >= self.threshold

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
            self._weights_cache.move_to_end(survivors)
            return cached
        if not self.decodable(survivors):
            raise NotDecodable(
                f"code {self.name} needs {self._need()}, {len(survivors)} replied: "
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
        self._remember(survivors, found)
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
        except NotDecodable as error:
            if isinstance(error.__cause__, np.linalg.LinAlgError):
                return math.inf
            raise
        scaled = weights * self.norms[list(survivors)]
        return float(np.linalg.norm(scaled)) / math.sqrt(self.grid.outputs * self.grid.p)

    def worst_amplification(self) -> tuple[float, tuple[int, ...]]:
        """Return the largest amplification of any ``K`` replies, and who replied.

        Every set is tried when there are few; otherwise runs of neighbours, a seeded sample and
        a climb from the worst of these; an adversary may find a worse set then. Infinite when
        some set is singular in double precision.
        """
        return self._worst

    @cached_property
    def _worst(self) -> tuple[float, tuple[int, ...]]:
        everyone = tuple(range(self.active))
        if self.tolerates == 0:
            return self.amplification(everyone), everyone
        # Plans are made anew for every product; the search is not.
        key = self._fingerprint()
        if key not in _WORST_KNOWN:
            if len(_WORST_KNOWN) >= _WORST_SETS:
                _WORST_KNOWN.clear()
            _WORST_KNOWN[key] = self._search_worst(everyone)
        return _WORST_KNOWN[key]

    def _search_worst(self, everyone: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        lost = set(worst.search(self._rate, self.active, self.tolerates, self._suspects()))
        survivors = tuple(w for w in everyone if w not in lost)
        return self.amplification(survivors), survivors

    def digits_warning(self, eps: float = 2.0**-52, tolerance: float = 1e-6) -> str | None:
        """Return a sentence when the worst loss pattern may cost too many digits, else None."""
        alpha, _ = self.worst_amplification()
        if alpha * eps <= tolerance:
            return None
        lost = math.log10(alpha)
        digits = "every digit" if alpha * eps >= 0.1 else f"about {lost:.0f} digits"
        cure = "use fewer blocks, fewer losses or more precision"
        if self.node_choices and self.nodes != self.node_choices[0]:
            cure = f"use --nodes {self.node_choices[0]}"
        chosen = f" with nodes {self.nodes}" if self.nodes else ""
        return (
            f"code {self.name}{chosen}, {self.grid} on {self.n_workers} workers: the worst loss "
            f"pattern amplifies rounding errors by {alpha:.1e} and loses {digits}; {cure}"
        )

    def require(self, tolerate: int) -> None:
        """Raise UsageError unless any ``tolerate`` workers may be lost."""
        if tolerate < 0:
            raise UsageError(f"the number of losses to tolerate must be at least 0, got {tolerate}")
        if tolerate <= self.tolerates:
            return
        cures = [f"--tolerate {self.tolerates}"]
        smaller = self._suggestion(tolerate)
        if smaller is not None:
            cures.append(f"--blocks {smaller}")
        extra = _smallest(
            lambda n: self.survives(n, self.grid) >= tolerate,
            self.n_workers,
            (tolerate + 1) * self.needs(self.grid),
        )
        if extra is not None:
            cures.append(f"{extra + 1} ranks")
        raise UsageError(
            f"code {self.name} with blocks {self.grid} on {self.n_workers} workers survives "
            f"{self.tolerates} lost workers, {tolerate} were asked for; use {_either(cures)}"
        )

    @classmethod
    def grids(cls, n_workers: int, tolerate: int = 0) -> list[Grid]:
        """Return the grids on which any ``tolerate`` of ``n_workers`` workers may be lost."""
        return [g for g in cls._possible_grids(n_workers) if cls.survives(n_workers, g) >= tolerate]

    # -- inside --------------------------------------------------------------------------------

    @cached_property
    def _parity(self) -> Parity:
        outputs = self.grid.outputs
        return Parity(self.generator[outputs : self.active], self.norms[outputs : self.active])

    @cached_property
    def _completion(self) -> Completion:
        used = slice(0, self.active)
        return Completion(self.generator[used], self.wanted, self.norms[used])

    def _weights(self, survivors: tuple[int, ...]) -> Matrix:
        """Weights of a decodable, sorted survivor set (systematic: plain blocks come first)."""
        members = np.array(survivors)
        replied = np.zeros(self.n_workers, dtype=bool)
        replied[members] = True
        if not self.systematic:
            return self._completion.weights(members, np.nonzero(~replied[: self.active])[0])
        outputs = self.grid.outputs
        plain = members[members < outputs]
        weights = np.zeros((outputs, members.size), dtype=self.generator.dtype)
        weights[plain, np.arange(plain.size)] = 1.0
        lost = np.nonzero(~replied[:outputs])[0]
        if lost.size:
            solved, known = self._parity.weights(lost, members[plain.size :] - outputs)
            weights[lost, : plain.size] = -known[:, plain]
            weights[lost, plain.size :] = solved
        return weights

    def _rate(self, lost: NDArray[np.integer]) -> NDArray[np.float64]:
        """Amplification (squared, unnormalised) of loss patterns (patterns, tolerates)."""
        return (self._parity if self.systematic else self._completion).rate(lost)

    def _suspects(self) -> Iterator[NDArray[np.int64]]:
        """Yield further loss patterns worth rating when not all can be."""
        if self.systematic:
            yield from worst.suspects(self.grid.outputs, self.tolerates)
        else:
            # Neighbouring evaluation points, wherever `nodes.stride` put their workers.
            step = pow(stride(self.active, self.tolerates), -1, self.active)
            yield worst.runs(self.active, self.tolerates, step)

    def _fingerprint(self) -> bytes:
        """What the worst amplification depends on, whoever built it."""
        digest = hashlib.blake2b(repr((self.active, self.tolerates, self.grid)).encode())
        for matrix in (self.generator, self.wanted, self.norms):
            digest.update(matrix.tobytes())
        return digest.digest()

    def _survivors(self, responders: Iterable[int]) -> tuple[int, ...]:
        members = tuple(sorted({operator.index(w) for w in responders}))
        if members and not (members[0] >= 0 and members[-1] < self.n_workers):
            bad = members[0] if members[0] < 0 else members[-1]
            raise UsageError(f"workers are numbered 0 to {self.n_workers - 1}, got {bad}")
        return members

    def _need(self) -> str:
        return f"any {self.threshold} of its {self.active} workers"

    def _remember(self, survivors: tuple[int, ...], weights: Matrix) -> None:
        self._weights_cache[survivors] = weights
        room = max(1, min(_CACHE_SETS, _CACHE_BYTES // max(1, weights.nbytes)))
        while len(self._weights_cache) > room:
            self._weights_cache.popitem(last=False)

    def _checked_nodes(self, nodes: str | None) -> str | None:
        if nodes is None:
            return self.node_choices[0] if self.node_choices else None
        if nodes in self.node_choices:
            return nodes
        if not self.node_choices:
            raise UsageError(
                f"code {self.name} has no nodes to choose, got {nodes!r}; leave them out"
            )
        known = ", ".join(self.node_choices)
        raise UsageError(f"nodes of code {self.name} must be one of {known}; got {nodes!r}")

    def _check_grid(self) -> None:
        if self.n_workers < 1:
            raise UsageError(
                f"at least 1 worker is needed, got {self.n_workers}; use 2 ranks or more"
            )
        grid = self.grid
        if min(grid.m, grid.p, grid.n) < 1:
            raise UsageError(f"numbers of blocks must be at least 1, got {grid}")
        for dimension, of in (("m", "rows of A"), ("p", "inner dimension"), ("n", "columns of B")):
            if getattr(grid, dimension) > 1 and dimension not in self.splits:
                raise UsageError(
                    f"code {self.name} does not split the {of}, blocks {grid} do; use blocks "
                    f"{' x '.join(d if d in self.splits else '1' for d in ('m', 'p', 'n'))} "
                    "(rows of A x inner dimension x columns of B)"
                )
        if self.survives(self.n_workers, grid) < 0:
            need = self.needs(grid)
            cure = f"{need + 1} ranks"
            smaller = self._suggestion(0)
            if smaller is not None:
                cure = f"--blocks {smaller} or {cure}"
            raise UsageError(
                f"blocks {grid} need at least {need} workers with code {self.name}, "
                f"there are {self.n_workers}; use {cure}"
            )

    def _suggestion(self, tolerate: int) -> Grid | None:
        """The largest grid (then the squarest) that fits these workers and losses."""
        return max(
            self.grids(self.n_workers, tolerate),
            key=lambda g: (g.m * g.p * g.n, -max(g.m, g.p, g.n), g.n),
            default=None,
        )

    @classmethod
    def _possible_grids(cls, n_workers: int) -> Iterator[Grid]:
        def sizes(dimension: str, room: int) -> range:
            return range(1, room + 1) if dimension in cls.splits else range(1, 2)

        for m in sizes("m", n_workers):
            for n in sizes("n", n_workers // m):
                for p in sizes("p", n_workers):
                    grid = Grid(m, p, n)
                    if cls.survives(n_workers, grid) < 0:
                        break  # the threshold grows with p
                    yield grid


def row_kronecker(a: Matrix, b: Matrix) -> Matrix:
    """Return the matrix whose row ``w`` is ``kron(a[w], b[w])`` (Khatri-Rao product of rows).

    Parameters
    ----------
    a : ndarray (N, m)
    b : ndarray (N, n)

    Returns
    -------
    ndarray (N, m * n)
    """
    product: Matrix = (a[:, :, None] * b[:, None, :]).reshape(a.shape[0], -1)
    return product


def error_estimate(alpha: float, eps: float, scale: float = 1.0) -> float:
    r"""Estimate the relative error of a decoded product.

    .. math:: \frac{\|\hat C - C\|_F}{\|C\|_F} \approx
              \sqrt{1 + \alpha^2} \; \varepsilon \; \frac{\|A\|_F \|B\|_F}{\|C\|_F}

    The last factor is what any product of these operands suffers from cancellation; ``alpha``
    what decoding adds.

    Parameters
    ----------
    alpha : float
        :meth:`Code.amplification` of the replies used.
    eps : float
        Machine epsilon of the dtype the workers compute in (``numpy.finfo(dtype).eps``).
    scale : float, optional
        ``||A||_F ||B||_F / ||C||_F``, at least 1.

    Returns
    -------
    float

    Notes
    -----
    ``benchmarks/accuracy.py`` checks that the true error of products of random operands is never
    above ten times the estimate nor below a ten-thousandth of it.
    """
    return math.hypot(1.0, alpha) * eps * scale


def _frozen(matrix: Matrix) -> Matrix:
    """A float64 or complex128 copy that nobody can write to."""
    kind = np.complex128 if np.iscomplexobj(matrix) else np.float64
    copy: Matrix = np.array(matrix, dtype=kind, order="C")
    copy.setflags(write=False)
    return copy


def _smallest(holds: Any, start: int, stop: int) -> int | None:
    """The least number in [start, stop] that holds, or None."""
    return next((n for n in range(start, stop + 1) if holds(n)), None)


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
