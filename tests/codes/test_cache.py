"""The memory of survivor sets: bounded, and the least recently used goes first."""

from __future__ import annotations

import sys
import threading

from codedla.codes.cache import Recent


def test_the_least_recently_used_goes_first() -> None:
    recent: Recent[str] = Recent(2)
    recent.put((0, 1), "a")
    recent.put((0, 2), "b")
    assert recent.get((0, 1)) == "a"
    recent.put((1, 2), "c")
    assert recent.get((0, 2)) is None
    assert (recent.get((0, 1)), recent.get((1, 2)), len(recent)) == ("a", "c", 2)


def test_large_values_get_less_room_but_always_one() -> None:
    recent: Recent[str] = Recent(4)
    for key in range(4):
        recent.put(key, "small")
    recent.put(4, "large", room=2)
    assert (len(recent), recent.get(3), recent.get(4)) == (2, "small", "large")
    recent.put(5, "huge", room=0)
    assert (len(recent), recent.get(5)) == (1, "huge")
    recent.put(6, "small", room=100)
    for key in range(7, 12):
        recent.put(key, "small", room=100)
    assert len(recent) == 4


def test_threads_may_share_it() -> None:
    recent: Recent[int] = Recent(1)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for number in range(3000):
                recent.put((seed, number % 3), number + 1)
                recent.get((1 - seed, number % 3))
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    assert len(recent) <= 1


def test_cleared_it_is_empty() -> None:
    recent: Recent[str] = Recent(2)
    recent.put(1, "a")
    recent.clear()
    assert (len(recent), recent.get(1)) == (0, None)
