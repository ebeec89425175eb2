"""Codes with several shares a worker, on real ranks: partial work counts, losses are borne."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

NEEDED = {"lt": 60, "batch": 8, "convolutional": 9, "bivariate": 8}
SHARES = {"lt": 300, "batch": 16, "convolutional": 12, "bivariate": 16}


def test_a_slow_and_a_killed_rank(job, outlives):
    outlives()
    ended = job("several_shares.py", 5, begins=True)
    assert ended.code == 0, ended
    result = ended.data["result"]
    for name, needed in NEEDED.items():
        for killed in (False, True):
            case = result[f"{name} {killed}"]
            report = case["report"]
            assert case["error"] < 1e-9, (name, killed)
            done, wanted, total = zip(*case["progress"], strict=True)
            assert done == tuple(range(1, len(done) + 1))
            assert set(wanted) == {needed}
            assert set(total) == {SHARES[name]}
            assert needed <= len(done) <= 1.3 * needed + 1
            assert set(report["responders"]) <= {1, 2, 3, 4} - ({3} if killed else set())
            assert {lost["rank"] for lost in report["lost"]} == ({3} if killed else set())
            assert 3 not in report["stragglers"] or not killed
            assert not set(report["stragglers"]) & set(report["responders"])
            assert report["redispatched"] == []
    # Three times as slow as the others, it did about a tenth of the work, and that counted.
    for killed in (False, True):
        report = result[f"lt {killed}"]["report"]
        assert 1 in report["responders"]
        assert report["stragglers"] == []
        replies = [event["rank"] for event in report["events"] if event["kind"] == "reply"]
        assert 1 < replies.count(1) < replies.count(2)
    # Every worker was sent its part of B once, a half, and a quarter of A for each order.
    report = result["bivariate False"]["report"]
    orders = len(result["bivariate False"]["progress"]) + 4
    assert report["bytes"]["sent"] <= orders * result["a"] / 4 + 4 * result["b"] / 2
    report = result["lt False"]["report"]
    # How many replies decode depends on whose come first.
    orders = len(result["lt False"]["progress"]) + 4
    assert report["bytes"]["sent"] <= orders * result["a"] / 60 + 4 * result["b"]
