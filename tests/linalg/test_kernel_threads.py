"""Products are the same to the last bit whatever the number of threads of the pool."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.engine.stragglers import parse_fault


@pytest.mark.parametrize("code", ["khatri-rao", "orthmatdot", "polynomial", "galois"])
def test_bits_do_not_depend_on_threads(code):
    rng = np.random.default_rng(80021)
    a, b = rng.standard_normal((900, 400)), rng.standard_normal((400, 700))
    if code == "galois":
        a, b = (1000 * a).astype(np.int64), (1000 * b).astype(np.int64)
    products = []
    for threads in (1, 3):
        # Late workers, so that blocks are decoded.
        faults = [parse_fault("delay:1:9"), parse_fault("delay:2:9")]
        with codedla.SerialPool(8, faults=faults) as pool:
            pool.threads = threads
            products.append(codedla.matmul(a, b, pool=pool, code=code, tolerate=2))
    np.testing.assert_array_equal(products[0], products[1])
    assert np.allclose(products[0], a @ b)
