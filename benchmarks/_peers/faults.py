"""Faults from outside, the same for every peer: signals to one worker process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Seconds that a slow worker runs and is stopped, in turn: five times slower in all.
RUNS, STOPPED = 0.02, 0.08

Send = Callable[[int], None]


@dataclass(frozen=True)
class Moments:
    """When and for how long.

    Parameters
    ----------
    strike : float
        Seconds from the start of the product to the fault.
    pause : float
        Seconds that a paused worker is stopped.
    """

    strike: float
    pause: float


def _paused(moments: Moments, send: Send) -> Iterator[float]:
    yield moments.strike
    send(signal.SIGSTOP)
    yield moments.pause
    send(signal.SIGCONT)


def _slow(_: Moments, send: Send) -> Iterator[float]:
    while True:
        send(signal.SIGSTOP)
        yield STOPPED
        send(signal.SIGCONT)
        yield RUNS


def _killed(moments: Moments, send: Send) -> Iterator[float]:
    yield moments.strike
    send(signal.SIGKILL)


def _frozen(moments: Moments, send: Send) -> Iterator[float]:
    yield moments.strike
    send(signal.SIGSTOP)


#: Each yields how long to wait, and sends signals between.
FAULTS: dict[str, Callable[[Moments, Send], Iterator[float]]] = {
    "paused": _paused,
    "slow": _slow,
    "killed": _killed,
    "frozen": _frozen,
}


class Fault:
    """One fault under way, in a thread of its own.

    Parameters
    ----------
    kind : str
        A key of :data:`FAULTS`.
    moments : Moments
    pid : int
        The process that is struck.

    Attributes
    ----------
    struck : float or None
        When the first signal was sent, by ``time.monotonic``.
    """

    def __init__(self, kind: str, moments: Moments, pid: int) -> None:
        self.struck: float | None = None
        self._over = threading.Event()
        # A handle, so that a signal never reaches another process that got the same number.
        self._process = os.pidfd_open(pid)
        steps = FAULTS[kind](moments, self._send)
        self._thread = threading.Thread(target=self._follow, args=(steps,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send no more signals; what was stopped goes on."""
        self._over.set()
        self._thread.join()
        self._send(signal.SIGCONT)
        os.close(self._process)

    def _follow(self, steps: Iterator[float]) -> None:
        for seconds in steps:
            if self._over.wait(seconds):
                return

    def _send(self, number: int) -> None:
        moment = time.monotonic()
        try:
            signal.pidfd_send_signal(self._process, number)
        except ProcessLookupError:
            self._over.set()  # the worker has ended
            return
        if self.struck is None and not self._over.is_set():
            self.struck = moment
