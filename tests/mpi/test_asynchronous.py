"""Asynchronous iterations on real ranks: late, killed, stopped and raising workers; the end."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

GROWTH = 5_000_000
"""Bytes by which the master may grow in thousands of epochs."""


@pytest.fixture
def survive(job, outlives):
    """Run a scenario in which a rank dies or stops."""
    outlives()

    def run(scenario):
        ended = job("asynchronous.py", 5, scenario)
        assert not ended.job.hung, ended
        return ended.data["result"]

    return run


def test_nobody_waits_for_a_delayed_worker(job):
    result = job("asynchronous.py", 5, "delayed", "delay:2:0.03").data["result"]
    assert result["seconds"] < 400 * 0.03 / 3
    assert result["one_at_a_time"]
    assert result["after"]
    late = {int(age): n for age, n in result["staleness"]["2"].items()}
    assert sum(late.values()) > 5, "its replies are heard"
    assert min(late) >= 1
    assert result["staleness"]["1"] == {"0": 400}
    assert result["dropped"] == 0


def test_a_worker_is_killed_midway(survive):
    result = survive("killed")
    assert result["error"] < 1e-6
    assert result["lost"] == [2]
    assert result["slowest"] < 3
    assert "epoch 401 must be answered by 4 workers of 4" in result["message"]
    assert "rank 2 is lost (on " in result["message"]


def test_a_stopped_worker_is_skipped_and_comes_back(survive):
    result = survive("frozen")
    assert result["skipped"] == [3]
    assert result["silent"] == result["lost"] == []
    assert result["error"] < 1e-6


def test_leaving_with_work_in_flight_takes_no_time(job):
    result = job("asynchronous.py", 5, "leave", timeout=15).data["result"]
    assert result["leaving"] < 1


def test_cancelled_workers_do_not_go_on(job):
    result = job("asynchronous.py", 5, "cancelled", "delay:2:0.05").data["result"]
    assert result["error"] < 1e-6
    # It may have come first in an epoch in which another was slow to start.
    assert set(result["staleness"]["2"]) <= {"0"}
    assert result["slowest"] < 0.05 * 300 / 3


def test_what_a_task_raises_comes_out(job):
    result = job("asynchronous.py", 5, "raising").data["result"]
    assert "raised ZeroDivisionError: on purpose" in result["message"]
    assert result["after"]


def test_interruptions_at_any_moment_lose_nothing(job):
    result = job("asynchronous.py", 5, "interrupted").data["result"]
    assert result["times"] == 60
    assert result["wrong"] == 0
    assert result["after"]


def test_large_iterates_arrive_whole(job):
    assert job("asynchronous.py", 5, "large").data["result"]["worst"] == 0.0


def test_memory_and_requests_do_not_grow(job):
    result = job("asynchronous.py", 5, "usage").data["result"]
    assert result["growth"] < GROWTH
    assert result["most"] < 16
