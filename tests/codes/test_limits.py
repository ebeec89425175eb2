"""What families survive at best is what their grids say."""

from __future__ import annotations

import pytest

from codedla.codes import registry
from codedla.codes.limits import grids, most_tolerated


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", registry.available())
def test_most_tolerated_is_the_largest_number_with_a_grid(name, workers):
    family = registry.get(name)
    for wanted in range(4):
        fits = [s for s in range(wanted + 1) if grids(family, workers, s)]
        assert most_tolerated(family, workers, wanted) == max(fits, default=0)
