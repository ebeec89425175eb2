"""Another rank's clock, as seen from here."""

from __future__ import annotations

import math
import time

__all__ = ["Clock"]


class Clock:
    """Offset of a worker's clock, from question and answer.

    The worker reads its clock at some moment between the two, in the middle for want of better
    knowledge: of several comparisons the one with the quickest answer counts, and errs by at most
    half of that answer's time.
    """

    COMPARISONS = 4

    def __init__(self) -> None:
        self.error = math.inf
        self.ahead = 0.0
        self._compared = 0

    @property
    def known(self) -> bool:
        """Whether enough comparisons were made."""
        return self._compared >= self.COMPARISONS

    def compare(self, asked: int, theirs: int) -> None:
        """Take note of an answer that arrives now.

        Parameters
        ----------
        asked : int
            When the question was sent, in nanoseconds of this process's clock.
        theirs : int
            The worker's clock, in nanoseconds.
        """
        now = time.perf_counter_ns()
        self._compared += 1
        error = (now - asked) * 0.5e-9
        if error < self.error:
            self.error = error
            self.ahead = (theirs - (asked + now) / 2) * 1e-9

    def here(self, theirs: int) -> float:
        """Return a moment of the worker's clock (nanoseconds) in seconds of this one."""
        return theirs * 1e-9 - self.ahead
