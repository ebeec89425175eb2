"""Gradients from real ranks, one late in every round and some killed midway."""

from __future__ import annotations

import pytest

from codedla.mpi import launch

pytestmark = pytest.mark.jobs


@pytest.mark.parametrize("killed", [0, 2, 3])
def test_late_and_killed_ranks_do_not_change_the_descent(job, killed):
    launcher = launch.find_launcher()
    if killed and (launcher is None or not launcher.ulfm):
        pytest.skip("this MPI ends the job when a rank is gone")
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
