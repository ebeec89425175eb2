r"""Gradients from replies of which some are wrong: whatever the wrong workers send.

=================  ==============================  ============================================
method             schemes                         the sum of the gradients is
=================  ==============================  ============================================
majority           fractional                      exact; the wrong workers are named
locate             cyclic (and whatever spans)     exact; the wrong workers are named
krum               uncoded, ignore                 the reply nearest to most others, scaled
geometric-median   uncoded, ignore                 the point of least total distance, scaled
trimmed-mean       uncoded, ignore                 the mean without extremes, scaled
=================  ==============================  ============================================

The last three are the usual baselines without redundancy: every worker computes once, and the sum
is approximate even when nobody is wrong.

References
----------
L. Chen, H. Wang, Z. Charles, D. Papailiopoulos, "DRACO: Byzantine-resilient distributed training
via redundant gradients", ICML 2018. P. Blanchard, E. El Mhamdi, R. Guerraoui, J. Stainer, "Machine
learning with adversaries: Byzantine tolerant gradient descent", NeurIPS 2017 (Krum). E. Weiszfeld,
"Sur le point pour lequel la somme des distances de n points donnes est minimum", Tohoku Math. J. 43
(1937). D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed learning:
towards optimal statistical rates", ICML 2018 (trimmed mean).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient import GradientCode
from codedla.codes.gradient.fractional import FractionalRepetition
from codedla.codes.locate import locate
from codedla.engine.decoder import DenseDecoder
from codedla.errors import UsageError, VerificationFailed

__all__ = [
    "ROBUST",
    "RobustDecoder",
    "check_robust",
    "geometric_median",
    "krum",
    "majority",
    "trimmed_mean",
]

Array = NDArray[np.float64]

_SAME = 1e-9
"""Replies that differ by less than this of their size are the same: hosts may round differently."""

_CODED = ("majority", "locate")
ROBUST = (*_CODED, "krum", "geometric-median", "trimmed-mean")


def majority(replies: Array, wrong: int) -> tuple[Array, list[int]]:
    """Return the reply that more than ``wrong`` others agree on.

    Parameters
    ----------
    replies : ndarray (copies, length)
        What should be the same vector.
    wrong : int
        ``a``: so many may be wrong.

    Returns
    -------
    reply : ndarray (length,)
    outvoted : list of int
        Places of the replies that differ.

    Raises
    ------
    VerificationFailed
        No ``a + 1`` replies agree.
    """
    finite = np.asarray(np.isfinite(replies).all(axis=1))
    allowed = _SAME * np.abs(np.where(finite[:, None], replies, 0.0)).max(axis=1)
    for place in np.flatnonzero(finite):
        with np.errstate(invalid="ignore"):
            same = np.abs(replies - replies[place]).max(axis=1) <= allowed[place]
        if np.count_nonzero(same) > wrong:
            return replies[place], np.flatnonzero(~same).tolist()
    raise VerificationFailed(
        f"of {len(replies)} copies of a gradient no {wrong + 1} agree: more than {wrong} workers "
        "of a group are wrong; use a larger errors="
    )


def krum(vectors: Array, wrong: int) -> Array:
    """Return the vector with the nearest ``n - wrong - 2`` others, (length,)."""
    vectors = _plausible(vectors)
    squares = (vectors**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * vectors @ vectors.T, 0.0)
    np.fill_diagonal(distances, np.inf)
    near = max(1, len(vectors) - wrong - 2)
    scores = np.sort(distances, axis=1)[:, :near].sum(axis=1)
    return vectors[int(np.argmin(scores))]


def geometric_median(vectors: Array, wrong: int = 0, *, steps: int = 200) -> Array:
    """Return the point whose distances to the vectors have the least sum, by Weiszfeld's steps."""
    vectors = _plausible(vectors)
    point = np.median(vectors, axis=0)
    for _ in range(steps):
        distances = np.linalg.norm(vectors - point, axis=1)
        weights = 1.0 / np.maximum(distances, 1e-12 * max(1.0, float(distances.max())))
        moved = weights @ vectors / weights.sum()
        settled = np.linalg.norm(moved - point) <= 1e-12 * max(1.0, float(np.linalg.norm(moved)))
        point = moved
        if settled:
            break
    return point


def trimmed_mean(vectors: Array, wrong: int) -> Array:
    """Return the mean of every entry without its ``wrong`` largest and smallest values."""
    ordered = np.sort(_plausible(vectors), axis=0)
    cut = min(wrong, (len(ordered) - 1) // 2)
    return ordered[cut : len(ordered) - cut].mean(axis=0)


_AGGREGATES: dict[str, Callable[[Array, int], Array]] = {
    "krum": krum,
    "geometric-median": geometric_median,
    "trimmed-mean": trimmed_mean,
}


def _plausible(vectors: Array) -> Array:
    """Return the vectors without NaN and infinities, which are wrong for certain."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.any():
        raise VerificationFailed("every reply holds NaN or Inf; look at the loss and the step")
    return vectors[finite]


def check_robust(robust: str, code: GradientCode) -> None:
    """Raise UsageError unless this method fits the code's scheme."""
    if robust not in ROBUST:
        known = ", ".join(map(repr, ROBUST))
        raise UsageError(f"robust must be one of {known}, or None; got {robust!r}; choose one")
    plain = code.scheme in ("uncoded", "ignore")
    if robust == "majority" and not isinstance(code, FractionalRepetition):
        raise UsageError(
            f"a majority needs equal replies; got scheme={code.scheme!r}; use scheme='fractional', "
            "or robust='locate'"
        )
    if robust == "locate":
        _ = code.spanned  # says what is wrong
    if robust not in _CODED and not plain:
        raise UsageError(
            f"robust={robust!r} compares replies of equal standing; got scheme={code.scheme!r}; "
            "use scheme='uncoded' or 'ignore', or robust='locate'"
        )


class RobustDecoder(DenseDecoder):
    """Decode in spite of wrong replies.

    Parameters
    ----------
    code : GradientCode
    output : ndarray (1, length), float64
    robust : str
        One of :data:`ROBUST`.
    rows : sequence of int
        Rows of data of each part, in this round.

    Attributes
    ----------
    wrong : list of int
        Shares whose replies are wrong, as far as the method names them.
    failure : VerificationFailed or None
        Why nothing was decoded.
    """

    code: GradientCode

    def __init__(self, code: GradientCode, output: Array, robust: str, rows: Sequence[int]) -> None:
        super().__init__(code, output, output.dtype)
        self.robust, self.part_rows = robust, np.asarray(rows)
        self.wrong: list[int] = []
        self.failure: VerificationFailed | None = None

    def finish(self, responders: Iterable[int]) -> None:
        """Leave the sum in ``output``, or a :attr:`failure`; see :class:`~.decoder.Decoder`."""
        survivors = sorted(set(responders) & self._present)
        replies = np.vstack([self.target(share) for share in survivors])
        method = {"majority": self._majority, "locate": self._locate}
        try:
            self.output[0] = method.get(self.robust, self._aggregate)(survivors, replies)
        except VerificationFailed as error:
            self.failure = error

    def _majority(self, survivors: list[int], replies: Array) -> Any:
        assert isinstance(self.code, FractionalRepetition)  # by check_robust
        total = np.zeros(replies.shape[1])
        members = self.code.groups[survivors]
        for group in np.unique(members):
            places = np.flatnonzero(members == group)
            reply, outvoted = majority(replies[places], self.code.errors)
            total += reply
            self.wrong += [survivors[places[place]] for place in outvoted]
        return total

    def _locate(self, survivors: list[int], replies: Array) -> Any:
        spanned = self.code.spanned
        found = locate(spanned, survivors, [reply[None, :] for reply in replies])
        right = [w for w in survivors if w not in found.wrong]
        if not found.certain or not spanned.decodable(right):
            raise VerificationFailed(
                f"replies do not fit together, and it is not known whose are wrong: more than "
                f"errors={self.code.errors} workers are; use a larger one"
            )
        self.wrong = list(found.wrong)
        return spanned.weights(right)[0] @ replies[[survivors.index(w) for w in right]]

    def _aggregate(self, survivors: list[int], replies: Array) -> Any:
        """Aggregate means over the rows of data, which parts of any size have in common."""
        held = self.part_rows[survivors]
        whole = float(self.part_rows.sum())
        # Who has no rows has no mean either, and must not outvote those who have.
        means = replies[held > 0] / held[held > 0, None]
        if not len(means):
            # Of no rows the sum is zero, if all were to be had; else nothing is known.
            if whole:
                raise VerificationFailed(
                    "no worker that has rows of data replied in time; use fewer stragglers, or "
                    "larger batches"
                )
            return np.zeros(replies.shape[1])
        # Losses are of another size than gradients, and would drown them in distances.
        gradient = _AGGREGATES[self.robust](means[:, 1:], self.code.errors)
        return np.concatenate([[np.nanmedian(means[:, 0])], gradient]) * whole
