"""Signs of life of the master's own, also while there is no product."""

from __future__ import annotations

import threading
from collections.abc import Callable

from codedla.mpi.watch import BEAT

__all__ = ["Beats"]


class Beats:
    """A thread that lets the master give signs of life between its sessions.

    Parameters
    ----------
    turn : lock
        Held by whoever uses the lines.
    beat : callable
        Gives the signs; called with the lock held.
    """

    def __init__(self, turn: threading.RLock, beat: Callable[[], None]) -> None:
        self._turn, self._beat = turn, beat
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="codedla-beats", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the thread end; does not wait for it."""
        self._ended.set()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    def check(self) -> None:
        """Raise here what went wrong between two sessions, where nobody would hear of it."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        pause = BEAT / 50  # soon at first: a worker that was never told cannot miss it
        while not self._ended.wait(pause):
            if not self._turn.acquire(blocking=False):
                continue  # a session is under way, which has pings of its own
            pause = BEAT
            try:
                self._beat()
            except Exception as error:
                self._error = error
                return
            finally:
                self._turn.release()
