"""Evaluation points of polynomial-type codes, and the worker -> point assignment.

Where the points lie decides how many digits a code keeps; the way the linear system is solved does
not. The points offered here, best first:

========== ===================================== ==========================================
name       points                                conditioning of a decode, threshold ``K``
========== ===================================== ==========================================
unity      ``exp(2 pi i j / N)`` (complex)       grows like ``N**s``, ``s`` = losses
chebyshev  ``cos((2 j + 1) pi / (2 N))``         ``N**(2 s)`` in the Chebyshev basis;
                                                 exponential in ``K`` for powers
equispaced ``-1 ... 1`` in equal steps           exponential in ``K``: for teaching only
========== ===================================== ==========================================

Losing neighbouring points is the worst that can happen to any of them, and neighbouring workers
fail together (they share a machine). :func:`stride` therefore spreads neighbouring workers over
distant points; that costs nothing.

References
----------
Pan, "How bad are Vandermonde matrices?", SIAM J. Matrix Anal. Appl. 37 (2016).
Ramamoorthy and Tang, "Numerically stable coded matrix computations via circulant and rotation
matrix embeddings", IEEE Trans. Inf. Theory 68 (2022).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError

__all__ = [
    "at_workers",
    "chebyshev",
    "chebyshev_basis",
    "equispaced",
    "monomials",
    "powers_at_workers",
    "rotations",
    "spread",
    "stride",
    "trigonometric_basis",
    "unity",
    "unity_powers",
]

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

# A window of more losses than this says nothing new about a stride, but would cost O(N^4).
_LARGEST_WINDOW = 24


def unity(count: int) -> ComplexArray:
    """Return the ``count``-th roots of unity ``exp(2 pi i j / count)``, in order.

    Parameters
    ----------
    count : int
        Number of points, at least 1.

    Returns
    -------
    ndarray (count,), complex128
        Correctly rounded to about half a unit in the last place: the angle is first folded, in
        integers, to at most 45 degrees, so that ``1, i, -1, -i`` are exact.
    """
    j = np.arange(count)
    # 8 j / count = octant + remainder; everything before the division is exact.
    octant, rest = np.divmod(8 * j, count)
    odd = octant % 2 == 1
    angle = np.where(odd, count - rest, rest) * (math.pi / (4 * count))
    small_cos, small_sin = np.cos(angle), np.sin(angle)
    quarter = ((octant + 1) // 2) % 4  # the multiple of 90 degrees the angle was folded about
    small_sin = np.where(odd, -small_sin, small_sin)
    real = np.choose(quarter, [small_cos, -small_sin, -small_cos, small_sin])
    imaginary = np.choose(quarter, [small_sin, small_cos, -small_sin, -small_cos])
    points = np.empty(count, dtype=np.complex128)
    points.real, points.imag = real + 0.0, imaginary + 0.0  # "+ 0.0" turns -0.0 into 0.0
    return points


def unity_powers(
    indices: NDArray[np.integer], exponents: NDArray[np.integer], count: int
) -> ComplexArray:
    """Return ``x_i ** e`` for roots of unity ``x_i``, angles reduced in integers.

    ``(i * e) % count`` before the cosine keeps every entry good to one unit in the last place;
    repeated multiplication loses a digit at ``count = 100``.

    Parameters
    ----------
    indices : ndarray (r,) of int
        Point numbers.
    exponents : ndarray (c,) of int
        Powers, may be negative.
    count : int
        Order of the roots.

    Returns
    -------
    ndarray (r, c), complex128
    """
    return unity(count)[np.outer(indices, exponents) % count]


def chebyshev(count: int) -> FloatArray:
    """Return the Chebyshev points ``cos((2 j + 1) pi / (2 count))``, decreasing, in (-1, 1).

    Written as a sine, which makes them exactly antisymmetric.
    """
    j = np.arange(count)
    return np.sin((count - 1 - 2 * j) * (math.pi / (2 * count)))


def equispaced(count: int) -> FloatArray:
    """Return ``count`` equally spaced points of [-1, 1] (0 for a single one)."""
    # Not linspace: this is exactly antisymmetric.
    return (2.0 * np.arange(count) - (count - 1)) / max(1, count - 1)


def chebyshev_basis(
    indices: NDArray[np.integer], degrees: NDArray[np.integer], count: int
) -> FloatArray:
    r"""Return normalised Chebyshev polynomials at Chebyshev points.

    .. math:: \hat T_0 = 1, \quad \hat T_d(x_i) = \sqrt 2 \cos(d (2 i + 1) \pi / (2\,count))

    The columns ``0 .. count - 1`` over all points are orthogonal with squared norm ``count``.

    Parameters
    ----------
    indices : ndarray (r,) of int
        Point numbers.
    degrees : ndarray (c,) of int
        Degrees, at least 0.
    count : int
        Number of points of the whole grid.

    Returns
    -------
    ndarray (r, c), float64
    """
    # The angle is a multiple of 2 pi / (4 count): look it up among the roots of unity.
    table = unity(4 * count).real
    values = table[np.outer(2 * np.asarray(indices) + 1, degrees) % (4 * count)]
    return values * np.where(np.asarray(degrees) == 0, 1.0, math.sqrt(2.0))


def trigonometric_basis(indices: NDArray[np.integer], columns: int, count: int) -> FloatArray:
    r"""Return ``columns`` real trigonometric functions at the ``count`` equally spaced angles.

    Odd ``columns``: :math:`1, \sqrt2\cos d\theta, \sqrt2\sin d\theta`, ``d = 1, 2, ...``; even: the
    half-integer frequencies :math:`\sqrt2\cos(d+\tfrac12)\theta, \sqrt2\sin(d+\tfrac12)\theta`.
    Either way the columns are orthogonal over all points, and any ``columns`` rows are
    independent: times a unit-modulus factor per row they are a Vandermonde matrix on distinct
    points of the unit circle.

    Returns
    -------
    ndarray (r, columns), float64
    """
    rows = np.asarray(indices)
    # Frequencies in halves, so that the angle is an integer multiple of 2 pi / (2 count).
    twice = np.arange(1 + columns % 2, columns, 2)
    waves = unity_powers(rows, twice, 2 * count) * math.sqrt(2.0)
    basis = np.empty((rows.size, columns))
    first = columns % 2
    basis[:, :first] = 1.0
    basis[:, first::2] = waves.real
    basis[:, first + 1 :: 2] = waves.imag
    return basis


def rotations(
    indices: NDArray[np.integer], multiples: NDArray[np.integer], count: int
) -> FloatArray:
    r"""Return the plane rotations by multiples of the equally spaced angles, reduced in integers.

    Parameters
    ----------
    indices : ndarray (r,) of int
        Numbers of the angles :math:`2 \pi i / count`.
    multiples : ndarray (c,) of int
        Of each angle, may be negative.
    count : int
        Number of angles.

    Returns
    -------
    ndarray (r, c, 2, 2), float64
        ``[[cos, -sin], [sin, cos]]``: from the left it multiplies ``top + i bottom`` by
        ``exp(i multiple angle)``.
    """
    waves = unity_powers(indices, multiples, count)
    cos, sin = waves.real, waves.imag
    return np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=-2)


def monomials(points: FloatArray, exponents: NDArray[np.integer]) -> FloatArray:
    """Return ``points[i] ** exponents[j]``: the plain Vandermonde matrix of the early papers."""
    powers: FloatArray = np.power.outer(points, exponents)
    return powers


@lru_cache(maxsize=4096)
def stride(count: int, losses: int) -> int:
    """Return the coprime stride that spreads neighbouring workers best over ``count`` points.

    Worker ``i`` takes point ``(i * stride) % count``. Among all strides coprime to ``count`` the
    one with the smallest worst condition number is taken when ``losses`` workers in a row, or
    every second of ``2 * losses``, are lost. At ``count = 69``, ``losses = 5`` the condition number
    of losing five neighbours falls from 3.5e5 to 3.9.

    Parameters
    ----------
    count : int
        Number of workers and points.
    losses : int
        Number of losses to be survived.

    Returns
    -------
    int
        1 when there is nothing to choose.
    """
    window = min(losses, count - losses, _LARGEST_WINDOW)
    if window < 2 or count < 5:
        return 1
    steps = np.array([g for g in range(1, count // 2 + 1) if math.gcd(g, count) == 1])
    table, row = unity(count), np.arange(window)
    worst = np.full(steps.size, np.inf)
    for gap in (1, 2):
        lost = np.outer(steps * gap, row) % count
        # Two losses on one point (gap 2, tiny count) never happen at once: no information.
        if any(np.unique(points).size < window for points in lost):
            continue
        # With the missing rows M of the N x N Fourier matrix, the least singular value of the
        # surviving square part equals that of the M x M corner of the complement: a small SVD.
        minors = table[(lost[:, :, None] * row) % count]
        smallest = np.linalg.svd(minors, compute_uv=False)[:, -1]
        worst = np.minimum(worst, smallest)
    # Round, so that strides equal in exact arithmetic tie towards the smallest on every machine.
    return int(steps[np.argmax(np.round(worst, 9))])


def spread(count: int, losses: int) -> NDArray[np.int64]:
    """Return the point number of every worker, ``(i * stride(count, losses)) % count``."""
    return (np.arange(count, dtype=np.int64) * stride(count, losses)) % count


def at_workers(
    name: str | None, degrees: NDArray[np.integer], count: int, losses: int
) -> FloatArray | ComplexArray:
    """Return functions of the given degrees at one point per worker, neighbours far apart.

    Parameters
    ----------
    name : {"unity", "chebyshev", "chebyshev-powers", "equispaced"}
        The points. At "chebyshev" points the functions are the normalised Chebyshev polynomials,
        else powers.
    degrees : ndarray (c,) of int
    count : int
        Number of workers and points.
    losses : int
        Number of losses to be survived; see :func:`stride`.

    Returns
    -------
    ndarray (count, c)
        complex128 for "unity", else float64.

    Raises
    ------
    UsageError
        Any other name, or None.
    """
    place = spread(count, losses)
    if name == "unity":
        return unity_powers(place, degrees, count)
    if name == "chebyshev":
        return chebyshev_basis(place, degrees, count)
    if name == "chebyshev-powers":
        return monomials(chebyshev(count)[place], degrees)
    if name == "equispaced":
        return monomials(equispaced(count)[place], degrees)
    raise UsageError(f"points are unity, chebyshev, chebyshev-powers or equispaced; got {name!r}")


def powers_at_workers(
    name: str | None, exponents: NDArray[np.integer], count: int, losses: int
) -> FloatArray | ComplexArray:
    """Return plain powers of one point per worker, neighbours far apart.

    As :func:`at_workers`, but powers at Chebyshev points, too: for codes that tell the wanted
    products by their exponents, which the products of Chebyshev polynomials would mix.
    """
    if name == "chebyshev":
        name = "chebyshev-powers"
    return at_workers(name, exponents, count, losses)
