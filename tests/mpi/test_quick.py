"""Products with stored matrices in quick rounds, on real ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

GROWTH = 5_000_000
"""Bytes by which a rank may grow in thousands of rounds."""


def test_vectors_of_all_kinds(job):
    result = job("quick.py", 5, "kinds").data["result"]
    assert result["worst"] < 20
    assert result["quick"] > 0.15 * result["rounds"]  # on a busy machine, some give up


def test_codes(job):
    result = job("quick.py", 5, "codes").data["result"]
    assert result["worst"] < 100
    assert result["quick"] > 0.15 * result["rounds"]  # on a busy machine, some give up


def test_a_liar_is_found(job):
    result = job("quick.py", 5, "liar").data["result"]
    assert result["worst"] < 100
    assert result["wrong"] == [2]
    assert result["quick"]


def test_other_products_in_between(job):
    result = job("quick.py", 5, "mixed").data["result"]
    assert result["worst"] < 100
    assert result["quick"]
    assert result["closed"]


def test_a_worker_freezes_wakes_up_and_is_killed(job, outlives):
    outlives()
    ended = job("quick.py", 5, "trouble")
    result = ended.data["result"]
    assert result["worst"] < 100
    assert result["frozen"]
    assert result["slowest"] < 1, "nobody waits for it"
    assert result["back"]
    assert min(result["before"], result["again"]) > 20, "quick again when all is well"
    assert result["lost"] == [2]


def test_memory_and_requests_do_not_grow(job):
    result = job("quick.py", 5, "usage").data["result"]
    assert result["rounds"] > 500
    assert result["quick"] > 0.5 * result["rounds"]
    assert result["growth"] < GROWTH
    assert result["most"] < 16
    assert result["worst"] < 20
