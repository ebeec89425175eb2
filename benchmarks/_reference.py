"""Reference figures that ``accuracy.py`` holds the codes against.

``ERRORS``: greatest relative error of ``C`` of plain implementations of the schemes of the
literature, written and measured apart from this package: double precision, random normal operands,
inner dimension 100, the worst of the loss patterns that were tried: all of them up to 400, else
runs of neighbours (gaps 1, 2, 3) and about a hundred random ones. None: not measured.

A scheme lists the codes of this package that stand for it, as (code, nodes); those that are
registered are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ERRORS", "LOSSES", "LOST", "SIZES", "Scheme"]

SIZES = (16, 36, 64)
LOSSES = (2, 5)

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
    draws: int = 0
    """Random codes: the best of so many draws, for which nobody looked for rare patterns."""

    def error(self, k: int, losses: int) -> float | None:
        """The figure for a size and a number of losses."""
        return dict(zip(SIZES, self.two if losses == 2 else self.five, strict=True))[k]


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
        (("polynomial", "chebyshev-powers"),),
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
        draws=8,
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
        draws=1,
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
        (("mds", "unity"), ("trig-frame", None)),
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
        (("random-gaussian", "frame"),),
        (4e-14, 1.3e-13, 2.2e-13),
        (4e-14, 2.7e-13, 4e-13),
        draws=12,
    ),
    Scheme(
        "random orthonormal frame",
        MATVEC,
        (("orthonormal", "frame"),),
        (1e-14, 3.5e-14, 6.4e-14),
        (2e-14, 9e-14, 1.3e-13),
        draws=1,
    ),
    Scheme(
        "[I; Gaussian], best draw",
        MATVEC,
        (("random-gaussian", "systematic"),),
        (7e-15, 2.7e-14, 8e-14),
        (2.8e-14, 8.8e-14, 2.6e-13),
        draws=12,
    ),
    Scheme(
        "[I; exponentials], totally positive",
        MATVEC,
        (("exponential", None),),
        (9.5e-15, 2.8e-14, 5.7e-14),
        (1e-11, 5.6e-10, 6e-9),
    ),
    Scheme(
        "[I; orthonormal rows], best draw",
        MATVEC,
        (("orthonormal", "systematic"),),
        (2.7e-14, 4.5e-14, 6.5e-14),
        (2.8e-14, 7.7e-14, 8e-14),
        draws=12,
    ),
    Scheme(
        "[I; Cauchy], points k + i",
        MATVEC,
        (("cauchy", "classical"),),
        (5e-13, 4e-12, 1.5e-11),
        (2.5e-7, 3e-4, 3.6e-2),
    ),
    Scheme(
        "[I; Cauchy], points spread, rows scaled",
        MATVEC,
        (("cauchy", "spread"),),
        (3.6e-14, 2.4e-13, 4e-13),
        (6e-12, 2e-9, 3e-8),
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
        (("matdot", "chebyshev-powers"),),
        (3e-11, 3e-4, ALL),
    ),
    Scheme(
        "OrthMatDot",
        MATDOT,
        (("matdot", "chebyshev"), ("orthmatdot", None)),
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
        "Chebyshev points, monomials",
        ENTANGLED,
        (("entangled", "chebyshev"),),
        (3.8e-10, 5e-5, ALL),
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
