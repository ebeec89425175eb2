"""Speculation on real ranks: a late worker's share is computed twice, and nobody waits for it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def reports(job, n_ranks, *words):
    """Run both products; return their reports and how long the whole job took."""
    ended = job("speculation.py", n_ranks, *words)
    assert ended.code == 0, ended
    assert not ended.job.hung, ended
    result = ended.data["result"]
    assert max(report["error"] for report in result) < 1e-10
    return result, ended


def copies(report):
    return {event["rank"] for event in report["events"] if event["kind"] == "speculated"}


def test_one_worker_sleeps(job):
    result, ended = reports(job, 5, "speculative", 4, 0, "no", "delay:2:30")
    for report in result:
        assert report["seconds"] < 10, "the sleeper was waited for"
        assert report["redispatched"] == [2]
        assert sorted(report["responders"]) == [1, 3, 4]
        assert len(copies(report)) == 1 and copies(report) <= {1, 3, 4}
        assert report["stragglers"] == [2]
    assert ended.job.seconds < 28, "the job waited for the sleeper at its end"


def test_more_sleep_than_the_code_tolerates(job):
    """Six workers, four of five needed: two sleep, and the sixth has no share of its own."""
    result, ended = reports(job, 7, "mds", 4, 1, "yes", "delay:2:30", "delay:4:30")
    for report in result:
        assert report["seconds"] < 10, "the sleepers were waited for"
        assert len(report["redispatched"]) == 1 and set(report["redispatched"]) <= {2, 4}
        assert len(copies(report)) == 1
        assert not {2, 4} & set(report["responders"])
    assert ended.job.seconds < 28
