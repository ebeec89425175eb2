"""Hold back Python's signal handlers while the protocol must not be torn apart.

A handler may raise (Ctrl-C does) between any two instructions: after an order was sent, say, and
before it was noted. The pool would then disagree with its workers for ever. So handlers wait until
the master has reached a point where it may stop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # known to Python, not to type checkers
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Postponed"]

_NUMBERS = tuple(int(number) for number in signal.valid_signals())
# The module signal turns every number into an enumeration and back: for sixty of them that takes
# longer than the messages of a small round. What it is made of does not.
_getsignal: Callable[[int], Any] = _signal.getsignal
_set: Callable[[int, Any], Any] = _signal.signal


class Postponed:
    """Context in which signals are noted; their handlers run in :meth:`deliver` and at the end.

    Only handlers written in Python wait, and only in the main thread, where alone they ever run.
    Not for nested use.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._caught: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> Postponed:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                handler = _getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _set(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()
        self.deliver()

    def deliver(self) -> None:
        """Run the handlers of the signals that have arrived; one may raise."""
        while self._caught:
            number, frame = self._caught.pop(0)
            self._handlers[number](number, frame)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let handlers run at once inside the block, for instance in a caller's function."""
        handlers = dict(self._handlers)
        self._restore()
        try:
            self.deliver()
            yield
        finally:
            for number in handlers:
                _set(number, self._note)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            _set(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._caught.append((number, frame))
