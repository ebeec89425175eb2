"""Thousands of seeded products: NumPy's numbers, shape and dtype, or one clear refusal."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.engine.stragglers import Delays, Fault
from codedla.errors import UsageError

SIZES = (0, 1, 2, 3, 5, 7, 13, 97)
CODES = ("auto", "uncoded", "replication", "mds", "khatri-rao", "polynomial", "matdot")
DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")


def operand(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.4
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if rng.random() < 0.5:
            return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return rng.integers(max(info.min, -9), 10, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def reference(a, b):
    """NumPy's product; of halves in single precision, which is what workers compute in."""
    if np.result_type(a, b) == np.float16:
        return a.astype(np.float32) @ b.astype(np.float32)
    return a @ b


def check(product, report, a, b):
    expected = reference(a, b)
    dtype = np.result_type(a.dtype, b.dtype)
    assert (product.shape, product.dtype) == (expected.shape, dtype)
    assert isinstance(product, np.ndarray)
    if dtype.kind in "iub":
        np.testing.assert_array_equal(product, expected)
        assert report.error_estimate == 0.0
        return
    wide = np.complex128 if dtype.kind == "c" else np.float64
    size = float(np.linalg.norm(expected.astype(wide)))
    error = float(np.linalg.norm(product.astype(wide) - expected.astype(wide)))
    bound = 50 * report.error_estimate + 2 * float(np.finfo(dtype).eps)
    assert error <= bound * size
    # The estimate itself has to be small, or a wrong product would pass for a bad code.
    usual = 1e-2 if np.finfo(dtype).eps > 1e-10 else 1e-7
    assert report.error_estimate <= usual * max(1.0, cancellation(a, b, expected))


def cancellation(a, b, expected):
    size = float(np.linalg.norm(expected.astype(complex)))
    whole = float(np.linalg.norm(a.astype(complex)) * np.linalg.norm(b.astype(complex)))
    return whole / size if size else 1.0


def random_pool(rng, n_workers, lose):
    """A pool of either kind on which ``lose`` workers never answer."""
    lost = rng.choice(n_workers, size=lose, replace=False)
    faults = [Fault(str(rng.choice(["kill", "hang"])), int(w), 0.0) for w in lost]
    if rng.random() < 0.5:
        return codedla.SerialPool(n_workers, faults=faults)
    return codedla.SimulatedPool(
        n_workers, delays=Delays("exp", (1.0,)), faults=faults, seed=int(rng.integers(2**31))
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_products(seed):
    """Sizes x workers x losses x codes x dtypes x pools."""
    rng = np.random.default_rng([31337, seed])
    refused = done = 0
    for _ in range(150):
        m, inner, n = (int(s) for s in rng.choice(SIZES, 3))
        n_workers = int(rng.integers(1, 8))
        tolerate = int(rng.integers(0, 3))
        code = str(rng.choice(CODES, p=[0.4, *[0.1] * 6]))
        a = operand(rng, (m, inner), rng.choice(DTYPES))
        b = operand(rng, (inner, n), a.dtype if rng.random() < 0.6 else rng.choice(DTYPES))
        untouched = a.copy(), b.copy()
        with random_pool(rng, n_workers, min(tolerate, n_workers - 1)) as pool:
            try:
                product, report = codedla.matmul(
                    a, b, pool=pool, code=code, tolerate=tolerate, return_report=True
                )
            except UsageError as error:
                refused += 1
                assert str(error).count("\n") == 0
                assert any(cure in str(error) for cure in ("use", "cast", "is at most"))
                # The automatic choice refuses nothing that can be done at all.
                assert code != "auto" or tolerate >= n_workers
                continue
        check(product, report, a, b)
        np.testing.assert_array_equal(a, untouched[0])
        np.testing.assert_array_equal(b, untouched[1])
        done += 1
    assert done > 70


def test_every_size_with_the_automatic_choice():
    """All m, k, n of the table; workers and losses run through theirs."""
    rng = np.random.default_rng(31338)
    settings = itertools.cycle((w, t) for w in range(1, 8) for t in range(min(3, w)))
    pools = {w: codedla.SerialPool(w) for w in range(1, 8)}
    for m, inner, n in itertools.product(SIZES, repeat=3):
        n_workers, tolerate = next(settings)
        a, b = rng.standard_normal((m, inner)), rng.standard_normal((inner, n))
        product = codedla.matmul(a, b, pool=pools[n_workers], tolerate=tolerate)
        assert product.shape == (m, n)
        np.testing.assert_allclose(product, a @ b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, repeat=2)), ids="-".join)
def test_every_pair_of_dtypes(dtypes):
    """With one worker lost; integers and booleans are NumPy's bit for bit."""
    rng = np.random.default_rng([31339, *map(DTYPES.index, dtypes)])
    a, b = operand(rng, (7, 5), dtypes[0]), operand(rng, (5, 6), dtypes[1])
    for lost in (0, 2):
        with codedla.SerialPool(5, faults=[Fault("kill", lost, 0.0)]) as pool:
            product, report = codedla.matmul(a, b, pool=pool, tolerate=1, return_report=True)
        check(product, report, a, b)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "u8"])
@pytest.mark.parametrize("lost", range(5))
def test_integers_wrap_around_as_in_numpy(dtype, lost):
    info = np.iinfo(dtype)
    a = np.full((6, 9), info.min, dtype)
    a[::2] = info.max
    b = np.full((9, 4), info.max, dtype)
    b[:, 1] = info.min
    faults = [Fault("kill", lost, 0.0)]
    for code in ("auto", "khatri-rao", "replication"):
        with codedla.SerialPool(5, faults=faults) as pool:
            got = codedla.matmul(a, b, pool=pool, tolerate=1, code=code, verify="freivalds")
        np.testing.assert_array_equal(got, a @ b)
        assert got.dtype == dtype


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("sides", ["sd", "ds", "ss"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i4", "i8", "?"])
def test_sparse(fmt, sides, dtype):
    rng = np.random.default_rng(31341)
    a = operand(rng, (23, 17), dtype) * (rng.random((23, 17)) < 0.2)
    b = operand(rng, (17, 19), dtype) * (rng.random((17, 19)) < 0.2)
    a, b = a.astype(dtype), b.astype(dtype)
    left = sp.coo_array(a).asformat(fmt) if sides[0] == "s" else a
    right = sp.coo_matrix(b).asformat(fmt) if sides[1] == "s" else b
    for code in ("auto", "khatri-rao", "replication"):
        with codedla.SerialPool(5, faults=[Fault("kill", 1, 0.0)]) as pool:
            product, report = codedla.matmul(
                left, right, pool=pool, code=code, tolerate=1, return_report=True
            )
        check(product, report, a, b)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("code", ["auto", "mds", "polynomial", "matdot"])
def test_sparse_with_duplicates_zeros_and_empty_rows(index, code):
    rng = np.random.default_rng(31343)
    rows, cols = rng.integers(0, 29, 90), rng.integers(0, 11, 90)
    rows[rows == 4], cols[cols == 7] = 5, 8
    data = rng.standard_normal(90)
    data[::9] = 0.0
    a = sp.coo_array((data, (rows.astype(index), cols.astype(index))), shape=(29, 11))
    b = rng.standard_normal((11, 3))
    before = [x.copy() for x in (a.data, *a.coords)]
    with codedla.SerialPool(6) as pool:
        product, report = codedla.matmul(a, b, pool=pool, code=code, tolerate=2, return_report=True)
    check(product, report, a.toarray(), b)
    for now, then in zip((a.data, *a.coords), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_duplicates_of_large_integers_are_still_exact():
    """Each entry alone is far from 2**53; their sum is not."""
    a = sp.coo_array(([2**40 + 1] * 4096, ([0] * 4096, [0] * 4096)), shape=(3, 2))
    b = np.array([[3, 5], [7, 1]])
    with codedla.SerialPool(4, faults=[Fault("kill", 0, 0.0)]) as pool:
        got = codedla.matmul(a, b, pool=pool, tolerate=1)
    np.testing.assert_array_equal(got, a.toarray() @ b)


LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "row stride": lambda x: np.pad(x, ((0, 0), (0, 3)))[:, :-3],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: read_only(x),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "matrix": lambda x: x.view(np.ndarray),
    "list": lambda x: x.tolist(),
}


def read_only(x):
    x = x.copy()
    x.setflags(write=False)
    return x


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_layouts(left, right):
    rng = np.random.default_rng(31357)
    a, b = rng.standard_normal((11, 8)), rng.standard_normal((8, 9))
    with codedla.SerialPool(6, faults=[Fault("kill", 0, 0.0), Fault("hang", 3, 0.0)]) as pool:
        got = codedla.matmul(LAYOUTS[left](a), LAYOUTS[right](b), pool=pool, tolerate=2)
    assert got.dtype == np.float64
    assert got.dtype.isnative
    np.testing.assert_allclose(got, a @ b, rtol=0, atol=1e-11)


def test_broadcast_and_memory_mapped_operands(tmp_path):
    rng = np.random.default_rng(31379)
    np.save(tmp_path / "b.npy", rng.standard_normal((8, 9)))
    row = np.broadcast_to(rng.standard_normal(8), (11, 8))
    column = np.broadcast_to(rng.standard_normal((11, 1)), (11, 8))
    mapped = np.load(tmp_path / "b.npy", mmap_mode="r")
    with codedla.SerialPool(6, faults=[Fault("kill", 0, 0.0)]) as pool:
        for a in (row, column):
            got = codedla.matmul(a, mapped, pool=pool, tolerate=2)
            assert type(got) is np.ndarray
            np.testing.assert_allclose(got, a @ mapped, rtol=0, atol=1e-11)


# -- NaN and infinity ------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_nan_and_infinity_stay_where_numpy_puts_them(bad, side, sparse, workers):
    rng = np.random.default_rng(31387)
    operands = [rng.standard_normal((7, 5)), rng.standard_normal((5, 6))]
    operands[side][2, 3] = bad
    with np.errstate(invalid="ignore"):
        expected = operands[0] @ operands[1]
    if sparse:
        operands[0] = sp.csr_array(operands[0])
        expected = operands[0] @ operands[1]
    for lost in range(workers if workers > 2 else 1):
        faults = [Fault("kill", lost, 0.0)] if workers > 2 else []
        with codedla.SerialPool(workers, faults=faults) as pool:
            got, report = codedla.matmul(*operands, pool=pool, return_report=True)
        np.testing.assert_allclose(got, expected, rtol=1e-12)
        assert report.error_estimate is None


@pytest.mark.parametrize("code", ["mds", "khatri-rao", "polynomial", "matdot"])
def test_codes_that_would_spread_nan_refuse_it(code):
    a = np.ones((4, 4))
    a[0, 0] = math.nan
    with (
        codedla.SerialPool(5) as pool,
        pytest.raises(UsageError, match="use code='replication', code='uncoded' or code='auto'"),
    ):
        codedla.matmul(a, a, pool=pool, code=code)


@pytest.mark.parametrize("scale", [1e153, 1e200, 1e306])
def test_entries_near_overflow_are_not_combined(scale):
    """Sums of blocks could overflow where the product does not."""
    a, b = np.full((6, 3), scale), np.full((3, 4), 1e-200)
    with codedla.SerialPool(5, faults=[Fault("kill", 0, 0.0)]) as pool:
        got = codedla.matmul(a, b, pool=pool, verify="freivalds")
        np.testing.assert_allclose(got, a @ b, rtol=1e-14)
        squares = codedla.matmul(a, a[:3], pool=pool)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(squares, a @ a[:3], rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150])
def test_tiny_and_large_products_are_verified(scale):
    rng = np.random.default_rng(31391)
    a, b = rng.standard_normal((6, 5)) * scale, rng.standard_normal((5, 4))
    with codedla.SerialPool(5) as pool:
        got, report = codedla.matmul(a, b, pool=pool, verify="freivalds", return_report=True)
    assert report.error_estimate < 1e-12
    np.testing.assert_allclose(got, a @ b, rtol=1e-9)
    liar = Fault("corrupt", 0, 1.0)
    with (
        codedla.SerialPool(1, faults=[liar]) as pool,
        pytest.raises(codedla.VerificationFailed),
    ):
        codedla.matmul(a, b, pool=pool, verify="freivalds")


# -- out= ------------------------------------------------------


OUTS = {
    "C": lambda shape, dtype: np.full(shape, 7, dtype),
    "F": lambda shape, dtype: np.full(shape, 7, dtype, order="F"),
    "strided": lambda shape, dtype: np.full((shape[0] * 2, shape[1] * 2), 7, dtype)[::2, ::2],
    "reversed": lambda shape, dtype: np.full(shape, 7, dtype)[::-1, ::-1],
    "column block": lambda shape, dtype: np.full((shape[0], shape[1] + 5), 7, dtype)[:, 2:-3],
}


@pytest.mark.parametrize("layout", OUTS)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16", "i8", "i1", "u8", "?"])
@pytest.mark.parametrize("code", ["auto", "khatri-rao", "polynomial", "matdot"])
def test_out(layout, dtype, code):
    rng = np.random.default_rng(31393)
    a = rng.integers(0, 2, (9, 4)).astype(dtype)
    b = rng.integers(0, 2, (4, 7)).astype(dtype)
    for faults in ([], [Fault("kill", 0, 0.0)], [Fault("kill", 1, 0.0), Fault("kill", 3, 0.0)]):
        out = OUTS[layout]((9, 7), dtype)
        around = out.base.copy() if layout == "column block" else None
        with codedla.SerialPool(7, faults=faults) as pool:
            got, report = codedla.matmul(
                a, b, pool=pool, out=out, code=code, tolerate=2, return_report=True
            )
        assert got is out
        check(out, report, a, b)
        if around is not None:
            out[...] = 7
            np.testing.assert_array_equal(out.base, around)


def test_out_may_be_a_memory_map(tmp_path):
    a, b = np.arange(12.0).reshape(4, 3), np.arange(15.0).reshape(3, 5)
    out = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float64, (4, 5))
    with codedla.SerialPool(4) as pool:
        assert codedla.matmul(a, b, pool=pool, out=out) is out
    out.flush()
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), a @ b, rtol=1e-13)


@pytest.mark.parametrize("which", ["A", "B", "both"])
@pytest.mark.parametrize("code", ["uncoded", "replication", "khatri-rao", "mds", "polynomial"])
def test_out_may_overlap_the_operands(which, code):
    """As in NumPy: the product of the operands as they were."""
    rng = np.random.default_rng(31397)
    a, b = rng.standard_normal((6, 6)), rng.standard_normal((6, 6))
    if which == "both":
        b = a
    expected = a @ b
    with codedla.SerialPool(6) as pool:
        out = a if which != "B" else b
        codedla.matmul(a, b, pool=pool, out=out, code=code, tolerate=0)
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (
            np.empty((3, 4)),
            r"out must be a float64 array of shape \(3, 3\); got float64 ndarray \(3, 4\)",
        ),
        (np.empty((3, 3), "f4"), "got float32"),
        ([[0.0] * 3] * 3, "got list"),
        (np.broadcast_to(np.zeros(3), (3, 3)), "out must be writeable"),
    ],
)
def test_bad_out(out, words):
    with codedla.SerialPool(2) as pool, pytest.raises(UsageError, match=words):
        codedla.matmul(np.eye(3), np.eye(3), pool=pool, out=out)


# -- verify= ------------------------------------------------------


@pytest.mark.parametrize("code", ["uncoded", "replication", "khatri-rao", "polynomial", "matdot"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i8", "i1", "u8", "?"])
def test_corruption_is_caught_and_honest_products_pass(code, dtype):
    rng = np.random.default_rng(31399)
    a, b = operand(rng, (9, 8), dtype), operand(rng, (8, 10), dtype)
    for liar in (None, 0, 3):
        faults = [] if liar is None else [Fault("corrupt", liar, 1.0)]
        with codedla.SerialPool(4 if code == "uncoded" else 7, faults=faults) as pool:
            try:
                got, report = codedla.matmul(
                    a, b, pool=pool, code=code, verify="freivalds", return_report=True
                )
            except UsageError:
                assert np.dtype(dtype).kind in "iu"
                assert code in ("polynomial", "matdot", "khatri-rao")
                break
            except codedla.VerificationFailed as error:
                assert liar is not None
                assert error.exit_code == 4
                assert "the product is not handed out" in str(error)
                continue
            assert liar is None or liar + 1 not in report.responders
            assert report.verified == "freivalds"
            check(got, report, a, b)


def test_one_bit_of_a_wrapped_integer_product_is_caught():
    """Wrap-around products are compared exactly, modulo 2**64."""
    rng = np.random.default_rng(31469)
    a = rng.integers(-(2**62), 2**62, (8, 8))
    caught = 0
    for _ in range(20):
        with codedla.SerialPool(4, faults=[Fault("corrupt", 2, 1.0)]) as pool:
            pool.plans[2].corrupt = flip_the_last_bit
            with pytest.raises(codedla.VerificationFailed, match="Freivalds"):
                codedla.matmul(a, a, pool=pool, tolerate=0, verify="freivalds")
            caught += 1
    assert caught == 20


def flip_the_last_bit(reply):
    reply[0, 0] ^= 1


def test_nan_cannot_be_verified():
    with codedla.SerialPool(2) as pool, pytest.raises(codedla.VerificationFailed, match="NaN"):
        codedla.matmul(np.full((2, 2), np.nan), np.eye(2), pool=pool, verify="freivalds")


# -- other refusals ------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "options", "words"),
    [
        (np.eye(2), np.eye(3), {}, "columns of A must equal rows of B; got A 2x2 and B 3x3"),
        (np.ones(3), np.eye(3), {}, "A must be a matrix"),
        (np.eye(3), np.ones((1, 3, 3)), {}, "B must be a matrix"),
        (np.float64(3), np.eye(3), {}, "got 0 dimensions"),
        (np.eye(2, dtype=object), np.eye(2), {}, "A: operands must be bool, integers"),
        (np.eye(2), np.eye(2, dtype=np.longdouble), {}, "B: operands must be bool, integers"),
        (np.array([["a"]]), np.eye(1), {}, "A: operands must be"),
        (np.ma.masked_array(np.eye(2)), np.eye(2), {}, "A is a masked array"),
        (np.eye(2), np.eye(2), {"verify": "twice"}, "verify must be one of 'auto', 'off'"),
        (np.eye(2), np.eye(2), {"timeout": 0}, "timeout must be positive; got 0"),
        (np.eye(2), np.eye(2), {"timeout": math.nan}, "timeout must be positive"),
        (np.eye(2), np.eye(2), {"tolerate": 4}, "tolerate is at most 3"),
    ],
)
def test_bad_arguments(a, b, options, words):
    with codedla.SerialPool(4) as pool, pytest.raises(UsageError, match=words):
        codedla.matmul(a, b, pool=pool, **options)


class Detaching(codedla.SerialPool):
    """A pool on which a reply is still arriving in the output when the round ends."""

    def run(self, job):
        finish = job.decoder.finish

        def detached(responders):
            job.decoder.detach()
            finish(responders)

        job.decoder.finish = detached
        return super().run(job)


@pytest.mark.parametrize("code", ["khatri-rao", "polynomial", "replication"])
def test_out_is_complete_after_a_detached_round(code):
    rng = np.random.default_rng(31511)
    a, b, out = rng.standard_normal((6, 5)), rng.standard_normal((5, 4)), np.full((6, 4), np.nan)
    with Detaching(6, faults=[Fault("kill", 0, 0.0)]) as pool:
        assert codedla.matmul(a, b, pool=pool, code=code, tolerate=1, out=out) is out
    np.testing.assert_allclose(out, a @ b, atol=1e-12)


def test_a_missed_tolerance_is_said():
    """All replies are there, the weak nodes lose more than was asked, and the product says so."""
    rng = np.random.default_rng(7)
    a = rng.standard_normal((32, 8))
    with codedla.SerialPool(18) as pool, pytest.warns(codedla.CodedlaWarning) as said:
        _, report = codedla.matmul(
            a, a.T, pool=pool, code="mds", nodes="equispaced", blocks=16, tolerate=1,
            tolerance=1e-13, return_report=True,
        )  # fmt: skip
    assert any("there were no more to wait for" in str(w.message) for w in said)
    assert "above the tolerance 1.0e-13" in report.warnings[-1]


@pytest.mark.parametrize("late", [0, 7])
def test_rows_of_very_different_size_are_warned_of_when_they_are_recovered(late):
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 25))
    a[:10] *= 1e-8
    a[10:] *= 1e12
    delays = np.zeros(8)
    delays[late] = 9.0

    def run():
        with codedla.SimulatedPool(8, delays=lambda rng, n: delays) as pool:
            return codedla.matmul(a, b, pool=pool, code="mds", tolerate=2, return_report=True)

    if late == 7:  # a parity worker: every block is received as it is
        product, report = run()
        assert not report.warnings
        np.testing.assert_allclose(product, a @ b, rtol=1e-9)
    else:
        with pytest.warns(codedla.CodedlaWarning, match="differ so much in size"):
            _, report = run()
        assert "differ so much in size" in report.warnings[0]


@pytest.mark.filterwarnings("ignore::codedla.errors.CodedlaWarning")
def test_a_wrong_copy_does_not_end_the_right_one():
    """Rank 1 is late, rank 2 computes its share wrongly: rank 1's answer is still to come."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 6, 6))
    late = np.array([0.02, 0.0])
    both = 0
    lie = Fault("corrupt", 1, 0.5, corruption="scale")
    with codedla.SimulatedPool(2, delays=lambda _, n: late, faults=[lie], deadline=0.005) as pool:
        for _ in range(20):
            product, report = codedla.matmul(
                a, b, pool=pool, code="uncoded", verify="locate", return_report=True
            )
            np.testing.assert_allclose(product, a @ b, rtol=1e-12, atol=1e-12)
            both += report.responders == [2, 1] and report.wrong == [2]
    assert both, "its own share right, the other one wrong"
