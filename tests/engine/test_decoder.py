"""Every survivor set of small codes, decoded while replies trickle in."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from codedla import codes
from codedla.blocks import Grid, Split
from codedla.codes import error_estimate
from codedla.engine import arithmetic
from codedla.engine.decoder import (
    DenseDecoder,
    StreamingDecoder,
    SystematicDecoder,
    make_decoder,
)
from codedla.engine.encoder import make_encoder

CASES = [
    # family, workers, grid, nodes, (M, L, N), strategy
    ("uncoded", 4, (2, 1, 2), None, (5, 3, 5), SystematicDecoder),
    ("replication", 5, (2, 1, 1), None, (5, 3, 4), SystematicDecoder),
    ("replication", 7, (3, 1, 1), None, (7, 2, 1), SystematicDecoder),
    ("mds", 5, (3, 1, 1), None, (7, 4, 1), SystematicDecoder),
    ("mds", 6, (4, 1, 1), None, (13, 5, 2), SystematicDecoder),
    ("mds", 6, (4, 1, 1), None, (3, 5, 2), SystematicDecoder),
    ("mds", 5, (3, 1, 1), "chebyshev", (8, 4, 3), DenseDecoder),
    ("mds", 5, (3, 1, 1), "equispaced", (8, 4, 3), DenseDecoder),
    ("mds", 5, (3, 1, 1), "unity", (8, 4, 3), DenseDecoder),
    ("khatri-rao", 6, (2, 1, 2), None, (5, 4, 7), SystematicDecoder),
    ("khatri-rao", 7, (3, 1, 2), None, (7, 3, 5), SystematicDecoder),
    ("khatri-rao", 7, (2, 1, 2), None, (9, 6, 3), SystematicDecoder),
    ("polynomial", 6, (2, 1, 2), None, (5, 4, 7), DenseDecoder),
    ("polynomial", 6, (2, 1, 2), "chebyshev", (5, 4, 7), DenseDecoder),
    ("polynomial", 5, (2, 1, 2), "equispaced", (5, 4, 7), DenseDecoder),
    ("matdot", 6, (1, 3, 1), None, (4, 11, 5), StreamingDecoder),
    ("matdot", 6, (1, 3, 1), "unity", (4, 11, 5), StreamingDecoder),
    ("matdot", 8, (1, 4, 1), None, (4, 11, 5), StreamingDecoder),
    ("matdot", 8, (1, 4, 1), "unity", (4, 11, 5), StreamingDecoder),
]
IDS = [f"{name}-{n}-{'x'.join(map(str, grid))}-{nodes}" for name, n, grid, nodes, *_ in CASES]


class Bench:
    """A code, two operands, and every worker's reply to them."""

    def __init__(self, name, n_workers, grid, nodes, shape, seed=90001):
        self.code = codes.get(name)(n_workers, Grid(*grid), nodes=nodes)
        m, inner, n = shape
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.standard_normal((m, inner)), rng.standard_normal((inner, n))
        self.dtype = np.dtype(np.complex128 if self.code.field == "complex" else np.float64)
        g, code = self.code.grid, self.code
        enc_a = make_encoder(self.a, Split(m, g.m), Split(inner, g.p), self.dtype)
        enc_b = make_encoder(self.b, Split(inner, g.p), Split(n, g.n), self.dtype)
        self.replies = []
        for worker in range(code.active):
            block = code.plain_block(worker)
            if block is None:
                pair = enc_a.coded(code.generator_a[worker]), enc_b.coded(code.generator_b[worker])
            else:
                pair = enc_a.plain(block // g.n), enc_b.plain(block % g.n)
            self.replies.append(pair[0] @ pair[1])
        self.expected = self.a @ self.b

    def decoder(self, output=None):
        if output is None:
            output = np.full(self.expected.shape, np.nan)
        return make_decoder(self.code, output, self.dtype)

    def give(self, decoder, worker):
        target = decoder.target(worker)
        assert target.shape == self.replies[worker].shape
        assert target.dtype == self.dtype
        target[...] = self.replies[worker]
        decoder.add(worker)

    def check(self, output, responders):
        alpha = self.code.amplification(responders)
        scale = np.linalg.norm(self.a) * np.linalg.norm(self.b) / np.linalg.norm(self.expected)
        error = np.linalg.norm(output - self.expected) / np.linalg.norm(self.expected)
        assert error <= 100 * error_estimate(alpha, 2.0**-52, scale)


@pytest.fixture(params=CASES, ids=IDS)
def bench(request):
    *case, strategy = request.param
    made = Bench(*case)
    assert isinstance(made.decoder(), strategy)
    return made


def sets(code):
    """All decodable sets of workers, smallest first."""
    return [
        responders
        for size in range(1, code.active + 1)
        for responders in combinations(range(code.active), size)
        if code.decodable(responders)
    ]


def test_every_survivor_set_in_random_order(bench):
    rng = np.random.default_rng(70003)
    for responders in sets(bench.code):
        decoder = bench.decoder()
        for worker in rng.permutation(responders):
            bench.give(decoder, int(worker))
            while rng.random() < 0.4 and decoder.idle():
                pass
        decoder.finish(responders)
        bench.check(decoder.output, responders)


@pytest.mark.parametrize("layout", ["F", "strided", "reversed", "read from a bigger matrix"])
def test_any_layout_of_the_output(bench, layout):
    rows, cols = bench.expected.shape
    big = np.full((2 * rows, 3 * cols), 77.0)
    output = {
        "F": np.full((rows, cols), np.nan, order="F"),
        "strided": big[::2, ::3],
        "reversed": np.full((rows, cols), np.nan)[::-1, ::-1],
        "read from a bigger matrix": big[1 : 1 + rows, 2 : 2 + cols],
    }[layout]
    untouched = big.copy()
    for responders in sets(bench.code)[:3]:
        decoder = bench.decoder(output)
        for worker in responders:
            bench.give(decoder, worker)
        decoder.finish(responders)
        assert decoder.output is output
        bench.check(output, responders)
        output[...] = 77.0
        np.testing.assert_array_equal(big, untouched)


def test_a_detached_decoder_goes_on_in_a_copy(bench):
    """A reply that is still arriving scribbles over the original memory, not over the product."""
    for responders in sets(bench.code)[:5]:
        output = np.full(bench.expected.shape, np.nan)
        decoder = bench.decoder(output)
        for worker in responders:
            bench.give(decoder, worker)
        others = [w for w in range(bench.code.active) if w not in responders]
        late = [decoder.target(w) for w in others]
        decoder.detach()
        decoder.finish(responders)
        for target in late:
            target[...] = 1e300
        bench.check(decoder.output, responders)
        assert not np.may_share_memory(decoder.output, output)


def test_blocks_of_the_output_tile_it(bench):
    decoder = bench.decoder(np.zeros(bench.expected.shape))
    for index in range(bench.code.grid.outputs):
        decoder.block(index)[...] += 1
    assert (decoder.output == 1).all()


def test_copies_of_a_block_do_not_scribble_over_each_other():
    bench = Bench("replication", 4, (2, 1, 1), None, (6, 3, 4))
    decoder = bench.decoder()
    slow, fast = decoder.target(0), decoder.target(2)
    assert not np.may_share_memory(slow, fast)
    bench.give(decoder, 2)
    bench.give(decoder, 1)
    decoder.finish([1, 2])
    bench.check(decoder.output, [1, 2])
    slow[...] = bench.replies[0]
    decoder.add(0)
    bench.give(decoder, 3)
    bench.check(decoder.output, [0, 1, 2, 3])


def test_plain_replies_land_in_the_output_itself():
    bench = Bench("mds", 5, (3, 1, 1), None, (9, 4, 2))
    output = np.empty(bench.expected.shape)
    decoder = bench.decoder(output)
    for worker in range(3):
        assert np.shares_memory(decoder.target(worker), output)
    assert not np.shares_memory(decoder.target(3), output)


def test_the_streaming_decoder_keeps_few_replies():
    bench = Bench("matdot", 8, (1, 4, 1), None, (4, 11, 5))
    decoder = bench.decoder()
    memory = set()
    for worker in range(7):
        memory.add(decoder.target(worker).ctypes.data)
        bench.give(decoder, worker)
        assert decoder.idle()
    assert len(memory) == 1
    assert not decoder.idle()
    decoder.finish(range(7))
    bench.check(decoder.output, range(7))


def test_exact_integers_decode_exactly():
    """Plain-sum parity in wrap-around int64: bit for bit, however large the entries."""
    code = codes.get("khatri-rao")(5, Grid(2, 1, 2))
    rng = np.random.default_rng(60013)
    a = rng.integers(-(2**63), 2**63 - 1, (5, 7))
    b = rng.integers(-(2**63), 2**63 - 1, (7, 3))
    encode_a = make_encoder(a, Split(5, 2), Split(7, 1), np.dtype(np.int64))
    encode_b = make_encoder(b, Split(7, 1), Split(3, 2), np.dtype(np.int64))
    for lost in range(5):
        decoder = make_decoder(code, np.empty((5, 3), np.int64), np.dtype(np.int64))
        for worker in set(range(5)) - {lost}:
            block = code.plain_block(worker)
            if block is None:
                share = encode_a.coded(code.generator_a[worker])
                other = encode_b.coded(code.generator_b[worker])
            else:
                share, other = encode_a.plain(block // 2), encode_b.plain(block % 2)
            decoder.target(worker)[...] = share @ other
            decoder.add(worker)
            decoder.idle()
        decoder.finish(set(range(5)) - {lost})
        np.testing.assert_array_equal(decoder.output, a @ b)


def test_empty_outputs_need_no_arithmetic():
    for shape in ((0, 4), (4, 0), (0, 0)):
        decoder = make_decoder(
            codes.get("mds")(5, Grid(3, 1, 1)), np.empty(shape), np.dtype(np.float64)
        )
        for worker in (1, 3, 4):
            decoder.add(worker)
            decoder.idle()
        decoder.finish([1, 3, 4])
        assert decoder.output.shape == shape


class TestArithmetic:
    """Wrap-around integers, exactly."""

    @pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64])
    @pytest.mark.parametrize("accumulate", [False, True])
    def test_combine(self, dtype, accumulate):
        rng = np.random.default_rng(50021)
        info = np.iinfo(dtype)
        blocks = [rng.integers(info.min, info.max, (3, 4), dtype, True) for _ in range(3)]
        weights = np.array([[1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 2.0]])
        outs = [np.full((3, 4), 5, dtype) for _ in range(3)]
        arithmetic.combine(weights, blocks, outs, accumulate=accumulate)
        for row, out in zip(weights, outs, strict=True):
            exact = sum(
                (int(w) * block.astype(object) for w, block in zip(row, blocks, strict=True)),
                np.full((3, 4), 5 if accumulate else 0, object),
            )
            wrapped = (exact - info.min) % (info.max - info.min + 1) + info.min
            np.testing.assert_array_equal(out.astype(object), wrapped)

    def test_fold(self):
        block = np.array([[2**62, -(2**63)]])
        sums = [np.array([[2**62, 1]]), np.array([[3, 4]])]
        arithmetic.fold(sums, np.array([2.0, -1.0]), block)
        np.testing.assert_array_equal(sums[0], [[2**62 + 2**63 - 2**64, 1]])
        np.testing.assert_array_equal(sums[1], [[3 - 2**62, 4 + 2**63 - 2**64]])

    def test_floats_go_to_the_kernels(self):
        blocks = [np.ones((2, 3)), np.full((2, 3), 2.0)]
        out = arithmetic.new_blocks(1, (2, 3), np.dtype(float))
        assert not out[0].any()
        arithmetic.combine(np.array([[0.5, 0.25]]), blocks, out)
        arithmetic.fold(out, np.array([-1.0]), blocks[0])
        np.testing.assert_array_equal(out[0], 0.0)

    def test_nothing_to_do(self):
        arithmetic.combine(np.ones((0, 1)), [np.ones((2, 2))], [])
        arithmetic.fold([], np.ones(0), np.ones((2, 2)))
        arithmetic.fold([np.ones((0, 2))], np.ones(1), np.ones((0, 2)))


@pytest.mark.parametrize("nodes", ["chebyshev", "equispaced"])
def test_streaming_weights_are_those_of_least_noise(nodes):
    """With more than K replies the accumulators give what the code's own weights give."""
    code = codes.get("matdot")(14, Grid(1, 5, 1), nodes=nodes)
    rng = np.random.default_rng(7)
    replies = rng.standard_normal((14, 3, 3))  # not consistent: any change of weights shows
    lost = {1, 6}
    output = np.empty((3, 3))
    decoder = make_decoder(code, output, np.dtype(float))
    assert isinstance(decoder, StreamingDecoder)
    survivors = [w for w in range(14) if w not in lost]
    for worker in survivors:
        decoder.target(worker)[...] = replies[worker]
        decoder.add(worker)
    decoder.finish(survivors)
    expected = np.tensordot(code.weights(survivors)[0], replies[survivors], axes=1)
    np.testing.assert_allclose(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["khatri-rao", "orthopoly"])
def test_single_precision_is_summed_in_double(name):
    """What is lost is the replies' own rounding, not that of the sums."""
    code = codes.get(name)(66, Grid(8, 1, 8))
    rng = np.random.default_rng(30411)
    blocks = rng.standard_normal((64, 3, 4))
    replies = np.tensordot(code.generator, blocks, axes=1).astype(np.float32)
    lost = set(rng.choice(66, 2, replace=False).tolist())
    survivors = [w for w in range(66) if w not in lost]
    output = np.zeros((24, 32), np.float32)
    machine = make_decoder(code, output, np.dtype(np.float32))
    for worker in survivors:
        machine.target(worker)[...] = replies[worker]
        machine.add(worker)
        machine.idle()
    machine.finish(survivors)
    exact = np.tensordot(code.weights(survivors), replies[survivors].astype(np.float64), axes=1)
    got = output.reshape(8, 3, 8, 4).transpose(0, 2, 1, 3).reshape(64, 3, 4)
    assert np.abs(got - exact).max() <= 2 * np.finfo(np.float32).eps * np.abs(exact).max()
