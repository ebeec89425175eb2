"""Small codes of the literature, over every set of replies: all of K decode, none of K - 1."""

from __future__ import annotations

import itertools

import accuracy
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.errors import NotDecodable

# Family, nodes, workers, grid.
CASES = [
    ("mds", "trig", 9, (4, 1, 1)),
    ("polynomial", "chebyshev", 9, (2, 1, 3)),
    ("polynomial", "equispaced", 9, (2, 1, 3)),
    ("orthopoly", None, 9, (2, 1, 3)),
    ("matdot", "equispaced", 9, (1, 4, 1)),
    ("systematic-matdot", "chebyshev", 9, (1, 4, 1)),
    ("orthmatdot", None, 9, (1, 4, 1)),
    ("polydot", "chebyshev", 8, (2, 2, 1)),
    ("entangled", "chebyshev", 9, (1, 3, 2)),
    ("entangled", "unity", 12, (2, 2, 2)),
]


@pytest.mark.parametrize(("name", "nodes", "workers", "grid"), CASES, ids=str)
def test_every_subset(name: str, nodes: str | None, workers: int, grid: tuple[int, ...]) -> None:
    code = get(name)(workers, Grid(*grid), nodes=nodes)
    trial = accuracy.Trial(code)
    errors = [trial.error(s) for s in itertools.combinations(range(workers), code.threshold)]
    assert max(errors) < 1e-9
    for few in itertools.combinations(range(workers), code.threshold - 1):
        if name != "systematic-matdot" or not set(range(4)) <= set(few):
            with pytest.raises(NotDecodable):
                code.weights(few)
