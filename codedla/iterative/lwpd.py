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
Its point is that nobody is waited for, nor called off, which plain copies of the blocks have, too;
``benchmarks/lwpd.py`` compares it with these and with codes whose master cancels late workers.
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
    r"""Train a network on coded derivatives, without waiting for late or dead workers.

    Every worker holds the data, and needs them once only. Use it as a context: leaving it ends at
    once, and frees the workers' memory.

    Parameters
    ----------
    network : sequence of int, or torch.nn.Module
        Inputs, hidden units, classes of a perceptron; without hidden units: softmax regression. Or
        a module that returns scores of the classes, and all of whose trained parameters are in
        :class:`torch.nn.Linear` layers: it is trained from the parameters that it has, which are
        written back into it when :meth:`run` ends. The loss is the cross-entropy.
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
        "immediate", "peel" or "least-squares"; see the notes.
    rate : float
        :math:`\eta`, of a whole gradient step; a lossy one of one reply is 1/k of one on average.
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
        Of the first parameters of a perceptron and of the order of the batches.
    dtype : dtype
        float32 or float64, of the parameters on their way.

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
        Data that do not fit the network, or a code that does not tell of all blocks.

    Notes
    -----
    Every change of the parameters :math:`\theta = (\theta_1, ..., \theta_k)` makes a *version*, and
    every version is about a batch of its own. Worker `i` has the codeword :math:`c_i`, and answers
    a version by :math:`y_i = \sum_j c_{ij} g_j`, of the gradient's blocks :math:`g_j`. A reply is
    *stale* by as many versions as were made since the one that it answers; ``oldest`` bounds that,
    ``damped`` makes stale steps shorter, and :attr:`report` has the histogram for every rank.

    - "immediate": each reply makes a version, by the lossy step
      :math:`\theta_j \leftarrow \theta_j - \eta c_{ij} y_i / \|c_i\|^2`, and its worker is given
      that version at once. With `n` workers, replies are stale by about `n` - 1.
    - "peel": replies to one version are awaited until peeling knows all blocks: one that has one
      unknown block left gives that block,
      :math:`g_j = (y_i - \sum_{l \ne j} c_{il} g_l) / c_{ij}`, and so on. If workers are lost so
      that this ends early, or ``wait`` is small, the other replies are used by a Kaczmarz sweep,
      :math:`\hat g \leftarrow \hat g + c_i (y_i - c_i \cdot \hat g) / \|c_i\|^2`.
    - "least-squares": the :math:`\hat g` nearest to that of the version before that agrees with all
      replies; the gradient itself as soon as their codewords span everything, beyond rounding.

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
        network: Any,
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
        dtype = _float_type(dtype)
        X = _checked_data(X)
        self._model = _network(network, X.shape[1], dtype)
        y = _checked_classes(y, len(X), self._model.classes)
        batch = min(whole_number(batch, "batch", least=1), len(X))
        self.code = make_code(code, k, n)
        if update == "peel" and peels(self.code, range(n)) < k:
            raise UsageError(
                f"peeling needs codewords that lead to all {k} blocks one by one; this code leads "
                f"to {peels(self.code, range(n))}; take code='ring' or update='least-squares'"
            )
        self.update, self.rate, self.damped = update, positive(rate, "rate"), damped
        self.wait = None if wait is None else whole_number(wait, "wait", least=1)
        if self.wait is not None and self.wait > n:
            raise UsageError(f"there are {n} workers; got wait={wait}; wait for fewer")
        self.theta: Array = self._model.start(seed, dtype)
        # Codewords that differ by less tell of a block what rounding errors do.
        self._digits = float(np.sqrt(np.finfo(dtype).eps))
        self.version = 0
        self._layout = Layout(self._model.layers_shapes, k)
        self._scale = 1 / 255 if X.dtype == np.uint8 else 1.0
        self._estimate = np.zeros((k, self._layout.size), self.theta.dtype)
        self._n_workers = n
        derivative = CodedDerivative(self._model, k, batch, seed, self._scale)
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
        UsageError
            The parameters have grown beyond all bounds: ``rate`` is too large.
        NotDecodable
            No worker is left, or fewer than ``wait``.
        WorkerError
        """
        steps = whole_number(steps, "steps", least=0)
        end = self.version + steps
        if steps == 0:
            return
        try:
            if self.update == "immediate":
                self._stream(end, watch)
                return
            while self.version < end:
                epoch = self._workers(self._iterate(), self._enough)
                if self._tell(epoch.fresh, self._apply(epoch), watch):
                    return
        finally:
            self._model.keep(self.theta)

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
        self._check_finite(reply.value)
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
            complete = self._rank(self.code[rows]) == self._layout.k
        # Of blocks that only the lost and the silent could tell of nothing is heard by waiting.
        return bool(complete) or len(workers | self._workers.away) == self._n_workers

    def _apply(self, epoch: Epoch) -> int:
        """Make the step of one version; return how many blocks are known exactly."""
        for reply in epoch.stale:
            self._lossy(reply, reply.age)
        code = self.code[epoch.fresh]
        replies = np.vstack([_present(epoch.replies[w]) for w in epoch.fresh])
        self._check_finite(replies)
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
            gradient = least_squares(code, replies, self._estimate, self._digits)
            self._estimate = gradient
            whole = self._rank(code) == self._layout.k
            count = self._layout.k if whole else int(known.sum())
        self.theta -= self.theta.dtype.type(self.rate) * self._layout.scatter(gradient)
        return count

    def _rank(self, code: Array) -> int:
        """Return in how many directions some codewords tell of a gradient, beyond rounding."""
        return int(np.linalg.matrix_rank(code, rtol=self._digits))

    # -- both ----------------------------------------------------------------------------------

    def _check_finite(self, replies: Array) -> None:
        if not np.isfinite(replies).all():
            raise UsageError(
                f"steps must leave the gradient finite; at version {self.version} it is not, with "
                f"rate={self.rate:g}; start again with a smaller one"
            )

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


class _Perceptron(MLP):
    """A perceptron, asked for what modules are asked for."""

    @property
    def classes(self) -> int:
        return self.sizes[-1]

    def keep(self, theta: Array) -> None:
        """Do nothing: it has no parameters of its own."""


def _network(network: Any, inputs: int, dtype: np.dtype[Any]) -> Any:
    """Return what is trained: a perceptron of some sizes, or a module's linear layers."""
    if hasattr(network, "named_parameters"):
        from codedla.iterative.torch_layers import LinearLayers

        return LinearLayers(network, inputs, dtype)
    model = _Perceptron(network)
    if model.sizes[0] != inputs:
        raise UsageError(
            f"X must be a matrix of {model.sizes[0]} columns, for sizes {model.sizes}; got "
            f"{inputs}; make both alike"
        )
    return model


def _float_type(dtype: Any) -> np.dtype[Any]:
    found = np.dtype(dtype)
    if found.name not in ("float32", "float64"):
        raise UsageError(f"dtype must be float32 or float64; got {found}; take one of them")
    return found


def _checked_data(X: Any) -> Array:
    X = np.asarray(X)
    if X.ndim != 2 or X.size == 0 or X.dtype.name not in _DATA:
        raise UsageError(
            f"X must be a matrix of {' or '.join(_DATA)}, not empty; got {X.dtype} of shape "
            f"{X.shape}; convert it"
        )
    if X.dtype.kind == "f" and not np.isfinite(X).all():
        raise UsageError("X must be finite; got NaN or Inf; take those rows out")
    return X


def _checked_classes(y: Any, rows: int, classes: int) -> NDArray[np.int64]:
    y = np.asarray(y)
    right = y.shape == (rows,) and y.dtype.kind in "iu" and 0 <= y.min() <= y.max() < classes
    if not right:
        raise UsageError(
            f"y must be a class from 0 to {classes - 1} for each of {rows} rows; got {y.dtype} "
            f"of shape {y.shape}; number the classes"
        )
    return y.astype(np.int64)


_DATA = ("float32", "float64", "uint8")


def _present(reply: Array | None) -> Array:
    if reply is None:
        raise RuntimeError("a worker that has answered must have a reply")
    return reply
