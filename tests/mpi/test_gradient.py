"""Gradients from real ranks, one late in every round and some killed midway."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


@pytest.mark.parametrize("killed", [0, 2, 3])
def test_late_and_killed_ranks_do_not_change_the_descent(job, outlives, killed):
    if killed:
        outlives()
    ended = job("gradient.py", 7, killed, begins=True)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["worst"] < 1e-9
    assert result["lost"] == list(range(3, 3 + killed))
    rounds = 16
    if killed < 2:
        # Nobody waited for the late rank, which took 0.05 s for each of its parts in each round.
        assert result["stragglers"]["2"] >= rounds - 1
        assert result["seconds"] < rounds * 3 * 0.05
    # Only parameters travel, and a lost rank's data once to whoever computes its share.
    every = rounds * 6 * result["parameters"]
    assert result["sent"] < every + (6 * killed * result["data"] if killed > 2 else 10_000)
    assert bool(result["redispatched"]) == (killed > 2)


def test_a_wrong_rank_does_no_harm_to_robust_gradients(job):
    ended = job("gradient_wrong.py", 7)
    assert ended.code == 0, ended
    result = ended.data["result"]
    # Without a robust method the sum is far off: the rank is wrong indeed.
    assert result.pop("None")["error"] > 0.1
    for exact in ("majority", "locate"):
        found = result.pop(exact)
        assert found["error"] < 1e-9
        assert found["wrong"] == {"3": 3}
    assert len(result) == 3
    assert all(found["error"] < 0.05 for found in result.values())


@pytest.mark.parametrize("kill", ["no", "kill"])
def test_functions_that_raise_leave_both_gradients_usable(job, outlives, kill):
    if kill == "kill":
        outlives()
    ended = job("gradient_errors.py", 5, kill, begins=True)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["errors"] == [True] * 3
    assert result["nan"]
    assert max(result["two"], result["two after"]) < 1e-5
    assert result["best"] < 1e-6
