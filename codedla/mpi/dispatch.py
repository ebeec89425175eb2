"""Send one order: encode what the worker does not hold yet, describe it, start the messages."""

from __future__ import annotations

import time
from typing import Any

from numpy.typing import NDArray

from codedla.engine.round import Operand
from codedla.engine.schedule import Task
from codedla.mpi import wire
from codedla.mpi.lines import Lines
from codedla.mpi.link import Given, Link
from codedla.mpi.running import Running
from codedla.mpi.wire import Kind, Message

__all__ = ["dispatch"]


def dispatch(lines: Lines, link: Link, running: Running, task: Task, *, trace: bool) -> None:
    """Order a share of a worker.

    Parameters
    ----------
    lines : Lines
    link : Link
        The worker; it may be lost by this.
    running : Running
        The round.
    task : Task
    trace : bool
        Whether the worker is to tell when it began and ended what.
    """
    began = time.perf_counter()
    message = Message(Kind.RUN, task.key)
    arrays: list[NDArray[Any]] = []
    operands = running.job.parcel(task.share)
    for position, operand in enumerate(operands):
        arrays += _describe(message, position, operand, link)
    encoded = time.perf_counter()
    size = sum(array.nbytes for array in arrays)
    inline = size <= wire.INLINE
    if inline:
        words = message.words
        message = Message(Kind.RUN, task.key, wire.pack(arrays))
        message.words[16:] = words[16:]
    link.given += 1
    message.words[4:8] = len(operands), inline, trace, link.given
    message.words[wire.WORK_AT] = running.job.operation.number
    sending = lines.order(link, message, [] if inline else arrays)
    # Only now: had a later operand failed to be encoded, nothing would have been sent.
    link.holds.update(operand.key for operand in operands if operand.key)
    if sending is None:
        return  # the worker is lost, and everybody was told
    given = Given(task, link.given, encoded, sending)
    link.orders.append(given)
    outcome = running.outcome
    outcome.encode += encoded - began
    outcome.send += given.asked - encoded
    outcome.sent += size
    if running.tracer is not None:
        running.tracer.span(-1, "encode", began, encoded, share=task.share)


def _describe(message: Message, position: int, operand: Operand, link: Link) -> list[NDArray[Any]]:
    matrix = None if operand.key in link.holds else operand.supply()
    return wire.describe(message.words, position, operand.key, matrix)
