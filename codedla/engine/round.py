"""What one coded operation is, seen by a pool: operands per share, a collector, a decoder.

A *round* is one coded operation, for instance one product. The pool that runs it only moves bytes:
it asks the collector which share a free worker is to compute and the round for that share's
operands (which are encoded then, not before), feeds events to the collector and received replies
to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from numpy.typing import NDArray

from codedla.engine.attend import always
from codedla.engine.collector import Collector
from codedla.engine.decoder import Decoder
from codedla.engine.work import by_name, pack_function
from codedla.errors import UsageError

__all__ = ["SILENCE", "Check", "Event", "Operand", "Outcome", "Pool", "Progress", "Round", "Span"]

Progress = Callable[[int, int, int], None]
"""``progress(done, needed, total)``, called on the master after every reply."""

SILENCE = 2.0
"""Seconds without a sign of life after which a worker's share may be given to another."""

Check = Callable[[int, NDArray[Any]], bool]
"""``check(share, reply)``: whether the reply can be the product of that share's operands."""


@dataclass(frozen=True)
class Operand:
    """One matrix of a worker's task.

    Parameters
    ----------
    key : int
        Positive: the worker keeps the matrix under this id for later rounds. 0: used once.
    supply : callable
        Returns the matrix (ndarray or CSR). Called only when the worker does not hold ``key``.
    """

    key: int
    supply: Callable[[], Any]


@dataclass(frozen=True)
class Event:
    """One line of the report's time line; ``seconds`` count from the start of the round."""

    seconds: float
    kind: str
    worker: int
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the worker is named by its rank (worker + 1)."""
        entry: dict[str, Any] = {"t": round(self.seconds, 6), "kind": self.kind}
        if self.worker >= 0:
            entry["rank"] = self.worker + 1
        if self.note:
            entry["note"] = self.note
        return entry


@dataclass(frozen=True)
class Span:
    """Something that took time on one rank, for the time line.

    Parameters
    ----------
    worker : int
        Where; -1 is the master.
    kind : str
        "encode", "send", "receive", "compute", "reply", "check", "fold", "decode", "lost" or
        "redispatched".
    start, end : float
        Seconds from the start of the round, on the master's clock.
    share : int
        Which share it was about; -1 for none.
    note : str
    """

    worker: int
    kind: str
    start: float
    end: float
    share: int = -1
    note: str = ""


@dataclass
class Round:
    """One coded operation handed to a pool.

    Parameters
    ----------
    shares : sequence of int
        Shares to be computed, in the order in which they are handed out; share ``w`` has its home
        on worker ``w``.
    operands : callable
        ``operands(share)`` returns the matrices that share's reply is computed from, two of them
        for a product.
    collector : Collector
        Decides; see :mod:`codedla.engine.collector`.
    decoder : Decoder
        Receives replies in place and decodes.
    timeout : float or None
        Seconds after which the collector is told of the deadline.
    progress : callable or None
        See :data:`Progress`.
    borrowed : bool
        The decoder's output is the caller's memory, to be left alone once the round is over:
        nothing may be received straight into it, because a reply that stops half-way could go on
        arriving later.
    check : callable or None
        See :data:`Check`; a reply that fails it is refused.
    prepare : callable or None
        What the check can do ahead; returns whether there was anything to do.
    work : str
        What workers compute from the operands: an operation of :mod:`codedla.engine.work`.
    function : callable or None
        With work "call": ``reply = function(*operands)``, called on the workers with read-only
        matrices. It must return a matrix of the shape and dtype of the decoder's target.
    """

    shares: Sequence[int]
    operands: Callable[[int], tuple[Operand, ...]]
    collector: Collector
    decoder: Decoder
    timeout: float | None = None
    progress: Progress | None = None
    borrowed: bool = False
    check: Check | None = None
    prepare: Callable[[], bool] | None = None
    work: str = "matmul"
    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        self.operation = by_name(self.work)
        if (self.work == "call") != callable(self.function):
            raise UsageError(
                f"work 'call', and no other, has a function; got work={self.work!r} with "
                f"function={self.function!r}; give both"
            )

    @cached_property
    def _packed(self) -> Operand:
        packed = pack_function(self.function) if self.function is not None else None
        return Operand(0, lambda: packed)

    def parcel(self, share: int) -> tuple[Operand, ...]:
        """Return what travels to another process for a share: the operands, and the function."""
        operands = self.operands(share)
        return operands if self.function is None else (*operands, self._packed)

    def perform(self, matrices: Sequence[Any], out: NDArray[Any]) -> None:
        """Compute one reply in this process, into ``out``."""
        self.operation.perform(
            matrices if self.function is None else (*matrices, self.function), out, always
        )

    def idle(self) -> bool:
        """Do what can be done while no reply arrives; return whether there was anything."""
        return (self.prepare is not None and self.prepare()) or self.decoder.idle()


@dataclass
class Outcome:
    """What a pool measured while it ran a round (seconds and bytes).

    ``began`` is the pool's clock when the round started; ``spans`` are noted when the pool traces.
    """

    began: float = 0.0
    lost: list[int] = field(default_factory=list)
    """Workers found lost or silent in this round for the first time."""
    encode: float = 0.0
    send: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    after_threshold: float = 0.0
    total: float = 0.0
    sent: int = 0
    received: int = 0
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class Pool(Protocol):
    """What the operations ask of a pool; :mod:`codedla.pools` and :mod:`codedla.mpi` have some."""

    n_workers: int
    trace: bool
    """Whether rounds note what takes how long on which rank."""
    overhead: float
    """Seconds that the job takes besides its products: what costs little is seen against them."""
    streams: bool
    """Whether rounds that are run together overlap, so that large products gain by panels."""
    threads: int
    """Threads of each rank, the master's encoding and decoding among them."""

    def meanwhile(self) -> object:
        """Let messages move on that are under way, and nothing else: called in long arithmetic."""
        ...

    def run(self, job: Round) -> Outcome:
        """Run one round until its collector says finish.

        Raises
        ------
        NotDecodable
            Too many workers were lost, or the deadline passed too early.
        WorkerError
            A worker's task raised.
        """
        ...

    def run_all(
        self,
        jobs: Iterable[Round],
        done: Callable[[int, Outcome], None],
        window: int | None = None,
    ) -> None:
        """Run rounds that do not need each other's results, several at a time where that helps.

        Parameters
        ----------
        jobs : iterable of Round
            Drawn one by one, when there is somebody to compute for them: a generator need not hold
            more than a few rounds' memory at a time. Every round has its own collector, decoder
            and, from when it is drawn, time-out.
        done : callable
            ``done(index, outcome)`` is called, on the caller's thread, as soon as round ``index``
            (counted from 0 in the order of ``jobs``) is decoded: once for each, in any order. It
            may read the decoder's output and drop resident operands, but not run other rounds.
        window : int, optional
            Rounds that may be drawn and not yet decoded: whoever draws them has the memory of so
            many at the most. By default as many as keep all workers busy, and some more.

        Raises
        ------
        NotDecodable, WorkerError
            As by :meth:`run`, by any of the rounds; the others that are under way are given up.
            What ``jobs`` or ``done`` raises ends the rounds in the same way.

        Notes
        -----
        Rounds share operands by their keys (:class:`Operand`): what a worker holds under a key is
        not sent again, and any threshold of the replies decodes a round, not the same workers each
        time.
        """
        ...

    def new_key(self) -> int:
        """Return an unused positive id for a resident operand."""
        ...

    def drop(self, keys: Sequence[int]) -> None:
        """Make every worker forget these resident operands."""
        ...

    def close(self) -> None:
        """End the pool; idempotent."""
        ...
