"""Run what cannot be cut into panels, and listen to the master meanwhile.

A worker that computes without a pause for seconds would be taken for frozen. So the computation
goes on a thread of its own, while the calling thread goes on asking whether the result is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["CarryOn", "always", "attend"]

_SHORTEST, _LONGEST = 2e-4, 1e-2


class CarryOn(Protocol):
    """``carry_on()`` tells between two panels whether to go on with the next.

    ``carry_on(False)`` is asked in the middle of one.
    """

    def __call__(self, between: bool = True, /) -> bool:
        """Tell whether to go on."""
        ...


def always(between: bool = True, /) -> bool:
    """Go on whatever happens: nobody has to be listened to."""
    return True


_unfinished: threading.Thread | None = None


def attend(task: Callable[[], Any], carry_on: CarryOn = always) -> list[Any]:
    """Call ``task()``, and meanwhile ``carry_on(False)`` every few milliseconds.

    Parameters
    ----------
    task : callable
        Without arguments. What it raises is raised here.
    carry_on : callable

    Returns
    -------
    list
        The result as its one element; empty when ``carry_on`` said no. The task cannot be stopped
        then, and ends by itself; the next one begins only afterwards.
    """
    global _unfinished
    if carry_on is always:
        return [task()]
    if _unfinished is not None:
        if not _wait(_unfinished, carry_on):
            return []
        _unfinished = None
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(task())
        except BaseException as error:  # raised again where somebody hears of it
            errors.append(error)

    thread = threading.Thread(target=run, name="codedla-task", daemon=True)
    thread.start()
    if not _wait(thread, carry_on):
        _unfinished = thread
        return []
    if errors:
        raise errors[0]
    return results


def _wait(thread: threading.Thread, carry_on: CarryOn) -> bool:
    """Wait for a thread while ``carry_on`` says yes; return whether it has ended."""
    pause = _SHORTEST
    thread.join(pause)
    while thread.is_alive():
        if not carry_on(False):
            return False
        pause = min(1.5 * pause, _LONGEST)
        thread.join(pause)
    return True
