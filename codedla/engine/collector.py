"""The collector: a state machine that turns replies and losses into instructions.

It does no I/O and reads no clock. A pool feeds it events and does what it answers. Late, duplicate
and cancelled replies are legal events. Whether the replies suffice is the code's decision; whether
they suffice *accurately* is decided here, by the amplification of the survivor set:
``alpha(S) * eps`` above the tolerance means waiting for one more worker while any is outstanding.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from codedla.codes.base import Code
from codedla.errors import NotDecodable, WorkerError

__all__ = ["Collector", "Instruction"]


class Instruction(enum.Enum):
    """What the pool has to do after an event."""

    WAIT = "wait"
    """Nothing to decode from this event; go on."""
    FOLD = "fold"
    """Hand the reply to the decoder and go on."""
    FINISH = "finish"
    """Hand the reply (if any) to the decoder and finish."""
    DROP = "drop"
    """Late, duplicate or unknown: forget the reply."""
    FAIL = "fail"
    """The round cannot be completed; raise :meth:`Collector.failure`."""


class Collector:
    """Collect the replies of one round.

    Parameters
    ----------
    code : Code
        Says which survivor sets decode.
    eps : float
        Unit roundoff of the replies' dtype; 0 for exact arithmetic, which switches the guard off.
    tolerance : float
        Largest acceptable ``alpha(S) * eps``.
    workers : iterable of int, optional
        Workers that were given a task; all of the code's workers by default.
    """

    def __init__(
        self,
        code: Code,
        *,
        eps: float,
        tolerance: float,
        workers: Iterable[int] | None = None,
    ) -> None:
        self.code = code
        self.eps = eps
        self.tolerance = tolerance
        self.outstanding = set(range(code.n_workers) if workers is None else workers)
        self.responders: list[int] = []
        self.lost_workers: dict[int, str] = {}
        self.finished = False
        self.waited_for_accuracy = 0
        self.alpha: float | None = None
        # Fewer replies than this never decode, whoever they are from: asked before the code is.
        self._fewest = code.needs(code.grid)
        self._decodable = False
        self._error: WorkerError | None = None
        self._timed_out = False

    @property
    def needed(self) -> int:
        """Replies that suffice, for a progress display."""
        return self.code.threshold

    def reply(self, worker: int) -> Instruction:
        """Record worker ``worker``'s complete reply."""
        if self.finished or worker not in self.outstanding:
            return Instruction.DROP
        self.outstanding.discard(worker)
        self.responders.append(worker)
        if not self._decodable and len(self.responders) >= self._fewest:
            self._decodable = self.code.decodable(self.responders)
        if not self._decodable:
            return Instruction.FOLD if self.outstanding else self._fail()
        if self._accurate() or not self.outstanding:
            return self._finish()
        self.waited_for_accuracy += 1
        return Instruction.FOLD

    def extra(self, worker: int) -> None:
        """Record a reply that was already being received when the round finished: it is used."""
        if worker in self.outstanding:
            self.outstanding.discard(worker)
            self.responders.append(worker)
            self.alpha = None

    def lost(self, worker: int, reason: str) -> Instruction:
        """Record that ``worker`` will never reply (dead, out of memory, given up)."""
        if self.finished or worker not in self.outstanding:
            return Instruction.DROP
        self.outstanding.discard(worker)
        self.lost_workers[worker] = reason
        if self._decodable:
            return Instruction.WAIT if self.outstanding else self._finish()
        if self.code.decodable([*self.responders, *self.outstanding]):
            return Instruction.WAIT
        return self._fail()

    def error(self, worker: int, error: WorkerError) -> Instruction:
        """Record an exception raised by the task itself: a fault of the program, not of a rank."""
        if self.finished or worker not in self.outstanding:
            return Instruction.DROP
        self.outstanding.discard(worker)
        self.lost_workers[worker] = "raised an exception"
        self._error = error
        return self._fail()

    def deadline(self) -> Instruction:
        """Record that the caller's time is over: finish with what is there, or fail."""
        if self.finished:
            return Instruction.DROP
        if self._decodable:
            return self._finish()
        self._timed_out = True
        return self._fail()

    def failure(self) -> NotDecodable | WorkerError:
        """Build the exception that explains a ``FAIL``."""
        if self._error is not None:
            return self._error
        have, need = len(self.responders), self.code.threshold
        reason = "the time-out passed" if self._timed_out else "too many workers were lost"
        lost = ", ".join(f"rank {w + 1} ({why})" for w, why in sorted(self.lost_workers.items()))
        late = ", ".join(f"rank {w + 1}" for w in sorted(self.outstanding))
        details = "".join(
            [f"; lost: {lost}" if lost else "", f"; no reply yet: {late}" if late else ""]
        )
        return NotDecodable(
            f"code {self.code.name!r} needs {self.code.suffices}, "
            f"{have} arrived and {reason}{details}; tolerate more losses or use more workers",
            have=self.responders,
            need=need,
        )

    def _accurate(self) -> bool:
        if self.eps == 0.0:
            return True
        self.alpha = self.code.amplification(self.responders)
        return self.alpha * self.eps <= self.tolerance

    def _finish(self) -> Instruction:
        self.finished = True
        return Instruction.FINISH

    def _fail(self) -> Instruction:
        self.finished = True
        return Instruction.FAIL
