"""Several shares from one pass, memory used again, threads: the same bits as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from codedla.blocks import Split
from codedla.engine import arithmetic, buffers
from codedla.engine.ahead import MOST_TOGETHER, Ahead
from codedla.engine.encoder import make_encoder

RNG = np.random.default_rng(60013)


def encoder_of(matrix, parts=(3, 1)):
    rows, cols = Split(matrix.shape[0], parts[0]), Split(matrix.shape[1], parts[1])
    return make_encoder(matrix, rows, cols, matrix.dtype)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i8"])
def test_together_is_one_by_one(order, dtype):
    matrix = np.asarray(RNG.integers(-9, 9, (31, 29)), dtype=dtype, order=order)
    encoder = encoder_of(matrix, (3, 2))
    weights = [RNG.integers(-3, 4, (2, 6)).astype(float) for _ in range(3)]
    weights[1][:, 1:] = 0
    together = encoder.coded_together(weights, across=2)
    for rows, share in zip(weights, together, strict=True):
        np.testing.assert_array_equal(share, encoder.coded(rows, across=2))


def test_threads_change_no_bit():
    matrix = RNG.standard_normal((1201, 700))
    weights = [RNG.standard_normal((1, 6)) for _ in range(3)]
    encoder = encoder_of(matrix, (3, 2))
    alone = encoder.coded_together(weights)
    encoder.threads = 3
    for one, several in zip(alone, encoder.coded_together(weights), strict=True):
        np.testing.assert_array_equal(one, several)


class Counting:
    """Weights of shares, and an encoder that notes what it was asked to make."""

    def __init__(self, weights, matrix):
        self.weights, self.calls = weights, []
        self.encoder = encoder_of(matrix, (weights.shape[1], 1))
        make = self.encoder.coded_together

        def noting(shares, across=1):
            self.calls.append(len(shares))
            return make(shares, across)

        self.encoder.coded_together = noting

    def ahead(self):
        return Ahead(
            self.encoder,
            range(len(self.weights)),
            lambda share: self.weights[share : share + 1],
            lambda rows: 1,
        )


def test_what_is_sent_soon_is_made_together():
    matrix = RNG.standard_normal((12, 5))
    counting = Counting(RNG.standard_normal((MOST_TOGETHER + 3, 4)), matrix)
    ahead = counting.ahead()
    blocks = matrix.reshape(4, 3, 5)
    for share, weights in enumerate(counting.weights):
        expected = np.tensordot(weights, blocks, 1)
        np.testing.assert_allclose(ahead.take(share), expected, rtol=0, atol=1e-13)
    assert counting.calls == [MOST_TOGETHER, 3]
    # A lost worker's share is made again, and nothing besides.
    ahead.take(2)
    assert counting.calls == [MOST_TOGETHER, 3, 1]


def test_resident_shares_are_not_made_again_for_others():
    counting = Counting(RNG.standard_normal((4, 4)), RNG.standard_normal((8, 3)))
    first = counting.ahead()
    first.take(0)
    first.take(1)
    # In the next round of a stored matrix only the two that were late are missing.
    second = counting.ahead()
    second.take(3)
    second.take(2)
    assert counting.calls == [4]
    # A third may hold one that was lost.
    counting.ahead().take(1)
    assert counting.calls == [4, 1]


def test_equal_shares_of_several_workers_count_once():
    weights = RNG.standard_normal((2, 4))[[0, 1, 0, 1]]
    counting = Counting(weights, RNG.standard_normal((8, 3)))
    counting.ahead().take(0)
    assert counting.calls == [2]


def test_memory_is_used_again_when_no_view_is_left():
    buffers.forget()
    shape = (1000, 1000)
    matrix = buffers.take(shape, np.dtype(float))
    address, view = matrix.ctypes.data, matrix[3:5].T
    assert address % 64 == 0
    del matrix
    other = buffers.take(shape, np.dtype(float))
    assert not np.shares_memory(other, view)
    del view
    again = buffers.take((900, 1000), np.dtype(float))
    assert again.ctypes.data == address
    assert again.flags.writeable
    assert again.flags.c_contiguous
    del other, again
    # Memory of quite another size takes its place, instead of coming on top.
    assert buffers.take((3000, 1000), np.dtype(float)).ctypes.data != address
    buffers.forget()


def test_not_more_than_a_bound_is_kept(monkeypatch):
    buffers.forget()
    monkeypatch.setattr(buffers, "KEPT_BYTES", 20 << 20)
    made = [buffers.take((1024, 1024), np.dtype(float)) for _ in range(4)]
    addresses = {matrix.ctypes.data for matrix in made}
    made.clear()
    assert sum(memory.size for memory in buffers._kept) <= 20 << 20
    again = [buffers.take((1024, 1024), np.dtype(float)) for _ in range(2)]
    assert {matrix.ctypes.data for matrix in again} <= addresses
    del again
    buffers.forget()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_combine_with_threads(dtype):
    inputs = [RNG.integers(-9, 9, (700, 900)).astype(dtype) for _ in range(3)]
    weights = RNG.integers(-3, 4, (2, 3)).astype(float)
    results = []
    for threads in (1, 2):
        outputs = arithmetic.new_blocks(2, (700, 900), np.dtype(dtype))
        arithmetic.combine(weights, inputs, outputs, threads=threads)
        results.append(outputs)
    np.testing.assert_array_equal(results[0], results[1])
