"""Real MPI jobs whose work is not a product."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def test_transforms_with_a_late_and_a_killed_rank(job):
    ended = job("transforms.py", 5, "delay:2:0.2", "kill:4:0.3", timeout=60)
    result = ended.data.get("result")
    assert result, ended
    assert len(result["errors"]) == 9
    assert max(result["errors"]) < 1e-6
    assert sorted(result["errors"])[6] < 1e-13  # all but those in single precision
    assert result["exact"]
    assert result["late"]
    raised, shaped, unsent = result["raised"]
    assert raised.startswith("WorkerError: rank ")
    assert "ZeroDivisionError" in raised
    assert "Traceback" in raised
    assert "must return float64 of shape (300, 30) for these shares; got float64" in shaped
    assert unsent.startswith("UsageError: a function must be one that can be sent")
    assert ended.job.code in (0, None), ended
