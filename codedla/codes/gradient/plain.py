"""Without redundancy: every worker has one part; the baselines that codes are compared with.

**Uncoded needs all ``n`` replies; ignore-stragglers takes any ``n - s``** and scales their sum by
``n / (n - s)``, so that it is right on average and off by a squared residual of ``n s / (n - s)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.gradient.base import GradientCode
from codedla.errors import UsageError

__all__ = ["IgnoreStragglers", "Uncoded"]


class Uncoded(GradientCode):
    """One part per worker, and all must reply."""

    name = "gradient-uncoded"
    scheme = "uncoded"
    threshold_formula = "n"
    citation = "none: the ordinary sum"
    weakness = "one slow worker delays every iteration"

    def __init__(
        self, n_workers: int, stragglers: int = 0, *, errors: int = 0, seed: int = 0
    ) -> None:
        if stragglers:
            raise UsageError(
                f"scheme 'uncoded' waits for everybody; got stragglers={stragglers}; use scheme "
                "'cyclic', or 'ignore' to go without the late parts"
            )
        super().__init__(n_workers, 0, errors=errors, seed=seed)

    @property
    def reach(self) -> int:
        """None: nothing is redundant; robust means compare the replies of different parts."""
        return 0

    def _assignment(self) -> NDArray[np.float64]:
        return np.eye(self.n_workers)


class IgnoreStragglers(GradientCode):
    """One part per worker; the late ones are left out."""

    name = "gradient-ignore"
    scheme = "ignore"
    approximate = True
    threshold_formula = "n - s"
    citation = "none: the baseline of Tandon et al., ICML 2017"
    weakness = "the gradient lacks the parts of late workers, always the same if they are"

    @property
    def reach(self) -> int:
        """Late workers; nothing is redundant."""
        return self.stragglers

    def _assignment(self) -> NDArray[np.float64]:
        return np.eye(self.n_workers)

    def _weights(self, survivors: tuple[int, ...]) -> NDArray[Any]:
        return np.full((1, len(survivors)), self.n_workers / len(survivors))
