"""Numbers that callers give: any integer or real type passes, nothing else does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from codedla.engine.arguments import MOST_BLOCKS, block_counts, positive, whole_number
from codedla.engine.plan import make_plan
from codedla.errors import UsageError


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_whole_numbers(value):
    number = whole_number(value, "s", least=0)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, (1,), math.nan, -1, 1j])
def test_no_whole_numbers(value):
    with pytest.raises(UsageError, match=r"^s must be"):
        whole_number(value, "s", least=0)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int16(2)])
def test_positive_numbers(value):
    number = positive(value, "t")
    assert number == 2.0
    assert type(number) is float


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "2", True, None, [2.0], 1j])
def test_no_positive_numbers(value):
    with pytest.raises(UsageError, match=r"^t must be"):
        positive(value, "t")


@pytest.mark.parametrize(
    ("blocks", "counts"),
    [
        (4, 4),
        (np.int64(4), 4),
        ((2, 3), (2, 3)),
        ([np.int32(2), 3], (2, 3)),
        (np.array([2, 2, 3]), (2, 2, 3)),
    ],
)
def test_blocks(blocks, counts):
    assert block_counts(blocks) == counts


@pytest.mark.parametrize(
    "blocks",
    [0, -1, True, 2.0, "2x2", "4", (), (0, 2), (2, True), (2.0, 2), (1, 2, 3, 4), [[2, 2]], 10**12],
)
def test_no_blocks(blocks):
    with pytest.raises(UsageError, match=r"^blocks"):
        block_counts(blocks)


@pytest.mark.parametrize("blocks", [MOST_BLOCKS, (MOST_BLOCKS, MOST_BLOCKS), 720720, 10**30])
@pytest.mark.timeout(5)
def test_absurd_numbers_of_blocks_are_refused_soon(blocks):
    with pytest.raises(UsageError, match="blocks"):
        make_plan((50, 50), (50, 50), "f8", 6, blocks=blocks)


def test_a_code_is_named():
    with pytest.raises(UsageError, match="name"):
        make_plan((5, 5), (5, 5), "f8", 6, code=["mds"])
