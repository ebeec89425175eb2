"""When a reply that is arriving is not waited for any more."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.mpi

MEGABYTE = 1 << 20


def receipt(key: int, size: int, seconds: float, *, placed: bool = True):
    """What is known of a reply that has been arriving for so long."""
    return SimpleNamespace(
        given=SimpleNamespace(task=SimpleNamespace(key=key)),
        buffer=np.empty(size, np.uint8),
        placed=placed,
        began=time.perf_counter() - seconds,
    )


@pytest.fixture
def reception():
    from codedla.mpi.reception import Reception  # late, because importing it starts MPI

    return Reception([SimpleNamespace(gone=None, receipts=[])])


def arriving(reception, *receipts) -> bool:
    reception._links[0].receipts = list(receipts)
    return reception.stopped(7)


def test_without_any_reply_before_nobody_knows(reception):
    assert not arriving(reception, receipt(7, MEGABYTE, 1e6))


def test_a_reply_has_stopped_that_takes_much_longer_than_others(reception):
    reception.note(receipt(1, MEGABYTE, 1.0))
    assert not arriving(reception, receipt(7, MEGABYTE, 2.0))
    assert arriving(reception, receipt(7, MEGABYTE, 9.0))


def test_larger_replies_take_longer(reception):
    reception.note(receipt(1, MEGABYTE, 1.0))
    assert not arriving(reception, receipt(7, 8 * MEGABYTE, 9.0))
    assert arriving(reception, receipt(7, 8 * MEGABYTE, 72.0))
    assert arriving(reception, receipt(7, 80, 9.0))


def test_one_outlier_hardly_counts(reception):
    for seconds in (1.0, 1.0, 9.0):
        reception.note(receipt(1, MEGABYTE, seconds))
    assert arriving(reception, receipt(7, MEGABYTE, 10.0))


def test_all_replies_of_the_round_that_have_a_place_must_have_stopped(reception):
    reception.note(receipt(1, MEGABYTE, 1.0))
    late, moving = receipt(7, MEGABYTE, 9.0), receipt(7, MEGABYTE, 0.5)
    assert not arriving(reception, late, moving)
    elsewhere = receipt(7, MEGABYTE, 0.5, placed=False)
    assert arriving(reception, late, elsewhere, receipt(8, MEGABYTE, 0.5))


def test_however_fast_the_others_a_reply_has_a_moment(reception):
    reception.note(receipt(1, MEGABYTE, 1e-6))
    assert not arriving(reception, receipt(7, 8, 0.01))
