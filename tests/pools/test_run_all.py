"""Several rounds at once on the pools of this process: results, order, laziness and errors."""

from __future__ import annotations

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import registry
from codedla.engine.collector import Collector
from codedla.engine.decoder import make_decoder
from codedla.engine.round import Operand, Round
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable

POOLS = pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])
WORKERS, BLOCKS = 4, 2
A = np.random.default_rng(5113).standard_normal((40, 6))
B = np.random.default_rng(5119).standard_normal((6, 5))


def make_job(a, keys=(), *, name="mds", workers=WORKERS, blocks=BLOCKS, **options):
    """The product of some rows of A with B, which stays on the workers under ``keys``."""
    code = registry.get(name)(workers, Grid(blocks, 1, 1))
    height = len(a) // blocks
    parts = a.reshape(blocks, height, -1)

    def operands(share):
        encoded = Operand(0, lambda: np.tensordot(code.generator_a[share], parts, 1))
        return encoded, Operand(keys[code.home(share)] if keys else 0, lambda: B)

    return Round(
        shares=code.shares,
        operands=operands,
        collector=Collector(code, eps=2.0**-52, tolerance=1.0, workers=range(workers)),
        decoder=make_decoder(code, np.empty((len(a), B.shape[1])), np.dtype(float)),
        **options,
    )


@POOLS
def test_every_round_is_done_once_and_right(kind):
    jobs, done = [], {}

    def draw():
        for top in range(0, 40, 4):
            jobs.append(make_job(A[top : top + 4], keys))
            yield jobs[-1]

    with kind(WORKERS, faults=[parse_fault("kill:2:0")]) as pool:
        keys = [pool.new_key() for _ in range(WORKERS)]
        pool.run_all(draw(), lambda index, outcome: done.setdefault(index, []).append(outcome))
    assert sorted(done) == list(range(10)) and all(len(list_) == 1 for list_ in done.values())
    product = np.concatenate([job.decoder.output for job in jobs])
    np.testing.assert_allclose(product, A @ B, atol=1e-12)


@POOLS
def test_no_rounds_at_all(kind):
    with kind(2) as pool:
        pool.run_all([], lambda index, outcome: pytest.fail("there was no round"))


@POOLS
def test_a_round_that_cannot_be_decoded_ends_them_all(kind):
    done = []
    faults = [parse_fault(f"kill:{rank}:0") for rank in range(1, WORKERS + 1)]
    with kind(WORKERS, faults=faults) as pool, pytest.raises(NotDecodable, match="no worker"):
        pool.run_all([make_job(A[:4]), make_job(A[4:8])], lambda index, _: done.append(index))
    assert done == []


@POOLS
@pytest.mark.parametrize("where", ["jobs", "done"])
def test_what_the_caller_raises_comes_through_and_the_pool_stays_usable(kind, where):
    def draw():
        yield make_job(A[:4])
        if where == "jobs":
            raise KeyError("jobs")
        yield make_job(A[4:8])

    def done(index, outcome):
        if where == "done":
            raise KeyError("done")

    with kind(WORKERS) as pool:
        with pytest.raises(KeyError, match=where):
            pool.run_all(draw(), done)
        last = make_job(A[8:12])
        pool.run(last)
    np.testing.assert_allclose(last.decoder.output, A[8:12] @ B, atol=1e-12)
