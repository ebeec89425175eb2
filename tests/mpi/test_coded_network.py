"""Training on real ranks: updated shares live there, whoever is late or killed."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def test_a_late_and_a_killed_worker_change_nothing(job, outlives):
    outlives()
    ended = job("coded_network.py", 6, "delay:2:0.05")
    assert ended.code == 0, ended
    assert not ended.job.hung, ended
    result = ended.data["results"]
    assert result["error"] < 1e-9
    assert result["lost"] == [4]
    # 180 rounds with 0.05 s each would be 9 s.
    assert result["seconds"] < 4.5
    # The late one got what it had missed, or its share anew, whenever it was free again.
    assert result["caught_up"] > 0
