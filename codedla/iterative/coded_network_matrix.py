"""A matrix that lives on the workers in coded form, is used in both directions, and is updated.

``W <- W + D X^T`` is only noted by the master; each worker applies what it has not seen to its own
share before its next product. Three copies of the truth are kept apart:

* the *base*: the matrix as the master last knew it, and how many columns of updates it contains;
* the *log*: columns of ``D`` and ``X`` since then, and a little longer;
* the workers' shares, each with its own age in columns (:mod:`codedla.engine.updates`).

From base and log any share can be made again: for a worker that missed more than is worth sending,
one that answered wrongly (its share may be damaged), or one that takes over from a lost one.
:meth:`UpdatedMatrix.read` decodes a new base from any ``m n`` workers' shares, so that the log
stays short. A share that is made again gets new keys: no worker can mistake an old one for it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.blocks import Grid, Split
from codedla.codes.base import Code
from codedla.codes.locate import Located, locate
from codedla.engine.arguments import positive
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.encoder import DenseEncoder
from codedla.engine.plan import DEFAULT_TOLERANCE
from codedla.engine.round import Operand, Outcome, Pool, Round
from codedla.errors import CodedlaWarning, PoolClosed
from codedla.iterative.coded_network_codes import Backward, Forward, Whole
from codedla.linalg.spares import SpareDecoder

__all__ = ["Tally", "UpdatedMatrix", "codes_for"]

Array = NDArray[Any]

_EPS = float(np.finfo(np.float64).eps)
_ROUNDINGS = 16
"""Assumed roundings in an entry of a reply, as large as its operands allow."""
_STRIKES = 3
"""Wrong answers of a worker after which it is not asked any more."""
_WORKS = {"forward": "update-forward", "backward": "update-backward", "whole": "update-read"}


@dataclass
class Tally:
    """What happened in all rounds of one training.

    Parameters
    ----------
    rounds, sent, received : int
        Rounds, and bytes in both directions.
    wrong : Counter of int
        By rank: answers that were found wrong.
    lost : dict of int to str
        Ranks that were lost, and why.
    regenerated : int
        Shares that were made again, other than the first ones.
    replayed : int
        Orders that repeated updates which a worker had, or may have, missed.
    """

    rounds: int = 0
    sent: int = 0
    received: int = 0
    wrong: Counter[int] = field(default_factory=Counter)
    lost: dict[int, str] = field(default_factory=dict)
    regenerated: int = 0
    replayed: int = 0


def codes_for(n_workers: int, blocks: tuple[int, int], nodes: str) -> dict[str, Code]:
    """Return the codes of a matrix in ``m x n`` blocks, by the direction that they serve."""
    m, n = blocks
    return {
        "forward": Forward(n_workers, Grid(m, n, 1), nodes=nodes),
        "backward": Backward(n_workers, Grid(n, m, 1), nodes=nodes),
        "whole": Whole(n_workers, Grid(m, 1, n), nodes=nodes),
    }


class _Log:
    """Columns of updates, in the chunks in which they came."""

    def __init__(self, rows: int, cols: int) -> None:
        self.start = self.end = 0
        self._chunks: list[tuple[Array, Array]] = []
        self._none = np.empty((rows, 0)), np.empty((cols, 0))

    def append(self, d: Array, x: Array) -> None:
        self._chunks.append((d, x))
        self.end += d.shape[1]

    def since(self, first: int) -> tuple[Array, Array]:
        """Return all columns from number ``first`` on; some chunk begins there."""
        at, chosen = self.start, [self._none]
        for d, x in self._chunks:
            if at >= first:
                chosen.append((d, x))
            at += d.shape[1]
        if len(chosen) == 2:
            return chosen[1]
        return np.hstack([d for d, _ in chosen]), np.hstack([x for _, x in chosen])

    def trim(self, first: int) -> None:
        """Forget chunks that end at or before column ``first``."""
        while self._chunks and self.start + self._chunks[0][0].shape[1] <= first:
            self.start += self._chunks.pop(0)[0].shape[1]


class _ConsistentDecoder(SpareDecoder):
    """Decode from any threshold + 1 replies that fit together: random errors do not."""

    def agree(self, responders: Sequence[int]) -> bool:
        """Tell whether so many of these replies fit together; see :class:`SpareDecoder`."""
        self.found = self._located(responders)
        right = len(responders) - len(self.found.wrong)
        return self.found.certain and right > self.code.threshold

    def _located(self, responders: Any) -> Located:
        shares = sorted(responders)
        replies = [self.target(share) for share in shares]
        return locate(self.code, shares, replies, noise=self._noise, independent=True)


class UpdatedMatrix:
    """One coded matrix.

    Parameters
    ----------
    matrix : ndarray (r, c), float64
        Not kept up to date: the workers' shares are.
    pool : Pool
    codes : dict of str to Code
        Of :func:`codes_for`.
    correct : bool
        Whether replies are compared with each other, and wrong ones left out.
    tally : Tally
        Counted on.
    """

    def __init__(
        self, matrix: Array, pool: Pool, codes: dict[str, Code], *, correct: bool, tally: Tally
    ) -> None:
        self.shape = matrix.shape
        self._pool, self._codes, self._correct, self._tally = pool, codes, correct, tally
        whole = codes["whole"].grid
        self._rows, self._cols = Split(self.shape[0], whole.m), Split(self.shape[1], whole.n)
        self._dtype = np.dtype(np.complex128 if codes["whole"].field == "complex" else np.float64)
        self._base, self._base_at = matrix.copy(), 0
        self._size = float(np.linalg.norm(matrix))
        self._alpha = 0.0
        self._log = _Log(*self.shape)
        self._steps = self._latest = 0
        self._keys: dict[int, tuple[int, int]] = {}
        # Columns that every holder of a share's present key is known to have seen.
        self._least: dict[int, int] = {}
        # Shares that another worker may hold as well.
        self._spread: set[int] = set()
        self._outdated: list[int] = []
        self._closed = False

    # -- what it does --------------------------------------------------------------------------

    def forward(self, x: Array, timeout: float | None = None) -> Array:
        """Return ``W @ x`` for ``x`` of shape (c, b)."""
        return self._run("forward", x, (self.shape[0], x.shape[1]), timeout)

    def backward(self, d: Array, timeout: float | None = None) -> Array:
        """Return ``W.T @ d`` for ``d`` of shape (r, b)."""
        return self._run("backward", d, (self.shape[1], d.shape[1]), timeout)

    def update(self, d: Array, x: Array) -> None:
        """Note ``W += d @ x.T``, for ``d`` (r, q) and ``x`` (c, q); nothing is sent yet."""
        self._log.append(np.ascontiguousarray(d), np.ascontiguousarray(x))
        self._latest = d.shape[1]
        self._steps += 1
        self._size += float(np.linalg.norm(d) * np.linalg.norm(x))

    def read(self, timeout: float | None = None) -> Array:
        """Return ``W``, decoded from the workers' shares; it is the new base.

        Raises
        ------
        NotDecodable, WorkerError, VerificationFailed, PoolClosed
            As all products.
        """
        self._base = self._run("whole", np.zeros((1, 1)), self.shape, timeout)
        self._base_at = self._log.end
        self._size = float(np.linalg.norm(self._base))
        self._log.trim(self._base_at - self._worth_sending)
        return self._base.copy()

    def renew(self) -> None:
        """Let all shares be encoded from base and log: errors that added up in them are gone."""
        for share in list(self._keys):
            self._forget(share)
        self._steps = 0

    def close(self) -> None:
        """Free the workers' memory; idempotent."""
        if not self._closed:
            self._closed = True
            self._pool.drop([*self._outdated, *(key for two in self._keys.values() for key in two)])

    # -- shares --------------------------------------------------------------------------------

    @property
    def _worth_sending(self) -> int:
        """Columns of updates that are no larger than a share; two steps' at least."""
        r, c = self._rows.size, self._cols.size
        return max(r * c // (r + c), 2 * self._latest)

    def _forget(self, share: int) -> None:
        self._outdated.extend(self._keys.pop(share))
        self._least.pop(share)
        self._spread.discard(share)
        self._tally.regenerated += 1

    def _coded_update(self, share: int, first: int) -> tuple[Array, Array]:
        """Return the columns from ``first`` on, coded for a share: (r / m, q) and (c / n, q)."""
        whole = self._codes["whole"]
        coded = []
        halves = zip(
            self._log.since(first),
            (self._rows, self._cols),
            (whole.generator_a, whole.generator_b),
            strict=True,
        )
        for matrix, cut, generator in halves:
            if matrix.shape[1] == 0:
                coded.append(np.empty((cut.size, 0), self._dtype))
                continue
            encoder = DenseEncoder(matrix, cut, Split(matrix.shape[1], 1), self._dtype)
            coded.append(encoder.coded(generator[share]))
        return coded[0], coded[1]

    def _share(self, share: int) -> Array:
        """Make a share from base and log."""
        encoder = DenseEncoder(self._base, self._rows, self._cols, self._dtype)
        made = encoder.coded(self._codes["forward"].generator_a[share])
        d, x = self._coded_update(share, self._base_at)
        made += d @ x.T
        return made

    def _age(self) -> Array:
        return np.array([[self._log.end]], np.int64)

    def _operands(self, share: int, b: Array) -> tuple[Operand, ...]:
        """Return what the task of a share needs; see :mod:`codedla.engine.updates`."""
        now, least = self._log.end, self._least.get(share)
        if least is not None and (least < self._log.start or now - least > self._worth_sending):
            self._forget(share)
            least = None
        if least is None:
            self._keys[share] = self._pool.new_key(), self._pool.new_key()
            self._least[share] = least = now
        elif now - least > self._latest:
            self._tally.replayed += 1
        d, x = self._coded_update(share, least)
        first = np.array([[least]], np.int64)
        held, age = self._keys[share]
        return (
            Operand(held, partial(self._share, share)),
            Operand(age, self._age),
            *(Operand(0, partial(_itself, matrix)) for matrix in (d, x, b, first)),
        )

    # -- rounds --------------------------------------------------------------------------------

    def _run(self, kind: str, b: Array, shape: tuple[int, int], timeout: float | None) -> Array:
        if self._closed:
            raise PoolClosed("this network is closed; make a new one from its weights")
        code = self._codes[kind]
        shares = self._asked(code)
        output = np.empty(shape)
        spares: _ConsistentDecoder | None = None
        if self._correct:
            spares = _ConsistentDecoder(code, output, self._dtype, noise=self._noise(kind, b))
        decoder = make_decoder(code, output, self._dtype) if spares is None else spares
        collector = Collector(
            code,
            eps=_EPS,
            tolerance=DEFAULT_TOLERANCE["d"],
            shares=shares,
            agree=None if spares is None else spares.agree,
        )
        encoder = None
        if kind != "whole":
            cut = self._cols if kind == "forward" else self._rows
            encoder = DenseEncoder(np.ascontiguousarray(b), cut, Split(b.shape[1], 1), self._dtype)
        prepared: dict[int, tuple[Operand, ...]] = {}

        def operands(share: int) -> tuple[Operand, ...]:
            # A pool may ask several times; what is told of a share must not change in a round.
            if share not in prepared:
                coded = b if encoder is None else encoder.coded(code.generator_b[share])
                prepared[share] = self._operands(share, coded)
            return prepared[share]

        outcome = self._pool.run(
            Round(
                shares=shares,
                operands=operands,
                collector=collector,
                decoder=decoder,
                timeout=None if timeout is None else positive(timeout, "timeout"),
                work=_WORKS[kind],
            )
        )
        self._count(collector, outcome)
        if spares is not None:
            spares.judge(collector, outcome)
            self._distrust(collector)
        if kind == "whole":
            self._alpha = code.amplification(collector.responders)
        self._pool.drop(self._outdated)
        self._outdated = []
        return decoder.output

    def _asked(self, code: Code) -> tuple[int, ...]:
        """Return the shares of workers that are still asked: liars are not, if they can be spared.

        One more than the threshold is needed to see that replies are right.
        """
        good = [share for share in code.shares if self._tally.wrong[share + 1] < _STRIKES]
        return tuple(good) if len(good) > code.threshold else code.shares

    def _noise(self, kind: str, b: Array) -> float:
        """Return what rounding may change in a reply, for each unit of the code's norms.

        Shares drift apart by about ``sqrt(steps)`` roundings, and those that are made from a
        decoded base differ from the others by its error.
        """
        size = self._size * (1.0 if kind == "whole" else float(np.linalg.norm(b)))
        return _EPS * (_ROUNDINGS + 4 * self._alpha) * float(np.sqrt(1 + self._steps)) * size

    def _count(self, collector: Collector, outcome: Outcome) -> None:
        """Learn from a finished round how old the shares are, and who is gone."""
        tally, code = self._tally, collector.code
        tally.rounds += 1
        tally.sent += outcome.sent
        tally.received += outcome.received
        # Whoever took over a share may hold it from now on, at an age that nobody keeps track of.
        self._spread.update(share for share in collector.redispatched if share in self._keys)
        for share in collector.responders:
            if share not in self._spread and collector.computed_by[share] == code.home(share):
                self._least[share] = self._log.end
        for worker in outcome.lost:
            reason = (collector.lost_workers | collector.silent_workers)[worker]
            tally.lost[worker + 1] = reason
            text = f"rank {worker + 1} was lost ({reason}); training goes on all the same"
            warnings.warn(text, CodedlaWarning, stacklevel=5)

    def _distrust(self, collector: Collector) -> None:
        """Make the shares again of workers that answered wrongly: they may be damaged."""
        for worker in collector.wrong:
            if not self._tally.wrong[worker + 1]:
                text = f"rank {worker + 1} answered wrongly; its share is made again"
                warnings.warn(text, CodedlaWarning, stacklevel=5)
            self._tally.wrong[worker + 1] += 1
            for share in [s for s in self._keys if collector.code.home(s) == worker]:
                self._forget(share)


def _itself(matrix: Array) -> Array:
    return matrix
