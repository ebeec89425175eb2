"""Waiting politely: looks first, then sleeps, and never in the way of who computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from codedla.mpi import backoff
from codedla.mpi.backoff import Backoff


class Core:
    """A core with a clock of its own, which comes back some time after it was given up."""

    def __init__(self) -> None:
        self.now, self.away = 0.0, 0.0
        self.slept: list[float] = []
        self.yields = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def sched_yield(self) -> None:
        self.yields += 1
        self.now += self.away


@pytest.fixture
def core(monkeypatch):
    core = Core()
    time = SimpleNamespace(sleep=core.sleep, perf_counter=lambda: core.now)
    monkeypatch.setattr(backoff, "time", time)
    monkeypatch.setattr(backoff, "os", core)
    for name, value in (("_nap", Backoff.SHARED), ("_until_try", 0), ("_pause_of_tries", 0)):
        monkeypatch.setattr(Backoff, name, value)
    return core


def test_it_sleeps_ever_longer_and_starts_anew(core):
    waiting = Backoff(longest=5e-4)
    for _ in range(Backoff.SPINS):
        waiting.wait()
    assert (core.slept, core.yields) == ([], Backoff.SPINS)
    for _ in range(60):
        waiting.wait()
    assert core.slept == sorted(core.slept)
    assert (core.slept[0], core.slept[-1]) == (Backoff.SHORTEST, 5e-4)
    waiting.reset()
    waiting.wait()
    assert core.yields == Backoff.SPINS + 1


def test_it_gives_up_no_core_that_others_want(core):
    """It tries now and then whether they still do."""
    core.away = 4e-3
    for _ in range(20_000):
        Backoff().wait()
    assert 6 < core.yields < 20
    assert len(core.slept) == 20_000 - core.yields
    core.away = 1e-6
    for _ in range(2 * Backoff.RARELY):
        Backoff().wait()
    assert core.yields > Backoff.RARELY - 20, "it was noticed that the core is free again"
