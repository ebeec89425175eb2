r"""Substitute decoding: what the replies do not tell is taken from the previous iterate.

**Any number of replies decodes**, exactly or not: row blocks ``B_j`` of the iterated matrix are
mixed by an extremely sparse generator ``H`` (two or three non-zeros a row), so that worker ``w``
replies :math:`z_w = \sum_j H_{wj} B_j x`. From the replies of the survivors ``S``

.. math:: \hat y = y_{prev} + H_S^+ (z - H_S\, y_{prev}),

which is exact where ``H_S`` has full column rank; otherwise the part of ``y`` in the null space of
``H_S``, which nobody has seen, is that of the previous iterate. The error is a projection of the
change from one iterate to the next, and vanishes with it: no round need wait for decodability.

========== ==========================================================
threshold  as many replies as the caller wants to wait for
field      real
cost       a worker multiplies ``weight`` of ``blocks`` row blocks
========== ==========================================================

References
----------
Y. Yang, M. Chaudhari, P. Grover, S. Kar, "Coded iterative computing using substitute decoding",
arXiv:1805.06046 (2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid, Split
from codedla.codes.base import Code
from codedla.codes.cache import Recent
from codedla.engine.arguments import (
    check_choice,
    check_pool,
    fraction,
    positive,
    whole_number,
)
from codedla.engine.collector import Collector, Instruction
from codedla.engine.decoder import Decoder
from codedla.engine.encoder import make_encoder
from codedla.engine.plan import Plan, compute_dtype
from codedla.engine.report import Report
from codedla.engine.round import Operand, Pool, Round
from codedla.errors import PoolClosed, UsageError
from codedla.linalg.forgotten import hold
from codedla.linalg.operands import as_operand
from codedla.linalg.reporting import complete_report, new_report, tell_losses

__all__ = ["GENERATORS", "SubstituteMatrix", "check_mixtures", "check_product", "sparse_generator"]

Array = NDArray[Any]

GENERATORS = ("sparse", "replication")
"""Kinds of ``H``: sparse and random, or copies of plain blocks (what is missing stays stale)."""
WEIGHT = 3
SEED = 1805_06046
_TRIES = 1000
"""Draws of a generator before it is said that none of full rank was found; one or two are usual."""
_PSEUDO_INVERSES = 64


def sparse_generator(n_workers: int, blocks: int, weight: int, seed: int) -> NDArray[np.float64]:
    """Return ``H`` (n_workers, blocks) of full column rank with ``weight`` non-zeros in each row.

    Every block is used by as many rows as any other, or by one more. Non-zeros are random numbers
    of either sign between 0.5 and 1.5: rows that share all their blocks still tell two things.

    Parameters
    ----------
    n_workers, blocks : int
        ``blocks <= n_workers``.
    weight : int
        At most ``blocks``.
    seed : int
        The same seed gives the same generator.

    Raises
    ------
    UsageError
        No such generator was found: one worker more, or one non-zero more, helps.
    """
    rng = np.random.default_rng(seed)
    for _ in range(_TRIES):
        turns = -(-n_workers * weight // blocks)
        places = np.concatenate([rng.permutation(blocks) for _ in range(turns)])
        places = places[: n_workers * weight].reshape(n_workers, weight)
        for row in np.flatnonzero([len(set(row)) < weight for row in places]):
            places[row] = rng.choice(blocks, weight, replace=False)
        values = rng.choice([-1.0, 1.0], places.shape) * rng.uniform(0.5, 1.5, places.shape)
        generator = np.zeros((n_workers, blocks))
        generator[np.arange(n_workers)[:, None], places] = values
        if np.linalg.matrix_rank(generator) == blocks:
            return generator
    raise UsageError(
        f"{n_workers} rows with {weight} non-zero{'s' * (weight != 1)} cannot tell {blocks} blocks "
        "apart; use fewer blocks, or weight=2 or more"
    )


def check_mixtures(
    workers: int,
    *,
    generator: str = "sparse",
    blocks: int | None = None,
    weight: int | None = None,
    tolerate: int | None = None,
    seed: int = SEED,
) -> tuple[NDArray[np.float64], int]:
    """Return the generator (workers, blocks) and how many replies are not waited for.

    Parameters as of :class:`SubstituteMatrix`.

    Raises
    ------
    UsageError
        One breaks its rule, or there is no such generator.
    """
    count = whole_number(
        _default_blocks(workers, generator) if blocks is None else blocks, "blocks", least=1
    )
    if count > workers:
        raise UsageError(
            f"blocks are at most one a worker; got {count} for {workers} workers; use fewer"
        )
    mixed = whole_number(min(WEIGHT, count) if weight is None else weight, "weight", least=1)
    if mixed > count:
        raise UsageError(
            f"weight is at most the number of blocks, {count} with {workers} workers; got {mixed}; "
            "use a smaller one"
        )
    late = whole_number(workers // 4 if tolerate is None else tolerate, "tolerate", least=0)
    if late >= workers:
        raise UsageError(
            f"tolerate is below the {workers} workers: a round waits for somebody; got {late}; use "
            "a smaller one"
        )
    if generator == "replication":
        return np.eye(count)[np.arange(workers) % count], late
    return sparse_generator(workers, count, mixed, seed), late


class _AnySurvivors(Code):
    """Row blocks mixed by a generator that is given; any ``wait_for`` replies end a round."""

    name = "substitute"
    splits = ("m",)
    threshold_formula = "as many replies as are waited for"
    citation = "Yang, Chaudhari, Grover, Kar, arXiv:1805.06046"
    weakness = "exact only when the iteration has converged"
    approximate = True

    def __init__(self, generator: NDArray[np.float64], wait_for: int) -> None:
        self._rows = generator
        super().__init__(generator.shape[0], Grid(generator.shape[1], 1, 1))
        self.tolerates = self.n_workers - wait_for
        self._inverses: Recent[Array] = Recent(_PSEUDO_INVERSES)

    def _generators(self) -> tuple[Array, Array]:
        return self._rows, np.ones((self.n_workers, 1))

    def waiting_for(self, replies: int) -> _AnySurvivors:
        """Return this code with another threshold; what is known of survivor sets is shared."""
        other = copy(self)
        other.tolerates = self.n_workers - replies
        return other

    def pseudo_inverse(self, survivors: tuple[int, ...]) -> Array:
        """Return the pseudo-inverse of these rows (sorted shares) of the generator, by SVD."""
        import scipy.linalg

        found = self._inverses.get(survivors)
        if found is None:
            found = scipy.linalg.pinv(self._rows[list(survivors)])
            self._inverses.put(survivors, found)
        return found

    def spans(self, shares: Iterable[int]) -> bool:
        """Tell whether these shares together determine all blocks."""
        rows = self._rows[sorted(set(shares))]
        return bool(np.linalg.matrix_rank(rows) == self.grid.m) if len(rows) else False


class _Collector(Collector):
    """At the deadline, what has come is what there is: even nothing ends the round."""

    def deadline(self) -> Instruction:
        """Finish with the replies so far."""
        return Instruction.DROP if self.finished else self._finish()


class _Decoder(Decoder):
    """Correct the previous iterate by what the replies say."""

    def __init__(self, code: _AnySurvivors, previous: Array, output: Array) -> None:
        super().__init__(code, output, output.dtype)
        self._substitute, self._previous = code, previous
        self._present: set[int] = set()

    def add(self, share: int) -> None:
        """Keep the reply; see :class:`codedla.engine.decoder.Decoder`."""
        self._present.add(share)

    def finish(self, responders: Iterable[int]) -> None:
        """Decode; see :class:`codedla.engine.decoder.Decoder`."""
        survivors = tuple(sorted(set(responders) & self._present))
        blocks = np.zeros((self.code.grid.m, *self.shape), self.dtype)
        for index in range(self.code.grid.m):
            part = self._previous[self.rows.slice(index)]
            blocks[index, : len(part)] = part
        if survivors:
            flat = blocks.reshape(len(blocks), -1)
            replies = np.stack([self.target(share).ravel() for share in survivors])
            news = replies - self._substitute.generator_a[list(survivors)] @ flat
            flat += self._substitute.pseudo_inverse(survivors) @ news
        for index in range(self.code.grid.m):
            place = self.output[self.rows.slice(index)]
            place[...] = blocks[index, : len(place)]


class SubstituteMatrix:
    """A matrix whose sparse mixtures of row blocks live on the workers, for iterations.

    A context manager: leaving it, or :meth:`close`, frees the workers' memory.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
        Floating or complex. Do not change it while it is stored.
    pool : Pool
    blocks : int, optional
        Row blocks, at most one a worker; two thirds of the workers by default.
    weight : int, optional
        Blocks mixed in each share, at most all of them; by default 3, fewer where there are fewer.
    tolerate : int, optional
        Workers whose replies are not waited for; a quarter of all by default.
    deadline : float, optional
        Seconds after which a round ends with the replies that have come.
    generator : {"sparse", "replication"}
        "replication": a copy of one plain block on each worker; what is missing is stale.
    erasures : float
        A drill: this fraction of the replies, drawn anew for each round, is never asked for.
    seed : int
        Of the generator and of the drill.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    last_report : Report or None
        What happened in the latest round.

    Raises
    ------
    UsageError
        An argument breaks its rule.
    """

    def __init__(
        self,
        A: Any,
        *,
        pool: Pool,
        blocks: int | None = None,
        weight: int | None = None,
        tolerate: int | None = None,
        deadline: float | None = None,
        generator: str = "sparse",
        erasures: float = 0.0,
        seed: int = SEED,
    ) -> None:
        check_pool(pool)
        check_choice(generator, "generator", GENERATORS)
        checked = as_operand(A, "A")
        if not checked.facts.finite:
            raise UsageError(
                "an iterated matrix must be finite; got NaN or Inf; take them out of A"
            )
        workers = pool.n_workers
        rows, late = check_mixtures(
            workers,
            generator=generator,
            blocks=blocks,
            weight=weight,
            tolerate=tolerate,
            seed=seed,
        )
        count = rows.shape[1]
        erasures = fraction(erasures, "erasures", zero=True, cure="use for instance 0.3")
        self._deadline = None if deadline is None else positive(deadline, "deadline")
        self.shape, self.dtype = checked.shape, np.dtype(compute_dtype(checked.dtype))
        if self.dtype.kind == "i":
            self.dtype = np.dtype(np.float64)
        self._code = _AnySurvivors(rows, workers - late)
        self._pool, self._erasures = pool, erasures
        self._rng = np.random.default_rng([seed, 1])
        self._encoder = make_encoder(
            checked.matrix, Split(self.shape[0], count), Split(self.shape[1], 1), self.dtype
        )
        self._keys = [pool.new_key() for _ in range(workers)]
        self._settle = hold(self, pool, self._keys)
        self._closed = False
        self._seen: set[int] = set()
        self.last_report: Report | None = None

    def multiply(self, x: Array, previous: Array) -> Array:
        """Return an estimate of ``A @ x``, given one from before.

        Parameters
        ----------
        x : ndarray (L, c)
        previous : ndarray (M, c)
            The best guess there is without this round.

        Returns
        -------
        ndarray (M, c)

        Raises
        ------
        PoolClosed
            After :meth:`close`.
        NotDecodable, WorkerError
            No worker is left, or one's task raised.
        """
        if self._closed:
            raise PoolClosed("this matrix is closed; store it again")
        x = np.ascontiguousarray(x, np.result_type(self.dtype, x.dtype))
        output = np.empty((self.shape[0], x.shape[1]), x.dtype)
        asked = self._drawn()
        if not asked:
            output[...] = previous
            self.last_report = new_report(self._plan(output))
            self.last_report.times = {"total": 0.0}
            return output
        code = self._code
        if len(asked) < code.threshold:
            code = code.waiting_for(len(asked))
        collector = _Collector(
            code, eps=0.0, tolerance=1.0, shares=asked, workers=range(self._pool.n_workers)
        )
        outcome = self._pool.run(
            Round(
                shares=asked,
                operands=partial(self._operands, x),
                collector=collector,
                decoder=_Decoder(code, previous, output),
                timeout=self._deadline,
            )
        )
        check_product(output)
        self._seen.update(collector.responders)
        plan = self._plan(output)
        report = new_report(plan)
        complete_report(report, plan, collector, outcome)
        tell_losses(report, outcome)
        self.last_report = report
        return output

    def settled(self, small: bool) -> bool:
        """Tell whether a change of the iterate that is small can be believed.

        A round in which little was seen changes little. So the changes must have stayed small for
        as many rounds as it took to see all of the matrix.

        Parameters
        ----------
        small : bool
            Whether the latest round's change was.
        """
        if not small:
            self._seen.clear()
            return False
        return self._code.spans(self._seen)

    def close(self) -> None:
        """Free the workers' shares; idempotent."""
        if not self._closed:
            self._closed = True
            self._settle()
            self._pool.drop(self._keys)

    def __enter__(self) -> SubstituteMatrix:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _drawn(self) -> list[int]:
        """Return the shares of this round: all, but for the drill's erasures."""
        if not self._erasures:
            return list(self._code.shares)
        kept = self._rng.random(self._code.n_shares) >= self._erasures
        return [share for share in self._code.shares if kept[share]]

    def _operands(self, x: Array, share: int) -> tuple[Operand, Operand]:
        coded = partial(self._encoder.coded, self._code.rows_a(share))
        return Operand(self._keys[share], coded), Operand(0, lambda: x)

    def _plan(self, output: Array) -> Plan:
        return Plan(
            operation="iterate",
            code=self._code,
            shape=(*self.shape, output.shape[1]),
            dtype=output.dtype,
            compute=output.dtype,
            pool_workers=self._pool.n_workers,
            tolerance=math.inf,
            reason=f"mixtures of {np.count_nonzero(self._code.generator_a[0])} row blocks",
        )


def check_product(y: Array) -> None:
    """Refuse to iterate with NaN or Inf: it would neither converge nor say why.

    Raises
    ------
    UsageError
    """
    if not np.isfinite(y).all():
        raise UsageError(
            "products of an iteration must be finite; got NaN or Inf from the matrix; take them "
            "out of it, or scale it down"
        )


def _default_blocks(workers: int, generator: str) -> int:
    return max(1, workers // 2 if generator == "replication" else 2 * workers // 3)
