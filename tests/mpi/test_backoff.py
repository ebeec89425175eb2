"""Waiting politely: looks first, then sleeps, and never in the way of who computes."""

from __future__ import annotations

from codedla.mpi import backoff
from codedla.mpi.backoff import Backoff


def test_backoff_sleeps_ever_longer_and_starts_anew(monkeypatch):
    slept, yields = [], []
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    monkeypatch.setattr(backoff.os, "sched_yield", lambda: yields.append(1))
    monkeypatch.setattr(Backoff, "SHARED", 60.0)
    monkeypatch.setattr(Backoff, "_until_try", 0)
    monkeypatch.setattr(Backoff, "_nap", 0.0)
    waiting = Backoff(longest=5e-4)
    for _ in range(Backoff.SPINS):
        waiting.wait()
    assert slept == []
    assert len(yields) == Backoff.SPINS
    for _ in range(60):
        waiting.wait()
    assert slept == sorted(slept)
    assert (slept[0], slept[-1]) == (Backoff.SHORTEST, 5e-4)
    waiting.reset()
    waiting.wait()
    assert len(yields) == Backoff.SPINS + 1


def test_backoff_gives_up_no_core_that_others_want(monkeypatch):
    """It tries now and then whether they still do."""
    slept, yields = [], []
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    monkeypatch.setattr(backoff.os, "sched_yield", lambda: yields.append(1))
    monkeypatch.setattr(Backoff, "_until_try", 0)
    monkeypatch.setattr(Backoff, "_pause_of_tries", 0)
    monkeypatch.setattr(Backoff, "SHARED", 0.0)
    monkeypatch.setattr(Backoff, "_nap", 0.0)
    for _ in range(20_000):
        waiting = Backoff()
        waiting.wait()
    assert 6 < len(yields) < 20
    assert len(slept) == 20_000 - len(yields)
    monkeypatch.setattr(Backoff, "SHARED", 60.0)
    for _ in range(2 * Backoff.RARELY):
        Backoff().wait()
    assert len(yields) > Backoff.RARELY - 20, "it was noticed that the core is free again"
