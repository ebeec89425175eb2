"""Where replies are received: in their place in the product, or in memory of their own.

A reply can stop half-way, with a frozen rank, and go on at any later time. So the memory that it is
being received into belongs to it until it is complete, whatever became of its round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.round import Round
from codedla.engine.schedule import Task
from codedla.engine.work import wrong_reply
from codedla.errors import WorkerError
from codedla.mpi.link import Link, Receipt
from codedla.mpi.wire import Answer, runs_of_rows

__all__ = ["Reception", "check_reply"]

STOPPED = 4.0
"""Times as long as replies of its size take, after which one is no more waited for. Wrongly given
up, it costs a copy of the product."""
_SIZE = 1 << 20
"""Bytes below which the size does not count."""
_WEIGHT = 0.125
"""Of the newest reply in the mean."""
LEAST_SECONDS = 0.05
"""Which no reply needs to arrive that moves at all, however small."""


class Reception:
    """Choose memory for the replies of all workers.

    Parameters
    ----------
    links : sequence of Link
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._scratch: dict[int, NDArray[np.uint8]] = {}
        # Seconds that a byte takes to arrive: a mean of all replies, the last ones above all.
        self._pace = 0.0

    def _pending(self) -> Iterator[tuple[Link, Receipt]]:
        for link in self._links:
            if link.gone is None:
                for receipt in link.receipts:
                    yield link, receipt

    def arriving(self, output: NDArray[Any], *, before: int | None = None) -> list[Link]:
        """Return the workers whose replies are being received into this memory.

        Parameters
        ----------
        output : ndarray
        before : int, optional
            Look only at the rounds with smaller keys.
        """
        return [
            link
            for link, receipt in self._pending()
            if (before is None or receipt.given.task.key < before)
            and np.may_share_memory(receipt.buffer, output)
        ]

    def arriving_for(self, key: int) -> bool:
        """Tell whether a reply of a round is being received in its place."""
        return any(r.placed and r.given.task.key == key for _, r in self._pending())

    def note(self, receipt: Receipt) -> None:
        """Remember how long a reply has taken to arrive."""
        pace = (time.perf_counter() - receipt.began) / max(receipt.buffer.nbytes, _SIZE)
        self._pace += (pace - self._pace) * (_WEIGHT if self._pace else 1.0)

    def stopped(self, key: int) -> bool:
        """Tell whether all replies of a round that are being received seem to have stopped."""
        now, pace = time.perf_counter(), STOPPED * self._pace
        if not pace:
            return False
        return all(
            now - r.began > max(pace * max(r.buffer.nbytes, _SIZE), LEAST_SECONDS)
            for _, r in self._pending()
            if r.placed and r.given.task.key == key
        )

    def rival(self, link: Link, task: Task) -> Link | None:
        """Return the worker whose reply to the same share is being received in its place."""
        for other, receipt in self._pending():
            if other is not link and receipt.placed and receipt.given.task == task:
                return other
        return None

    def place(self, job: Round, link: Link, task: Task, answer: Answer) -> NDArray[Any] | None:
        """Return the decoder's own memory for a reply, or None where only scratch memory will do.

        That is also where a reply of a wrong shape or dtype goes, as it is on its way already.
        """
        share, collector = task.share, job.collector
        taken = share in collector.redispatched and self.rival(link, task) is not None
        if taken or not collector.wants(share):
            return None
        target = job.decoder.target(share)
        if (target.shape, target.dtype) != (answer.shape, answer.dtype):
            return None
        # What the caller lent goes back when the round is over, with the reply complete or not.
        lent = job.borrowed and np.may_share_memory(target, job.decoder.output)
        return None if lent or not runs_of_rows(target) else target

    def scratch(self, link: Link, answer: Answer) -> NDArray[Any]:
        """Return memory for a reply that has no place; kept per worker and reused."""
        size = int(np.prod(answer.shape)) * answer.dtype.itemsize
        held = self._scratch.get(link.worker)
        used = held is not None and any(np.may_share_memory(held, r.buffer) for r in link.receipts)
        if held is None or held.size < size or used:
            held = self._scratch[link.worker] = np.empty(size, np.uint8)
        return held[:size].view(answer.dtype).reshape(answer.shape)


def check_reply(job: Round, link: Link, answer: Answer, target: NDArray[Any]) -> None:
    """Refuse a reply of another shape or dtype than is due.

    Raises
    ------
    WorkerError
        The caller's function has returned it.
    RuntimeError
        The ranks disagree about the plan.
    """
    if target.shape != answer.shape or target.dtype != answer.dtype:
        if job.function is not None:
            text = wrong_reply(answer.shape, answer.dtype, target)
            host = link.host or "unknown host"
            raise WorkerError(f"TypeError: {text}", rank=link.rank, host=host, traceback="")
        raise RuntimeError(
            f"rank {link.rank} replied {answer.dtype} {answer.shape}, "
            f"{target.dtype} {target.shape} was due"
        )
