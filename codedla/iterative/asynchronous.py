"""Asynchronous iterations over data that stays on the workers: nobody waits for the slowest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import positive
from codedla.engine.converse import ConversingPool, Heard, check_converses
from codedla.engine.epochs import AsyncReport, Epochs, Wanted
from codedla.engine.round import Operand
from codedla.errors import CodedlaError, PoolClosed, UsageError

__all__ = ["AsyncMap", "Epoch", "Reply"]

Array = NDArray[Any]

_DTYPES = tuple(np.dtype(t) for t in ("f4", "f8", "c8", "c16", "i4", "i8", "u1"))


@dataclass(frozen=True)
class Reply:
    """One reply.

    Parameters
    ----------
    worker : int
    epoch : int
        Which epoch's iterate it answers.
    age : int
        How many epochs old that was when the reply came.
    value : ndarray
        What the function returned.
    """

    worker: int
    epoch: int
    age: int
    value: Array


@dataclass(frozen=True)
class Epoch:
    """What one epoch has brought.

    Parameters
    ----------
    number : int
        They count from 1.
    replies : list of ndarray or None
        Of each worker its newest reply, to whichever iterate; None: there is none yet.
    epochs : ndarray of int64 (n_workers,)
        Which epoch's iterate each of these answers; 0: none. Equal to ``number`` where it is fresh.
    fresh : list of int
        Workers that have answered this epoch's iterate, in the order of arrival.
    stale : list of Reply
        Offered replies to earlier iterates that came since the last epoch.
    """

    number: int
    replies: list[Array | None]
    epochs: NDArray[np.int64]
    fresh: list[int]
    stale: list[Reply]


class AsyncMap:
    """Call a function of resident data and the newest iterate on all workers, and wait for some.

    Each call is an epoch. The iterate goes to all workers that are free, and the call returns once
    ``nwait`` of them have answered it. The others go on. When one of them answers late, its reply
    is kept or dropped, and it gets the newest iterate at once.

    Parameters
    ----------
    function : callable
        ``function(*share, x)`` returns a vector or matrix (float32, float64, complex64, complex128,
        int32 or int64); it gets read-only arrays.
    shares : sequence
        One entry for each worker: an array, or a tuple of arrays, vectors or matrices, that is sent
        to it once.
    pool : MPIPool, SerialPool or SimulatedPool
        Does nothing else until this is closed.
    late : str
        "offer": a stale reply takes the place of the worker's older one, as algorithms want that
        correct old gradients by new ones (SAG, DSAG); "drop": stale replies are not used;
        "cancel": nobody goes on computing them.
    oldest : int, optional
        Replies to iterates more than so many epochs old are dropped in any case.

    Raises
    ------
    UsageError
        Not one share for each worker, or not alike; or an array of a dtype that does not travel.

    Notes
    -----
    Lost and silent workers are skipped, and named in :attr:`report`. Leaving the block ends at
    once: what is under way is cancelled, and nobody is waited for.

    Examples
    --------
    Gradient descent that does without the two slowest of six workers, whoever these are:

    >>> import numpy as np, codedla
    >>> rng = np.random.default_rng(7)
    >>> A, x = rng.standard_normal((600, 5)), np.zeros(5)
    >>> b = A @ np.arange(5.0)
    >>> shares = list(zip(np.split(A, 6), np.split(b, 6)))
    >>> def gradient(A, b, x):
    ...     return A.T @ (A @ x - b)
    >>> with codedla.SerialPool(6) as pool:
    ...     with codedla.AsyncMap(gradient, shares, pool=pool) as gradients:
    ...         for _ in range(60):
    ...             epoch = gradients(x, nwait=4)
    ...             x = x - sum(epoch.replies[w] for w in epoch.fresh) / 600
    >>> bool(np.allclose(x, np.arange(5), atol=1e-6))
    True
    """

    def __init__(
        self,
        function: Callable[..., Any],
        shares: Sequence[Any],
        *,
        pool: ConversingPool,
        late: str = "offer",
        oldest: int | None = None,
    ) -> None:
        check_converses(pool)
        if len(shares) != pool.n_workers:
            raise UsageError(
                f"shares must have one entry for each of the {pool.n_workers} workers; got "
                f"{len(shares)}; give them all some"
            )
        self._epochs = Epochs(pool.n_workers, late, oldest)
        self._pool, self._function = pool, function
        groups = [share if isinstance(share, tuple) else (share,) for share in shares]
        ndims = {tuple(_ndim(array, "a share") for array in group) for group in groups}
        if len(ndims) > 1:
            raise UsageError(
                "the shares of all workers must be as many vectors and matrices in the same order; "
                f"got arrays of {' and '.join(map(str, sorted(ndims)))} dimensions; reshape them"
            )
        self._ndims = ndims.pop()
        self._shares = [tuple(_matrix(array) for array in group) for group in groups]
        self._resident = [
            [_held(pool.new_key(), matrix) for matrix in group] for group in self._shares
        ]
        # Vectors are vectors again on the workers, which is said once, with the function.
        self._x_ndim: int | None = None
        self._talk: Any = None
        self._newest: list[Reply | None] = [None] * pool.n_workers
        self._interrupted = False
        self._began = 0.0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(
        self, x: Array, nwait: Wanted | None = None, *, timeout: float | None = None
    ) -> Epoch:
        """Run one epoch.

        Parameters
        ----------
        x : ndarray
            The newest iterate, a vector or matrix; copied.
        nwait : int or callable, optional
            Workers that must answer it, 0 to all. Or a function of the set of workers (0, 1, ...)
            that have, which returns whether they are enough. All by default.
        timeout : float, optional
            Seconds, on the pool's clock, after which the epoch fails.

        Returns
        -------
        Epoch

        Raises
        ------
        NotDecodable
            Too many workers are lost, or silent for long, or late by the time-out. The next call
            may ask for fewer.
        WorkerError
            The function raised.
        """
        with self._undisturbed():
            return self._call(np.asarray(x), nwait, timeout)

    def _call(self, x: Array, nwait: Wanted | None, timeout: float | None) -> Epoch:
        operand = self._operand(x)
        talk, epochs = self._talk, self._epochs
        end = None if timeout is None else talk.now() + positive(timeout, "timeout")
        epochs.begin(self._pool.n_workers if nwait is None else nwait)
        fresh: list[int] = []
        stale: list[Reply] = []

        def take(heard: Heard) -> None:
            reply = self._take(heard)
            if reply is not None and reply.age:
                stale.append(reply)
            elif reply is not None:
                fresh.append(reply.worker)

        while (heard := talk.wait(until=talk.now())) is not None:
            take(heard)
        self._hand_out(operand)
        while not epochs.enough():
            heard = talk.wait(until=end)
            if heard is None:
                raise epochs.failure(f"the time-out of {timeout:g} s is over")
            take(heard)
            self._hand_out(operand)
        for worker in epochs.overdue():
            talk.cancel(worker)
            epochs.cancelled(worker)
        newest = self._newest
        replies = [None if reply is None else reply.value for reply in newest]
        answered = np.array([0 if reply is None else reply.epoch for reply in newest], np.int64)
        return Epoch(epochs.epoch, replies, answered, fresh, stale)

    def stream(self, x: Array, on_reply: Callable[[Reply], Array | None]) -> None:
        """Let every reply make a new iterate, which its worker gets at once: no epochs to wait for.

        Each iterate is an epoch of its own, to the report as well. Late replies are used, whatever
        ``late`` says, unless they are older than ``oldest``; their workers go on all the same.

        Parameters
        ----------
        x : ndarray
            The first iterate, for everybody; copied.
        on_reply : callable
            ``on_reply(reply)`` returns the newest iterate, or None to end.

        Raises
        ------
        NotDecodable
            All workers are lost, or silent for long.
        WorkerError
            The function raised.
        """
        epochs = self._epochs
        late, epochs.late = epochs.late, "offer"
        try:
            with self._undisturbed():
                self._stream(np.asarray(x), on_reply)
        finally:
            epochs.late = late

    def _stream(self, x: Array, on_reply: Callable[[Reply], Array | None]) -> None:
        operand = self._operand(x)
        self._epochs.begin(0)
        while True:
            self._hand_out(operand)
            reply = self._take(self._talk.wait())
            if reply is None:
                continue
            newest = on_reply(reply)
            if newest is None:
                return
            operand = self._operand(np.asarray(newest))
            self._epochs.begin(0)

    @property
    def away(self) -> frozenset[int]:
        """The workers that are lost or silent at the moment."""
        return frozenset(self._epochs.lost) | frozenset(self._epochs.silent)

    @property
    def report(self) -> AsyncReport:
        """What has happened so far: staleness of each worker's replies, who was lost."""
        if self._talk is None:
            return self._epochs.report(0.0, 0, 0)
        return self._epochs.report(self.seconds, self._talk.bytes_sent, self._talk.bytes_received)

    @property
    def seconds(self) -> float:
        """Time since the first call, on the pool's clock."""
        return 0.0 if self._talk is None else self._talk.now() - self._began

    def close(self) -> None:
        """End at once, and free the workers' memory; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._talk is not None:
                self._talk.close()
        finally:
            self._pool.drop([operand.key for group in self._resident for operand in group])

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Note when something breaks in, Ctrl-C above all, and set things right the next time.

        It may do so after something was heard or ordered, and before that was noted.
        """
        if self._closed:
            raise PoolClosed("this asynchronous map is closed; use it inside its with block")
        if self._interrupted and self._talk is not None:
            self._talk.restart()
            self._epochs.forget()
        self._interrupted = True
        try:
            yield
        except CodedlaError:
            self._interrupted = False
            raise
        self._interrupted = False

    def _operand(self, x: Array) -> Operand:
        ndim = _ndim(x, "x")
        if self._talk is None:
            self._x_ndim = ndim
            self._talk = self._pool.converse(_Restored(self._function, self._ndims, ndim))
            self._began = self._talk.now()
        if ndim != self._x_ndim:
            raise UsageError(
                f"x must have as many dimensions as at first; got {ndim} after {self._x_ndim}; "
                "reshape it"
            )
        return _held(0, _matrix(x).copy())

    def _hand_out(self, operand: Operand) -> None:
        for worker in self._epochs.due():
            number = self._talk.order(worker, [*self._resident[worker], operand])
            self._epochs.ordered(worker, number)

    def _take(self, heard: Heard) -> Reply | None:
        epoch = self._epochs.hear(heard)
        if epoch is None or heard.reply is None:
            return None
        vector = self._x_ndim == 1 and heard.reply.shape[0] == 1
        value = heard.reply[0] if vector else heard.reply
        reply = Reply(heard.worker, epoch, self._epochs.epoch - epoch, value)
        self._newest[heard.worker] = reply
        return reply


class _Restored:
    """The user's function, called with vectors where vectors were given."""

    def __init__(self, function: Callable[..., Any], ndims: tuple[int, ...], x_ndim: int) -> None:
        self.function, self.ndims = function, (*ndims, x_ndim)

    def __call__(self, *matrices: Any) -> Array:
        operands = [m[0] if d == 1 else m for m, d in zip(matrices, self.ndims, strict=True)]
        return np.atleast_2d(self.function(*operands))


def _ndim(array: Any, what: str) -> int:
    """Return the number of dimensions of an array that travels.

    Raises
    ------
    UsageError
    """
    ndim = getattr(array, "ndim", None)
    dtype = getattr(array, "dtype", None)
    if ndim not in (1, 2) or dtype not in _DTYPES:
        names = ", ".join(map(str, _DTYPES))
        raise UsageError(
            f"{what} must be a vector or matrix of one of {names}; got {type(array).__name__} of "
            f"dtype {dtype} with {ndim} dimensions; convert it"
        )
    return int(ndim)


def _matrix(array: Any) -> Any:
    return array[None, :] if array.ndim == 1 else array


def _held(key: int, matrix: Any) -> Operand:
    return Operand(key, lambda: matrix)
