"""``threads=``: limited while a rank serves, given back afterwards, and the pool knows them."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("word", "start"), [("2", "1"), ("1", "2")])
def test_workers_use_so_many_threads_and_give_them_back(job, word, start):
    ended = job("threads.py", 3, word, OPENBLAS_NUM_THREADS=start, OMP_NUM_THREADS=start)
    assert ended.code == 0, ended
    for rank in range(3):
        seen = ended.data[f"rank{rank}"]
        assert seen["threads"] == int(word), ended
        assert seen["before"] == seen["after"] == int(start), ended
        # The master's BLAS belongs to its program.
        assert seen["inside"] == [int(start) if rank == 0 else int(word)], ended


def test_auto_divides_the_cores_by_the_ranks_that_share_them(job):
    ended = job("threads.py", 3, "auto")
    assert ended.code == 0, ended
    for rank in range(3):
        seen = ended.data[f"rank{rank}"]
        assert seen["early"] == 1
        # Nobody is bound: all three ranks share the cores.
        assert seen["threads"] == max(seen["cores"] // 3, 1), ended
        assert rank == 0 or seen["inside"] == [seen["threads"]], ended


def test_what_a_task_imports_is_limited_from_the_next_on(job):
    ended = job("threads.py", 3, "1", "late", OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2")
    assert ended.code == 0, ended
    first, second = ended.data["rank0"]["imported"]
    assert [pools for pools, _ in first] == [2, 2], "NumPy's, and SciPy's own"
    assert [threads for _, threads in second] == [1, 1]
    # Where it did not come before the first task it had as many as it liked.
    assert {threads for _, threads in first} <= {1, 2}
