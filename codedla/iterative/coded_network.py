r"""Training of a dense network whose weights stay on the workers, coded: generalised PolyDot.

**Each layer's weights are encoded once**, and the one stored share of a worker serves the forward
product, the backward product and the update (:mod:`codedla.iterative.coded_network_codes`):

.. math:: S = W X, \qquad C = W^T \Delta, \qquad W \leftarrow W - \tfrac{\eta}{b} \Delta X^T .

Only minibatches move. Nonlinearities are applied by the master to decoded values, so that training
is that of the same network on one machine, up to rounding, whoever is late, lost or wrong.

References
----------
Dutta, Bai, Jeong, Low, Grover, "A unified coded deep neural network training strategy based on
generalized PolyDot codes", ISIT 2018, arXiv 1811.10751. Dutta, Bai, Low, Grover, "CodeNet: training
large scale neural networks in presence of soft-errors", arXiv 1903.01042.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.codes.base import Code
from codedla.engine.arguments import block_counts, check_choice, check_pool, positive, whole_number
from codedla.engine.delays import SEED
from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.coded_network_matrix import Tally, UpdatedMatrix, codes_for
from codedla.linalg.operands import as_array

__all__ = ["CodedNetwork"]

Array = NDArray[np.float64]

_DIGITS_LOST = 1e5
"""Amplification from which complex points are worth four times the work."""


def _relu_slope(y: Array) -> Array:
    return (y > 0).astype(np.float64)


def _logistic(s: Array) -> Array:
    # By tanh, which does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * s)


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "relu": (lambda s: np.maximum(s, 0.0), _relu_slope),
    "tanh": (np.tanh, lambda y: 1.0 - y * y),
    "logistic": (_logistic, lambda y: y * (1.0 - y)),
}
"""Of every hidden layer: the function, and its slope in terms of its value."""
LOSSES = ("softmax", "squares")


class CodedNetwork:
    r"""A dense network trained on coded weights; its ``fit``, ``step`` and ``predict``.

    Parameters
    ----------
    layers : sequence of int
        Sizes, the input's first: ``(784, 200, 10)`` has one hidden layer. Any sizes.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    blocks : (int, int), optional
        ``m x n`` blocks that every layer's weights are cut into; a worker holds and multiplies
        ``1 / (m n)`` of them. By default as many as the workers allow.
    tolerate : int
        Workers that may be late or lost in every round, whoever they are.
    correct : int
        Wrong answers in a round that are found and left out, as long as workers have not agreed on
        them: ``correct + 1`` spare replies tell ``correct`` independent errors with probability 1.
        Wrong workers are named (:attr:`tally`), and their shares made again.
    activation : {"relu", "tanh", "logistic"}
        Of the hidden layers.
    loss : {"softmax", "squares"}
        Cross-entropy of the softmax, or half the squared error; means over the batch.
    rate : float
        Step length :math:`\eta`.
    nodes : {"auto", "chebyshev", "unity"}
        Evaluation points: real, or complex (four times the work, fewer digits lost). "auto": real
        ones while no survivor set loses more than five digits.
    checkpoint : int
        Steps after which the master reads the weights from the workers, and forgets the updates
        before: from both it makes lost or damaged shares again.
    reencode : int, optional
        Steps after which all shares are encoded anew, so that rounding errors do not add up in
        them; rounded up to the next checkpoint. Seldom worth it: they add up very slowly.
    weights : sequence of (ndarray (out, in), ndarray (out,)), optional
        What to start from; by default random weights of the usual size and zeros.
    seed : int
        Of these, and of the order of minibatches.

    Attributes
    ----------
    codes : list of dict of str to Code
        Of every layer: "forward", "backward" and "whole".
    tally : Tally
        Rounds, bytes, and which ranks were lost or wrong.
    steps : int

    Raises
    ------
    UsageError
        Too few workers: ``max(m n + n - 1, 2 m n - n) + tolerate`` are needed, and ``correct + 1``
        more if that is not 0.

    Examples
    --------
    >>> import numpy as np, codedla
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((200, 5))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
    >>> with codedla.SerialPool(5) as pool, codedla.CodedNetwork((5, 16, 2), pool=pool) as net:
    ...     losses = net.fit(X, y, epochs=60)
    ...     accuracy = np.mean(net.predict(X).argmax(axis=1) == y)
    >>> bool(accuracy > 0.9)
    True
    """

    def __init__(
        self,
        layers: Sequence[int],
        *,
        pool: Pool,
        blocks: tuple[int, int] | None = None,
        tolerate: int = 1,
        correct: int = 0,
        activation: str = "relu",
        loss: str = "softmax",
        rate: float = 0.1,
        nodes: str = "auto",
        checkpoint: int = 50,
        reencode: int | None = None,
        weights: Sequence[tuple[ArrayLike, ArrayLike]] | None = None,
        seed: int = SEED,
    ) -> None:
        check_pool(pool)
        check_choice(activation, "activation", tuple(ACTIVATIONS))
        check_choice(loss, "loss", LOSSES)
        check_choice(nodes, "nodes", ("auto", "chebyshev", "unity"))
        self.sizes = tuple(whole_number(size, "a layer's size", least=1) for size in layers)
        if len(self.sizes) < 2:
            raise UsageError(
                f"layers are the sizes of input and output, and of any between; got {layers!r}; "
                "write for instance layers=(784, 200, 10)"
            )
        self.rate = positive(rate, "rate")
        self._activation, self._loss = activation, loss
        self._checkpoint = whole_number(checkpoint, "checkpoint", least=1)
        self._reencode = None if reencode is None else whole_number(reencode, "reencode", least=1)
        self._correct = whole_number(correct, "correct", least=0)
        spare = whole_number(tolerate, "tolerate", least=0)
        spare += self._correct + 1 if self._correct else 0
        self._rng = np.random.default_rng(seed)
        start = self._initial() if weights is None else self._checked(weights)
        cut = _blocks(blocks, pool.n_workers, spare)
        self.tally, self.steps = Tally(), 0
        self._encoded = 0
        self.codes: list[dict[str, Code]] = []
        self._layers: list[UpdatedMatrix] = []
        for matrix in start:
            # No more blocks than rows and columns.
            m, n = (min(a, b) for a, b in zip(cut, matrix.shape, strict=True))
            codes = _codes(pool.n_workers, (m, n), nodes)
            self.codes.append(codes)
            self._layers.append(
                UpdatedMatrix(matrix, pool, codes, correct=bool(self._correct), tally=self.tally)
            )

    # -- training ------------------------------------------------------------------------------

    def step(self, X: ArrayLike, y: ArrayLike, *, timeout: float | None = None) -> float:
        """Take one step of gradient descent; return the loss before it.

        Parameters
        ----------
        X : array_like (b, in)
        y : array_like (b,) of int, or (b, out)
            Classes or, for either loss, rows that the outputs should be.
        timeout : float, optional
            Seconds for each of the rounds.

        Raises
        ------
        UsageError
            Wrong shapes, or no finite numbers, in the products either.
        NotDecodable, WorkerError
            As in :func:`codedla.matmul`; the weights are those before the step.
        VerificationFailed
            With ``correct``: more answers were wrong than can be told.
        """
        inputs, targets = self._inputs(X), self._targets(y)
        if inputs.shape[1] != targets.shape[1]:
            raise UsageError(
                f"X and y must have as many rows; got {inputs.shape[1]} and {targets.shape[1]}"
            )
        values = self._forward(inputs, timeout)
        loss, delta = self._compare(values[-1], targets)
        deltas = [delta]
        slope = ACTIVATIONS[self._activation][1]
        for layer, below in zip(self._layers[:0:-1], values[-2:0:-1], strict=True):
            # The last row belongs to the constant input.
            deltas.append(layer.backward(deltas[-1], timeout)[:-1] * slope(below[:-1]))
        if not (np.isfinite(loss) and all(np.isfinite(delta).all() for delta in deltas)):
            raise UsageError(
                f"a step needs a finite loss and slopes; got a loss of {loss:g} after {self.steps} "
                f"steps with rate={self.rate:g}; use a smaller one"
            )
        # Not before all products of this step are there: a step is taken as a whole or not at all.
        scale = -self.rate / inputs.shape[1]
        for layer, delta, below in zip(self._layers, deltas[::-1], values, strict=False):
            layer.update(scale * delta, below)
        self.steps += 1
        if self.steps % self._checkpoint == 0:
            self._note_weights(timeout)
        return loss

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        epochs: int = 1,
        batch: int = 32,
        callback: Callable[[int, float], Any] | None = None,
        timeout: float | None = None,
    ) -> list[float]:
        """Go over the data so many times, in minibatches of a new random order each time.

        Parameters
        ----------
        X, y, timeout
            As of :meth:`step`.
        epochs, batch : int
            The last batch of an epoch may be smaller.
        callback : callable, optional
            ``callback(step, loss)`` after every step.

        Returns
        -------
        list of float
            The loss of every minibatch before its step.

        Raises
        ------
        UsageError, NotDecodable, WorkerError, VerificationFailed
            As :meth:`step`.
        """
        data, due = as_array(X, "X"), as_array(y, "y")
        if data.ndim != 2 or len(data) != len(due) or len(data) == 0:
            raise UsageError(
                f"X must be a matrix with a row for each entry of y; got shapes {data.shape} and "
                f"{due.shape}"
            )
        epochs, batch = (
            whole_number(epochs, "epochs", least=0),
            whole_number(batch, "batch", least=1),
        )
        losses = []
        for _ in range(epochs):
            order = self._rng.permutation(len(data))
            for top in range(0, len(data), batch):
                chosen = order[top : top + batch]
                losses.append(self.step(data[chosen], due[chosen], timeout=timeout))
                if callback is not None:
                    callback(self.steps, losses[-1])
        return losses

    def predict(self, X: ArrayLike, *, timeout: float | None = None) -> Array:
        """Return the network's outputs, (b, out); with loss "softmax" they are probabilities."""
        scores = self._forward(self._inputs(X), timeout)[-1]
        return (_softmax(scores) if self._loss == "softmax" else scores).T

    def weights(self, *, timeout: float | None = None) -> list[tuple[Array, Array]]:
        """Return weights (out, in) and offsets (out,) of every layer, decoded from the workers."""
        whole = [layer.read(timeout) for layer in self._layers]
        return [(np.ascontiguousarray(w[:, :-1]), w[:, -1].copy()) for w in whole]

    def close(self) -> None:
        """Free the workers' memory; idempotent."""
        for layer in self._layers:
            layer.close()

    def __enter__(self) -> CodedNetwork:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- parts ---------------------------------------------------------------------------------

    def _forward(self, inputs: Array, timeout: float | None) -> list[Array]:
        """Return what goes into every layer, with a row of ones, and what comes out of the last."""
        values = [_with_ones(inputs)]
        function = ACTIVATIONS[self._activation][0]
        for layer in self._layers[:-1]:
            values.append(_with_ones(function(layer.forward(values[-1], timeout))))
        return [*values, self._layers[-1].forward(values[-1], timeout)]

    def _compare(self, scores: Array, targets: Array) -> tuple[float, Array]:
        """Return the mean loss of a batch, and ``b`` times its slope by the scores."""
        if self._loss == "squares":
            off = scores - targets
            return 0.5 * float((off**2).sum() / off.shape[1]), off
        shifted = scores - scores.max(axis=0)
        logs = shifted - np.log(np.exp(shifted).sum(axis=0))
        return -float((targets * logs).sum() / scores.shape[1]), np.exp(logs) * targets.sum(
            axis=0
        ) - targets

    def _note_weights(self, timeout: float | None) -> None:
        for layer in self._layers:
            layer.read(timeout)
        if self._reencode is not None and self.steps - self._encoded >= self._reencode:
            self._encoded = self.steps
            for layer in self._layers:
                layer.renew()

    def _inputs(self, X: ArrayLike) -> Array:
        """Return rows of features as columns."""
        data = as_array(X, "X")
        if data.ndim != 2 or data.shape[1] != self.sizes[0] or len(data) == 0:
            raise UsageError(
                f"X must have rows of {self.sizes[0]} numbers; got shape {data.shape}; make the "
                "first of layers as large as the rows"
            )
        return _finite(data.T, "X")

    def _targets(self, y: ArrayLike) -> Array:
        """Return rows of targets as columns."""
        due, count = as_array(y, "y"), self.sizes[-1]
        if due.ndim == 1 and due.dtype.kind in "iu" and self._loss == "softmax":
            if due.size and not 0 <= due.min() <= due.max() < count:
                raise UsageError(
                    f"classes are numbered 0 to {count - 1}; got {due.min()} to {due.max()}; make "
                    "the last of layers as large as there are classes"
                )
            return np.eye(count)[:, due]
        if due.ndim == 1 and count == 1:
            due = due[:, None]
        if due.ndim != 2 or due.shape[1] != count:
            raise UsageError(
                f"y must be classes, or rows of {count} numbers; got {due.dtype} of shape "
                f"{due.shape}; make the last of layers as large as the rows"
            )
        return _finite(due.T, "y")

    def _initial(self) -> list[Array]:
        """Draw weights as large as the slopes of the activation call for."""
        gain = 2.0 if self._activation == "relu" else 1.0
        start = []
        for inner, outer in itertools.pairwise(self.sizes):
            matrix = np.zeros((outer, inner + 1))
            matrix[:, :-1] = self._rng.standard_normal((outer, inner)) * np.sqrt(gain / inner)
            start.append(matrix)
        return start

    def _checked(self, weights: Sequence[tuple[ArrayLike, ArrayLike]]) -> list[Array]:
        pairs = [(as_array(w, "weights"), as_array(b, "offsets")) for w, b in weights]
        got = [(w.shape, b.shape) for w, b in pairs]
        due = [((outer, inner), (outer,)) for inner, outer in itertools.pairwise(self.sizes)]
        if got != due:
            raise UsageError(
                f"weights of layers {self.sizes} have shapes {due}; got {got}; give one pair for "
                "each layer"
            )
        return [_finite(np.column_stack([w, b]), "weights") for w, b in pairs]


def _blocks(blocks: tuple[int, int] | None, n_workers: int, spare: int) -> tuple[int, int]:
    """Return the numbers of blocks; checked, or as many as the workers allow."""

    def due(m: int, n: int) -> int:
        return max(m * n + n - 1, 2 * m * n - n) + spare

    if blocks is None:
        most = range(1, n_workers + 1)
        fitting = [(m, n) for m in most for n in most if due(m, n) <= n_workers]
        if fitting:
            return max(fitting, key=lambda cut: (cut[0] * cut[1], -due(*cut)))
        cut: Any = (1, 1)
    else:
        cut = block_counts(blocks)
    if isinstance(cut, int) or len(cut) != 2:
        raise UsageError(
            f"blocks of a network are m x n; got {blocks!r}; write for instance blocks=(2, 2)"
        )
    if due(*cut) > n_workers:
        raise UsageError(
            f"max(m n + n - 1, 2 m n - n) and {spare} to spare are {due(*cut)} workers for blocks "
            f"{cut}; got {n_workers}; use {due(*cut) + 1} ranks, or fewer blocks, losses or errors"
        )
    return cut


def _codes(n_workers: int, blocks: tuple[int, int], nodes: str) -> dict[str, Code]:
    """Return the codes of one layer, with the points that are asked for, or that suit it."""
    if nodes != "auto":
        return codes_for(n_workers, blocks, nodes)
    codes = codes_for(n_workers, blocks, "chebyshev")
    worst = max(code.worst_amplification()[0] for code in codes.values())
    return codes if worst <= _DIGITS_LOST else codes_for(n_workers, blocks, "unity")


def _finite(matrix: NDArray[Any], name: str) -> Array:
    if matrix.dtype.kind not in "iubf":
        raise UsageError(f"{name} must be real numbers; got {matrix.dtype}; convert them")
    result = np.ascontiguousarray(matrix, dtype=np.float64)
    if not np.isfinite(result).all():
        raise UsageError(f"{name} must be finite: blocks are mixed; got NaN or Inf; take them out")
    return result


def _with_ones(values: Array) -> Array:
    return np.vstack([values, np.ones((1, values.shape[1]))])


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))
