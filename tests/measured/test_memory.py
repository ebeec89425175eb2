"""Limits of memory: the user's, the system's, and those of control groups."""

from __future__ import annotations

import pytest

from codedla.measured import memory
from codedla.measured.memory import budget


def test_the_users_limit_and_that_of_the_system(monkeypatch):
    mine = budget(float(1 << 30), mpi=False)
    assert mine.limit == "--master-memory"
    assert mine.bytes + mine.base == 1 << 30
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (1 << 28, 1 << 28))
    tight = budget(float(1 << 40), mpi=False)
    assert (tight.limit, tight.measure) == ("ulimit -v", "address space")
    assert tight.bytes + tight.base == 1 << 28
    assert budget(mpi=True).bytes == tight.bytes - memory.MPI_SPACE


def test_control_groups(monkeypatch):
    texts = {
        "/proc/meminfo": "MemAvailable: 8000000 kB\n",
        "/proc/self/cgroup": "0::/job/step\n",
        "/sys/fs/cgroup/job/memory.max": "1000000000\n",
        "/sys/fs/cgroup/job/memory.current": "400000000\n",
        "/sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 100000000\n",
        "/sys/fs/cgroup/job/step/memory.max": "max\n",
        "/sys/fs/cgroup/job/step/memory.current": "1\n",
    }
    monkeypatch.setattr(memory, "_read", lambda path: texts.get(str(path), ""))
    found = budget(mpi=False)
    assert found.limit == "the memory of this control group"
    assert found.bytes == pytest.approx(0.5 * 7e8)
    # A small product is not refused because others have the memory.
    texts["/sys/fs/cgroup/job/memory.current"] = "1000000000\n"
    assert budget(mpi=True).bytes == 256 << 20
