"""What happened in one coded operation, as data: schema ``codedla.report/1``."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from typing import Any

from codedla.engine.round import Event, Span

__all__ = ["SCHEMA", "Report"]

SCHEMA = "codedla.report/1"


@dataclass
class Report:
    """Report of one operation.

    Ranks are MPI ranks (worker index + 1). Times are seconds on the master, bytes are payload.

    Parameters
    ----------
    operation, code : str
    n_workers : int
        Workers in the pool.
    threshold : int
        Replies that suffice.
    shapes : dict of str to list of int
        Shapes of "A", "B" and "C", or what a transform calls its operands and result.
    dtype : str
        dtype of the product.
    grid, reason, suffices : str
        Numbers of blocks; why this code and this grid; which replies suffice, in words.
    responders : list of int
        Ranks that had replied when the product was complete, in the order of arrival.
    stragglers : list of int
        Ranks that had not replied when the product was complete.
    lost : dict of int to str
        Ranks that will never reply, and why.
    redispatched : list of int
        Ranks whose task was given to another one, too if they were only late.
    wrong : list of int
        Ranks that answered wrongly; their replies were not used.
    times : dict of str to float
        "encode", "send", "wait", "decode", "after_threshold" (from the last needed reply to the
        finished product) and "total".
    bytes : dict of str to int
        "sent" and "received".
    amplification : float or None
        ``alpha(S)`` of the replies used.
    error_estimate : float or None
        Expected relative error of the product; 0.0 for exact integers, None when unknown.
    verified : str
        "off", or the check that the product passed; "partly" when not all panels passed the same.
    warnings : list of str
    events : list of Event
        What happened, in order.
    panels : dict of str to int
        "total", "resumed" and "computed", of a product in row panels; else empty.
    began : float
        The pool's clock when the operation began; not in the JSON form.
    spans : list of Span
        What took how long on which rank, when the pool traced; not in the JSON form.
    """

    operation: str
    code: str
    n_workers: int
    threshold: int
    shapes: dict[str, list[int]]
    dtype: str
    grid: str = ""
    reason: str = ""
    suffices: str = ""
    responders: list[int] = field(default_factory=list)
    stragglers: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    redispatched: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    amplification: float | None = None
    error_estimate: float | None = None
    verified: str = "off"
    warnings: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    panels: dict[str, int] = field(default_factory=dict)
    began: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        import numpy

        from codedla import __version__

        return {
            "schema": SCHEMA,
            "operation": self.operation,
            "code": self.code,
            "grid": self.grid,
            "reason": self.reason,
            "n_workers": self.n_workers,
            "threshold": self.threshold,
            "shapes": self.shapes,
            "dtype": self.dtype,
            "responders": self.responders,
            "stragglers": self.stragglers,
            "lost": [{"rank": rank, "reason": why} for rank, why in sorted(self.lost.items())],
            "redispatched": self.redispatched,
            "wrong": self.wrong,
            "times": {name: round(value, 6) for name, value in self.times.items()},
            "bytes": self.bytes,
            "amplification": self.amplification,
            "error_estimate": self.error_estimate,
            "verified": self.verified,
            "warnings": self.warnings,
            "versions": {
                "codedla": __version__,
                "numpy": numpy.__version__,
                "python": platform.python_version(),
            },
            "events": [event.to_dict() for event in self.events],
            **({"panels": self.panels} if self.panels else {}),
        }

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def summary(self) -> str:
        """Return three lines for a person: what ran, who answered, how accurate."""
        # In several rounds, or with several shares, who was late may have answered as well.
        both = [rank for rank in self.stragglers if rank in self.responders]
        late = ", ".join(str(rank) for rank in self.stragglers if rank not in both) or "none"
        late += f"; late at times: {', '.join(map(str, both))}" if both else ""
        gone = ", ".join(map(str, sorted(set(self.lost) - set(self.wrong)))) or "none"
        wrong = f"; wrong: {', '.join(map(str, self.wrong))}" if self.wrong else ""
        estimate = "unknown" if self.error_estimate is None else f"{self.error_estimate:.1e}"
        if self.error_estimate == 0.0:
            estimate = "exact"
        return (
            f"{self.operation} by code {self.code} (grid {self.grid}), "
            f"needs {self.suffices}: {self.reason}\n"
            f"answered: ranks {', '.join(map(str, self.responders))}; late: {late}; lost: {gone}"
            f"{wrong}\n"
            f"time {self.times.get('total', 0.0):.3f} s, after the last needed reply "
            f"{self.times.get('after_threshold', 0.0) * 1e3:.1f} ms; "
            f"error estimate {estimate}; verified: {self.verified}"
        )
