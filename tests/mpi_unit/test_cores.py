"""Who may use which cores, and how many threads that makes."""

from __future__ import annotations

import os

import pytest

from codedla.errors import UsageError
from codedla.mpi import cores
from codedla.mpi.cores import check_threads, describe, fair_share


@pytest.mark.parametrize(
    ("ranks", "me", "granted", "share"),
    [
        ([range(8)], 0, None, 8),  # alone on its host
        ([range(8)] * 4, 2, None, 2),  # nobody is bound
        ([range(8)] * 3, 0, None, 2),  # rounded down
        ([range(2)] * 9, 8, None, 1),  # more ranks than cores
        ([[0], [1], [2]], 1, None, 1),  # one core each
        ([range(4), range(4, 8)], 1, None, 4),  # a socket each
        ([range(8), range(4)], 0, None, 4),
        ([[0, 1], range(8), [6, 7]], 1, None, 2),  # an unbound one beside others
        ([range(64)] * 4, 0, 8.0, 2),  # a container that gets eight cores' time
        ([range(64)], 0, 0.5, 1),
    ],
)
def test_fair_share(ranks, me, granted, share):
    assert fair_share([list(r) for r in ranks], me, granted) == share


@pytest.mark.parametrize("threads", [0, -1, 1.5, "many", "2", None, True])
def test_what_is_no_number_of_threads(threads):
    with pytest.raises(UsageError, match="threads must be"):
        check_threads(threads)


def test_numbers_of_threads():
    assert check_threads("auto") == "auto"
    assert check_threads(3) == 3


def test_a_rank_describes_itself():
    said = describe()
    assert said["cores"] == sorted(os.sched_getaffinity(0))
    assert 1 <= said["physical"] <= len(said["cores"]) <= said["present"]
    assert said["blas"]["threads"] >= 1
    assert said["host"]


def test_the_quota_of_a_control_group(tmp_path, monkeypatch):
    file = tmp_path / "cpu.max"
    monkeypatch.setattr(cores, "_CPU_MAX", file)
    assert cores.quota() is None
    file.write_text("max 100000\n")
    assert cores.quota() is None
    file.write_text("150000 100000\n")
    assert cores.quota() == 1.5
