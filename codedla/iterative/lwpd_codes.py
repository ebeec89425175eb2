r"""Codes for partial derivatives: few, light, and as different from each other as can be.

A codeword :math:`c \in R^k` stands for the combination :math:`y = \sum_j c_j g_j` of the `k` blocks
of a gradient. What it tells of a gradient in direction :math:`g` is :math:`\cos^2` of the angle
between the two, whatever the sign of either: codewords are lines, points of the real projective
space, and what two of them tell alike is :math:`\cos^2` of the angle between these. So a good code
has a small *coherence*, the largest \|cos\|, which is at least Welch's bound
:math:`\sqrt{(m-k)/(k(m-1))}`; it favours no block, which a *tight frame* does not,
:math:`\sum_i c_i c_i^T = (m/k) I`; and its codewords have few entries (weight), so that encoding is
cheap and decoding can peel one block after the other.

After Soto, Ilmer, Guan and Li, "Lightweight Projective Derivative Codes for Compressed Asynchronous
Gradient Descent", ICML 2022 (arXiv:2201.12990). The constructions are this project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.arguments import whole_number
from codedla.errors import UsageError

__all__ = [
    "CODES",
    "coherence",
    "dense",
    "frame_bounds",
    "greedy",
    "kaczmarz",
    "least_squares",
    "make_code",
    "peel",
    "replication",
    "ring",
    "welch",
]

Array = NDArray[np.float64]

MOST_CANDIDATES = 100_000
"""Lines among which the greedy search may choose."""
_TRIES = 8


# -- constructions -------------------------------------------------------------------------------


def ring(k: int, m: int) -> Array:
    r"""Return `k` single blocks, then pairs of neighbours on a ring: the default code.

    The pairs are :math:`(e_i \pm e_{i+d})/\sqrt 2`, with `d` = 1 first and larger distances when
    `m` is above `2k`; plus for even `i`. The single blocks are where peeling begins.

    Parameters
    ----------
    k : int
        Blocks, at least 2.
    m : int
        Codewords, `k` or more.

    Returns
    -------
    ndarray (m, k)
    """
    k, m = _sizes(k, m)
    code = np.zeros((m, k))
    code[:k] = np.eye(k)
    for row in range(m - k):
        lap, i = divmod(row, k)
        distance = lap % max(k // 2, 1) + 1
        code[k + row, i] = sqrt(0.5)
        code[k + row, (i + distance) % k] = sqrt(0.5) if i % 2 == 0 else -sqrt(0.5)
    return code


def greedy(k: int, m: int, weight: int = 2, seed: int = 0) -> Array:
    r"""Choose `m` lines of a weight one by one, each as far from those before it as possible.

    Candidates are all vectors with `weight` entries :math:`\pm 1/\sqrt{w}`, the first positive.
    Each time one is added that minimises its largest \|cos\| to the chosen ones, then the use of
    its blocks by these, then the sum of its :math:`\cos^2`. When all lines are taken, they come a
    second time.

    Parameters
    ----------
    k, m : int
        Blocks and codewords.
    weight : int
        1 to `k`.
    seed : int
        Of the choice among equally good candidates.

    Returns
    -------
    ndarray (m, k)

    Raises
    ------
    UsageError
        More candidates than can be looked through, or none of this weight.
    """
    k, m = _sizes(k, m)
    weight = whole_number(weight, "weight", least=1)
    if weight > k or comb(k, weight) * 2 ** (weight - 1) > MOST_CANDIDATES:
        raise UsageError(
            f"weight is at most k, and leaves at most {MOST_CANDIDATES} lines to choose from; got "
            f"weight={weight} with k={k}; take a smaller one"
        )
    lines = _lines(k, weight)
    # Equals are chosen among at random; of a few results the tightest frame is kept.
    results = []
    for turn in range(_TRIES):
        np.random.default_rng([seed, turn]).shuffle(lines)
        code = _choose(lines, m)
        low, high = frame_bounds(code)
        results.append((round(coherence(code), 9), round(high - low, 9), turn, code))
    return min(results)[-1]


def _choose(lines: Array, m: int) -> Array:
    taken = np.zeros(len(lines), bool)
    largest, shared = np.zeros(len(lines)), np.zeros(len(lines))
    used = np.zeros(lines.shape[1])
    support = lines != 0
    chosen: list[int] = []
    for _ in range(m):
        use = support @ used
        # Rounded, so that equals are equal; lexsort takes its last key first.
        order = np.lexsort((shared.round(9), use, largest.round(9), taken))
        best = int(order[0])
        chosen.append(best)
        taken[best] = True
        if taken.all():
            taken[:] = False
        cos = np.abs(lines @ lines[best])
        largest, shared = np.maximum(largest, cos), shared + cos**2
        used += support[best]
    return lines[chosen]


def replication(k: int, m: int) -> Array:
    """Return single blocks in turn (m, k): what asynchronous methods do without a code."""
    k, m = _sizes(k, m)
    return np.eye(k)[np.arange(m) % k]


def dense(k: int, m: int, seed: int = 0) -> Array:
    """Return Gaussian codewords of length 1 (m, k): any `k` of them decode everything (MDS)."""
    k, m = _sizes(k, m)
    code = np.random.default_rng(seed).standard_normal((m, k))
    return code / np.linalg.norm(code, axis=1, keepdims=True)


CODES: dict[str, Callable[[int, int], Array]] = {
    "ring": ring,
    "greedy": lambda k, m: greedy(k, m, min(2, k)),
    "replication": replication,
    "dense": dense,
}
"""Constructions by name, as ``construct(k, m)``."""


def make_code(code: Any, k: int, m: int) -> Array:
    """Return a code by its name, or check a caller's own.

    Parameters
    ----------
    code : str or ndarray (m, k)
        A key of :data:`CODES`, or the codewords, one a row, none of them zero.
    k, m : int
        Blocks and codewords that are needed.

    Raises
    ------
    UsageError
        There is none of this name, or its shape is wrong.
    """
    if isinstance(code, str):
        if code not in CODES:
            known = ", ".join(map(repr, CODES))
            raise UsageError(f"code must be one of {known}, or an array; got {code!r}")
        return CODES[code](k, m)
    own = np.array(code, np.float64)
    if own.shape != (m, k) or not np.isfinite(own).all() or not own.any(axis=1).all():
        raise UsageError(
            f"a code needs one finite row, not zero, for each of {m} workers, with an entry for "
            f"each of {k} blocks; got shape {own.shape}; see codedla.iterative.lwpd_codes"
        )
    if np.linalg.matrix_rank(own) < k:
        raise UsageError(
            f"codewords must span all {k} blocks, or some of these are never trained; got "
            f"{np.linalg.matrix_rank(own)} dimensions; add others"
        )
    return own


def _sizes(k: int, m: int) -> tuple[int, int]:
    k = whole_number(k, "k", least=1)
    return k, whole_number(m, "m", least=k)


def _lines(k: int, weight: int) -> Array:
    """Return all candidates of one weight."""
    signs = [(1.0, *rest) for rest in product((1.0, -1.0), repeat=weight - 1)]
    signed = np.array(signs) / sqrt(weight)
    supports = list(combinations(range(k), weight))
    lines = np.zeros((len(supports), len(signed), k))
    for row, support in enumerate(supports):
        lines[row][:, support] = signed
    return lines.reshape(-1, k)


# -- measures ------------------------------------------------------------------------------------


def coherence(code: Array) -> float:
    r"""Return the largest \|cos\| of the angle between two codewords (m, k); 0 for a single one."""
    unit = code / np.linalg.norm(code, axis=1, keepdims=True)
    cos = np.abs(unit @ unit.T)
    np.fill_diagonal(cos, 0.0)
    return float(cos.max())


def welch(k: int, m: int) -> float:
    r"""Return the least coherence that `m` lines can have, :math:`\sqrt{(m-k)/(k(m-1))}`.

    It is reached by equiangular tight frames only, which exist for few `k` and `m`.
    """
    return sqrt((m - k) / (k * (m - 1))) if m > k else 0.0


def frame_bounds(code: Array) -> tuple[float, float]:
    r"""Return the smallest and largest eigenvalue of :math:`\sum_i c_i c_i^T / \|c_i\|^2`.

    Both are `m/k` for a tight frame.
    """
    unit = code / np.linalg.norm(code, axis=1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(unit.T @ unit)
    return float(eigenvalues[0]), float(eigenvalues[-1])


# -- decoders ------------------------------------------------------------------------------------


def peel(code: Array, replies: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    r"""Solve for one block after the other, as long as a codeword has one unknown block.

    Parameters
    ----------
    code : ndarray (s, k)
        Codewords of the replies.
    replies : ndarray (s, p)
        :math:`y_i = \sum_j c_{ij} g_j`.

    Returns
    -------
    blocks : ndarray (k, p)
        Zero where unknown.
    known : ndarray of bool (k,)
    """
    blocks = np.zeros((code.shape[1], replies.shape[1]), replies.dtype)
    known = np.zeros(code.shape[1], bool)
    support = code != 0
    left = list(range(len(code)))
    while True:
        ready = [i for i in left if np.count_nonzero(support[i] & ~known) == 1]
        if not ready:
            return blocks, known
        i = ready[0]
        left.remove(i)
        j = int(np.flatnonzero(support[i] & ~known)[0])
        rest = code[i].astype(replies.dtype)
        blocks[j] = (replies[i] - rest[known] @ blocks[known]) / rest[j]
        known[j] = True


def kaczmarz(code: Array, replies: NDArray[Any], start: NDArray[Any]) -> NDArray[Any]:
    r"""Project an estimate onto what each reply says, once, in this order.

    :math:`\hat g \leftarrow \hat g + c_i (y_i - c_i \cdot \hat g) / \|c_i\|^2`.

    Parameters
    ----------
    code : ndarray (s, k)
    replies : ndarray (s, p)
    start : ndarray (k, p)

    Returns
    -------
    ndarray (k, p)
    """
    estimate = start.copy()
    for c, y in zip(code, replies, strict=True):
        row = c.astype(estimate.dtype)
        some = np.flatnonzero(row)
        row = row[some]
        estimate[some] += np.outer(row, (y - row @ estimate[some]) / (row @ row))
    return estimate


def least_squares(
    code: Array,
    replies: NDArray[Any],
    start: NDArray[Any] | None = None,
    digits: float = 1e-12,
) -> NDArray[Any]:
    r"""Return the estimate nearest to ``start`` that agrees with all replies.

    :math:`\hat g = g_0 + C^+ (y - C g_0)`: exact where the codewords span everything.

    Parameters
    ----------
    code : ndarray (s, k)
    replies : ndarray (s, p)
    start : ndarray (k, p), optional
        Zero by default.
    digits : float
        Singular values smaller than the largest by this factor count as zero.

    Returns
    -------
    ndarray (k, p)
    """
    inverse = np.linalg.pinv(code, rcond=digits).astype(replies.dtype)
    if start is None:
        return inverse @ replies
    return start + inverse @ (replies - code.astype(replies.dtype) @ start)


def peels(code: Array, rows: Sequence[int]) -> int:
    """Return how many blocks peeling finds from these rows of a code."""
    some = code[list(rows)]
    return int(peel(some, np.zeros((len(some), 1)))[1].sum())
