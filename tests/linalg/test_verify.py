"""Replies and products checked by random projection: the honest pass, the wrong do not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import codedla
from codedla.blocks import Grid, Split
from codedla.codes import registry
from codedla.codes.exact import ModularCode, WrapCode
from codedla.engine.encoder import make_encoder
from codedla.engine.plan import Plan
from codedla.engine.stragglers import CORRUPTIONS, Fault, FaultPlan
from codedla.engine.work import multiply
from codedla.errors import UsageError, VerificationFailed
from codedla.linalg.operands import Checked, as_operand, plan_product
from codedla.linalg.projection import right_sides
from codedla.linalg.verify import (
    ReplyCheck,
    obstacle,
    verification_seconds,
    verify_product,
    worthwhile,
)

SEED = 60913
MOST_PAIRS = 40
# Codes over GF(p) have a check of their own, and tests in test_exact.py.
CODES = [name for name in registry.available() if not issubclass(registry.get(name), ModularCode)]
DTYPES = ("?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
USUAL = [
    ("uncoded", (4, 2)),
    ("replication", (2, 2)),
    ("mds", (6, 1)),
    ("khatri-rao", (3, 2)),
    ("polynomial", (3, 2)),
    ("matdot", (1, 4, 1)),
    ("rotation", (3, 2)),
    ("rotation-entangled", (1, 2, 2)),
]


def rng_for(*key: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *key])


def planned(A: Any, B: Any, workers: int = 8, **options: Any) -> tuple[Plan, Checked, Checked]:
    """Plan a product and check its operands."""
    a, b = as_operand(A, "A"), as_operand(B, "B")
    with codedla.SerialPool(workers) as pool:
        options = {"operation": "matmul", **options}
        return plan_product(a, b, pool, **options), a, b


def replies(plan: Plan, a: Checked, b: Checked, product=None) -> Iterator[tuple[int, np.ndarray]]:
    """What honest workers answer; ``product(x, y)`` stands for another BLAS."""
    m, inner, n = plan.shape
    grid, code = plan.grid, plan.code
    rows, cols, between = Split(m, grid.m), Split(n, grid.n), Split(inner, grid.p)
    encoder_a = make_encoder(a.matrix, rows, between, plan.compute)
    encoder_b = make_encoder(b.matrix, between, cols, plan.compute)
    down, _, across = code.stack
    for share in code.shares:
        block = code.plain_block(share)
        if block is None:
            left = code.rows_a(share)
            x = encoder_a.coded(left, across=len(left) // down)
            y = encoder_b.coded(code.rows_b(share), across=across)
        else:
            i, j = divmod(block, grid.n)
            x, y = encoder_a.plain(i), encoder_b.plain(j)
        if product is not None:
            yield share, product(x, y)
            continue
        reply = np.empty((x.shape[0], y.shape[1]), plan.compute)
        multiply(x, y, reply)
        yield share, reply


def random_matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        if kind.itemsize == 4:
            least, most = -1000, 1000
        return rng.integers(least, most, shape, dtype=kind, endpoint=True)
    values = rng.standard_normal(shape)
    if kind.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(kind)


def accused(plan: Plan, a: Checked, b: Checked, seed: int = 1, product=None) -> list[int]:
    """Honest workers that the check refuses."""
    check = ReplyCheck(plan, a, b, np.random.default_rng(seed))
    return [share for share, reply in replies(plan, a, b, product) if not check.check(share, reply)]


def another_value(reply: np.ndarray, rng: np.random.Generator, *, least: float = 0.0) -> np.ndarray:
    """A copy with one entry changed by far more than rounding.

    A small reply may be nothing but roundings of terms that cancel: then its own size is no measure
    of them, and the change is ``least`` of the operands' size.
    """
    wrong = reply.copy()
    spot = tuple(int(rng.integers(extent)) for extent in reply.shape)
    size = max(float(np.abs(reply.astype(complex)).max()), least) or 1.0
    step = reply.dtype.type(1) if reply.dtype.kind in "iu" else reply.dtype.type(size)
    with np.errstate(over="ignore"):
        wrong[spot] += step
    return wrong


def grids(name: str) -> Iterator[Grid]:
    splits = registry.get(name).splits
    for size in (1, 2, 3):
        yield Grid(*(size if d in splits else 1 for d in "mpn"))
    if len(splits) > 1:
        yield Grid(*(3 if d == splits[0] else 2 if d in splits else 1 for d in "mpn"))


@pytest.mark.parametrize("name", CODES)
class TestEveryCode:
    """All registered codes, several grids and losses, all node choices."""

    def cases(self, name: str) -> Iterator[tuple[Plan, Checked, Checked]]:
        family = registry.get(name)
        for grid in grids(name):
            for losses in (0, 1, 2):
                fewest = (n for n in range(1, 40) if family.survives(n, grid) >= losses)
                workers = next(fewest, None)
                if workers is None:
                    continue
                rng = rng_for(workers, grid.m, grid.p, grid.n)
                A, B = rng.standard_normal((23, 17)), rng.standard_normal((17, 19))
                if issubclass(family, WrapCode):
                    A, B = (np.rint(1e6 * matrix).astype(np.int64) for matrix in (A, B))
                for nodes in family.node_choices or (None,):
                    blocks = (grid.m, grid.p, grid.n)
                    yield planned(A, B, workers, code=name, blocks=blocks, nodes=nodes)

    def test_honest_replies_pass_and_wrong_ones_do_not(self, name):
        seen, rng = 0, rng_for(3)
        for plan, a, b in self.cases(name):
            check = ReplyCheck(plan, a, b, rng)
            for share, reply in replies(plan, a, b):
                assert check.check(share, reply), (plan.grid, share)
                assert not check.check(share, another_value(reply, rng)), (plan.grid, share)
                assert check.check(share, reply), "a check must leave nothing behind"
                seen += 1
        assert seen > 10

    def test_a_reply_of_another_share_is_refused(self, name):
        rng = rng_for(5)
        for plan, a, b in self.cases(name):
            check = ReplyCheck(plan, a, b, rng)
            everything = dict(replies(plan, a, b))
            pairs = list(itertools.permutations(everything, 2))
            for index in rng.permutation(len(pairs))[:MOST_PAIRS]:
                share, other = pairs[index]
                reply, own = everything[share], everything[other]
                same = reply.shape == own.shape and np.allclose(reply, own, rtol=1e-9)
                if not same:
                    assert not check.check(other, reply)


@pytest.mark.parametrize(("code", "blocks"), USUAL)
class TestTypes:
    """Every dtype, dense and sparse, in every memory order."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes(self, code, blocks, dtype):
        rng = rng_for(7)
        A, B = random_matrix(rng, (31, 26), dtype), random_matrix(rng, (26, 22), dtype)
        try:
            plan, a, b = planned(A, B, code=code, blocks=blocks)
        except UsageError:
            assert dtype in ("i8", "u8"), "only large integers have no code"
            return
        check = ReplyCheck(plan, a, b, rng)
        for share, reply in replies(plan, a, b):
            assert check.check(share, reply)
            assert not check.check(share, another_value(reply, rng))

    def test_mixed_operands(self, code, blocks):
        rng = rng_for(9)
        for left, right in (("f4", "c16"), ("c8", "f8"), ("i4", "f8"), ("?", "f4"), ("f2", "i1")):
            A, B = random_matrix(rng, (31, 26), left), random_matrix(rng, (26, 22), right)
            plan, a, b = planned(A, B, code=code, blocks=blocks)
            check = ReplyCheck(plan, a, b, rng)
            for share, reply in replies(plan, a, b):
                assert check.check(share, reply)
                assert not check.check(share, another_value(reply, rng))

    def test_memory_orders(self, code, blocks):
        rng = rng_for(11)
        A, B = rng.standard_normal((31, 26)), rng.standard_normal((26, 22))
        wide = rng.standard_normal((62, 78))
        for left in (np.asfortranarray(A), wide[::2, ::3], wide[30::-1, 77::-3]):
            for right in (np.asfortranarray(B), B[::-1]):
                plan, a, b = planned(left, right, code=code, blocks=blocks)
                assert not accused(plan, a, b)

    @pytest.mark.parametrize("form", ["csr_array", "csc_array", "coo_array", "csr_matrix"])
    def test_sparse(self, code, blocks, form):
        rng = rng_for(13)
        for density in (0.03, 0.4):
            A, B = (
                getattr(sp, form)(sp.random_array(shape, density=density, rng=rng))
                for shape in ((51, 46), (46, 42))
            )
            big = [getattr(sp, form)((M * 2**40).astype(np.int64)) for M in (A, B)]
            for left, right in ((A, B), (A, B.toarray()), (A.toarray(), B), (A * 1j, B), big):
                try:
                    plan, a, b = planned(left, right, code=code, blocks=blocks)
                except UsageError:
                    assert left.dtype.kind == "i"
                    continue
                check = ReplyCheck(plan, a, b, rng)
                for share, reply in replies(plan, a, b):
                    assert check.check(share, reply)
                    assert not check.check(share, another_value(reply, rng))


@settings(max_examples=80, deadline=None)
@given(
    case=st.sampled_from(USUAL),
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_any_shape(case, shape, dtype, seed):
    """1 x N, fewer rows than blocks, lengths that do not divide: honest passes, wrong does not."""
    rng = np.random.default_rng(seed)
    m, inner, n = shape
    A, B = random_matrix(rng, (m, inner), dtype), random_matrix(rng, (inner, n), dtype)
    try:
        plan, a, b = planned(A, B, code=case[0], blocks=case[1])
    except UsageError:
        return
    check = ReplyCheck(plan, a, b, rng)
    for share, reply in replies(plan, a, b):
        assert check.check(share, reply)
        if reply.size:
            assert not check.check(share, another_value(reply, rng, least=1.0))


def one_after_the_other(x: Any, y: Any) -> np.ndarray:
    """The reference BLAS: a column of A at a time."""
    total = np.zeros((x.shape[0], y.shape[1]), x.dtype)
    for left, right in zip(x.T, y, strict=True):
        total += np.outer(left, right)
    return total


def backwards(x: Any, y: Any) -> np.ndarray:
    return np.ascontiguousarray(x[:, ::-1]) @ np.ascontiguousarray(y[::-1])


def in_pieces(x: Any, y: Any) -> np.ndarray:
    return sum((x[:, k : k + 7] @ y[k : k + 7] for k in range(0, x.shape[1], 7)), 0 * x[:, :1])


def more_precisely(x: Any, y: Any) -> np.ndarray:
    wide = np.result_type(x, np.longdouble)
    return np.einsum("il,lj->ij", x.astype(wide), y.astype(wide)).astype(x.dtype)


class TestNobodyIsAccused:
    """Honest replies, however their operands look and however their BLAS rounds."""

    @pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
    @pytest.mark.parametrize("product", [None, one_after_the_other, backwards, in_pieces])
    def test_equal_entries_all_round_the_same_way(self, product, dtype):
        rng = rng_for(17)
        for inner in (600, 1500):
            for value in rng.uniform(1, 2, 2):
                A, B = np.full((7, inner), value, dtype), np.full((inner, 6), value * 1.3, dtype)
                for code, blocks in USUAL:
                    plan, a, b = planned(A, B, code=code, blocks=blocks)
                    assert not accused(plan, a, b, product=product)

    def test_a_long_sum_of_equal_terms_in_single_precision(self):
        A, B = np.full((3, 60_000), 0.1, "f4"), np.full((60_000, 3), 1.7, "f4")
        plan, a, b = planned(A, B, 4, code="replication", blocks=(1, 1))
        assert not accused(plan, a, b, product=one_after_the_other)

    @pytest.mark.parametrize("product", [backwards, in_pieces, more_precisely])
    def test_other_roundings(self, product):
        rng = rng_for(19)
        for code, blocks in USUAL:
            A, B = rng.standard_normal((61, 150)), rng.standard_normal((150, 57))
            plan, a, b = planned(A, B, code=code, blocks=blocks)
            assert not accused(plan, a, b, product=product)

    def test_thousands_of_replies(self):
        rng, count = rng_for(23), 0
        for turn in range(90):
            code, blocks = USUAL[turn % len(USUAL)]
            dtype = ("f8", "f4", "c16")[turn % 3]
            shape = tuple(int(x) for x in rng.integers(8, 60, 3))
            A, B = random_matrix(rng, shape[:2], dtype), random_matrix(rng, shape[1:], dtype)
            plan, a, b = planned(A, B, code=code, blocks=blocks)
            honest = list(replies(plan, a, b))
            for again in range(5):
                check = ReplyCheck(plan, a, b, np.random.default_rng([turn, again]))
                assert all(check.check(share, reply) for share, reply in honest)
                count += len(honest)
        assert count > 3000

    @pytest.mark.parametrize("nodes", ["equispaced", "unity"])
    def test_ill_conditioned_nodes(self, nodes):
        rng = rng_for(29)
        A, B = rng.standard_normal((60, 61)), rng.standard_normal((61, 62))
        for code, blocks in (("polynomial", (4, 3)), ("matdot", (1, 6, 1))):
            plan, a, b = planned(A, B, 16, code=code, blocks=blocks, nodes=nodes)
            assert not accused(plan, a, b)

    def test_badly_scaled(self):
        rng = rng_for(31)
        A, B = rng.standard_normal((30, 40)), rng.standard_normal((40, 20))
        rows, columns = (10.0 ** rng.integers(-140, 140, size) for size in (30, 20))
        inner = 10.0 ** np.linspace(-60, 60, 40)
        for left, right in (
            (A * rows[:, None], B),
            (A, B * columns),
            (A * inner, B / inner[:, None]),
            (A * rows[:, None], B * columns),
        ):
            for code, blocks in USUAL:
                plan, a, b = planned(left, right, code=code, blocks=blocks)
                assert not accused(plan, a, b)

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_tiny_and_huge(self, dtype):
        rng = rng_for(37)
        limits = np.finfo(dtype)
        exponents = (limits.minexp - 15, limits.minexp // 2, 0, limits.maxexp // 2 - 20)
        for left in exponents:
            for right in exponents:
                A = np.ldexp(rng.standard_normal((20, 30)), left).astype(dtype)
                B = np.ldexp(rng.standard_normal((30, 14)), right).astype(dtype)
                for code, blocks in USUAL:
                    plan, a, b = planned(A, B, code=code, blocks=blocks)
                    assert not accused(plan, a, b)

    def test_cancellation_and_zeros(self):
        rng = rng_for(41)
        A, B = rng.standard_normal((30, 20)), rng.standard_normal((20, 18))
        holes = B.copy()
        holes[:, 4] = holes[7] = 0
        for left, right in (
            (np.hstack([A, -A]), np.vstack([B, B * (1 + 1e-14)])),
            (A * 0, B),
            (A, B * 0),
            (A, holes),
            (A * 0, B * 0),
        ):
            for code, blocks in USUAL:
                plan, a, b = planned(left, right, code=code, blocks=blocks)
                assert not accused(plan, a, b)


class TestWrongReplies:
    """Every corruption is seen, or harmless."""

    @pytest.mark.parametrize("kind", sorted(CORRUPTIONS))
    @pytest.mark.parametrize("dtype", ["f8", "c16", "i4"])
    @pytest.mark.parametrize(("code", "blocks"), USUAL)
    def test_every_kind(self, code, blocks, dtype, kind):
        rng = rng_for(43)
        A, B = random_matrix(rng, (41, 36), dtype), random_matrix(rng, (36, 32), dtype)
        plan, a, b = planned(A, B, code=code, blocks=blocks)
        norm = np.linalg.norm(A.astype(complex) @ B)
        worst = plan.worst_amplification
        for share, reply in replies(plan, a, b):
            faults = FaultPlan([Fault("corrupt", share, 1.0, corruption=kind)], share)
            check = ReplyCheck(plan, a, b, rng)
            for _ in range(12):
                wrong = reply.copy()
                with np.errstate(all="ignore"):
                    if not faults.corrupt(wrong):
                        assert kind == "stale"
                        continue
                    if check.check(share, wrong):
                        assert kind == "flip"
                        harm = worst * np.linalg.norm(wrong - reply) / norm
                        assert harm < 1e-9
                        if dtype == "i4":
                            assert worst * np.abs(wrong - reply).max() < 0.5

    @pytest.mark.parametrize(("code", "blocks"), USUAL)
    def test_one_wrong_entry_of_a_large_matrix_is_seen_down_to_rounding(self, code, blocks):
        rng = rng_for(47)
        A, B = rng.standard_normal((600, 600)), rng.standard_normal((600, 600))
        plan, a, b = planned(A, B, code=code, blocks=blocks)
        check = ReplyCheck(plan, a, b, rng)
        typical = np.linalg.norm(A @ B) / 600
        for share, reply in replies(plan, a, b):
            assert check.check(share, reply)
            for _ in range(3):
                wrong = reply.copy()
                spot = tuple(int(rng.integers(extent)) for extent in reply.shape)
                wrong[spot] += 1e-9 * typical
                assert not check.check(share, wrong)

    def test_small_columns_and_rows_count_as_much_as_large_ones(self):
        rng = rng_for(53)
        A = rng.standard_normal((40, 50)) * 10.0 ** np.linspace(0, -20, 40)[:, None]
        B = rng.standard_normal((50, 30)) * 10.0 ** np.linspace(20, 0, 30)
        inner = 10.0 ** np.linspace(-30, 30, 50)
        plan, a, b = planned(A * inner, B / inner[:, None], code="uncoded", blocks=(4, 2))
        check = ReplyCheck(plan, a, b, rng)
        for share, reply in replies(plan, a, b):
            assert check.check(share, reply)
            for spot in ((0, 0), (-1, 0), (0, -1), (-1, -1)):
                wrong = reply.copy()
                wrong[spot] *= 1 + 1e-8
                assert not check.check(share, wrong)

    def test_nan_and_infinity_are_wrong(self):
        rng = rng_for(59)
        A, B = rng.standard_normal((20, 30)), rng.standard_normal((30, 14))
        for code, blocks in USUAL:
            plan, a, b = planned(A, B, code=code, blocks=blocks)
            check = ReplyCheck(plan, a, b, rng)
            for share, reply in replies(plan, a, b):
                for value in (math.nan, math.inf, -math.inf, 1e308):
                    wrong = reply.copy()
                    wrong[1, :] = value
                    assert not check.check(share, wrong)

    def test_integers_are_compared_exactly(self):
        rng = rng_for(61)
        for dtype, code, blocks in (
            ("i8", "replication", (2, 2)),
            ("i8", "khatri-rao", (7, 1)),
            ("u8", "uncoded", (4, 2)),
        ):
            A, B = random_matrix(rng, (31, 26), dtype), random_matrix(rng, (26, 22), dtype)
            plan, a, b = planned(A, B, code=code, blocks=blocks)
            assert plan.compute == np.int64
            check = ReplyCheck(plan, a, b, rng)
            for share, reply in replies(plan, a, b):
                for bit in (0, 31, 62, 63):
                    wrong = reply.copy()
                    wrong[0, 1] ^= np.int64(np.uint64(1 << bit).astype(np.int64))
                    assert not check.check(share, wrong)

    def test_large_integers_in_floating_point_are_compared_exactly_too(self):
        rng = rng_for(67)
        A, B = rng.integers(-(2**22), 2**22, (31, 26)), rng.integers(-(2**22), 2**22, (26, 22))
        plan, a, b = planned(A, B, code="replication", blocks=(2, 2))
        assert plan.compute == np.float64
        check = ReplyCheck(plan, a, b, rng)
        for share, reply in replies(plan, a, b):
            assert check.check(share, reply)
            for step in (1.0, -1.0, 0.5, math.nan, math.inf, 1e300):
                wrong = reply.copy()
                wrong[2, 3] += step
                assert not check.check(share, wrong)

    def test_top_bits_of_two_entries_of_a_row(self):
        """Odd multiples of both cancel modulo 2**64; the other projections see them."""
        rng = rng_for(71)
        A, B = random_matrix(rng, (12, 9), "i8"), random_matrix(rng, (9, 8), "i8")
        plan, a, b = planned(A, B, 2, code="replication", blocks=(1, 1))
        reply = dict(replies(plan, a, b))[0]
        wrong = reply.copy()
        wrong[3, [1, 5]] ^= np.int64(-(2**63))
        seen = sum(
            not ReplyCheck(plan, a, b, np.random.default_rng(k)).check(0, wrong) for k in range(80)
        )
        assert seen > 60

    def test_the_wrong_shape_is_refused(self):
        rng = rng_for(73)
        A, B = rng.standard_normal((20, 30)), rng.standard_normal((30, 14))
        plan, a, b = planned(A, B, code="khatri-rao", blocks=(3, 2))
        check = ReplyCheck(plan, a, b, rng)
        for share, reply in replies(plan, a, b):
            assert not check.check(share, reply[:-1])
            assert not check.check(share, reply[:, :-1])
            assert not check.check(share, reply[:0])


class TestReplyCheck:
    """How it is used."""

    def setup_method(self):
        rng = rng_for(79)
        A, B = rng.standard_normal((900, 700)), rng.standard_normal((700, 500))
        self.plan, self.a, self.b = planned(A, B, code="khatri-rao", blocks=(3, 2))
        self.replies = dict(replies(self.plan, self.a, self.b))

    def test_prepare_works_in_steps_and_then_has_nothing_to_do(self):
        check = ReplyCheck(self.plan, self.a, self.b)
        steps = 0
        while check.prepare():
            steps += 1
        assert 1 < steps < 100
        assert not check.prepare()
        assert all(check.check(share, reply) for share, reply in self.replies.items())

    def test_a_check_prepares_by_itself(self):
        check = ReplyCheck(self.plan, self.a, self.b)
        assert check.check(7, self.replies[7])
        assert not check.prepare()

    def test_the_generator_decides_alone(self):
        borderline = self.replies[0].copy()
        borderline[5, 6] *= 1 + 4e-13
        verdicts = [
            ReplyCheck(self.plan, self.a, self.b, np.random.default_rng(k)).check(0, borderline)
            for k in (1, 2, 3, 4) * 2
        ]
        assert verdicts[:4] == verdicts[4:]

    def test_padded_plain_replies_are_accepted(self):
        height, width = max(r.shape for r in self.replies.values())
        padded = np.zeros((height, width))
        check = ReplyCheck(self.plan, self.a, self.b)
        for share, reply in self.replies.items():
            padded[...] = 0
            padded[: reply.shape[0], : reply.shape[1]] = reply
            assert check.check(share, padded)

    def test_no_operand_is_changed(self):
        before = self.a.matrix.copy(), self.b.matrix.copy()
        ReplyCheck(self.plan, self.a, self.b).check(0, self.replies[0])
        assert np.array_equal(before[0], self.a.matrix)
        assert np.array_equal(before[1], self.b.matrix)

    @pytest.mark.parametrize(
        ("value", "words"), [(math.nan, "NaN or Inf"), (math.inf, "NaN"), (1e300, "near overflow")]
    )
    def test_what_cannot_be_projected_is_said(self, value, words):
        A, B = np.ones((6, 5)), np.full((5, 4), 1e5)
        A[2, 3] = value
        plan, a, b = planned(A, B)
        assert words in obstacle(plan, a, b)
        assert not worthwhile(plan, a, b)
        with pytest.raises(VerificationFailed, match=words):
            ReplyCheck(plan, a, b)


class TestCost:
    """What ``verify="auto"`` decides by."""

    def of(self, size: int, **options: Any) -> tuple[Plan, Checked, Checked]:
        flat = np.broadcast_to(np.ones((), options.pop("dtype", "f8")), (size, size))
        a = as_operand(flat[:2, :2], "A")
        whole = Checked(flat, a.facts)
        with codedla.SerialPool(8) as pool:
            return plan_product(whole, whole, pool, operation="matmul", **options), whole, whole

    def test_large_products_are_worth_it_and_small_ones_are_not(self):
        assert not worthwhile(*self.of(100))
        assert worthwhile(*self.of(60_000))

    def test_a_vector_is_not(self):
        A, x = np.ones((3000, 2000)), np.ones((2000, 1))
        assert not worthwhile(*planned(A, x, operation="matvec"))

    def test_what_else_takes_time_counts(self):
        plan, a, b = self.of(500)
        assert not worthwhile(plan, a, b)
        assert worthwhile(plan, a, b, beside=60.0)

    def test_it_grows_with_the_square(self):
        seconds = [verification_seconds(self.of(size)[0]) for size in (1000, 2000)]
        assert seconds[1] / seconds[0] == pytest.approx(4, rel=0.01)

    def test_nothing_to_check(self):
        assert not worthwhile(*planned(np.ones((0, 4)), np.ones((4, 3))))


class TestRightSides:
    """How many columns A is multiplied by."""

    def check(self, weights: np.ndarray) -> int:
        combinations, coefficients = right_sides(weights)
        assert combinations.dtype.kind == "f"
        np.testing.assert_allclose(coefficients @ combinations, weights, rtol=1e-15, atol=1e-15)
        return len(combinations)

    def test_equal_rows_are_projected_once(self):
        assert self.check(np.repeat(np.eye(4)[:2], 5, axis=0)) == 2

    def test_never_more_than_there_are_blocks(self):
        rng = rng_for(83)
        assert self.check(rng.standard_normal((9, 3))) == 3
        assert self.check(rng.standard_normal((2, 5))) == 2

    def test_complex_weights_need_real_columns_only(self):
        rng = rng_for(89)
        for shape in ((2, 7), (9, 3)):
            weights = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
            assert self.check(weights) <= min(2 * shape[0], shape[1])

    def test_no_shares(self):
        assert self.check(np.zeros((0, 4))) == 0


class TestVerifyProduct:
    """The decoded product, all at once."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_right_passes_and_wrong_fails(self, dtype):
        rng = rng_for(97)
        A, B = random_matrix(rng, (41, 36), dtype), random_matrix(rng, (36, 32), dtype)
        a, b = as_operand(A, "A"), as_operand(B, "B")
        exact = dtype in ("?", "i1", "u2", "i4", "i8", "u8")
        # Halves are multiplied in single precision and narrowed after the check.
        wide = "i8" if exact else np.result_type(dtype, "f4")
        C = A.astype(wide) @ B.astype(wide)
        eps = 2.0**-52 if exact else float(np.finfo(C.dtype).eps)
        verify_product(a, b, C, eps=eps, rng=rng)
        wrong = C.copy()
        wrong[17, 5] += 1 if exact else 30
        with pytest.raises(VerificationFailed, match="in row 17"):
            verify_product(a, b, wrong, eps=eps, rng=rng)

    def test_integers_decoded_in_floating_point_are_compared_as_they_are_handed_out(self):
        rng = rng_for(101)
        A, B = rng.integers(-(2**21), 2**21, (31, 26)), rng.integers(-(2**21), 2**21, (26, 22))
        a, b = as_operand(A, "A"), as_operand(B, "B")
        decoded = (A @ B) + rng.uniform(-0.4, 0.4, (31, 22))
        verify_product(a, b, decoded, rng=rng)
        for value in (decoded[4, 4] + 1, math.nan, math.inf, -1e300):
            wrong = decoded.copy()
            wrong[4, 4] = value
            with pytest.raises(VerificationFailed, match=r"row 4: it is not equal modulo"):
                verify_product(a, b, wrong, rng=rng)

    def test_nan_is_wrong(self):
        rng = rng_for(103)
        A, B = rng.standard_normal((8, 9)), rng.standard_normal((9, 7))
        C = A @ B
        C[3, 3] = math.nan
        with pytest.raises(VerificationFailed, match="row 3: off by nan"):
            verify_product(as_operand(A, "A"), as_operand(B, "B"), C)

    @pytest.mark.parametrize(("value", "words"), [(math.nan, "NaN or Inf"), (1e300, "overflow")])
    def test_what_cannot_be_verified_is_said(self, value, words):
        A, B = np.ones((6, 5)), np.full((5, 4), 1e20)
        A[2, 3] = value
        with np.errstate(all="ignore"):
            C = A @ B
        with pytest.raises(VerificationFailed, match=words):
            verify_product(as_operand(A, "A"), as_operand(B, "B"), C)

    def test_sparse_operands(self):
        rng = rng_for(107)
        A, B = (sp.random_array((40, 40), density=0.1, rng=rng) for _ in range(2))
        a, b = as_operand(A, "A"), as_operand(B, "B")
        C = (A @ B).toarray()
        verify_product(a, b, C)
        C[0, 0] += 1e-3
        with pytest.raises(VerificationFailed, match="row 0"):
            verify_product(a, b, C)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**62, -(2.0**63)])
def test_numbers_that_are_no_integers_are_no_product_of_integers(bad):
    """Cast to int64 an even number of them can cancel; whatever the random vector."""
    a, b = as_operand(np.ones((2, 3), np.int64), "A"), as_operand(np.ones((3, 8), np.int64), "B")
    decoded = np.full((2, 8), 3.0)
    verify_product(a, b, decoded)
    decoded[1, 2:6] = bad
    for seed in range(200):
        with pytest.raises(VerificationFailed, match="in row 1"):
            verify_product(a, b, decoded, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("code", ["uncoded", "mds", "polynomial"])
def test_a_wrong_number_in_a_product_of_zeros_is_seen(code):
    a, b = np.ones((6, 5)), np.zeros((5, 4))
    lie = [Fault("corrupt", 1, 1.0)]
    with (
        codedla.SerialPool(6, faults=lie) as pool,
        pytest.warns(codedla.CodedlaWarning, match="rank 2 was not used"),
    ):
        product, report = codedla.matmul(
            a, b, pool=pool, code=code, verify="locate", return_report=True
        )
    assert not product.any()
    assert report.wrong == [2]


@pytest.mark.parametrize("signed", ["i1", "i4", "i8"])
@pytest.mark.parametrize("mode", ["freivalds", "locate"])
def test_signed_times_unsigned_integers_of_64_bits(mode, signed):
    """NumPy computes that in double precision, where the product is not equal modulo 2**64."""
    rng = rng_for(93, np.dtype(signed).itemsize)
    A = rng.integers(0, 1 << 62, (20, 9), dtype="u8")
    B = rng.integers(-100, 100, (9, 6)).astype(signed)
    with codedla.SerialPool(8) as pool:
        C, report = codedla.matmul(A, B, pool=pool, verify=mode, return_report=True)
    assert C.dtype == (A[:1] @ B).dtype == np.float64
    assert report.wrong == []
    np.testing.assert_allclose(C, A.astype(float) @ B.astype(float), rtol=0, atol=1e9)
    faults = [Fault("corrupt", 2, 1.0)]
    with codedla.SerialPool(3, faults=faults) as pool, pytest.raises(VerificationFailed):
        codedla.matmul(A, B, pool=pool, code="uncoded", verify="freivalds")
