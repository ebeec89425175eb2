"""A loop of matrix-vector rounds as one writes it by hand with mpi4py, to measure the product's by.

It sends the messages that a coded round needs, and does nothing else: the vector goes to every
worker, each multiplies its share of the rows and replies, and the round is over with the first
``needed`` replies. Buffers and receives are made once, calls are the upper-case ones, and a reply
carries the number of its round, so that late ones are told apart. Nothing is encoded, decoded or
checked, and nobody looks whether a rank is lost. Where ranks share cores, ones that wait in MPI's
blocking calls take them from those that compute (``wait="mpi"``); a loop that waits as the
product's ranks do (``wait="sleep"``) is the stronger opponent.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from mpi4py import MPI

from codedla.mpi.backoff import Backoff

TAG_VECTOR, TAG_REPLY = 1, 2
WAITS = ("sleep", "mpi")


def serve(comm: MPI.Comm, share: np.ndarray, wait: str) -> None:
    """Worker: multiply ``share`` by the vectors that come, until one of a negative round."""
    rows, length = share.shape
    vector, reply = np.empty(length + 1), np.zeros(rows + 1)
    receive = comm.Recv_init(vector, 0, TAG_VECTOR)
    send = comm.Send_init(reply, 0, TAG_REPLY)
    backoff, sending = Backoff(), False
    while True:
        receive.Start()
        _complete(receive, backoff, wait)
        if sending:
            _complete(send, backoff, wait)
        if vector[-1] < 0:
            return
        np.matmul(share, vector[:-1], out=reply[:-1])
        reply[-1] = vector[-1]
        send.Start()
        sending = True


def drive(
    comm: MPI.Comm, vectors: np.ndarray, rows: int, needed: int, rounds: int, wait: str
) -> tuple[list[float], np.ndarray]:
    """Master: return the seconds of every round, and who answered what in the last one.

    Returns
    -------
    seconds : list of float
    replies : ndarray (workers, rows)
        NaN where the last round did not wait for the reply.
    """
    workers = comm.Get_size() - 1
    inboxes = np.empty((workers, rows + 1))
    receives = [comm.Recv_init(inboxes[w], w + 1, TAG_REPLY) for w in range(workers)]
    for receive in receives:
        receive.Start()
    outboxes = [np.empty(vectors.shape[1] + 1) for _ in range(2)]
    sends: list[list[MPI.Request]] = [[], []]
    owed, seconds = [0] * workers, []
    replies = np.empty((workers, rows))
    backoff = Backoff()
    for number in range(rounds):
        began = time.perf_counter()
        outbox = outboxes[number % 2]
        for send in sends[number % 2]:
            _complete(send, backoff, wait)
        outbox[:-1], outbox[-1] = vectors[number % len(vectors)], number
        sends[number % 2] = [comm.Isend(outbox, w + 1, TAG_VECTOR) for w in range(workers)]
        owed = [count + 1 for count in owed]
        replies[:, 0], have = np.nan, 0
        while have < needed:
            for w in _some(receives, backoff, wait):
                owed[w] -= 1
                if inboxes[w, -1] == number:
                    replies[w] = inboxes[w, :-1]
                    have += 1
                receives[w].Start()
        seconds.append(time.perf_counter() - began)
    while any(owed):
        for w in _some(receives, backoff, wait):
            owed[w] -= 1
            receives[w].Start()
    for send in [*sends[0], *sends[1]]:
        _complete(send, backoff, wait)
    for w, receive in enumerate(receives):
        comm.Send(np.full(vectors.shape[1] + 1, -1.0), w + 1, TAG_VECTOR)
        receive.Cancel()
        receive.Wait()
    return seconds, replies


def _complete(request: MPI.Request, backoff: Backoff, wait: str) -> None:
    if wait == "mpi":
        request.Wait()
        return
    while not request.Test():
        backoff.wait()
    backoff.reset()


def _some(requests: list[Any], backoff: Backoff, wait: str) -> list[int]:
    if wait == "mpi":
        return MPI.Request.Waitsome(requests) or []
    while not (done := MPI.Request.Testsome(requests)):
        backoff.wait()
    backoff.reset()
    return done
