"""Decoding weights of linear codes: the two ways, written once for all families.

Replies are ``y = G x + noise`` with known generator ``G`` (N x K') and unknown blocks ``x``. The
noise of reply ``i`` (rounding errors of the worker's product) is proportional to ``norms[i]``, so
weights are the best linear unbiased ones under that noise; with exactly ``K'`` replies there is no
choice and they are the plain inverse.

* :class:`Parity` - systematic codes, ``G = [I; P]``: only a minor of ``P`` as large as the number
  of lost blocks is inverted, plain replies pass through untouched.
* :class:`Completion` - any other code: the lost replies are filled in from the parity checks
  ``Z^H y = 0``, then one fixed left inverse of the whole ``G`` applies. A new survivor set costs
  ``O(s^3 + s N K')`` instead of ``O(K'^3)``. Where the whole ``G`` is ill-conditioned (equispaced
  points) or most of it is lost, the survivors' rows are factorised afresh.

Both give the weights of a survivor set (``weights``) and rate many loss patterns at once
(``rate``), which the search for the worst pattern and the search for good parities live on.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Completion", "Parity", "least_noise"]

# float64 or complex128, whichever the generator has.
Matrix = NDArray[Any]
Indices = NDArray[np.integer]

# Patterns rated in one batch are limited to about this many numbers of scratch memory.
_BATCH = 2_000_000
# A left inverse of the whole generator is used only if it costs less than this many digits.
_ILL_CONDITIONED = 1e4
# Long double products are slow: only so many unknowns are worth correcting.
_REFINED = 100
# Weights off by more than this are no weights: the system is called singular.
_WRONG = 1e-2


class Parity:
    """Weights of a systematic code ``[I; P]``.

    Parameters
    ----------
    parity : ndarray (s, k), float64 or complex128
        The parity rows.
    norms : ndarray (s,)
        Noise scale of each parity reply, relative to a plain one.
    """

    def __init__(self, parity: Matrix, norms: NDArray[np.float64]) -> None:
        self.parity = parity
        self.norms = norms
        # Noise of the residuals r_T = y_T - P[T, plain] x_plain if every block were plain; what the
        # lost blocks contribute is taken off where it is used.
        self.noise = np.diag(norms**2) + parity @ parity.conj().T

    def weights(self, survivors: Indices) -> Matrix:
        """Return the weights (k, len(survivors)); survivors are sorted, so plain ones come first.

        Raises
        ------
        numpy.linalg.LinAlgError
            The system is singular in double precision.
        """
        blocks = self.parity.shape[1]
        plain, have = survivors[survivors < blocks], survivors[survivors >= blocks] - blocks
        weights = np.zeros((blocks, len(survivors)), dtype=self.parity.dtype)
        weights[plain, np.arange(plain.size)] = 1.0
        lost = _others(plain, blocks)
        if lost.size:
            solved, known = self.recovery(lost, have)
            weights[lost, : plain.size] = -known[:, plain]
            weights[lost, plain.size :] = solved
        return weights

    def recovery(self, lost: Indices, have: Indices) -> tuple[Matrix, Matrix]:
        """Return ``V`` and ``V @ P[have]``: lost blocks = ``V (y_have - P[have, plain] x_plain)``.

        Parameters
        ----------
        lost : indices (e,)
            Blocks whose plain reply is missing.
        have : indices (t,), t >= e
            Parity rows that replied.

        Returns
        -------
        V : ndarray (e, t)
        VP : ndarray (e, k)

        Raises
        ------
        numpy.linalg.LinAlgError
            The minor is singular in double precision.
        """
        rows = self.parity[have]
        minor = rows[:, lost]
        if len(lost) == len(have):
            solved = np.linalg.inv(minor)
        else:
            noise = self.noise[np.ix_(have, have)] - minor @ minor.conj().T
            whitener = np.linalg.inv(np.linalg.cholesky(noise))
            solved = np.linalg.pinv(whitener @ minor) @ whitener
        known = solved @ rows
        _require_exact(known[:, lost], np.eye(len(lost)))
        return solved, known

    def rate(self, lost: Indices) -> NDArray[np.float64]:
        """Return the squared noise summed over the outputs, for many patterns at the threshold.

        Parameters
        ----------
        lost : ndarray (patterns, s) of int
            Lost workers of each pattern; workers ``0 .. k - 1`` hold plain blocks, the next ``s``
            parities.

        Returns
        -------
        ndarray (patterns,), float64
            ``inf`` where the system is singular.
        """
        parities, blocks = self.parity.shape
        erased = np.sort(lost, axis=1)
        sizes = np.count_nonzero(erased < blocks, axis=1)
        rated = np.empty(lost.shape[0])
        for size in np.unique(sizes):
            group = np.nonzero(sizes == size)[0]
            alive = np.ones((group.size, parities), dtype=bool)
            np.put_along_axis(alive, erased[group, size:] - blocks, False, axis=1)
            have = np.nonzero(alive)[1].reshape(group.size, size)
            for part in _batches(group.size, int(size)):
                total = self._recovered(erased[group[part], :size], have[part])
                rated[group[part]] = total + blocks - size
        return rated

    def _recovered(self, lost: Indices, have: Indices) -> NDArray[np.float64]:
        """Return the squared noise of the recovered blocks for many patterns, summed over them.

        Parameters
        ----------
        lost, have : ndarray (patterns, e) of int
            As in :meth:`recovery`, as many rows as lost blocks.

        Returns
        -------
        ndarray (patterns,), float64
            ``inf`` where the minor is singular.
        """
        count, size = lost.shape
        if size == 0:
            return np.zeros(count)
        minors = self.parity[have[:, :, None], lost[:, None, :]]
        noise = self.noise[have[:, :, None], have[:, None, :]]
        inverse = _inverses(minors)
        # V P P^H V^H = (known part) + I, because V P[T, E] = I: hence "- size".
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.einsum("nij,nij->n", inverse @ noise, inverse.conj()).real - size
        return np.where(np.isfinite(total), np.maximum(total, 0.0), np.inf)


class Completion:
    """Weights of a general linear code by filling in the lost replies.

    With the rows of ``G`` scaled to equal noise, ``G = Q R`` and ``Z`` an orthonormal basis of the
    complement of the columns of ``Q``, replies satisfy ``Z^H y = 0``. The lost ones are
    ``y_M = -(Z_M^H)^+ Z_S^H y_S`` and the outputs ``wanted R^-1 Q^H y``; both together are the
    least-squares weights.

    Parameters
    ----------
    generator : ndarray (N, K')
    wanted : ndarray (outputs, K')
    norms : ndarray (N,)
        Noise scale of each reply; 0 marks a worker that holds nothing.
    """

    def __init__(self, generator: Matrix, wanted: Matrix, norms: NDArray[np.float64]) -> None:
        self.scale = np.where(norms > 0, norms, 1.0)
        self.wanted = wanted
        self.generator = generator / self.scale[:, None]

    @cached_property
    def _factors(self) -> tuple[Matrix, Matrix]:
        """Complete factorisation ``Q`` (N, N), ``R`` (K', K') of the scaled generator."""
        q, r = np.linalg.qr(self.generator, mode="complete")
        return q, r[: r.shape[1]]

    @cached_property
    def _ill_conditioned(self) -> bool:
        # NaN (an exactly singular R) must count as ill-conditioned, hence "not <".
        return not np.linalg.cond(self._factors[1], 1) < _ILL_CONDITIONED

    @cached_property
    def _inverse(self) -> Matrix:
        """The left inverse ``R^-1 Q^H`` of the whole generator (K', N)."""
        q, r = self._factors
        size = r.shape[0]
        inverse: Matrix = np.linalg.solve(r, q[:, :size].conj().T)
        if self._ill_conditioned:
            return inverse
        return inverse + (np.eye(size) - inverse @ self.generator) @ inverse

    @cached_property
    def _split(self) -> tuple[Matrix, Matrix]:
        """The left inverse ``wanted R^-1 Q^H`` (outputs, N) and the checks ``Z`` (N, N - K')."""
        q, r = self._factors
        return self.wanted @ self._inverse, q[:, r.shape[0] :]

    @cached_property
    def _gram(self) -> Matrix:
        left, _ = self._split
        gram: Matrix = left.conj().T @ left
        return gram

    def weights(self, survivors: Indices) -> Matrix:
        """Return the weights (outputs, len(survivors)) for these survivors, sorted.

        Raises
        ------
        numpy.linalg.LinAlgError
            The system is singular in double precision.
        """
        workers, size = self.generator.shape
        lost = _others(survivors, workers)
        if 2 * len(lost) > size or self._ill_conditioned:
            rows = self.generator[survivors]
            q, r = np.linalg.qr(rows)
            inverse = np.linalg.solve(r, q.conj().T)
            scaled = self.wanted @ inverse
            if size <= _REFINED:
                scaled = _refine(scaled, rows, self.wanted, inverse)
            _require_exact(scaled @ rows, self.wanted)
        else:
            left, checks = self._split
            scaled = left[:, survivors]
            if len(lost):
                missing, known = checks[lost].conj().T, checks[survivors].conj().T
                square = missing.shape[0] == missing.shape[1]
                filler = np.linalg.inv(missing) if square else np.linalg.pinv(missing)
                _require_exact(filler @ missing, np.eye(len(lost)))
                filler = self._corrected(filler @ known, lost, survivors)
                scaled = scaled - left[:, lost] @ filler
                if size <= _REFINED:
                    inverse = self._inverse[:, survivors] - self._inverse[:, lost] @ filler
                    rows = self.generator[survivors]
                    scaled = _refine(scaled, rows, self.wanted, inverse)
        return scaled / self.scale[survivors]

    def _corrected(self, filler: Matrix, lost: Indices, survivors: Indices) -> Matrix:
        """Return what fills in the lost replies, ``y_M = -filler y_S``, corrected.

        Where the checks of the lost rows are almost dependent, the filler solves them with an error
        that grows with their condition, far beyond what the size of the weights explains. What it
        leaves over, ``G_M + filler G_S``, is computed to rounding and taken off by the left inverse
        that the filler completes. That costs as much as the filler itself.
        """
        for _ in range(2):
            rest = self.generator[lost] + filler @ self.generator[survivors]
            step = rest @ self._inverse[:, survivors]
            filler = filler - step + (rest @ self._inverse[:, lost]) @ filler
        return filler

    def noise(self, survivors: Indices) -> float:
        """Return the squared noise summed over the outputs; of any survivors, without weights."""
        r: Matrix = np.asarray(np.linalg.qr(self.generator[survivors], mode="r"))
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                spread = float(np.linalg.norm(np.linalg.solve(r.T, self.wanted.T)) ** 2)
        except np.linalg.LinAlgError:
            return math.inf
        return spread if math.isfinite(spread) else math.inf

    def rate(self, lost: Indices) -> NDArray[np.float64]:
        """Return the squared noise summed over the outputs, for many patterns at the threshold.

        Parameters
        ----------
        lost : ndarray (patterns, N - K') of int
            The lost workers of each pattern, as many as the code can bear.

        Returns
        -------
        ndarray (patterns,), float64
        """
        workers, size = self.generator.shape
        if lost.shape[1] != workers - size:
            raise ValueError(f"patterns must lose {workers - size} workers, got {lost.shape[1]}")
        if lost.shape[0] == 0:
            return np.empty(0)
        parts = _batches(lost.shape[0], min(workers - size, size))
        return np.concatenate([self._rated(lost[part]) for part in parts])

    def _rated(self, lost: Indices) -> NDArray[np.float64]:
        workers, size = self.generator.shape
        if workers - size <= size:
            left, checks = self._split
            inverse = _inverses(checks[lost])
            gram = self._gram[lost[:, :, None], lost[:, None, :]]
            with np.errstate(invalid="ignore", over="ignore"):
                total = np.einsum("nij,nij->n", inverse @ gram, inverse.conj()).real
                total = total + np.linalg.norm(left) ** 2
        else:
            everyone = np.ones((lost.shape[0], self.generator.shape[0]), dtype=bool)
            np.put_along_axis(everyone, lost, False, axis=1)
            survivors = np.nonzero(everyone)[1].reshape(lost.shape[0], size)
            with np.errstate(invalid="ignore", over="ignore"):
                solved = self.wanted @ _inverses(self.generator[survivors])
                total = np.einsum("nij,nij->n", solved, solved.conj()).real
        return np.where(np.isfinite(total), np.maximum(total, 0.0), np.inf)


def least_noise(rows: Matrix, wanted: Matrix) -> Matrix:
    """Return the smallest weights with ``weights @ rows == wanted``, for few rows of equal noise.

    Parameters
    ----------
    rows : ndarray (S, K')
    wanted : ndarray (outputs, K')

    Raises
    ------
    numpy.linalg.LinAlgError
        The rows do not span what is wanted in double precision.
    """
    inverse = np.linalg.pinv(rows)
    weights = _refine(wanted @ inverse, rows, wanted, inverse)
    _require_exact(weights @ rows, wanted)
    return weights


def _refine(weights: Matrix, rows: Matrix, wanted: Matrix, inverse: Matrix) -> Matrix:
    """Correct weights by residuals in long double: full accuracy while any digit was right.

    Without it the weights carry errors beyond what their size predicts: those of equispaced points,
    and wherever a few functionals of the unknowns are better determined than all of them.
    """
    wide = np.clongdouble if np.iscomplexobj(rows) else np.longdouble
    exact = rows.astype(wide)
    for _ in range(2):
        residual = wanted - weights.astype(wide) @ exact
        weights = weights + residual.astype(rows.dtype) @ inverse
    return weights


def _others(chosen: Indices, count: int) -> NDArray[np.intp]:
    """The numbers below ``count`` that are not ``chosen``."""
    left = np.ones(count, dtype=bool)
    left[chosen] = False
    return np.nonzero(left)[0]


def _require_exact(product: Matrix, expected: Matrix) -> None:
    """Raise LinAlgError unless weights reproduce what they should to two digits (NaN: raise)."""
    if not np.abs(product - expected).max(initial=0.0) < _WRONG:
        raise np.linalg.LinAlgError("the decoding system is singular in double precision")


def _batches(count: int, size: int) -> list[slice]:
    """Cut ``count`` patterns of ``size x size`` matrices into batches of bounded memory."""
    step = max(1, _BATCH // max(1, size * size))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def _inverses(matrices: Matrix) -> Matrix:
    """Invert a stack of matrices; singular ones become NaN instead of stopping the others."""
    size = matrices.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if size == 1:
            return 1.0 / matrices
        if size == 2:
            # Closed form: most patterns are pairs, and LAPACK's call overhead is 10x the work.
            a, b, c, d = (matrices[:, i, j] for i in (0, 1) for j in (0, 1))
            adjugate = np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], -2)
            inverse: Matrix = adjugate / (a * d - b * c)[:, None, None]
            return inverse
    try:
        return np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        if matrices.shape[0] == 1:
            return np.full_like(matrices, math.nan)
        half = matrices.shape[0] // 2
        return np.concatenate([_inverses(matrices[:half]), _inverses(matrices[half:])])
