"""SciPy's iterative solvers on a coded operator: watched, saved from time to time, and judged.

A method's own idea of being done is not taken for granted: with the iterate as a new start it goes
on until the residual ``|b - A x|`` itself is small enough, or stops getting smaller. Least-squares
methods, whose residual need not be small, are believed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as sla
from numpy.typing import NDArray

from codedla.cli.messages import counted
from codedla.engine.norms import norm
from codedla.errors import CodedlaError, NotDecodable, UsageError
from codedla.linalg.operator import CodedOperator

__all__ = ["LEAST_SQUARES", "METHODS", "Krylov"]

Array = NDArray[Any]

METHODS = ("cg", "minres", "gmres", "lsqr", "lsmr")
LEAST_SQUARES = ("lsqr", "lsmr")

_SHOW_EVERY = 1.0
"""Seconds between two looks at the residual, which cost a product each."""
_FIRST_PIECE = 50
"""Iterations of a least-squares method before its first checkpoint."""
_PROGRESS = {"gmres": 1 - 1e-6}
"""A residual that is not smaller than this times the one before does not get smaller ..."""
_USUAL_PROGRESS = 0.5
"""... or than this, of methods that only stop when they think that they are done."""
_SCALE = "scale rows and columns of A alike, so that its diagonal is 1"
_HELPS = {
    "cg": f"--method minres (gmres, if A is complex) if A is not positive definite, or {_SCALE}",
    "minres": f"--method cg or --assume spd if A is positive definite, or {_SCALE}",
    "gmres": "more --restart, --method cg (minres) if A is symmetric and positive definite (or "
    "not), or scale A so that its diagonal is 1",
    "lsqr": "scale the columns of A to norm 1, or --method lsmr",
    "lsmr": "scale the columns of A to norm 1, or --method lsqr",
}
"""What may help where a method gets on slowly or not at all, for instance of bad scaling."""


class Krylov:
    """One system being solved.

    Parameters
    ----------
    op : CodedOperator (M, N)
    b : ndarray (M,)
    method : str
        One of :data:`METHODS`.
    rtol : float
    maxiter : int
        Iterations, at most; those of earlier runs do not count.
    restart : int
        Of gmres.
    timeout : float or None
        Seconds for all of it.
    show : callable
        Told how it gets on, in words.
    save : callable or None
        ``save(x, iterations)``, called every ``every`` seconds.
    every : float

    Attributes
    ----------
    x : ndarray (N,)
        The latest iterate.
    iterations : int
    residual : float
        ``|b - A x| / |b|`` when it was last looked at.
    reason : str
        Why it ended before it was done; empty if it is done.
    """

    def __init__(
        self,
        op: CodedOperator,
        b: Array,
        *,
        method: str,
        rtol: float,
        maxiter: int,
        restart: int = 20,
        timeout: float | None = None,
        show: Callable[[str], None] = lambda text: None,
        save: Callable[[Array, int], None] | None = None,
        every: float = 30.0,
    ) -> None:
        self.op, self.b, self.method = op, b, method
        self.rtol, self.maxiter, self.restart = rtol, maxiter, restart
        self.x: Array = np.zeros(op.shape[1], b.dtype)
        self.iterations = 0
        self.residual = 1.0
        self.reason = ""
        self._norm = norm(b) or 1.0
        self._began = self._shown = self._saved = time.monotonic()
        self._timeout, self._show, self._save, self._every = timeout, show, save, every
        self._seen: tuple[float, int, Counter[int]] = (self._began, 0, Counter())

    def run(self, x0: Array | None = None) -> bool:
        """Solve; return whether the solution was reached.

        Raises
        ------
        NotDecodable, WorkerError
            As by products; :attr:`x` is the latest iterate.
        """
        if x0 is not None:
            self.x = x0.astype(self.b.dtype)
        if not self.b.any():
            self.x, self.residual = np.zeros_like(self.x), 0.0
            return True
        least_squares = self.method in LEAST_SQUARES
        try:
            return self._least_squares() if least_squares else self._square()
        except UsageError as error:  # a product of NaN or of numbers near overflow
            self.reason = (
                f"{self.method} broke down, its vectors are not finite ({error}); try "
                f"{_HELPS[self.method]}"
            )
            return False

    def _square(self) -> bool:
        self._look()
        while self.residual > self.rtol:
            if self.iterations >= self.maxiter:
                self.reason = self._slow()
                return False
            before = self.residual
            x = self._piece()
            if np.isfinite(x).all():
                self.x = x
            self._look()
            self._keep()
            if self.residual > before * _PROGRESS.get(self.method, _USUAL_PROGRESS) and (
                self.residual > self.rtol
            ):
                if self.iterations < self.maxiter:
                    self.reason = (
                        "it does not get smaller; take a larger --rtol, or try "
                        f"{_HELPS[self.method]}"
                    )
                else:
                    self.reason = self._slow()
                return False
        return True

    def _slow(self) -> str:
        return f"take more --maxiter, or try {_HELPS[self.method]}"

    def _piece(self) -> Array:
        """Let the method go on from the latest iterate until it stops by itself."""
        left = self.maxiter - self.iterations
        start: dict[str, Any] = {"x0": self.x.copy(), "rtol": self.rtol}
        watched = _Watched(self.op, self._tick)
        if self.method == "cg":
            x, _ = sla.cg(watched, self.b, atol=0.0, maxiter=left, callback=self._step, **start)
        elif self.method == "minres":
            # It measures residuals against x, the start included: it gets the rest to solve for.
            base = self.x
            rest = self.b - self.op.matvec(base) if base.any() else self.b
            more, _ = sla.minres(
                watched,
                rest,
                rtol=self.rtol,
                maxiter=left,
                callback=lambda more: self._step(base + more),
            )
            x = base + more
        else:
            # One cycle: what it would begin the next one with is all that there is to know.
            x, _ = sla.gmres(
                watched,
                self.b,
                atol=0.0,
                restart=min(self.restart, left, self.b.size),
                maxiter=1,
                callback=self._inner_step,
                callback_type="pr_norm",
                **start,
            )
        return np.asarray(x)

    def _least_squares(self) -> bool:
        solver = getattr(sla, self.method)
        piece = self.maxiter if self._save is None else _FIRST_PIECE
        limit = {"lsqr": "iter_lim", "lsmr": "maxiter"}[self.method]
        watched = _Watched(self.op, self._tick)
        while True:
            began = time.monotonic()
            piece = min(piece, self.maxiter - self.iterations)
            found = solver(
                watched,
                self.b,
                atol=self.rtol,
                btol=self.rtol,
                x0=self.x if self.x.any() else None,
                **{limit: piece},
            )
            self.x, ended, steps = found[0], int(found[1]), int(found[2])
            self.iterations += steps
            self._look()
            self._keep()
            if ended in (0, 1, 2, 4, 5):
                return True
            if ended in (3, 6):
                self.reason = (
                    "A is too ill-conditioned to go on, x is not the exact solution; try "
                    f"{_HELPS[self.method]}"
                )
                return False
            if self.iterations >= self.maxiter:
                self.reason = self._slow()
                return False
            seconds = max(time.monotonic() - began, 1e-3)
            piece = max(int(steps * self._every / seconds), _FIRST_PIECE)

    # -- while it runs -------------------------------------------------------------------------

    def _step(self, x: Array) -> None:
        """Count an iteration of cg or minres."""
        self.iterations += 1
        self.x = x
        if time.monotonic() - self._shown >= _SHOW_EVERY:
            self._look()
        self._keep()

    def _inner_step(self, residual: float) -> None:
        """Count an iteration of gmres, which forms no iterate."""
        self.iterations += 1
        self.residual = float(residual)

    def _tick(self) -> None:
        """Before every product: mind the time, and tell how it gets on."""
        now = time.monotonic()
        if self._timeout is not None:
            left = self._began + self._timeout - now
            if left <= 0:
                raise NotDecodable(
                    f"the solution was not reached in {self._timeout:g} s, after "
                    f"{counted(self.iterations, 'iteration')}; give more --timeout"
                )
            self.op.timeout = left
        if now - self._shown >= _SHOW_EVERY:
            self._shown = now
            self._show(self._words(now))

    def _words(self, now: float) -> str:
        totals = self.op.totals
        then, rounds, late = self._seen
        done = totals.rounds - rounds
        # In every round somebody's reply is not waited for; late is who often is.
        often = [r for r, count in (totals.stragglers - late).items() if count > 0.5 * done]
        self._seen = (now, totals.rounds, totals.stragglers.copy())
        what = f"iteration {self.iterations}, residual {self.residual:.1e}"
        if self.method in LEAST_SQUARES:
            what = f"{self.method}, {counted(totals.rounds, 'round')}"
        names = ", ".join(map(str, sorted(often))) or "none"
        return f"{what}, {done / max(now - then, 1e-9):.0f} rounds/s, late ranks: {names}"

    def _look(self) -> None:
        """Find the residual of the latest iterate."""
        gap = self.b - self.op.matvec(self.x) if self.x.any() else self.b
        self.residual = norm(gap) / self._norm

    def _keep(self) -> None:
        """Save the latest iterate if it is time."""
        if self._save is not None and time.monotonic() - self._saved >= self._every:
            self._save(self.x, self.iterations)
            self._saved = time.monotonic()


class _Watched(sla.LinearOperator):  # type: ignore[misc]
    """An operator that calls a function before every product."""

    def __init__(self, op: CodedOperator, tick: Callable[[], None]) -> None:
        super().__init__(op.dtype, op.shape)
        self._op, self._tick = op, tick

    def _matvec(self, x: Array) -> Array:
        self._tick()
        return np.asarray(self._op.matvec(x))

    def _rmatvec(self, y: Array) -> Array:
        self._tick()
        return np.asarray(self._op.rmatvec(y))


def not_reached(krylov: Krylov, spec: str) -> CodedlaError:
    """Return the error for a solution that was not reached, but written."""
    return CodedlaError(
        f"{krylov.method} did not reach --rtol {krylov.rtol:g}: the residual is "
        f"{krylov.residual:.1e} |b| after {counted(krylov.iterations, 'iteration')}; "
        f"{krylov.reason}; x as it is has been written to {spec}"
    )
