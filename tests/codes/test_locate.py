"""Location of wrong replies: found by every way, over GF(p) and the reals, never the wrong one."""

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.gao import gao
from codedla.codes.locate import Located, locatable, locate
from codedla.errors import UsageError
from codedla.galois import Field

SHAPE = (3, 4)
EXACT = (
    ("galois", 8, Grid(2, 1, 2)),  # polynomial: more than three losses
    ("galois", 7, Grid(2, 1, 2)),  # systematic
    ("lagrange", 9, Grid(1, 2, 1)),
    ("secure-matdot", 9, Grid(1, 2, 1)),
    ("gasp", 12, Grid(2, 1, 2)),
)
REAL = (
    ("mds", 8, Grid(4, 1, 1)),
    ("polynomial", 8, Grid(2, 1, 2)),
    ("khatri-rao", 8, Grid(2, 1, 2)),
    ("matdot", 9, Grid(1, 3, 1)),
    ("lagrange-real", 9, Grid(1, 3, 1)),
    ("replication", 12, Grid(4, 1, 1)),
)


def codeword(code, rng):
    """Replies of honest workers to some unknown blocks."""
    unknowns = code.generator.shape[1]
    if code.field == "GF(p)":
        blocks = rng.integers(0, code.prime, (unknowns, SHAPE[0] * SHAPE[1]))
        return code.multiplied(code.generator, blocks).reshape(-1, *SHAPE)
    blocks = rng.standard_normal((unknowns, *SHAPE))
    return np.tensordot(code.generator, blocks, axes=1)


def wrong_block(kind, reply, other, p, rng):
    """What a worker may answer instead, over GF(p)."""
    if kind == "random":
        return rng.integers(0, p, reply.shape)
    if kind == "multiple":
        return reply * 2 % p
    if kind == "one entry":
        changed = reply.copy()
        changed[1, 2] = (changed[1, 2] + 1) % p
        return changed
    return (reply + other) % p  # the same error at every liar


@pytest.mark.parametrize("case", EXACT, ids=lambda c: f"{c[0]}-{c[1]}")
@pytest.mark.parametrize("kind", ["random", "multiple", "one entry", "agreed"])
def test_all_wrong_replies_are_named_over_a_field(case, kind):
    name, workers, grid = case
    code = get(name)(workers, grid)
    rng = np.random.default_rng([len(kind), workers])
    honest = codeword(code, rng)
    spares = workers - code.threshold
    assert locate(code, range(workers), honest, rng=rng) == Located((), True)
    for count in range(1, spares // 2 + 1):
        for liars in itertools.islice(itertools.combinations(range(workers), count), 15):
            replies, other = honest.copy(), rng.integers(1, code.prime, SHAPE)
            for liar in liars:
                replies[liar] = wrong_block(kind, honest[liar], other, code.prime, rng)
            assert locate(code, range(workers), replies, rng=rng) == Located(liars, True)


@pytest.mark.parametrize("case", EXACT, ids=lambda c: f"{c[0]}-{c[1]}")
def test_with_one_spare_a_wrong_reply_is_noticed_and_nobody_accused(case):
    name, workers, grid = case
    code = get(name)(workers, grid)
    rng = np.random.default_rng(workers)
    present = sorted(rng.permutation(workers)[: code.threshold + 1].tolist())
    honest = codeword(code, rng)[present]
    assert locate(code, present, honest, rng=rng) == Located((), True)
    for liar in range(len(present)):
        replies = honest.copy()
        replies[liar, 0, 0] = (replies[liar, 0, 0] + 1) % code.prime
        assert locate(code, present, replies, rng=rng) == Located((), False)
    # What is no residue at all tells by itself.
    replies = honest.astype(float)
    replies[2, 1, 1] = np.nan
    assert locate(code, present, replies, rng=rng) == Located((present[2],), True)


def test_errors_of_more_workers_than_can_be_told_are_noticed():
    code = get("secure-matdot")(9, Grid(1, 2, 1))
    rng = np.random.default_rng(4)
    honest = codeword(code, rng)
    for liars in itertools.combinations(range(9), 4):
        replies = honest.copy()
        for liar in liars:
            replies[liar] = rng.integers(0, code.prime, SHAPE)
        wrong, certain = locate(code, range(9), replies, rng=rng)
        assert not certain and wrong == ()


@pytest.mark.parametrize("case", REAL, ids=lambda c: c[0])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e12, np.inf])
def test_wrong_replies_are_named_over_the_reals(case, size):
    name, workers, grid = case
    code = get(name)(workers, grid)
    rng = np.random.default_rng(workers)
    honest = codeword(code, rng)
    assert locate(code, range(workers), honest, rng=rng) == Located((), True)
    most = (workers - code.threshold) // 2
    assert most >= 1
    for count in range(1, most + 1):
        for liars in itertools.islice(itertools.combinations(range(workers), count), 15):
            replies = honest.copy()
            for liar in liars:
                replies[liar, 1, 2] += size
            assert locate(code, range(workers), replies, rng=rng) == Located(liars, True)


@pytest.mark.parametrize("huge", [1e6, 1e12, 1e20])
@pytest.mark.parametrize("case", REAL[:-1], ids=lambda c: f"{c[0]}-{c[1]}")
def test_a_small_error_is_not_drowned_by_a_huge_one(case, huge):
    name, workers, grid = case
    code = get(name)(workers, grid)
    rng = np.random.default_rng([17, workers])
    for liar, other in ((0, 2), (workers - 1, 3)):
        replies = codeword(code, rng)
        replies[liar] += huge * rng.standard_normal(SHAPE)
        replies[other, 0, 1] += 1e-3
        expected = Located(tuple(sorted((liar, other))), True)
        assert locate(code, range(workers), list(replies), rng=rng, noise=1e-14) == expected


def test_bounds_name_impossible_replies_without_any_spare():
    code = get("mds")(6, Grid(4, 1, 1))
    rng = np.random.default_rng(5)
    honest = codeword(code, rng)
    bound = 10 * float(np.linalg.norm(honest))
    replies = honest[:5].copy()
    replies[1, 0, 0], replies[3, 0, 0] = 1e100, -1e30
    assert locate(code, range(5), replies, rng=rng, bound=bound) == Located((1, 3), True)
    assert not locate(code, range(5), replies, rng=rng).certain


def test_complex_replies():
    code = get("mds")(7, Grid(3, 1, 1), nodes="unity")
    rng = np.random.default_rng(6)
    honest = codeword(code, rng)
    assert honest.dtype == complex
    replies = honest.copy()
    replies[[1, 5], 0, 1] += 1e-5j
    assert locate(code, range(7), honest, rng=rng) == Located((), True)
    assert locate(code, range(7), replies, rng=rng) == Located((1, 5), True)


@pytest.mark.parametrize("p", [31, 2_097_143])
@pytest.mark.parametrize("wrong", [0, 1, 3, 4])
def test_gao_finds_the_polynomial(p, wrong):
    field, rng = Field(p), np.random.default_rng([p, wrong])
    for _ in range(20):
        points = rng.choice(p, 12, replace=False)
        polynomial = rng.integers(0, p, 4)
        values = field.evaluate(polynomial, points)
        places = rng.choice(12, wrong, replace=False)
        values[places] = (values[places] + rng.integers(1, p, wrong)) % p
        assert np.array_equal(gao(field, points, values, 4), polynomial)


def test_gao_gives_up_beyond_half_the_distance():
    field, rng = Field(2_097_143), np.random.default_rng(8)
    points = np.arange(1, 13)
    values = field.evaluate([1, 2, 3, 4], points)
    values[:5] = rng.integers(0, field.p, 5)
    assert gao(field, points, values, 4) is None


def test_codes_whose_replies_tell_nothing():
    for code, text in (
        (get("base3")(6, Grid(2, 1, 2)), r"modulo 2\*\*64"),
        (get("uncoded")(4, Grid(2, 1, 2)), "none to spare"),
    ):
        assert locatable(code)
        with pytest.raises(UsageError, match=text):
            locate(code, range(code.active), [np.zeros(SHAPE)] * code.active)
    code = get("mds")(4, Grid(2, 1, 1))
    with pytest.raises(UsageError, match="one reply"):
        locate(code, range(4), [np.zeros(SHAPE)])
