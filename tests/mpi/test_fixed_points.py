"""Iterations on real ranks: a sleeping and a killed worker neither delay nor change them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def test_a_sleeping_and_a_killed_worker(job, outlives):
    outlives()
    ended = job("fixed_points.py", 7, "delay:2:30", "kill:4:0.7", begins=True)
    assert ended.code == 0, ended
    assert not ended.job.hung, ended
    turns, inverse = ended.data["result"]["turns"], ended.data["result"]["inverse"]
    for turn in turns:
        assert turn["error"] < 1e-9, turn["decode"]
        assert turn["seconds"] < 10, "the sleeper was waited for"
        assert {"2"} <= set(turn["tally"]["late_rounds"])
    last = turns[-1]["tally"]
    assert [entry["rank"] for entry in last["lost"]] == [4]
    assert last["bytes"]["received"] > 0
    assert set(inverse["iterations"]) == {"1", "3", "5", "6"}
    assert min(inverse["iterations"].values()) > 10
    assert inverse["error"] < 1e-6
    assert inverse["seconds"] < 6
    assert ended.job.seconds < 28, "the job waited for the sleeper at its end"
