"""How a rank waits for messages without taking the core from the rank it waits for."""

from __future__ import annotations

import os
import time

__all__ = ["Backoff"]


class Backoff:
    """Wait politely: look a few times if nobody else wants the core, then sleep ever longer.

    Busy ranks would take the core from the rank they wait for. Giving it up between two looks is no
    way out where others compute: the scheduler lets each of them have its turn first, which takes
    milliseconds, while a rank that sleeps gets the core back soon after it wakes up. So how long it
    takes to get it back is watched, and where that is longer than a short sleep, sleeps are all
    there is, but for a try now and then.

    Parameters
    ----------
    longest : float
        Longest sleep in seconds.
    """

    SPINS = 40
    SHORTEST = 20e-6
    SHARED = 20e-6
    """Seconds until a core that was given up is there again which are short in any case."""
    RARELY = 4096
    """Waits, at most, from one try to the next."""

    # Of this process, as it is one and the same core: waits from a try to the next, those that are
    # left until the next, seconds that the shortest sleep takes in truth.
    _pause_of_tries = _until_try = 0
    _nap = SHARED

    def __init__(self, longest: float = 1e-3) -> None:
        self.longest = longest
        self._misses = 0
        self._pause = self.SHORTEST

    def reset(self) -> None:
        """Something happened: be alert again."""
        self._misses = 0
        self._pause = self.SHORTEST

    def wait(self, *, moving: bool = False) -> bool:
        """Nothing happened: yield or sleep; return whether it was a sleep.

        Parameters
        ----------
        moving : bool
            A large message is under way. It may travel piece by piece (a strided one does), and
            each piece waits until both ends look: 64 MB took 1.3 s with the longest sleeps.
        """
        self._misses += 1
        if moving:
            self._pause = self.SHORTEST
        if self._misses <= self.SPINS and self._free():
            return False
        began = time.perf_counter()
        time.sleep(self._pause)
        if self._pause == self.SHORTEST:
            Backoff._nap += (time.perf_counter() - began - Backoff._nap) / 8
        self._pause = min(self._pause * 1.3, self.longest)
        return True

    @staticmethod
    def _free() -> bool:
        """Give up the core unless others are known to want it; return whether it was free."""
        if Backoff._until_try > 0:
            Backoff._until_try -= 1
            return False
        began = time.perf_counter()
        os.sched_yield()
        if time.perf_counter() - began < max(Backoff.SHARED, Backoff._nap):
            Backoff._pause_of_tries = 0
        else:
            Backoff._pause_of_tries = min(2 * Backoff._pause_of_tries + 16, Backoff.RARELY)
            Backoff._until_try = Backoff._pause_of_tries
        return True
