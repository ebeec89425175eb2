"""Integer products over finite fields and in wrap-around integers: NumPy's, or Python's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.engine.plan import make_plan
from codedla.engine.stragglers import Fault
from codedla.errors import CodedlaWarning, NotDecodable, UsageError, VerificationFailed
from codedla.galois import Field
from codedla.linalg.field_check import FieldCheck

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def integers(rng, shape, dtype, size=None):
    """Any integers of this dtype, its extremes included, or those below ``size``."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    info = np.iinfo(dtype)
    if size is not None:
        return rng.integers(max(-size, info.min), min(size, info.max), shape).astype(dtype)
    values = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values.flat[0], values.flat[-1] = info.min, info.max
    return values


def pool(workers, lost=()):
    return codedla.SerialPool(workers, faults=[Fault("kill", int(worker), 0.0) for worker in lost])


@pytest.fixture
def rng():
    return np.random.default_rng(90_417)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("losses", [1, 2, 4])
def test_galois_is_numpys_product(rng, dtype, losses):
    A, B = integers(rng, (11, 8), dtype), integers(rng, (8, 13), dtype)
    patterns = list(itertools.combinations(range(6 + losses), losses))
    for lost in patterns[:: len(patterns) // 4]:
        with pool(6 + losses, lost) as workers:
            C, report = codedla.matmul(
                A, B, pool=workers, code="galois", blocks=(3, 2), return_report=True
            )
        assert C.dtype == A.dtype and np.array_equal(C, A @ B)
        assert report.error_estimate == 0.0 and report.amplification == 1.0
        assert report.dtype == str(A.dtype) and sorted(report.lost) == [w + 1 for w in lost]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("i8", "u8")])
def test_base3_is_numpys_product_of_narrow_integers(rng, dtype):
    """Results of up to 32 bits wrap around as NumPy's do, however large the true product is."""
    A, B = integers(rng, (11, 8), dtype), integers(rng, (8, 13), dtype)
    for lost in itertools.combinations(range(9), 3):
        with pool(9, lost) as workers:
            C = codedla.matmul(A, B, pool=workers, code="base3", blocks=(3, 2))
        assert C.dtype == A.dtype and np.array_equal(C, A @ B), lost


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_base3_wraps_around_with_one_parity_and_is_bounded_with_more(rng, dtype):
    A, B = integers(rng, (9, 5), dtype), integers(rng, (5, 8), dtype)
    with pool(5, [1]) as workers:
        C = codedla.matmul(A, B, pool=workers, code="base3", blocks=(2, 2))
    assert np.array_equal(C, A @ B)
    refusal = r"2 losses is exact below 1.2e\+18, .*='galois'"
    with pool(6) as workers, pytest.raises(UsageError, match=refusal):
        codedla.matmul(A, B, pool=workers, code="base3", blocks=(2, 2))
    # The code loses 3 bits: 2**60 - 1 still comes back.
    A, B = np.full((4, 1), 2**31 - 1, dtype), np.full((1, 4), 2**29, dtype)
    for lost in itertools.combinations(range(6), 2):
        with pool(6, lost) as workers:
            C = codedla.matmul(A, B, pool=workers, code="base3", blocks=(2, 2))
        assert np.array_equal(C, A @ B), lost


def test_mixed_dtypes_and_memory_orders(rng):
    A = np.asfortranarray(integers(rng, (9, 7), "i4"))
    B = integers(rng, (14, 10), "i8", 2**20)[::2, ::-1]
    for code in ("galois", "base3"):
        with pool(8, [2, 6]) as workers:
            C = codedla.matmul(A, B, pool=workers, code=code, blocks=(3, 2))
        assert C.dtype == np.int64 and np.array_equal(C, A @ B)


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_array])
@pytest.mark.parametrize("code", ["galois", "base3"])
def test_sparse_operands(rng, form, code):
    dense = integers(rng, (25, 21), "i8", 2**25)
    dense[rng.random(dense.shape) < 0.9] = 0
    B = integers(rng, (21, 10), "i8", 2**25)
    for a, b in ((form(dense), B), (dense, form(B)), (form(dense), form(B))):
        for lost in ((0, 3), (5, 6), (7,)):
            with pool(8, lost) as workers:
                C = codedla.matmul(a, b, pool=workers, code=code, blocks=(3, 2), verify="locate")
            assert np.array_equal(C, dense @ B)


def test_vectors_out_and_nothing_at_all(rng):
    A, x = integers(rng, (17, 6), "i8"), integers(rng, 6, "i8")
    out = np.zeros(17, np.int64)
    with pool(5, [1]) as workers:
        assert np.array_equal(codedla.matvec(A, x, pool=workers, code="galois"), A @ x)
        assert codedla.matvec(A, x, pool=workers, code="galois", out=out) is out
        assert np.array_equal(out, A @ x)
        empty = codedla.matmul(A[:, :0], A[:0], pool=workers, code="galois")
        assert empty.dtype == np.int64 and not empty.any() and empty.shape == (17, 6)
        with pytest.raises(UsageError, match="out must be a int64 array"):
            codedla.matvec(A, x, pool=workers, code="galois", out=np.zeros(17))


def test_a_seeded_sample_of_random_products(rng):
    """What benchmarks/integers.py does ten thousand times."""
    for _ in range(150):
        dtype = str(rng.choice(DTYPES[1:]))
        m, n = (int(x) for x in rng.integers(1, 5, 2))
        losses, code = int(rng.integers(1, 4)), str(rng.choice(["galois", "base3", "auto"]))
        shape = [int(x) for x in rng.integers(1, 12, 3)]
        size = None if rng.random() < 0.5 else 2 ** int(rng.integers(1, 28))
        A, B = integers(rng, shape[:2], dtype, size), integers(rng, shape[1:], dtype, size)
        lost = rng.choice(m * n + losses, losses, replace=False)
        with pool(m * n + losses, lost) as workers:
            try:
                C = codedla.matmul(A, B, pool=workers, code=code, blocks=(m, n), tolerate=losses)
            except UsageError as refusal:
                assert code == "base3" and "is exact below" in str(refusal)
                assert A.dtype.itemsize == 8
                continue
        assert C.dtype == A.dtype and np.array_equal(C, A @ B), (dtype, m, n, lost, code)


def test_auto_needs_no_copies_for_large_integers(rng):
    A, B = integers(rng, (40, 30), "i8"), integers(rng, (30, 20), "i8")
    for losses in (1, 2, 3, 5):
        with pool(9, range(losses)) as workers:
            C, report = codedla.matmul(A, B, pool=workers, tolerate=losses, return_report=True)
        assert np.array_equal(C, A @ B) and report.error_estimate == 0.0
    large = make_plan((4000, 4000), (4000, 4000), "i8", 12, exact_integers=True, largest=2**70)
    assert large.code.name == "galois" and large.compute == np.float64
    assert "speed of floating point" in large.reason


def test_integers_of_any_size_do_not_overflow(rng):
    A = integers(rng, (7, 5), "i8").astype(object) * 3**70
    B = integers(rng, (5, 6), "u8")
    for lost in ((), (0, 3), (4, 5)):
        with pool(6, lost) as workers:
            C, report = codedla.integer_matmul(
                A, B, pool=workers, blocks=(2, 2), return_report=True, verify="locate"
            )
        assert C.dtype == object and (A @ B.astype(object) == C).all()
        assert all(type(entry) is int for entry in C.flat)
        assert (report.dtype, report.verified) == ("object", "locate")
    with pool(6) as workers:
        assert codedla.integer_matmul([[2**80]], [[-(2**80)]], pool=workers)[0, 0] == -(2**160)
        nothing = codedla.integer_matmul(A[:, :0], B[:0], pool=workers)
        assert nothing.shape == (7, 6) and (nothing == 0).all()
        masked, late = np.ma.array([[2**70]]), np.array([[2**70, 0.5]], object)
        for wrong in ([[0.5]], [["1"]], [1, 2], np.array([[None]]), [[1], [2, 3]], masked, late):
            with pytest.raises(UsageError, match=r"integers|matrix|mask|numbers"):
                codedla.integer_matmul(wrong, [[1]], pool=workers)
        with pytest.raises(UsageError, match="progress must be"):
            codedla.integer_matmul(A, B, pool=workers, progress=3)
        with pytest.raises(UsageError, match="verify must be"):
            codedla.integer_matmul(A, B, pool=workers, verify="freivalds")


@pytest.mark.parametrize("code", ["galois", "base3"])
def test_floating_point_is_refused(code):
    A = np.ones((4, 4))
    with pool(6) as workers:
        for a, b in ((A, A), (A.astype(int), A), (A.astype(complex), A)):
            with pytest.raises(UsageError, match=r"is for integers, got floating.*cast them"):
                codedla.matmul(a, b, pool=workers, code=code, tolerate=1)
        with pytest.raises(UsageError, match="is for integers"):
            codedla.store(A, pool=workers, code=code)


def test_too_many_losses_and_the_clock(rng):
    A = integers(rng, (6, 6), "i8")
    with pool(6, range(6)) as workers, pytest.raises(NotDecodable):
        codedla.matmul(A, A, pool=workers, code="galois", blocks=(2, 2))
    seen = []
    with pool(6) as workers:
        codedla.matmul(
            A, A, pool=workers, code="galois", blocks=(2, 2), progress=lambda *s: seen.append(s)
        )
    done, needed, total = zip(*seen, strict=True)
    assert done[-1] == needed[-1] > 4 and list(done) == sorted(done)
    assert len(set(needed)) == len(set(total)) == 1


class TestFieldCheck:
    @pytest.fixture(params=[(Grid(3, 1, 2), 8), (Grid(2, 1, 2), 9), (Grid(3, 1, 1), 4)])
    def case(self, request, rng):
        grid, workers = request.param
        code = get("galois")(workers, grid).modulo(8191)
        field = Field(8191)
        A, B = (field.balanced(rng.integers(0, 8191, shape)) for shape in ((10, 9), (9, 7)))
        encoders = _encoders(A, B, grid, field)
        replies = {
            share: encoders[0].coded(code.rows_a(share)) @ encoders[1].coded(code.rows_b(share))
            for share in code.shares
        }
        for share in code.shares:
            block = code.plain_block(share)
            if block is not None:
                i, j = divmod(block, grid.n)
                replies[share] = encoders[0].plain(i) @ encoders[1].plain(j)
        return FieldCheck(code, A, B, rng=rng), replies, rng

    def test_honest_replies_pass_and_wrong_ones_do_not(self, case):
        check, replies, rng = case
        for share, reply in replies.items():
            assert check.check(share, reply)
            for wrong in (1.0, -1.0, 0.5, np.nan, np.inf, 2.0**53, float(rng.integers(1, 8191))):
                changed = reply.copy()
                changed[tuple(rng.integers(0, reply.shape))] += wrong
                assert not check.check(share, changed), (share, wrong)
            assert not check.check(share, reply[:-1]) and not check.check(share, reply[:, 1:])
            # The same element of the field is the same answer.
            assert check.check(share, reply + 8191.0)

    def test_a_reply_of_another_share_is_refused(self, case):
        check, replies, _ = case
        for (share, reply), other in itertools.product(replies.items(), replies):
            if share != other and not np.array_equal(reply, replies[other]):
                assert not check.check(other, reply)


def _encoders(A, B, grid, field):
    from codedla.blocks import Split
    from codedla.engine.exact_encoder import modular_encoder

    inner = Split(A.shape[1], grid.p)
    return (
        modular_encoder(A, Split(A.shape[0], grid.m), inner, field),
        modular_encoder(B, inner, Split(B.shape[1], grid.n), field),
    )


@pytest.mark.parametrize("code", ["galois", "base3"])
def test_a_wrong_worker_is_found_and_done_without(rng, code):
    A, B = integers(rng, (12, 9), "i4", 2**20), integers(rng, (9, 8), "i4", 2**20)
    # A parity that is not needed is not asked.
    for liar in range(4):
        workers = codedla.SerialPool(6, faults=[Fault("corrupt", liar, 1.0)])
        with workers, pytest.warns(CodedlaWarning, match="not used"):
            C, report = codedla.matmul(
                A.astype(np.int64),
                B,
                pool=workers,
                code=code,
                blocks=(2, 2),
                verify="locate",
                return_report=True,
            )
        assert np.array_equal(C, A.astype(np.int64) @ B)
        assert report.wrong == [liar + 1] and report.verified == "locate"


def test_integers_of_numpy_in_arrays_of_objects_and_sparse_ones(rng):
    narrow = np.array([[np.int8(5), np.int8(-128)], [np.bool_(True), True]], dtype=object)
    wide = np.array([[np.uint8(255)], [np.int64(-(2**63))]], dtype=object)
    dense = integers(rng, (6, 5), "i8") * (rng.random((6, 5)) < 0.4)
    B = integers(rng, (5, 3), "u8")
    with pool(5) as workers:
        C = codedla.integer_matmul(narrow, wide, pool=workers)
        for form in (sp.csr_array, sp.coo_array, sp.csc_matrix):
            got = codedla.integer_matmul(
                form(dense), B, pool=workers, blocks=(2, 2), verify="locate"
            )
            assert (got == dense.astype(object) @ B.astype(object)).all()
    assert C.tolist() == [[5 * 255 + 2**70], [255 - 2**63]]


@pytest.mark.parametrize("dtype", ["i1", "i8"])
@pytest.mark.parametrize("code", ["replication", "base3", "galois"])
def test_empty_blocks_of_sparse_operands_are_checked(rng, code, dtype):
    # Two rows in three blocks; as int64 the product wraps around.
    A = integers(rng, (2, 50), dtype, np.iinfo(dtype).max)
    B = integers(rng, (50, 2), dtype, 100)
    with pool(6) as workers:
        C, report = codedla.matmul(
            sp.csr_array(A),
            B,
            pool=workers,
            code=code,
            blocks=(3, 1),
            tolerate=1,
            verify="locate",
            return_report=True,
        )
    assert np.array_equal(C, A @ B) and report.verified == "locate" and not report.wrong


@pytest.mark.parametrize("verify", ["off", "freivalds"])
def test_replies_that_are_no_residues(verify):
    """NaN in a reply is the fault of a rank, not of the caller."""
    lie = [Fault("corrupt", worker, 1.0, corruption="nan") for worker in range(3)]
    a = np.arange(12).reshape(4, 3)
    wrong = pytest.raises(VerificationFailed, match="a rank computes wrongly")
    with codedla.SerialPool(3, faults=lie) as pool, wrong:
        codedla.matmul(a, a.T, pool=pool, code="galois", tolerate=1, verify=verify)
