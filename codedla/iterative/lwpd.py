r"""Training by lightweight projective derivative codes (LWPD): coded pieces of a gradient.

The parameters are cut into `k` blocks, and worker `i` computes one combination
:math:`y_i = \sum_j c_{ij} g_j` of the blocks of a gradient, `1/k` of the numbers
(:mod:`codedla.iterative.lwpd_blocks`). What the master makes of the replies is one of

- *immediate*: no reply is waited for. Each makes a step at once,
  :math:`\theta_j \leftarrow \theta_j - \eta c_{ij} y_i / \|c_i\|^2`, which is lossy, as it takes
  what the reply says of several blocks for each of them; over the codewords of a tight frame `k`
  replies make one gradient step. Its worker gets the newest parameters at once.
- *peel*: replies to one version of the parameters are solved for one block after the other, which
  is exact; of blocks that stay unknown, what the other replies say is used as above.
- *least-squares*: the estimate of all blocks nearest to the last one that agrees with the replies.

After Soto, Ilmer, Guan and Li, ICML 2022 (arXiv:2201.12990), of which no program and no tables were
found: what the abstract leaves open is this project's own reading. Every worker computes the whole
forward and backward pass of its batch; what shrinks with `k` is the last product, and the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import check_choice, positive, whole_number
from codedla.engine.converse import ConversingPool, check_converses
from codedla.engine.epochs import AsyncReport
from codedla.errors import UsageError
from codedla.iterative.asynchronous import AsyncMap, Epoch, Reply
from codedla.iterative.lwpd_blocks import CodedDerivative, Layout
from codedla.iterative.lwpd_codes import kaczmarz, least_squares, make_code, peel, peels
from codedla.iterative.mlp import MLP

__all__ = ["LWPD", "UPDATES", "Step"]

Array = NDArray[Any]

UPDATES = ("immediate", "peel", "least-squares")
"""What the master makes of replies."""


@dataclass(frozen=True)
class Step:
    """One change of the parameters, for whoever watches.

    Parameters
    ----------
    version : int
        Of the parameters that it has made; they count from 0, which are the first.
    seconds : float
        Since training began, on the pool's clock.
    workers : tuple of int
        Whose replies it has used.
    known : int
        Blocks of the gradient that these have decoded exactly.
    theta : ndarray (n_parameters,)
        The parameters; to be copied by whoever keeps them.
    """

    version: int
    seconds: float
    workers: tuple[int, ...]
    known: int
    theta: Array


class LWPD:
    r"""Train a perceptron on coded derivatives, without waiting for late or dead workers.

    Every worker holds the data, and needs them once only. Use it as a context: leaving it ends at
    once, and frees the workers' memory.

    Parameters
    ----------
    sizes : sequence of int
        Inputs, hidden units, classes. Without hidden units: softmax regression.
    X : ndarray (rows, inputs)
        float32, float64 or uint8; bytes are divided by 255 where they are used.
    y : ndarray (rows,) of int
        Classes 0, 1, ...
    pool : MPIPool, SerialPool or SimulatedPool
    blocks : int, optional
        `k`, 1 to the number of workers; half of them by default.
    code : str or ndarray (n_workers, k)
        "ring" (single blocks and pairs of neighbours), "greedy" (pairs as different as can be),
        "replication" (single blocks), "dense" (any `k` decode everything), or your own; see
        :mod:`codedla.iterative.lwpd_codes`.
    update : str
        "immediate", "peel" or "least-squares"; see :mod:`codedla.iterative.lwpd`.
    rate : float
        :math:`\eta`, of a whole gradient step.
    batch : int
        Rows that each version's gradient is taken of; the same on all workers.
    wait : int, optional
        Replies to wait for in each version, unless "immediate". By default as many as it takes to
        know all blocks, or all that can be had of workers that are there.
    late : str
        "offer" makes a lossy step of late replies, too; "drop" does not, "cancel" has nobody
        compute them. Without meaning for "immediate", which uses them all.
    oldest : int, optional
        Replies more than so many versions old are dropped.
    damped : bool
        Make the steps of late replies shorter, by :math:`1/(1 + age/n)` where the age in versions
        is counted in turns of all `n` workers if "immediate", else by :math:`1/(1 + age)`.
    seed : int
        Of the first parameters and of the order of the batches.
    dtype : dtype
        float32 or float64, of the parameters.

    Attributes
    ----------
    theta : ndarray (n_parameters,)
        The newest parameters.
    code : ndarray (n_workers, k)
    version : int
        Steps so far.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> import numpy as np, codedla
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((600, 5))
    >>> y = np.argmax(X[:, :3], axis=1)
    >>> with codedla.SerialPool(8) as pool:
    ...     with codedla.LWPD((5, 3), X, y, pool=pool, rate=0.5, batch=100) as training:
    ...         training.run(600)
    ...     accuracy = training.accuracy(X, y)
    >>> accuracy > 0.95
    True
    """

    def __init__(
        self,
        sizes: Sequence[int],
        X: Array,
        y: Array,
        *,
        pool: ConversingPool,
        blocks: int | None = None,
        code: str | Array = "ring",
        update: str = "immediate",
        rate: float = 0.1,
        batch: int = 256,
        wait: int | None = None,
        late: str = "drop",
        oldest: int | None = None,
        damped: bool = False,
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        check_converses(pool)
        check_choice(update, "update", UPDATES)
        n = pool.n_workers
        k = max(n // 2, 1) if blocks is None else whole_number(blocks, "blocks", least=1)
        if k > n:
            raise UsageError(
                f"blocks is at most the number of workers, each of which knows of one; got {k} for "
                f"{n}; cut into fewer"
            )
        self._model = MLP(sizes)
        X, y = _checked(self._model, X, y)
        batch = min(whole_number(batch, "batch", least=1), len(X))
        self.code = make_code(code, k, n)
        self.update, self.rate, self.damped = update, positive(rate, "rate"), damped
        self.wait = None if wait is None else whole_number(wait, "wait", least=1)
        self.theta: Array = self._model.start(seed, np.dtype(dtype))
        self.version = 0
        self._layout = Layout(self._model, k)
        self._scale = 1 / 255 if X.dtype == np.uint8 else 1.0
        self._estimate = np.zeros((k, self._layout.size), self.theta.dtype)
        self._n_workers = n
        derivative = CodedDerivative(self._model.sizes, k, batch, seed, self._scale)
        shares = [(self.code[w][None, :], X, y[None, :]) for w in range(n)]
        self._workers = AsyncMap(derivative, shares, pool=pool, late=late, oldest=oldest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, steps: int, watch: Callable[[Step], bool | None] | None = None) -> None:
        """Train.

        Parameters
        ----------
        steps : int
            Versions of the parameters to be made: replies, if "immediate", of which `k` make a
            gradient step.
        watch : callable, optional
            ``watch(step)`` after each; True ends the training.

        Raises
        ------
        NotDecodable
            No worker is left, or fewer than ``wait``.
        WorkerError
        """
        steps = whole_number(steps, "steps", least=0)
        end = self.version + steps
        if steps == 0:
            return
        if self.update == "immediate":
            self._stream(end, watch)
            return
        while self.version < end:
            epoch = self._workers(self._iterate(), self._enough)
            if self._tell(epoch.fresh, self._apply(epoch), watch):
                return

    def predict(self, X: Array) -> NDArray[np.int64]:
        """Return the likeliest class of every row (rows,)."""
        return self._model.predict(self.theta, np.asarray(X) * self.theta.dtype.type(self._scale))

    def accuracy(self, X: Array, y: Array) -> float:
        """Return the fraction of rows whose likeliest class is the right one."""
        return float(np.mean(self.predict(X) == y))

    @property
    def report(self) -> AsyncReport:
        """What has happened so far: how old the parameters were that replies were about, losses."""
        return self._workers.report

    def close(self) -> None:
        """End at once; idempotent. The parameters stay."""
        self._workers.close()

    # -- replies at once -----------------------------------------------------------------------

    def _stream(self, end: int, watch: Callable[[Step], bool | None] | None) -> None:
        def take(reply: Reply) -> Array | None:
            self._lossy(reply, reply.age / self._n_workers)
            known = int(np.count_nonzero(self.code[reply.worker]) == 1)
            over = self._tell([reply.worker], known, watch)
            return None if over or self.version >= end else self._iterate()

        self._workers.stream(self._iterate(), take)

    def _lossy(self, reply: Reply, age: float) -> None:
        """Make the step that one reply alone allows."""
        row = self.code[reply.worker]
        weight = self.rate / (1.0 + age) if self.damped else self.rate
        for j in np.flatnonzero(row):
            factor = self.theta.dtype.type(weight * row[j] / (row @ row))
            self._layout.add(self.theta, int(j), -factor * reply.value[0])

    # -- replies to one version ----------------------------------------------------------------

    def _enough(self, workers: frozenset[int]) -> bool:
        """Tell whether these replies are enough for a step."""
        if self.wait is not None:
            return len(workers) >= self.wait
        if not workers:
            return False
        rows = sorted(workers)
        if self.update == "peel":
            complete = peels(self.code, rows) == self._layout.k
        else:
            complete = np.linalg.matrix_rank(self.code[rows]) == self._layout.k
        # Of blocks that only the lost and the silent could tell of nothing is heard by waiting.
        return bool(complete) or len(workers | self._workers.away) == self._n_workers

    def _apply(self, epoch: Epoch) -> int:
        """Make the step of one version; return how many blocks are known exactly."""
        for reply in epoch.stale:
            self._lossy(reply, reply.age)
        code = self.code[epoch.fresh]
        replies = np.vstack([_present(epoch.replies[w]) for w in epoch.fresh])
        exact, known = peel(code, replies)
        if self.update == "peel":
            gradient = exact
            if not known.all():
                # What is known explains its part of the other replies; the rest tells of the rest.
                left = np.where(known[None, :], 0.0, code)
                some = left.any(axis=1)
                rest = replies[some] - (code - left)[some].astype(exact.dtype) @ exact
                gradient = exact + kaczmarz(left[some], rest, np.zeros_like(exact))
            count = int(known.sum())
        else:
            gradient = least_squares(code, replies, self._estimate)
            self._estimate = gradient
            rank = int(np.linalg.matrix_rank(code))
            count = self._layout.k if rank == self._layout.k else int(known.sum())
        self.theta -= self.theta.dtype.type(self.rate) * self._layout.scatter(gradient)
        return count

    # -- both ----------------------------------------------------------------------------------

    def _iterate(self) -> Array:
        """Return what travels: the parameters, and the number of their version."""
        return np.append(self.theta, self.theta.dtype.type(self.version))[None, :]

    def _tell(
        self, workers: Sequence[int], known: int, watch: Callable[[Step], bool | None] | None
    ) -> bool:
        self.version += 1
        if watch is None:
            return False
        seconds = self._workers.seconds
        return bool(watch(Step(self.version, seconds, tuple(workers), known, self.theta)))


def _checked(model: MLP, X: Array, y: Array) -> tuple[Array, NDArray[np.int64]]:
    X, y = np.asarray(X), np.asarray(y)
    inputs, classes = model.sizes[0], model.sizes[-1]
    if X.ndim != 2 or X.shape[1] != inputs or len(X) == 0 or X.dtype.name not in _DATA:
        raise UsageError(
            f"X must be a matrix of {inputs} columns, for sizes {model.sizes}, of "
            f"{' or '.join(_DATA)}; got {X.dtype} of shape {X.shape}; convert it"
        )
    right = y.shape == (len(X),) and y.dtype.kind in "iu" and 0 <= y.min() <= y.max() < classes
    if not right:
        raise UsageError(
            f"y must be a class from 0 to {classes - 1} for each of {len(X)} rows; got {y.dtype} "
            f"of shape {y.shape}; number the classes"
        )
    return X, y.astype(np.int64)


_DATA = ("float32", "float64", "uint8")


def _present(reply: Array | None) -> Array:
    if reply is None:
        raise RuntimeError("a worker that has answered must have a reply")
    return reply
