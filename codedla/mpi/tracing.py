"""Note what takes how long on which rank, on the master's clock, for the time line of a round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from codedla.engine.round import Span
from codedla.mpi.link import Link, Running
from codedla.mpi.wire import Answer

__all__ = ["Tracer"]


class Tracer:
    """Collect the spans of one round.

    Parameters
    ----------
    running : Running
        The round; spans count from its start.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._sending: dict[int, float] = {}

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
        begin = self._running.start
        finish = time.perf_counter() if end is None else end
        spans = self._running.outcome.spans
        spans.append(Span(worker, kind, start - begin, max(finish, start) - begin, share, note))

    def ordered(self, link: Link, began: float, encoded: float) -> None:
        """Note the encoding of an order that is being sent from now on."""
        self.span(-1, "encode", began, encoded, share=link.share)
        self._sending[link.worker] = encoded

    def sent(self, link: Link) -> None:
        """Note that everything sent to a worker has left."""
        began = self._sending.pop(link.worker, None)
        if began is not None:
            self.span(-1, "send", began, share=link.share)

    def replied(self, link: Link, answer: Answer, share: int) -> None:
        """Note what a worker says that it did: receive its operands, compute panel by panel."""
        moments = [link.clock.here(mark) for mark in answer.marks]
        if moments:
            self.span(link.worker, "receive", min(link.asked, moments[0]), moments[0], share=share)
        for start, end in itertools.pairwise(moments):
            self.span(link.worker, "compute", start, end, share=share)

    def end(self, links: Iterable[Link], decided: float) -> None:
        """Note what was going on, or had stopped, when the replies sufficed."""
        collector = self._running.job.collector
        for link in links:
            if link.busy_round == self._running.round_id and link.gone is None:
                kind = "lost" if link.worker in collector.silent_workers else "compute"
                self.span(link.worker, kind, link.asked, share=link.share, note="not waited for")
        begin = self._running.start
        for event in list(self._running.outcome.events):
            if event.kind in ("lost", "wrong"):
                start = begin + event.seconds
                self.span(event.worker, "lost", start, max(start, decided), note=event.note)
