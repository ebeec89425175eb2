"""What happened in the many rounds of an iteration, added up: schema ``codedla.iteration/1``."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from codedla.engine.report import Report

__all__ = ["SCHEMA", "Tally"]

SCHEMA = "codedla.iteration/1"


@dataclass
class Tally:
    """Sums over the rounds of one iteration; ranks are MPI ranks (worker index + 1).

    Parameters
    ----------
    rounds : int
    sent, received : int
        Bytes of payload.
    late : Counter
        By rank, the rounds that ended without its reply though it was hoped for.
    lost : dict of int to str
        Ranks that will not reply any more, and why, as of the latest round.
    latest : Report or None
        Of the latest round.
    """

    rounds: int = 0
    sent: int = 0
    received: int = 0
    late: Counter[int] = field(default_factory=Counter)
    lost: dict[int, str] = field(default_factory=dict)
    latest: Report | None = None
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def add(self, report: Report | None) -> None:
        """Count one round; of one without a report nothing but itself is known."""
        self.rounds += 1
        if report is None:
            return
        self.latest = report
        self.sent += report.bytes.get("sent", 0)
        self.received += report.bytes.get("received", 0)
        self.late.update(report.stragglers)
        self.lost = dict(report.lost)

    @property
    def seconds(self) -> float:
        """Seconds since the iteration began."""
        return time.perf_counter() - self._began

    @property
    def rate(self) -> float:
        """Rounds per second so far."""
        return self.rounds / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON-ready data."""
        return {
            "schema": SCHEMA,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 6),
            "rounds_per_second": round(self.rate, 3),
            "bytes": {"sent": self.sent, "received": self.received},
            "late_rounds": {str(rank): count for rank, count in sorted(self.late.items())},
            "lost": [{"rank": rank, "reason": why} for rank, why in sorted(self.lost.items())],
            "last_round": None if self.latest is None else self.latest.to_dict(),
        }
