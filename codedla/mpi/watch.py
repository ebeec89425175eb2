"""Tell a frozen worker from a slow one, and see who exceeds the deadline.

A worker that owes an answer is sent a PING when nothing was heard of it for a while; workers answer
between panels, so that silence tells a frozen rank from a slow one. A silent worker's shares may be
given to others; it is taken back as soon as it is heard.
"""

from __future__ import annotations

import time

from codedla.engine.round import SILENCE
from codedla.mpi.clock import Clock
from codedla.mpi.lines import Lines
from codedla.mpi.link import Link

__all__ = ["BEAT", "Watch", "align_clocks"]

WATCH = 0.05
"""Seconds between two looks at who has been silent for long."""
PING_AFTER = 0.5
"""Seconds without a word from a busy worker after which it is asked for a sign of life."""
BEAT = 5.0
"""Seconds between signs of life of the master's own to workers that owe nothing."""


class Watch:
    """Watch the workers during a session.

    Parameters
    ----------
    lines : Lines
    deadline : float or None
        Seconds within which a worker must answer the order that it is at.
    """

    def __init__(self, lines: Lines, deadline: float | None) -> None:
        self._lines, self._deadline = lines, deadline
        self._began = self._watched = time.perf_counter()
        for link in lines.links:
            link.overdue = False

    def due(self) -> bool:
        """Tell whether it is time to :meth:`look` again."""
        return time.perf_counter() - self._watched >= WATCH

    def look(self) -> list[tuple[Link, str]]:
        """Ask for signs of life; return the workers that are silent from now on, and why."""
        now = self._watched = time.perf_counter()
        silent: list[tuple[Link, str]] = []
        for link in self._lines.links:
            if link.gone is not None:
                continue
            if link.orders:
                silent += [(link, reason) for reason in self._judge(link, now)]
            elif not link.pinged and now - link.heard > BEAT:
                # It has done its part, and must not believe that nobody is left.
                self._lines.ping(link)
        return silent

    def _judge(self, link: Link, now: float) -> list[str]:
        """Ask a busy worker for a sign of life, and take it for frozen when none comes."""
        current = link.current() or link.orders[0]
        if not link.pinged and now - max(link.heard, current.asked) > PING_AFTER:
            self._lines.ping(link)
        reasons = []
        # Several looks, because this process may itself have been away for a while.
        link.doubts = link.doubts + 1 if link.pinged and now - link.pinged > SILENCE else 0
        if link.doubts > 2 and not link.frozen:
            link.frozen = True
            reasons.append(frozen_for())
        asked = max(current.asked, link.freed, self._began)
        if self._deadline is not None and not link.overdue and now - asked > self._deadline:
            link.overdue = True
            reasons.append(f"no answer within {self._deadline:g} s")
        return reasons


def frozen_for() -> str:
    """Return why a frozen worker is not waited for."""
    return f"no sign of life for {SILENCE:g} s"


def align_clocks(lines: Lines) -> None:
    """Compare clocks with the free workers, a few times, for the time line."""
    for _ in range(Clock.COMPARISONS):
        asked = [k for k in lines.links if k.idle and not k.frozen and not k.clock.known]
        for link in asked:
            lines.ping(link)
        if not lines.until(lambda: not any(k.pinged for k in asked if k.gone is None), 0.5):  # noqa: B023 - called at once
            return
