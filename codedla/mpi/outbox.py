"""The message that quick rounds send to all workers, made once and sent again and again."""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from codedla.engine.quick import Quick
from codedla.mpi.link import Link
from codedla.mpi.wire import TAG_CONTROL, VOIDS_AT, Kind, Message, describe, describe_own

__all__ = ["Outbox", "Outboxes"]


class Outbox:
    """One message and a persistent request for every worker.

    Parameters
    ----------
    control : MPI.Comm
    links : sequence of Link
    job : Quick
        Of the kind of rounds that it is for.
    """

    def __init__(self, control: MPI.Comm, links: Sequence[Link], job: Quick) -> None:
        self.kind = _kind(job)
        message = Message(Kind.RUN, 0, job.x.reshape(-1).view("u1"))
        self._words = message.words
        self._words[4:7] = 2, True, False
        self._words[VOIDS_AT] = True
        describe_own(self._words, 0, job.first_key)
        describe(self._words, 1, 0, job.x)
        payload = message.buffer[message.words.nbytes :]
        self._x = payload.view(job.x.dtype).reshape(job.x.shape)
        self.requests = [
            control.Send_init([message.buffer, MPI.BYTE], link.rank, TAG_CONTROL) for link in links
        ]
        self._message = message

    def fill(self, job: Quick, key: int, number: int) -> None:
        """Write what is new in a round: its key, the number of its orders, the vector."""
        self._words[2], self._words[7] = key, number
        self._x[...] = job.x

    def idle(self) -> bool:
        """Tell whether everything that it has sent has left."""
        return all(request.Test() for request in self.requests)


class Outboxes:
    """A few of them: who is late may not even have taken the message before the last.

    Parameters
    ----------
    control : MPI.Comm
    links : sequence of Link
    """

    def __init__(self, control: MPI.Comm, links: Sequence[Link]) -> None:
        self._control, self._links = control, links
        self._boxes: list[Outbox] = []

    def get(self, job: Quick) -> Outbox:
        """Return one that is not in use."""
        kind = _kind(job)
        for at, box in enumerate(self._boxes):
            if box.kind == kind and box.idle():
                # Behind the others, which have had more time to be idle the next time.
                self._boxes.append(self._boxes.pop(at))
                return box
        self.free()
        self._boxes.append(Outbox(self._control, self._links, job))
        return self._boxes[-1]

    def leaving(self, link: Link) -> bool:
        """Tell whether a message to this worker has not left yet."""
        return not all(box.requests[link.worker].Test() for box in self._boxes)

    def free(self) -> None:
        """Free all that are idle."""
        busy = []
        for box in self._boxes:
            if not box.idle():
                busy.append(box)
                continue
            for request in box.requests:
                request.Free()
        self._boxes = busy


def _kind(job: Quick) -> tuple[int, tuple[int, ...], str]:
    return job.first_key, job.x.shape, job.x.dtype.str
