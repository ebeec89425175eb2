"""Published figures that ``accuracy.py`` holds the codes against.

``ERRORS``: greatest relative error of ``C`` known for a scheme, in double precision, random normal
operands, inner dimension 100, the worst of the loss patterns that were tried: all of them up to
400, else runs of neighbours (gaps 1, 2, 3) and about a hundred random ones. None: nothing known.

``CONDITIONS``: condition numbers of the decoding systems over all survivor sets, in the setting of
Ramamoorthy and Tang (arXiv 1910.06515): 31 workers, 29 row blocks or 4 x 7 blocks.

A scheme lists the codes of this package that stand for it, as (code, nodes); those that are
registered are measured. ``chebyshev`` nodes come with Chebyshev polynomials here, so that they
stand for monomials at the same points, too, and are better.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONDITIONS", "ERRORS", "LOSSES", "LOST", "SIZES", "WORKERS", "Condition", "Scheme"]

SIZES = (16, 36, 64)
LOSSES = (2, 5)
WORKERS = 31  # of the condition numbers

Figures = tuple[float | None, float | None, float | None]
LOST = 1e-2  # errors from here on mean that nothing is left: a refusal is as good
ALL = 1.0
UNKNOWN: Figures = (None, None, None)


@dataclass(frozen=True)
class Scheme:
    """A scheme of the literature: its errors at the three sizes, for two and for five losses."""

    name: str
    setting: str
    codes: tuple[tuple[str, str | None], ...]
    two: Figures
    five: Figures = UNKNOWN
    sampled: bool = False
    """A random code, for which nobody looked for rare patterns; ``accuracy.py`` usually does."""

    def error(self, k: int, losses: int) -> float | None:
        """The figure for a size and a number of losses."""
        return dict(zip(SIZES, self.two if losses == 2 else self.five, strict=True))[k]


@dataclass(frozen=True)
class Condition:
    """Worst and mean condition number over all survivor sets of 31 workers."""

    name: str
    codes: tuple[tuple[str, str | None], ...]
    grid: tuple[int, int, int]
    worst: float
    average: float


POLYNOMIAL, MATVEC = "polynomial, K = m n", "one coded operand, K = k"
MATDOT, ENTANGLED = "MatDot, K = 2 p - 1", "entangled, p = 2, K = p m n + p - 1"

ERRORS = (
    Scheme(
        "real equispaced",
        POLYNOMIAL,
        (("polynomial", "equispaced"),),
        (3.2e-10, ALL, ALL),
        (7e-9, ALL, ALL),
    ),
    Scheme(
        "Chebyshev points, monomials",
        POLYNOMIAL,
        (("polynomial", "chebyshev"),),
        (4e-11, 8e-4, ALL),
        (1.3e-9, 2.5e-2, ALL),
    ),
    Scheme(
        "OrthoPoly",
        POLYNOMIAL,
        (("polynomial", "chebyshev"), ("orthopoly", None)),
        (1.4e-13, 1.3e-12, 7.9e-12),
        (2.9e-10, 1.6e-7, 2.6e-5),
    ),
    Scheme(
        "complex roots of unity",
        POLYNOMIAL,
        (("polynomial", "unity"),),
        (2.1e-15, 9.1e-15, 1.9e-14),
        (1.4e-13, 3.6e-12, 4.0e-11),
    ),
    Scheme(
        "rotation embedding",
        POLYNOMIAL,
        (("rotation", None),),
        (3.5e-15, 9.6e-15, 2.5e-14),
        (1.8e-13, 4e-12, 5.4e-11),
    ),
    Scheme(
        "random Khatri-Rao, best draw",
        POLYNOMIAL,
        (("random-khatri-rao", None),),
        (9e-14, 3.3e-13, 4.5e-13),
        (1e-13, 1.8e-13, 5.5e-13),
        sampled=True,
    ),
    Scheme(
        "systematic, signed-geometric rows",
        POLYNOMIAL,
        (("khatri-rao", None),),
        (3.3e-15, 1.5e-14, 2.1e-14),
    ),
    Scheme(
        "systematic random Khatri-Rao",
        POLYNOMIAL,
        (("khatri-rao", None),),
        (3.1e-14, 4.3e-14, 1.6e-13),
        (1.2e-13, 1.3e-13, 5.9e-13),
        sampled=True,
    ),
    Scheme("Vandermonde 1 .. N", MATVEC, (("mds", "equispaced"),), (ALL, ALL, ALL)),
    Scheme(
        "Chebyshev basis",
        MATVEC,
        (("mds", "chebyshev"),),
        (1.2e-13, 1.6e-12, 1.1e-11),
        (4e-10, 2e-7, 3e-5),
    ),
    Scheme(
        "unit circle (trigonometric frame)",
        MATVEC,
        (("mds", "unity"),),
        (2.6e-15, 8.2e-15, 1.5e-14),
        (1.4e-13, 3.3e-12, 3.8e-11),
    ),
    Scheme(
        "circulant permutations",
        MATVEC,
        (("circulant", None),),
        (2e-14, 2.6e-12, None),
        (9e-13, 6e-12, None),
    ),
    Scheme(
        "Gaussian, best draw",
        MATVEC,
        (("gaussian", None),),
        (4e-14, 1.3e-13, 2.2e-13),
        (4e-14, 2.7e-13, 4e-13),
        sampled=True,
    ),
    Scheme(
        "random orthonormal frame",
        MATVEC,
        (("orthonormal", None),),
        (1e-14, 3.5e-14, 6.4e-14),
        (2e-14, 9e-14, 1.3e-13),
        sampled=True,
    ),
    Scheme(
        "[I; orthonormal rows], best draw",
        MATVEC,
        (("mds-orthonormal", None),),
        (2.7e-14, 4.5e-14, 6.5e-14),
        (2.8e-14, 7.7e-14, 8e-14),
        sampled=True,
    ),
    Scheme(
        "[I; Cauchy], points k + i",
        MATVEC,
        (("cauchy", None),),
        (5e-13, 4e-12, 1.5e-11),
        (2.5e-7, 3e-4, 3.6e-2),
    ),
    Scheme(
        "[I; trigonometric]",
        MATVEC,
        (("mds", "trig"),),
        (2.2e-15, 5.1e-15, 9.9e-15),
        (5.6e-14, 2.3e-12, 2.3e-11),
    ),
    Scheme(
        "real equispaced",
        MATDOT,
        (("matdot", "equispaced"),),
        (1.1e-10, 0.14, ALL),
    ),
    Scheme(
        "Chebyshev points, monomials",
        MATDOT,
        (("matdot", "chebyshev"),),
        (3e-11, 3e-4, ALL),
    ),
    Scheme(
        "OrthMatDot",
        MATDOT,
        (("matdot", "chebyshev"),),
        (3.8e-13, 6.5e-12, 5.5e-11),
        (2e-9, 1.4e-6, 3e-4),
    ),
    Scheme(
        "complex roots of unity",
        MATDOT,
        (("matdot", "unity"),),
        (3.5e-15, 1e-14, 3.2e-14),
    ),
    Scheme(
        "RotMatDot",
        MATDOT,
        (("rotmatdot", None),),
        (3.4e-15, 1.4e-14, 2.7e-14),
        (3e-13, 5e-12, 6e-11),
    ),
    Scheme(
        "real equispaced",
        ENTANGLED,
        (("entangled", "equispaced"),),
        (7.7e-9, 3e-2, ALL),
    ),
    Scheme(
        "complex roots of unity",
        ENTANGLED,
        (("entangled", "unity"),),
        (2.8e-15, 7.5e-15, 3.4e-14),
        (2.4e-13, 2.8e-12, 9.9e-11),
    ),
    Scheme(
        "rotation-entangled",
        ENTANGLED,
        (("rotation-entangled", None),),
        (3.4e-15, 6e-15, 2.3e-14),
        (3.2e-13, 2.8e-12, 6.6e-11),
    ),
)

CONDITIONS = (
    Condition("real Vandermonde", (("mds", "equispaced"),), (29, 1, 1), 2.95e13, 1.13e13),
    Condition("unit circle", (("mds", "unity"),), (29, 1, 1), 55.0, 12.4),
    Condition("Chebyshev basis", (("mds", "chebyshev"),), (29, 1, 1), 1.22e4, 1.4e2),
    Condition("real polynomial", (("polynomial", "equispaced"),), (4, 1, 7), 2.29e13, 4.97e12),
    Condition("unit circle", (("polynomial", "unity"),), (4, 1, 7), 404.0, 27.2),
    Condition("OrthoPoly", (("polynomial", "chebyshev"),), (4, 1, 7), 6.06e5, 1.26e3),
)
