r"""Find wrong replies by the spare ones: the operands are not looked at.

Honest replies are a codeword, ``y = G x`` for some unknown blocks ``x``. With ``s`` replies beyond
the threshold, ``s`` parity checks ``H y = 0`` hold, and of a wrong codeword ``y + e`` the
*syndrome* ``H e`` is left. Any ``s`` wrong replies are noticed, and up to :math:`A = \lfloor s/2
\rfloor` of them are the only set that explains the syndrome: these are named. Blocks are reduced to
a few numbers first, by random left and right vectors nobody could foresee:
:math:`y \to \lambda^T y \rho`.

* **Over GF(p)** a wrong block vanishes in one such projection with probability ``2/p`` at most, and
  in all of them with less than :math:`2^{-60}`. Errors that are independent of each other span the
  syndromes of the projections: the wrong replies are those whose columns of ``H`` lie in that span,
  one elimination. Where errors depend on each other (workers that have agreed on them), polynomial
  codes are decoded with Gao's algorithm, projection by projection, and of other codes every set of
  up to ``A`` replies is tried. While no more than ``A`` are wrong, no honest worker is accused.
* **Over the reals** syndromes are not zero but as small as rounding explains. Rows of ``G`` are
  scaled to equal noise and the checks are orthonormal, so that nothing amplifies it; every set of
  up to ``A`` replies is tried, smallest first, and what is left is looked at again: rounding in
  huge errors may have hidden small ones. An error that rounding nearly explains, or checks that
  are nearly dependent, may leave several sets: then nobody is named. Where errors are known to be
  independent of each other, sets of up to ``s - 1`` replies are tried.

References
----------
Interleaved codes: J. Metzner and E. Kapturowski, "A general decoding technique applicable to
replicated file disagreement location and concatenated code decoding", IEEE Trans. Inf. Theory 36
(1990). Gao's algorithm: see :mod:`codedla.codes.gao`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codedla.codes.base import Code
from codedla.codes.exact import ModularCode
from codedla.codes.gao import gao
from codedla.errors import UsageError
from codedla.galois import EXACT, Field

__all__ = ["Located", "largest_hidden", "locatable", "locate"]

Matrix = NDArray[Any]
Integers = NDArray[np.int64]
Scales = tuple[NDArray[np.float64], NDArray[np.float64]]

MISSED = 2.0**-60
"""Probability with which a wrong reply may look right over GF(p)."""
REAL_PROJECTIONS = 6
MOST_SETS = 100_000
"""Sets of replies that are tried; beyond, wrong replies are noticed but nobody is named."""
_USUAL = 8.0
"""Syndromes larger than so many times what is expected of rounding are not explained by it."""
_BATCH = 4096


class Located(NamedTuple):
    """What the spare replies tell.

    Parameters
    ----------
    wrong : tuple of int
        Shares whose replies are wrong.
    certain : bool
        Whether the other replies fit together. False: a reply is wrong, but not known whose.
    """

    wrong: tuple[int, ...]
    certain: bool


def locatable(code: Code) -> str:
    """Return why the spare replies of a code tell nothing, or an empty string."""
    if code.field == "int64":
        return f"code {code.name} divides modulo 2**64, where replies have no unique explanation"
    if code.approximate:
        return f"honest replies of code {code.name} do not fit together exactly"
    if code.load > 1:
        return f"workers of code {code.name} have several shares"
    if code.active <= code.threshold:
        return f"code {code.name} waits for all of its {code.active} workers and has none to spare"
    return ""


def locate(
    code: Code,
    responders: Iterable[int],
    replies: Sequence[Matrix],
    *,
    rng: np.random.Generator | None = None,
    bound: float | None = None,
    noise: float | None = None,
    scales: Scales | None = None,
    independent: bool = False,
) -> Located:
    """Name the wrong ones among some replies.

    Over the reals, replies of which not even the squares are finite are wrong.

    Parameters
    ----------
    code : Code
        Over GF(p) replies are integers, reduced or not, in any dtype.
    responders : iterable of int
        Shares that were answered.
    replies : sequence of ndarray, 2-D
        In the order of ``sorted(responders)``; a plain block may be cropped.
    rng : numpy.random.Generator, optional
        Source of the projections; by default one nobody can foresee.
    bound : float, optional
        Over the reals: ``|A| |B|`` (Frobenius norms). Replies that cannot come from such operands
        are wrong, whatever the others are.
    noise : float, optional
        Over the reals: what rounding changes in a reply (Frobenius norm) for each unit of
        ``code.norms``; by default estimated from the usual size of the replies.
    scales : pair of ndarray, optional
        Over the reals: usual sizes of the rows and of the columns of a reply, by which they are
        divided before anything else; ``noise`` is that of the scaled reply. Where sizes differ
        much, errors in small rows and columns are not drowned by rounding in large ones.
    independent : bool
        Wrong workers have not agreed on their errors. Then, over the reals, ``s - 1`` of them are
        told by ``s`` spare replies and not only half as many: that wrong replies fit to one right
        one too many by chance has probability 0 (arXiv 1903.01042).

    Returns
    -------
    Located

    Raises
    ------
    UsageError
        A code of which replies tell nothing about each other; see :func:`locatable`.
    """
    reason = locatable(code)
    if reason:
        raise UsageError(f"wrong replies cannot be located: {reason}; use another code")
    rng = np.random.default_rng() if rng is None else rng
    shares = sorted(responders)
    if len(shares) != len(replies):
        raise UsageError(f"every share has one reply; got {len(shares)} and {len(replies)}")
    if isinstance(code, ModularCode):
        possible = [_is_residue(reply, code.prime) for reply in replies]
    else:
        possible = [_is_possible(code, w, y, bound) for w, y in zip(shares, replies, strict=True)]
    impossible = [share for share, fits in zip(shares, possible, strict=True) if not fits]
    kept = [share for share, fits in zip(shares, possible, strict=True) if fits]
    blocks = [reply for reply, fits in zip(replies, possible, strict=True) if fits]
    found = _fitting(code, kept, blocks, rng, noise, scales, independent)
    if found is None:
        return Located(tuple(impossible), False)
    return Located(tuple(sorted([*impossible, *found])), True)


def _fitting(
    code: Code,
    shares: list[int],
    replies: list[Matrix],
    rng: np.random.Generator,
    noise: float | None,
    scales: Scales | None,
    independent: bool,
) -> tuple[int, ...] | None:
    """Return the shares whose replies are wrong, or None when they cannot be told."""
    spares = len(shares) - code.threshold
    if spares <= 0 or not replies:
        return ()
    if isinstance(code, ModularCode):
        places = _over_field(code, shares, _projected_modulo(code, replies, rng), spares // 2)
    else:
        most = spares - 1 if independent else spares // 2
        places = _over_reals(code, shares, replies, rng, noise, scales, most)
    return None if places is None else tuple(shares[place] for place in places)


# -- projections -------------------------------------------------------------------------------


def _is_residue(reply: Matrix, p: int) -> bool:
    """Tell whether a reply stands for residues: integers that are exact in float64."""
    if reply.dtype.kind == "f" and not (
        np.isfinite(reply).all() and np.array_equal(reply, np.rint(reply))
    ):
        return False
    return bool((np.abs(reply) < EXACT - 2 * p).all())


def _is_possible(code: Code, share: int, reply: Matrix, bound: float | None) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.linalg.norm(reply))
    if not math.isfinite(size):
        return False
    _, _, parts = code._parts
    norm = float(np.linalg.norm(code.norms[share * parts : (share + 1) * parts]))
    # Twice, so that no rounding of these numbers matters.
    return bound is None or size <= 2.0 * norm * bound


def _parts_of(code: Code, reply: Matrix) -> list[Matrix]:
    """Return the sub-blocks of a reply, each a symbol of the codeword."""
    u, _, v = code.stack
    if (u, v) == (1, 1):
        return [reply]
    height, width = reply.shape[0] // u, reply.shape[1] // v
    return [
        reply[i * height : (i + 1) * height, j * width : (j + 1) * width]
        for i in range(u)
        for j in range(v)
    ]


def _rows_of(code: Code, shares: list[int]) -> NDArray[np.intp]:
    _, _, parts = code._parts
    return (np.array(shares)[:, None] * parts + np.arange(parts)).ravel()


def _projected_modulo(code: ModularCode, replies: list[Matrix], rng: np.random.Generator) -> Matrix:
    """Return every symbol in a few random projections, (symbols, projections)."""
    field, p = code.galois, code.prime
    count = max(1, math.ceil(math.log(MISSED / len(replies)) / math.log(2.0 / p))) if p > 2 else 60
    height, width = (max(reply.shape[axis] for reply in replies) for axis in (0, 1))
    left, right = rng.integers(0, p, (height, count)), rng.integers(0, p, (width, count))
    rows = []
    for reply in replies:
        for symbol in _parts_of(code, reply):
            halves = field.matmul(symbol, right[: symbol.shape[1]])
            rows.append((halves * left[: symbol.shape[0]] % p).sum(axis=0) % p)
    return np.array(rows)


# -- over GF(p) --------------------------------------------------------------------------------


def _over_field(
    code: ModularCode, shares: list[int], symbols: Integers, most: int
) -> tuple[int, ...] | None:
    field, p = code.galois, code.prime
    generator = code.generator[_rows_of(code, shares)]
    checks = field.null_space(generator.T).T
    syndromes = field.matmul(checks, symbols)
    if not syndromes.any():
        return ()
    if most == 0:
        return None
    groups = np.arange(len(symbols)).reshape(len(shares), -1)
    spanned = _in_span(field, checks, syndromes)
    places = np.flatnonzero(spanned[groups].all(axis=1))
    rank = field.rank(syndromes)
    if groups.shape[1] == 1 and len(places) == rank <= most:
        return tuple(int(place) for place in places)
    points = getattr(code, "points", None)
    if points is not None:
        at = np.asarray(points)[shares]
        if np.array_equal(generator, field.vandermonde(at, generator.shape[1])):
            return _by_polynomials(field, at, symbols, generator.shape[1], most)

    def explained(sets: NDArray[np.intp]) -> NDArray[np.bool_]:
        columns = checks.T[groups[sets].reshape(len(sets), -1)].transpose(0, 2, 1)
        return _explain(columns, syndromes, p)

    return _only_set(len(shares), most, explained)


def _in_span(field: Field, columns: Integers, basis: Integers) -> NDArray[np.bool_]:
    """Tell which columns are combinations of a basis's columns."""
    against = field.null_space(basis.T).T
    if len(against) == 0:
        return np.ones(columns.shape[1], dtype=bool)
    return np.asarray(~field.matmul(against, columns).any(axis=0))


def _explain(columns: Integers, syndromes: Integers, p: int) -> NDArray[np.bool_]:
    """Tell of many sets of columns (sets, checks, c) whether the syndromes are in their span."""
    sets, checks, count = columns.shape
    wide = np.broadcast_to(syndromes, (sets, *syndromes.shape))
    left = np.concatenate([columns, wide], axis=2) % p
    every, rank = np.arange(sets), np.zeros(sets, dtype=np.intp)
    for column in range(count):
        usable = (left[:, :, column] != 0) & (np.arange(checks) >= rank[:, None])
        pivot = np.argmax(usable, axis=1)
        some = usable.any(axis=1)
        at = np.minimum(rank, checks - 1)
        rows = left[every, pivot].copy()
        left[every, pivot] = np.where(some[:, None], left[every, at], rows)
        left[every, at] = np.where(some[:, None], rows, left[every, at])
        # Without division: row * pivot - pivot row * entry.
        below = (np.arange(checks) > at[:, None]) & some[:, None]
        reduced = left * rows[:, None, column, None] - left[:, :, column, None] * rows[:, None] % p
        left = np.where(below[:, :, None], reduced % p, left)
        rank += some
    rest = np.arange(checks) >= rank[:, None]
    return np.asarray(~(left[:, :, count:].any(axis=2) & rest).any(axis=1))


def _by_polynomials(
    field: Field, points: Integers, symbols: Integers, size: int, most: int
) -> tuple[int, ...] | None:
    """Decode every projection, and return all places where one of them is wrong."""
    wrong: set[int] = set()
    for word in symbols.T:
        coefficients = gao(field, points, word, size)
        if coefficients is None:
            return None
        wrong.update(np.flatnonzero(field.evaluate(coefficients, points) != word).tolist())
    return tuple(sorted(wrong)) if len(wrong) <= most else None


# -- over the reals ----------------------------------------------------------------------------


def _over_reals(
    code: Code,
    shares: list[int],
    replies: list[Matrix],
    rng: np.random.Generator,
    noise: float | None,
    scales: Scales | None,
    most: int,
) -> tuple[int, ...] | None:
    parts = [part for reply in replies for part in _parts_of(code, reply)]
    height, width = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    left, right = (_unforeseen(rng, size) for size in (height, width))
    if scales is not None:
        left /= scales[0][:height, None]
        right /= scales[1][:width, None]
    symbols = np.array(
        [
            np.einsum("ht,ht->t", part @ right[: part.shape[1]], left[: part.shape[0]])
            for part in parts
        ]
    )
    groups = np.arange(len(parts)).reshape(len(shares), -1)
    if noise is None:
        eps, norms = float(np.finfo(replies[0].dtype).eps), _norms(code, shares)
        noise = 64 * eps * float(np.median([np.linalg.norm(p) for p in parts] / norms))
    wrong: list[int] = []
    while True:
        # Beside errors that are far too large small ones look like rounding: look again without.
        kept = [place for place in range(len(shares)) if place not in wrong]
        several = symbols[groups[kept].ravel()]
        found = _explanation(code, [shares[i] for i in kept], several, noise, most - len(wrong))
        if found is None:
            return None
        if not found:
            return tuple(sorted(wrong))
        wrong += [kept[place] for place in found]


def _explanation(
    code: Code, shares: list[int], symbols: Matrix, noise: float, most: int
) -> tuple[int, ...] | None:
    """Return the smallest set of places whose errors, and rounding, explain the syndromes."""
    checks, norms = _orthonormal_checks(code, shares)
    syndromes = checks @ (symbols / norms[:, None])
    # The checks themselves are rounded, which matters beside a reply that is far too large.
    own = 4 * float(np.finfo(np.float64).eps) * float(np.abs(symbols / norms[:, None]).max())
    allowed = _allowed(len(checks), max(noise, own))
    if np.linalg.norm(syndromes) <= allowed:
        return ()
    if most == 0:
        return None
    groups = np.arange(len(symbols)).reshape(len(shares), -1)

    def explained(sets: NDArray[np.intp]) -> NDArray[np.bool_]:
        columns = checks.T[groups[sets].reshape(len(sets), -1)].transpose(0, 2, 1)
        basis, _ = np.linalg.qr(columns)
        left_over = syndromes - basis @ (basis.conj().transpose(0, 2, 1) @ syndromes)
        return np.asarray(np.linalg.norm(left_over, axis=(1, 2)) <= allowed)

    return _only_set(len(shares), most, explained)


def _norms(code: Code, shares: list[int]) -> NDArray[np.float64]:
    """Return the sizes of the rows of these shares, 1 of rows of zeros."""
    norms = code.norms[_rows_of(code, shares)]
    return np.where(norms > 0, norms, 1.0)


def _orthonormal_checks(code: Code, shares: list[int]) -> tuple[Matrix, NDArray[np.float64]]:
    """Return orthonormal checks of replies scaled to equal noise, and what they are divided by."""
    norms = _norms(code, shares)
    generator = code.generator[_rows_of(code, shares)] / norms[:, None]
    q, _ = np.linalg.qr(generator, mode="complete")
    return q[:, generator.shape[1] :].conj().T, norms


def _allowed(checks: int, noise: float) -> float:
    """Return how large the syndromes of all projections together may be because of rounding."""
    return _USUAL * math.sqrt(checks * REAL_PROJECTIONS) * noise


def largest_hidden(code: Code, responders: Iterable[int], noise: float) -> float:
    """Return the largest wrong entry of one reply that may pass for rounding, over the reals.

    In the scaled units of :func:`locate`. A projection of an entry is at least half as large.
    """
    shares = sorted(responders)
    checks, norms = _orthonormal_checks(code, shares)
    seen = np.linalg.norm(checks, axis=0) / norms
    least = float(seen.min(initial=math.inf))
    return 2.0 * _allowed(len(checks), noise) / least if least else math.inf


def _unforeseen(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Return random factors with signs, none of them small."""
    signs = rng.integers(0, 2, (size, REAL_PROJECTIONS)) * 2.0 - 1.0
    return signs * rng.uniform(0.75, 1.0, (size, REAL_PROJECTIONS))


def _only_set(
    count: int, most: int, explained: Callable[[NDArray[np.intp]], NDArray[np.bool_]]
) -> tuple[int, ...] | None:
    """Return the only smallest set of up to ``most`` places that explains everything, or None."""
    tried = 0
    for size in range(1, most + 1):
        tried += math.comb(count, size)
        if tried > MOST_SETS:
            return None
        found: list[tuple[int, ...]] = []
        for sets in _batches(itertools.combinations(range(count), size)):
            found += [tuple(int(i) for i in one) for one in sets[explained(sets)]]
            if len(found) > 1:
                return None
        if found:
            return found[0]
    return None


def _batches(sets: Iterator[tuple[int, ...]]) -> Iterator[NDArray[np.intp]]:
    while batch := list(itertools.islice(sets, _BATCH)):
        yield np.array(batch)
