"""Operands that real ranks read from files; one of them cannot."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def test_workers_read_and_encode(job):
    ended = job("from_files.py", 5)
    assert ended.code == 0, ended
    for phase in ("all", "not_rank_2", "rank_2_again"):
        found = ended.data[phase]
        assert {name for name, case in found.items() if not case["error"] < 1e-9} == set()
        vector = 8 * 480
        for name, case in found.items():
            if name == "master":
                assert case["sent"] > 2 * 640 * 480 * 8
                assert case["lost"] == []
                continue
            # A recipe for each operand and worker, once more where a share goes to another.
            assert case["sent"] < 6 * (2 * 1000 + vector), name
            # Where three of four replies suffice, the word of rank 2 may come after them.
            if name == "matmul 0":
                assert len(case["lost"]) == (phase == "not_rank_2")
            for lost, reason in case["lost"]:
                assert (phase, lost) == ("not_rank_2", 2), name
                assert "cannot read /proc/self/cwd/a.npy: [Errno 2]" in reason
