"""The collector: a state machine that turns replies and losses into instructions.

It does no I/O and has no clock. A pool feeds it events and does what it answers. Late, duplicate
and cancelled replies are legal events. Whether the replies suffice is the code's decision; whether
they suffice *accurately* is decided here, by the amplification of the survivor set:
``alpha(S) * eps`` above the tolerance means waiting for one more worker while any is outstanding.

Every share has its home on one worker, which computes its shares in ascending order. When so many
workers are lost that the shares still under way cannot decode, the missing ones are put on
:attr:`Collector.queue`, and :meth:`Collector.next` hands them to whoever is free. So a round fails
only when no worker is left. With *speculation*, a share whose worker is late is treated alike, once
and while somebody is idle; its own worker goes on, and whoever answers first counts. For that the
pool lends its clock.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from codedla.codes.base import Code
from codedla.engine.speculation import Speculation
from codedla.errors import NotDecodable, WorkerError

__all__ = ["Collector", "Instruction"]

_FEW = 32
"""Shares to be computed again of which each is tried without; of more, a few may be superfluous."""


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
    REDISPATCH = "redispatch"
    """Shares wait on the queue: ask :meth:`Collector.next` for every worker that is free."""
    FAIL = "fail"
    """The round cannot be completed; raise :meth:`Collector.failure`."""


class Collector:
    """Collect the replies of one round.

    Parameters
    ----------
    code : Code
        Says which survivor sets decode.
    eps : float
        Machine epsilon of the replies' dtype; 0 for exact arithmetic, which switches the guard off.
    tolerance : float
        Largest acceptable ``alpha(S) * eps``.
    shares : iterable of int, optional
        Shares to be computed; all that the code has by default.
    workers : iterable of int, optional
        Workers that may compute, the shares' homes among them; by default the homes alone.
    agree : callable, optional
        Told the shares whose replies decode; tells whether they are enough, or whether one more is
        to be waited for while there is any.
    speculate : bool
        Give shares of late workers to idle ones, too; always done for codes that count on it
        (:attr:`Code.speculative`), never where no worker may see the share of another. Needs
        :meth:`lend`.

    Attributes
    ----------
    responders : list of int
        Shares whose replies have come, in that order.
    computed_by : dict of int to int
        The worker that each of these replies is from.
    queue : list of int
        Lost shares that are needed and wait for a free worker.
    lost_workers, silent_workers : dict of int to str
        Workers that will not reply in this round, or give no sign of life at present; and why.
    wrong : list of int
        Workers that were lost because they answered wrongly.
    redispatched : list of int
        Shares that were put on the queue.
    speculated : list of int
        Those of them whose worker was only late.
    """

    def __init__(
        self,
        code: Code,
        *,
        eps: float,
        tolerance: float,
        shares: Iterable[int] | None = None,
        workers: Iterable[int] | None = None,
        agree: Callable[[Sequence[int]], bool] | None = None,
        speculate: bool = False,
    ) -> None:
        self.code = code
        self._speculates = (speculate or code.speculative) and not any(code.masks)
        self._speculation: Speculation | None = None
        self._agree = agree
        self.eps = eps
        self.tolerance = tolerance
        self._wanted = set(code.shares if shares is None else shares)
        self._unsent: dict[int, deque[int]] = defaultdict(deque)
        for share in sorted(self._wanted):
            self._unsent[code.home(share)].append(share)
        self._hopeless: set[int] = set()
        self._tasks: dict[int, int] = {}
        self.workers = set(self._unsent if workers is None else workers)
        self.queue: list[int] = []
        self.responders: list[int] = []
        self.computed_by: dict[int, int] = {}
        self.lost_workers: dict[int, str] = {}
        self.silent_workers: dict[int, str] = {}
        self.wrong: list[int] = []
        self.redispatched: list[int] = []
        self.speculated: list[int] = []
        self._copied: set[int] = set()
        self.finished = False
        self.waited_for_accuracy = 0
        self.alpha: float | None = None
        self._suffice = code.watch()
        self._decodable = False
        self._error: WorkerError | None = None
        self._timed_out = False

    @property
    def needed(self) -> int:
        """Replies that suffice, for a progress display."""
        return self.code.threshold

    @property
    def outstanding(self) -> set[int]:
        """Shares whose reply may be hoped for: not there yet, and not lost."""
        return self._wanted - self._hopeless

    @property
    def stragglers(self) -> set[int]:
        """Workers whose reply was hoped for when the round ended.

        Where workers have several shares, those that had not answered a single one.
        """
        late = {*self._tasks, *(w for w in self._unsent if self._own(w) is not None)}
        for share in self.speculated:
            # Its own worker was late; whoever had a copy too many was not.
            late -= {w for w, task in self._tasks.items() if task == share}
            late |= {self.code.home(share)} - set(self.computed_by.values())
        if self.code.load > 1:
            late.difference_update(self.computed_by.values())
        return {worker for worker in late if self._living(worker)}

    def lacks(self, share: int) -> bool:
        """Tell whether there is no reply to this share, also after the round's end."""
        return share in self._wanted

    @property
    def living(self) -> bool:
        """Whether any worker is left that gives signs of life."""
        return any(self._living(worker) for worker in self.workers)

    @property
    def stuck(self) -> bool:
        """Whether nobody but a silent worker that wakes up could complete the round."""
        if not self.living:
            return True
        if not any(self.code.masks) or self._decodable:
            return False
        return not self.code.decodable([*self.responders, *self.outstanding])

    def wants(self, share: int) -> bool:
        """Tell whether a reply to this share would be used."""
        return not self.finished and share in self._wanted

    # -- orders --------------------------------------------------------------------------------

    def next(self, worker: int, prefers: Callable[[int], bool] | None = None) -> int | None:
        """Return the share that a free worker is to compute now, or None.

        Parameters
        ----------
        worker : int
        prefers : callable, optional
            Which shares of the queue suit this worker best, for instance because it holds them.
        """
        if self.finished or not self._living(worker):
            return None
        share = self._own(worker)
        if share is not None:
            if share in self.queue:
                self.queue.remove(share)
        elif self.queue:
            suited = [s for s in self.queue if prefers(s)] if prefers is not None else []
            share = suited[0] if suited else self.queue[0]
            self.queue.remove(share)
        if share is not None:
            self._send(share)
            self._hopeless.discard(share)
            self._tasks[worker] = share
            if share in self.speculated and worker != self.code.home(share):
                self._copied.add(share)
            if self._speculation is not None:
                self._speculation.began(worker)
        return share

    def has_more(self, worker: int) -> bool:
        """Tell whether a share that has its home on this worker was ordered of nobody yet."""
        return not self.finished and self._living(worker) and self._own(worker) is not None

    def _own(self, worker: int) -> int | None:
        """The next share that has its home on this worker and was ordered of nobody yet."""
        unsent = self._unsent[worker]
        return unsent[0] if unsent else None

    def _send(self, share: int) -> None:
        """Take a share from those that were ordered of nobody."""
        unsent = self._unsent[self.code.home(share)]
        if share in unsent:
            unsent.remove(share)

    # -- speculation ---------------------------------------------------------------------------

    def lend(self, clock: Callable[[], float]) -> None:
        """Let speculation, if there is any, read a clock; the round begins now."""
        if self._speculates:
            owing = [worker for worker in sorted(self._unsent) if self._unsent[worker]]
            self._speculation = Speculation(clock, self.needed, owing)

    def speculate(self) -> Instruction:
        """Put shares on the queue that are needed and whose workers are late.

        To be asked after every event and whenever time has passed, for instance at :meth:`due`.
        As many as make the round complete if nobody else is late, but not more than there are idle
        workers, and no share twice.
        """
        policy = self._speculation
        if policy is None or self.finished or self._decodable:
            return Instruction.WAIT
        late = {worker for worker in policy.late() if self._living(worker)}
        owed = {share for worker in late for share in self._owed(worker)}
        owed -= self._copied.union(self.queue)
        idle = len(self._idle()) - len(self.queue) if owed else 0
        if idle < 1:
            return Instruction.WAIT
        promised = {*self.responders, *self.queue}
        for worker in self._owing() - late:
            promised.update(self._owed(worker))
        if self.code.decodable(promised):
            return Instruction.WAIT
        fresh = self._fewest_of(sorted(owed - promised), sorted(promised))[:idle]
        self.queue.extend(fresh)
        for told in (self.redispatched, self.speculated):
            told.extend(share for share in fresh if share not in told)
        return Instruction.REDISPATCH if fresh else Instruction.WAIT

    def due(self) -> float:
        """Return when somebody else will be late, by the lent clock; infinite if nobody will."""
        policy = self._speculation
        if policy is None or self.finished or self._decodable:
            return math.inf
        return policy.due()

    def _owed(self, worker: int) -> set[int]:
        """Shares that are wanted and that this worker computes or is to compute next."""
        task = self._tasks.get(worker)
        return {s for s in (task, *self._unsent[worker]) if s is not None} & self._wanted

    def _owing(self) -> set[int]:
        """Living workers that are to compute something."""
        return {w for w in self.workers if self._living(w) and self._owed(w)}

    def _idle(self) -> set[int]:
        """Living workers that have nothing to do."""
        return {w for w in self.workers if self._living(w) and not self._owed(w)}

    # -- events --------------------------------------------------------------------------------

    def reply(self, share: int, worker: int | None = None) -> Instruction:
        """Record the complete reply to ``share``, from its home unless said otherwise."""
        worker = self.code.home(share) if worker is None else worker
        self._free(worker, share)
        was_silent = self._wake(worker)
        if self.finished or worker in self.wrong:
            return Instruction.DROP
        if share not in self._wanted:
            # Too late, but whoever answers can be given something else.
            return self._reconsider() if was_silent and not self._decodable else Instruction.DROP
        self._take(share, worker)
        self._decodable = self._decodable or self._suffice(share)
        if not self._decodable:
            if self._hopeful:
                return Instruction.FOLD
            # Hope rested on silent workers alone.
            instruction = self._reconsider()
            return instruction if instruction is Instruction.FAIL else Instruction.FOLD
        self._hopeless.update(s for s in self.queue if not self._in_hand(s))
        self.queue.clear()
        accurate = self._accurate()
        if not self._hopeful:
            return self._finish()
        if not accurate:
            self.waited_for_accuracy += 1
            return Instruction.FOLD
        if self._agree is not None and not self._agree(self.responders):
            return Instruction.FOLD
        return self._finish()

    def extra(self, share: int, worker: int | None = None) -> bool:
        """Record a reply that was being received when the round finished; tell if it is used."""
        worker = self.code.home(share) if worker is None else worker
        self._free(worker, share)
        if share not in self._wanted or worker in self.wrong:
            return False
        self._take(share, worker)
        self.alpha = None
        return True

    def lost(self, worker: int, reason: str) -> Instruction:
        """Record that ``worker`` will not reply (dead, out of memory, given up)."""
        if self.finished or worker not in self.workers or worker in self.lost_workers:
            return Instruction.DROP
        self.silent_workers.pop(worker, None)
        self.lost_workers[worker] = reason
        return self._without(worker)

    def silent(self, worker: int, reason: str) -> Instruction:
        """Record that ``worker`` gives no sign of life; a reply is still welcome."""
        if self.finished or not self._living(worker):
            return Instruction.DROP
        self.silent_workers[worker] = reason
        return self._without(worker)

    def back(self, worker: int) -> Instruction:
        """Record a sign of life of a silent worker."""
        if self.finished or not self._wake(worker):
            return Instruction.DROP
        return Instruction.WAIT if self._decodable else self._reconsider()

    def refuse(self, share: int, worker: int, reason: str) -> Instruction:
        """Record that ``worker`` answered wrongly: nothing more of it is used in this round."""
        self._free(worker, share)
        if worker in self.workers and worker not in self.wrong:
            self.wrong.append(worker)
        if self.finished or worker not in self.workers or worker in self.lost_workers:
            return Instruction.DROP
        self.silent_workers.pop(worker, None)
        self.lost_workers[worker] = reason
        return self._without(worker, share)

    def exclude(self, share: int, reason: str) -> int:
        """Take back a reply that turned out to be wrong after the round; return whose it was."""
        worker = self.computed_by.pop(share)
        self.responders.remove(share)
        self.alpha = None
        if worker not in self.wrong:
            self.wrong.append(worker)
        self.lost_workers.setdefault(worker, reason)
        return worker

    def error(self, worker: int, error: WorkerError) -> Instruction:
        """Record an exception raised by the task itself: a fault of the program, not of a rank."""
        if self.finished or worker not in self.workers or worker in self.lost_workers:
            return Instruction.DROP
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
        reason, cure = "no worker is left", "look after these ranks, or start again"
        if self._timed_out:
            reason, cure = "the time-out passed", "allow more time, or tolerate more late workers"
        elif any(self.code.masks) and self.living:
            reason = "no worker may see the share of another"
            cure = "start again with more workers, or tolerate more losses"
        away = {**self.lost_workers, **self.silent_workers}
        lost = ", ".join(f"rank {w + 1} ({why})" for w, why in sorted(away.items()))
        late = ", ".join(f"rank {w + 1}" for w in sorted(self.stragglers))
        details = "".join(
            [f"; lost: {lost}" if lost else "", f"; no reply yet: {late}" if late else ""]
        )
        return NotDecodable(
            f"code {self.code.name!r} needs {self.code.suffices} (threshold {need}), "
            f"{have} arrived and {reason}{details}; {cure}",
            have=self.responders,
            need=need,
        )

    # -- how events are judged -----------------------------------------------------------------

    def _living(self, worker: int) -> bool:
        return (
            worker in self.workers
            and worker not in self.lost_workers
            and worker not in self.silent_workers
        )

    @property
    def _hopeful(self) -> bool:
        return len(self._wanted) > len(self._hopeless)

    def _being_computed(self, share: int) -> bool:
        """Tell whether a living worker computes this share."""
        return any(s == share and self._living(w) for w, s in self._tasks.items())

    def _in_hand(self, share: int) -> bool:
        """Tell whether a living worker computes this share, or its own worker is going to."""
        home = self.code.home(share)
        return self._being_computed(share) or (self._living(home) and share in self._unsent[home])

    def _wake(self, worker: int) -> bool:
        """Hope again for the shares of a silent worker; return whether it was one."""
        if self.silent_workers.pop(worker, None) is None:
            return False
        task = self._tasks.get(worker)
        for share in [*self._unsent[worker], task]:
            if share is not None and share in self._wanted:
                self._hopeless.discard(share)
                if share == task and share in self.queue:
                    self.queue.remove(share)
        return True

    def _free(self, worker: int, share: int) -> None:
        if self._tasks.get(worker) == share:
            del self._tasks[worker]

    def _take(self, share: int, worker: int) -> None:
        self._wanted.discard(share)
        self._hopeless.discard(share)
        self._send(share)
        if self._speculation is not None:
            self._speculation.ended(worker, more=bool(self._unsent[worker]))
        if share in self.queue:
            self.queue.remove(share)
        self.responders.append(share)
        self.computed_by[share] = worker

    def _without(self, worker: int, *shares: int) -> Instruction:
        """Judge the round anew when a worker, and its claim to some shares, is gone."""
        mine = {*shares, self._tasks.get(worker), *self._unsent[worker]} - {None}
        if worker in self.lost_workers:
            self._tasks.pop(worker, None)
        for share in mine:
            if (
                share in self._wanted
                and share not in self.queue
                and not self._being_computed(share)
            ):
                self._hopeless.add(share)
        if self._decodable:
            return Instruction.WAIT if self._hopeful else self._finish()
        return self._reconsider()

    def _reconsider(self) -> Instruction:
        """Make sure that what is under way can decode, if need be by computing shares again."""
        if not self.living:
            # A silent worker may wake up; how long to wait for that is the pool's business.
            return Instruction.WAIT if self.silent_workers else self._fail()
        under_way = [*self.responders, *self.outstanding]
        if self.code.decodable(under_way):
            return Instruction.REDISPATCH if self.queue else Instruction.WAIT
        if any(self.code.masks):
            # A second share would show a worker more than it may see.
            return Instruction.WAIT if self.silent_workers else self._fail()
        again = self._fewest_of(sorted(self._hopeless), under_way)
        self._hopeless.difference_update(again)
        self.queue.extend(again)
        self.redispatched.extend(s for s in again if s not in self.redispatched)
        return Instruction.REDISPATCH

    def _fewest_of(self, shares: list[int], under_way: list[int]) -> list[int]:
        """Return a small part of the lost shares that decodes with what is under way."""
        if self.code.counts:
            # Any K shares decode.
            return shares[: self.code.threshold - len(under_way)]
        counts = range(len(shares) + 1)
        enough = bisect.bisect_left(
            counts, True, key=lambda count: self.code.decodable([*under_way, *shares[:count]])
        )
        kept = shares[:enough]
        for share in reversed(kept) if enough <= _FEW else ():
            rest = [s for s in kept if s != share]
            if self.code.decodable([*under_way, *rest]):
                kept = rest
        return kept

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
