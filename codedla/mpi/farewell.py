"""The end of a pool: stop all workers, bounded in time."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Sequence

from codedla.mpi.lines import Lines
from codedla.mpi.link import Link
from codedla.mpi.wire import Kind, Message

__all__ = ["GRACE", "dismiss"]

logger = logging.getLogger("codedla")

GRACE = 2.0
"""Seconds that the shutdown waits for workers to say goodbye."""


def dismiss(lines: Lines, *, fault_tolerant: bool) -> bool:
    """Stop all workers; return whether everybody left cleanly.

    A worker in the middle of a panel hears of it within milliseconds. One that is frozen or swapped
    out is not waited for beyond :data:`GRACE`.

    Parameters
    ----------
    lines : Lines
    fault_tolerant : bool
        Whether killing a silent worker leaves the rest of the job alive.
    """
    links = lines.links
    for link in links:
        if link.gone is None:
            lines.order(link, Message(Kind.STOP))
    # Who is known to be frozen need not be waited for. What was not taken from an order's payload
    # by now never will be, and would keep MPI_Finalize waiting.
    lines.until(
        lambda: all(
            (k.said_bye and not lines.leaving(k)) or k.frozen or k.gone is not None for k in links
        ),
        GRACE,
    )
    silent = [k for k in links if not k.said_bye and k.gone is None]
    stuck = any(lines.leaving(k) for k in links if k.gone is None)
    lines.clean = lines.clean and not silent and not stuck
    for link in links:
        if link.gone is None:
            farewell = Message(Kind.LEAVE)
            farewell.words[4] = lines.clean
            lines.order(link, farewell)
    flushed = lines.until(
        lambda: not any(k.sends for k in links if k.said_bye and k.gone is None), GRACE
    )
    lines.clean = lines.clean and flushed
    if lines.clean:
        lines.outboxes.free()
        lines.types.free()
    elif fault_tolerant:
        _kill(silent)
    return lines.clean


def _kill(silent: Sequence[Link]) -> None:
    """Kill silent workers on this host: a frozen one would keep the launcher waiting."""
    here = socket.gethostname()
    for link in silent:
        logger.warning("%s did not stop", link)
        if link.host == here and link.pid:
            try:
                os.kill(link.pid, signal.SIGKILL)
            except ProcessLookupError:
                logger.debug("rank %d had ended already", link.rank)
