"""Instruction sets, random blocks and guarded buffers for the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from codedla import kernels


@pytest.fixture(params=kernels.available_instruction_sets())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.using_instruction_set(request.param):
        yield request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(8671)
