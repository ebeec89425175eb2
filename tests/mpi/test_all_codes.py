"""Every code on real ranks, in one job: what is registered needs no test of its own here."""

from __future__ import annotations

import pytest

from codedla.codes import available

pytestmark = pytest.mark.jobs


def test_every_code_with_a_late_and_a_killed_rank(job, outlives):
    outlives()
    ended = job("all_codes.py", 9, begins=True, timeout=120)
    assert ended.code == 0, ended
    result = ended.data["result"]
    assert result["bad"] == []
    assert set(result["done"]) == set(available())
    assert min(result["done"].values()) >= 2
    assert result["lost"] == [3], "nobody but who was killed"
