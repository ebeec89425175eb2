"""Note what takes how long on which rank, on the master's clock, for the time line of a round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from codedla.engine.collector import Collector
from codedla.engine.round import Outcome, Span
from codedla.mpi.link import Given, Link
from codedla.mpi.wire import Answer

__all__ = ["Tracer"]


class Tracer:
    """Collect the spans of one round.

    Parameters
    ----------
    outcome : Outcome
        Of the round; spans count from when it began.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def span(
        self,
        worker: int,
        kind: str,
        start: float,
        end: float | None = None,
        *,
        share: int = -1,
        note: str = "",
    ) -> None:
        """Note a span; ``start`` and ``end`` (now by default) are moments of the master's clock."""
        begin = self._outcome.began
        finish = time.perf_counter() if end is None else end
        self._outcome.spans.append(
            Span(worker, kind, start - begin, max(finish, start) - begin, share, note)
        )

    def sent(self, given: Given) -> None:
        """Note that everything of an order has left."""
        self.span(-1, "send", given.encoded, share=given.task.share)

    def replied(self, link: Link, given: Given, answer: Answer) -> None:
        """Note what a worker says that it did: receive its operands, compute panel by panel."""
        share, moments = given.task.share, [link.clock.here(mark) for mark in answer.marks]
        if moments:
            # What was received while it still computed for an earlier order took no time.
            began = min(max(given.asked, link.computed), moments[0])
            self.span(link.worker, "receive", began, moments[0], share=share)
            link.computed = moments[-1]
        for start, end in itertools.pairwise(moments):
            self.span(link.worker, "compute", start, end, share=share)

    def end(self, links: Iterable[Link], collector: Collector, key: int, decided: float) -> None:
        """Note what was going on, or had stopped, when the replies sufficed."""
        for link in links:
            given = link.current()
            if given is not None and given.task.key == key and link.gone is None:
                kind = "lost" if link.worker in collector.silent_workers else "compute"
                began = max(given.asked, link.freed)
                share = given.task.share
                self.span(link.worker, kind, began, share=share, note="not waited for")
        begin = self._outcome.began
        for event in list(self._outcome.events):
            if event.kind in ("lost", "wrong"):
                start = begin + event.seconds
                self.span(event.worker, "lost", start, max(start, decided), note=event.note)
