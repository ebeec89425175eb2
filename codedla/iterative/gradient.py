"""Gradients that do not wait for late workers: the data stay there, parameters travel."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codedla.codes.gradient import GradientCode, make_gradient_code
from codedla.engine.arguments import check_pool, positive, whole_number
from codedla.engine.collector import Collector
from codedla.engine.decoder import DenseDecoder
from codedla.engine.report import Report
from codedla.engine.round import Event, Operand, Outcome, Pool, Round
from codedla.errors import CodedlaWarning, PoolClosed, UsageError
from codedla.iterative.robust import RobustDecoder, check_robust
from codedla.iterative.shares import combined, make_share

__all__ = ["CodedGradient", "gradient_code"]

Array = NDArray[Any]

_EPS = float(np.finfo(np.float64).eps)
_TOLERANCE = 1e-9


class CodedGradient:
    """A loss and its gradient, summed over data that are kept, coded, on the workers.

    ``cg(theta)`` returns ``(loss, gradient)`` from the first replies that suffice, so that
    ``scipy.optimize.minimize(cg, x0, jac=True)`` runs as it does without workers. A context
    manager: leaving it, or :meth:`close`, frees the workers' memory.

    Parameters
    ----------
    loss_and_grad : callable
        ``loss_and_grad(theta, *arrays)`` returns the loss **summed** over the rows it is given (not
        their mean) and its gradient, an array like ``theta``. It is called on workers with
        read-only arrays, and sent to them once; a regularization is added on the master, by the
        caller. Every call must return the same for the same rows.
    data : array_like or tuple of array_like
        Arrays with equally many rows; sparse matrices pass. Do not change them meanwhile: a worker
        that was late gets its share when it is free again.
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    scheme : str
        Exact: "cyclic", "fractional", "heterogeneous" (with ``speeds``), "uncoded". Approximate:
        "expander", "stochastic", "bibd", "ignore". See :mod:`codedla.codes.gradient`.
    stragglers : int, optional
        ``s``: any so many workers may be late; each has ``s + 1`` of ``n`` parts of the data. By
        default 1 where the scheme has any and there are two workers. When more are *lost*, others
        compute their parts.
    robust : str, optional
        Wrong workers do no harm: "majority" (with "fractional") and "locate" (with "cyclic") are
        exact and name them (:attr:`wrong`); "krum", "geometric-median" and "trimmed-mean" (with
        "uncoded" or "ignore") are the usual approximations.
    errors : int, optional
        How many may be wrong; 1 by default with ``robust``. Each costs as much as two stragglers.
    seed : int
        Of the code's random coefficients.
    timeout : float, optional
        Seconds after which a gradient fails with :class:`NotDecodable`.
    **options
        What the scheme has besides: ``speeds``, ``degree``, ``clusters``, ``inside``, ``outside``.

    Attributes
    ----------
    code : GradientCode
        Who has which parts.
    rounds : int
        Gradients so far.
    stragglers, lost, wrong : Counter of int
        Ranks that were not waited for, lost, or found wrong, and in how many rounds.
    bytes : dict of str to int
        "sent" and "received" so far.
    last_report : Report or None
        What happened in the latest round.

    Raises
    ------
    UsageError
        Arrays of different lengths, or numbers that the scheme has no code for.

    Notes
    -----
    Equal sets of survivors give equal results to the last bit; other sets of an exact scheme differ
    by rounding.

    References
    ----------
    R. Tandon, Q. Lei, A. Dimakis, N. Karampatziakis, "Gradient coding: avoiding stragglers in
    distributed learning", ICML 2017, PMLR 70.

    Examples
    --------
    >>> import codedla, numpy as np
    >>> from scipy.optimize import minimize
    >>> def squares(theta, X, y):
    ...     rest = X @ theta - y
    ...     return 0.5 * rest @ rest, X.T @ rest
    >>> X = np.arange(12.0).reshape(6, 2)
    >>> with (
    ...     codedla.SerialPool(4) as pool,
    ...     codedla.CodedGradient(squares, (X, X @ [1.0, -2.0]), pool=pool) as cg,
    ... ):
    ...     found = minimize(cg, np.zeros(2), jac=True).x
    >>> found.round(4).tolist()
    [1.0, -2.0]
    """

    def __init__(
        self,
        loss_and_grad: Callable[..., Any],
        data: ArrayLike | Sequence[Any],
        *,
        pool: Pool,
        scheme: str = "cyclic",
        stragglers: int | None = None,
        robust: str | None = None,
        errors: int | None = None,
        seed: int = 0,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        check_pool(pool)
        if not callable(loss_and_grad):
            raise UsageError(
                f"loss_and_grad must be a function of (theta, *arrays); got {loss_and_grad!r}; "
                "pass one"
            )
        self._function, self._pool, self._robust = loss_and_grad, pool, robust
        self._data = _arrays(data)
        self._timeout = None if timeout is None else positive(timeout, "timeout")
        self.code = gradient_code(
            pool.n_workers, scheme, stragglers, robust, errors, seed, **options
        )
        rows = self._data[0].shape[0]
        self._cuts = [rows * part // self.code.n_parts for part in range(self.code.n_parts + 1)]
        lengths = np.diff(self._cuts)
        self._held = [int(lengths[list(self.code.parts(w))].sum()) for w in self.code.shares]
        # A share's head and body; after a loss another worker may hold them.
        self._keys = [(pool.new_key(), pool.new_key()) for _ in self.code.shares]
        self._made: dict[int, tuple[Array, Array]] = {}
        self._shape: tuple[int, ...] | None = None
        self._closed = False
        self.rounds = 0
        self.stragglers: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.wrong: Counter[int] = Counter()
        self.bytes = {"sent": 0, "received": 0}
        self.last_report: Report | None = None

    def __call__(
        self, theta: ArrayLike, *, batch: tuple[int, int] | None = None
    ) -> tuple[float, NDArray[np.float64]]:
        """Return the loss at ``theta`` and its gradient.

        Parameters
        ----------
        theta : array_like
            Parameters, of any shape but always the same.
        batch : (int, int), optional
            ``(k, count)``: sum over the ``k``-th of ``count`` batches only (from 0). Each has its
            share of every part, always the same rows: see :meth:`rows`.

        Returns
        -------
        loss : float
        gradient : ndarray, float64
            Of the parameters' shape.

        Raises
        ------
        UsageError
            Not real numbers, of another shape than before, or a function that cannot be sent.
        NotDecodable
            No worker is left, or the time-out passed.
        VerificationFailed
            With ``robust``: more workers are wrong than ``errors``.
        WorkerError
            ``loss_and_grad`` raised, or did not return a loss and a gradient.
        PoolClosed
            After :meth:`close`.
        """
        if self._closed:
            raise PoolClosed("this coded gradient is closed; make it again")
        point = self._point(theta)
        k, count = _checked_batch(batch)
        output = np.empty((1, 1 + point.size))
        decoder: DenseDecoder
        if self._robust is None:
            decoder = DenseDecoder(self.code, output, output.dtype)
        else:
            sizes = self._sizes(k, count).tolist()
            decoder = RobustDecoder(self.code, output, self._robust, sizes)
        collector = Collector(
            self.code, eps=_EPS, tolerance=_TOLERANCE, workers=range(self._pool.n_workers)
        )
        row = np.concatenate([[k, count], point.ravel()])[None, :]

        def operands(share: int) -> tuple[Operand, ...]:
            head, body = self._keys[share]
            return (
                Operand(0, lambda: row),
                Operand(head, lambda: self._share(share)[0]),
                Operand(body, lambda: self._share(share, last=True)[1]),
            )

        outcome = self._pool.run(
            Round(
                shares=self.code.shares,
                operands=operands,
                collector=collector,
                decoder=decoder,
                timeout=self._timeout,
                work="call",
                function=combined,
            )
        )
        if isinstance(decoder, RobustDecoder):
            if decoder.failure is not None:
                raise decoder.failure
            for share in decoder.wrong:
                worker = collector.exclude(share, "answered wrongly")
                outcome.events.append(Event(outcome.total, "wrong", worker))
        self._record(point.size, collector, outcome)
        result = decoder.output[0]
        return float(result[0]), result[1:].reshape(point.shape).copy()

    def rows(self, batch: tuple[int, int] | None = None) -> int:
        """Return how many rows of data there are in a batch; in all without one."""
        k, count = _checked_batch(batch)
        return int(self._sizes(k, count).sum())

    def close(self) -> None:
        """Free the workers' data; idempotent."""
        if not self._closed:
            self._closed = True
            self._made.clear()
            self._pool.drop([key for pair in self._keys for key in pair])

    def __enter__(self) -> CodedGradient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _sizes(self, k: int, count: int) -> NDArray[np.int64]:
        """Return the rows that the ``k``-th of ``count`` batches has of every part."""
        sizes = np.diff(self._cuts)
        return sizes * (k + 1) // count - sizes * k // count

    def _point(self, theta: ArrayLike) -> NDArray[np.float64]:
        """Return the parameters as float64, if they are what they should be."""
        given = np.asarray(theta)
        if given.dtype.kind not in "fiub" or given.size == 0:
            raise UsageError(
                f"theta must be real numbers; got {given.dtype} of shape {given.shape}; cast it"
            )
        if self._shape is None:
            self._shape = given.shape
        if given.shape != self._shape:
            raise UsageError(
                f"theta must keep its shape, {self._shape}; got {given.shape}; make another "
                "CodedGradient"
            )
        return given.astype(np.float64, copy=False)

    def _share(self, share: int, *, last: bool = False) -> tuple[Array, Array]:
        """Return what a worker is sent of a share; kept from its head to its body."""
        found = self._made.pop(share, None)
        if found is None:
            terms = [
                (float(self.code.B[share, part]), self._cuts[part], self._cuts[part + 1])
                for part in self.code.parts(share)
            ]
            assert self._shape is not None  # known from the first parameters
            found = make_share(self._function, self._data, terms, self._shape)
        if not last:
            self._made[share] = found
        return found

    def _record(self, size: int, collector: Collector, outcome: Outcome) -> None:
        """Note what happened; warn of a rank that is lost, or wrong, for the first time."""
        by, away = collector.computed_by, {**collector.lost_workers, **collector.silent_workers}
        homes = {self.code.home(share) for share in collector.redispatched}
        names = ("encode", "send", "wait", "decode", "after_threshold", "total")
        report = Report(
            operation="gradient",
            code=self.code.name,
            grid=f"{self.code.n_parts} parts",
            reason=f"scheme {self.code.scheme!r}",
            suffices=self.code.suffices,
            n_workers=self._pool.n_workers,
            threshold=self.code.threshold,
            shapes={"theta": [size], "data": list(self._data[0].shape)},
            dtype="float64",
            responders=list(dict.fromkeys(by[share] + 1 for share in collector.responders)),
            stragglers=sorted(worker + 1 for worker in collector.stragglers),
            lost={worker + 1: reason for worker, reason in sorted(away.items())},
            redispatched=sorted(home + 1 for home in homes),
            wrong=sorted(worker + 1 for worker in collector.wrong),
            times={name: getattr(outcome, name) for name in names},
            bytes={"sent": outcome.sent, "received": outcome.received},
            verified=self._robust or "off",
            events=outcome.events,
            spans=outcome.spans,
            began=outcome.began,
        )
        if self._robust is None:
            report.amplification = self.code.amplification(collector.responders)
            if self.code.approximate:
                # Of the norm of all parts' gradients together.
                report.error_estimate = self.code.residual(collector.responders)
        for rank, reason in report.lost.items():
            fate = "not used" if rank in report.wrong else "lost"
            text = f"rank {rank} was {fate} ({reason}); the gradient was completed all the same"
            report.warnings.append(text)
            seen = self.wrong[rank] if rank in report.wrong else self.lost[rank]
            if not seen:
                warnings.warn(text, CodedlaWarning, stacklevel=3)
        self.rounds += 1
        self.stragglers.update(report.stragglers)
        self.lost.update(set(report.lost) - set(report.wrong))
        self.wrong.update(report.wrong)
        for name, count in report.bytes.items():
            self.bytes[name] += count
        self.last_report = report


def _checked_batch(batch: Any) -> tuple[int, int]:
    """Return which batch, of how many."""
    if batch is None:
        return 0, 1
    try:
        k, count = batch
    except (TypeError, ValueError):
        raise UsageError(
            f"a batch is a pair of whole numbers; got {batch!r}; give (k, count)"
        ) from None
    k, count = (whole_number(number, "a batch's numbers", least=0) for number in (k, count))
    if k >= count:
        raise UsageError(
            f"a batch is one of several, counted from 0; got {k} of {count}; give (k, count)"
        )
    return k, count


def _arrays(data: Any) -> list[Any]:
    """Return the arrays of the data, which have equally many rows."""
    given = data if isinstance(data, tuple) else (data,)
    try:
        arrays = [each if hasattr(each, "shape") else np.asarray(each) for each in given]
    except ValueError as error:
        raise UsageError(
            f"data must be an array or a tuple of arrays; got a {type(data).__name__} that is "
            f"neither ({error}); pass a tuple like (X, y)"
        ) from None
    arrays = [np.asarray(each) if not hasattr(each, "tocsr") else each.tocsr() for each in arrays]
    rows = {each.shape[0] if each.ndim else 0 for each in arrays}
    if len(rows) != 1 or rows == {0}:
        raise UsageError(
            "data must be arrays with equally many rows, at least one; got "
            f"{', '.join(str(each.shape) for each in arrays) or 'none'}; pass a tuple like (X, y)"
        )
    return arrays


def gradient_code(
    n_workers: int,
    scheme: str = "cyclic",
    stragglers: int | None = None,
    robust: str | None = None,
    errors: int | None = None,
    seed: int = 0,
    **options: Any,
) -> GradientCode:
    """Return the code for so many workers, with what is assumed where nothing is said.

    Parameters as of :class:`CodedGradient`.

    Raises
    ------
    UsageError
        There is none.
    """
    if robust is None and errors:
        raise UsageError(
            f"errors are found by a robust method; got errors={errors} without one; add "
            "robust='locate'"
        )
    wrong = 0 if robust is None else 1 if errors is None else errors
    wrong = whole_number(wrong, "errors", least=0)
    if stragglers is None:
        redundant = 2 * wrong + 1 if robust in ("majority", "locate") else 1
        fits = n_workers > redundant and scheme not in ("uncoded", "fractional")
        if scheme == "fractional":
            fits = n_workers % (redundant + 1) == 0
        stragglers = int(fits)
    late = whole_number(stragglers, "stragglers", least=0)
    code = make_gradient_code(scheme, n_workers, late, errors=wrong, seed=seed, **options)
    if robust is not None:
        check_robust(robust, code)
    return code
