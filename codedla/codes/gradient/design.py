r"""A symmetric block design: any two workers have equally many parts in common.

**Any ``n - s`` of ``n`` workers decode with the same residual, whoever is late**: nothing is to be
gained by an adversary. In a ``(v, k, lambda)`` design every worker has ``k`` of ``v = n`` parts and
any two share ``lambda``, so with ``m`` survivors the squared residual of least squares is

.. math:: n - \frac{k^2 m}{k - \lambda + \lambda m}.

Worker ``w`` has the parts ``D + w`` (modulo n) of a difference set ``D``: the quadratic residues of
a prime ``n = 3 mod 4``, or a projective plane's.

References
----------
S. Kadhe, O. Koyluoglu, K. Ramchandran, "Gradient coding based on block designs for mitigating
adversarial stragglers", ISIT 2019, arXiv:1904.13373.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["DIFFERENCE_SETS", "BlockDesign"]

DIFFERENCE_SETS: dict[tuple[int, int], tuple[int, ...]] = {
    (3, 2): (0, 1),
    (4, 3): (0, 1, 2),
    (7, 3): (1, 2, 4),
    (7, 4): (0, 3, 5, 6),
    (11, 5): (1, 3, 4, 5, 9),
    (11, 6): (0, 2, 6, 7, 8, 10),
    (13, 4): (0, 1, 3, 9),
    (15, 7): (0, 1, 2, 4, 5, 8, 10),
    (19, 9): (1, 4, 5, 6, 7, 9, 11, 16, 17),
    (21, 5): (3, 6, 7, 12, 14),
    (23, 11): (1, 2, 3, 4, 6, 8, 9, 12, 13, 16, 18),
    (31, 6): (1, 5, 11, 24, 25, 27),
    (31, 15): (1, 2, 4, 5, 7, 8, 9, 10, 14, 16, 18, 19, 20, 25, 28),
}
"""By numbers of workers and of parts per worker."""


class BlockDesign(GradientCode):
    """Shifts of a difference set; further parameters as of :class:`GradientCode`.

    Parameters
    ----------
    degree : int, optional
        Parts per worker; the fewest that are more than ``s`` by default, or the most there are.
    """

    name = "gradient-design"
    scheme = "bibd"
    options = ("degree",)
    approximate = True
    threshold_formula = "n - s (any number, with a larger residual)"
    citation = "Kadhe, Koyluoglu, Ramchandran, ISIT 2019"
    weakness = "the sum is approximate, and few numbers of workers have a design"

    def __init__(
        self,
        n_workers: int,
        stragglers: int = 0,
        *,
        errors: int = 0,
        seed: int = 0,
        degree: int | None = None,
    ) -> None:
        super().__init__(n_workers, stragglers, errors=errors, seed=seed)
        fitting = sorted(k for v, k in DIFFERENCE_SETS if v == n_workers)
        if not fitting:
            known = ", ".join(map(str, sorted({v for v, _ in DIFFERENCE_SETS})))
            raise UsageError(
                f"block designs are there for {known} workers; got {n_workers}; use one of these, "
                "or scheme 'expander'"
            )
        enough = [k for k in fitting if k > self.reach]
        self.degree = (enough[0] if enough else fitting[-1]) if degree is None else degree
        if self.degree not in fitting:
            raise UsageError(
                f"designs on {n_workers} workers have {' or '.join(map(str, fitting))} parts per "
                f"worker; got degree={degree}; give one of these"
            )
        self.common = self.degree * (self.degree - 1) // (n_workers - 1)

    def _assignment(self) -> NDArray[np.float64]:
        n = self.n_workers
        first = np.zeros(n)
        first[list(DIFFERENCE_SETS[n, self.degree])] = 1.0 / self.degree
        return np.array([np.roll(first, worker) for worker in range(n)])

    def bound(self, lost: int | None = None) -> float:
        """Return the squared residual, which is the same whoever is lost."""
        s = self.stragglers if lost is None else lost
        if not 0 <= s < self.n_workers:
            raise UsageError(
                f"a bound needs a survivor; got {s} lost of {self.n_workers}; give fewer"
            )
        m, k, common = self.n_workers - s, self.degree, self.common
        return max(0.0, self.n_workers - k**2 * m / (k - common + common * m))
