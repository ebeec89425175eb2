"""The coded Fourier transform agrees with SciPy's, whoever is late, lost or lying."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

import codedla
from codedla.codes import registry
from codedla.engine.stragglers import parse_fault
from codedla.errors import (
    CodedlaWarning,
    NotDecodable,
    UsageError,
    VerificationFailed,
)
from codedla.transforms.checks import Projection

REAL_CODES = ("mds", "khatri-rao", "polynomial", "replication", "uncoded", "lt", "orthonormal")
LATE = np.array([0, 9, 0, 0, 9, 0, 0, 0.0])


def simulated(**options):
    return codedla.SimulatedPool(8, delays=lambda rng, n: LATE, **options)


def faults(*specs):
    return [parse_fault(spec) for spec in specs]


def sequence(rng, shape, dtype):
    x = 3 * rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x > 0 if dtype == "?" else x.astype(dtype)


def reference(x):
    """As SciPy would transform it, but more accurately."""
    wide = np.clongdouble if x.dtype.kind == "c" else np.longdouble
    return scipy.fft.fft(x.astype(wide))


def relative(got, expected):
    size = np.linalg.norm(expected.astype(complex))
    return np.linalg.norm((got - expected).astype(complex)) / max(size, 1e-300)


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 3000),
    dtype=st.sampled_from(["f4", "f8", "c8", "c16", "i8", "f2", "?", "u1"]),
    batch=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 2**32),
    real_code=st.booleans(),
)
def test_it_agrees_with_scipy(length, dtype, batch, seed, real_code):
    rng = np.random.default_rng(seed)
    x = sequence(rng, length if batch is None else (batch, length), dtype)
    more = {} if real_code else {"code": "mds", "nodes": "unity", "tolerate": 2}
    with simulated() as pool:
        got, report = codedla.fft(x, pool=pool, return_report=True, verify="locate", **more)
    due = np.complex64 if np.dtype(dtype) in (np.float16, np.float32, np.complex64) else complex
    assert got.dtype == due
    assert got.shape == x.shape
    eps = np.finfo(due).eps
    assert relative(got, reference(x)) <= 30 * eps * (report.amplification + 1)
    assert not report.wrong
    assert report.threshold == int(report.grid.split("x")[0])
    assert length % report.threshold == 0


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("n", [None, 30])
def test_arguments_mean_what_they_mean_in_scipy(name, norm, axis, n):
    rng = np.random.default_rng(11)
    x = sequence(rng, (12, 10, 8), "c16")
    with codedla.SerialPool(5) as pool:
        got = getattr(codedla, name)(x, n, axis, norm, pool=pool, verify="freivalds")
    expected = getattr(scipy.fft, name)(x, n, axis, norm)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13 * abs(expected).max())


@pytest.mark.parametrize(
    ("shape", "axis"), [((0,), 0), ((0, 3), 0), ((2, 0, 3), 1), ((0, 3), 1), ((2, 0, 3), 2)]
)
def test_what_is_empty_is_padded_with_zeros(shape, axis):
    with codedla.SerialPool(3) as pool:
        got = codedla.fft(np.empty(shape), 4, axis, pool=pool, verify="locate")
    expected = scipy.fft.fft(np.empty(shape), 4, axis)
    assert got.shape == expected.shape and not got.any()


def test_a_transform_and_its_inverse_cancel():
    x = sequence(np.random.default_rng(2), 5040, "f8")
    with simulated() as pool:
        back = codedla.ifft(codedla.fft(x, pool=pool), pool=pool)
    np.testing.assert_allclose(back, x, atol=1e-13)


@pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])
@pytest.mark.parametrize("lost", [(), (1, 2), (5, 8), (2, 3, 4, 6, 7)])
def test_lost_workers_are_done_without(kind, lost):
    x = sequence(np.random.default_rng(3), 600, "f8")
    with kind(8, faults=faults(*(f"kill:{rank}:0" for rank in lost))) as pool:
        got, report = codedla.fft(x, pool=pool, parts=6, return_report=True)
    assert sorted(report.lost) == list(lost)
    assert relative(got, reference(x)) < 1e-14


@pytest.mark.parametrize("code", registry.available())
@pytest.mark.parametrize("parts", [None, 2, 4])
def test_every_code_is_right_or_refused(code, parts):
    x = sequence(np.random.default_rng(4), 2520, "f8")
    with codedla.SerialPool(12, faults=faults("delay:1:1", "slow:2:3")) as pool:
        try:
            got, report = codedla.fft(
                x, pool=pool, code=code, parts=parts, return_report=True, verify="locate"
            )
        except UsageError as error:
            assert code not in REAL_CODES, error
            return
    assert report.code == code
    assert not report.wrong
    assert relative(got, reference(x)) < 1e-12


@pytest.mark.parametrize(("code", "nodes"), [("polynomial", "chebyshev"), ("mds", "chebyshev")])
def test_other_nodes(code, nodes):
    x = sequence(np.random.default_rng(4), 240, "f8")
    with codedla.SerialPool(8, faults=faults("delay:1:1")) as pool:
        got = codedla.fft(x, pool=pool, code=code, nodes=nodes, parts=4)
    assert relative(got, reference(x)) < 1e-13


def test_many_parts():
    x = sequence(np.random.default_rng(5), 40 * 90, "c16")
    late = np.zeros(42)
    late[[7, 30]] = 1.0
    with codedla.SimulatedPool(42, delays=lambda rng, n: late) as pool:
        got, report = codedla.fft(x, pool=pool, return_report=True)
    assert report.threshold == 40
    assert report.stragglers == [8, 31]
    assert relative(got, reference(x)) < 1e-13


def test_without_parts_the_largest_divisor_is_taken():
    with codedla.SerialPool(8) as pool:
        for length, parts in ((1024, 4), (30, 6), (35, 5), (97, 1), (1, 1), (4, 4)):
            x = np.arange(1.0, length + 1)
            _, report = codedla.fft(x, pool=pool, return_report=True)
            assert report.threshold == parts
            assert report.shapes == {"x": [length], "X": [length]}


def test_codes_for_integers_are_refused():
    with codedla.SerialPool(8) as pool, pytest.raises(UsageError, match="is for integers"):
        codedla.fft(np.ones(8), pool=pool, code="base3")


def test_parts_must_divide_the_length():
    with codedla.SerialPool(8) as pool:
        with pytest.raises(UsageError, match=r"got 100 points in 6 parts; use n=96 or n=102, or"):
            codedla.fft(np.ones(100), pool=pool, parts=6)
        with pytest.raises(UsageError, match=r"use n=6, or parts=5 or 1"):
            codedla.fft(np.ones(5), pool=pool, parts=6)
        got = codedla.fft(np.ones(100), 102, pool=pool, parts=6)
    np.testing.assert_allclose(got, scipy.fft.fft(np.ones(100), 102), atol=1e-12)


@pytest.mark.parametrize(
    ("x", "options", "text"),
    [
        (np.float64(3.0), {}, "at least one dimension"),
        (np.zeros(0), {}, "must not be empty"),
        (np.zeros((0, 4)), {}, "must hold numbers"),
        (np.zeros(4, np.longdouble), {}, "x: operands must be"),
        (np.zeros((4, 4)), {"axis": 2}, "from -2 to 1; got 2"),
        (np.zeros((4, 4)), {"axis": slice(1)}, "axis must be a whole number"),
        (np.zeros(4), {"norm": "unitary"}, "norm, unless None, must be one of"),
        (np.zeros(4), {"norm": np.ones(2)}, "norm, unless None, must be one of"),
        (np.zeros(4), {"parts": 2.5}, "parts must be a whole number"),
        (np.zeros(4), {"verify": "auto"}, "verify of a transform"),
        (np.zeros(4), {"verify": np.ones(2)}, "verify of a transform"),
        (np.zeros(4), {"progress": 3}, "progress must be a function"),
        (np.zeros(4), {"n": 0}, "n must be >= 1"),
        (np.zeros(4), {"n": 10**15}, "must fit memory; got n=1000000000000000"),
        (np.zeros(4), {"n": 2**70}, "must fit memory"),
        (np.zeros(12), {"parts": 6}, "got 6 parts and 5 workers; use parts=4, or 7 ranks"),
        (np.zeros(4), {"code": "matdot", "parts": 2}, "matdot"),
        (np.zeros(8), {"code": "khatri-rao", "parts": 8, "tolerate": 2}, "need at least 8 workers"),
        (np.zeros(4), {"tolerate": 5}, "at least one worker must answer"),
        (np.zeros(4), {"timeout": -1.0}, "timeout must be positive"),
        (np.array([1.0, np.inf]), {"code": "mds", "parts": 2}, "entries are NaN, Inf"),
    ],
)
def test_refusals(x, options, text):
    with codedla.SerialPool(5) as pool, pytest.raises(UsageError, match=text):
        codedla.fft(x, pool=pool, **options)


def test_a_pool_is_needed():
    with pytest.raises(UsageError, match="pool must be"):
        codedla.fft(np.ones(4), pool=None)


def test_infinite_entries_stay_in_their_sequence():
    x = np.ones((3, 8))
    x[1, 3] = np.nan
    with codedla.SerialPool(5) as pool:
        got, report = codedla.fft(x, pool=pool, return_report=True)
        with pytest.raises(VerificationFailed, match="NaN or Inf cannot be verified"):
            codedla.fft(x, pool=pool, verify="freivalds")
        with pytest.raises(VerificationFailed, match="near overflow"):
            codedla.fft(np.full(8, 1e306), pool=pool, verify="locate")
    assert report.code == "replication"
    assert report.error_estimate is None
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], scipy.fft.fft(x[[0, 2]]))


@pytest.mark.filterwarnings("ignore:rank 3 was not used")
@pytest.mark.parametrize("kind", ["entry", "nan", "scale", "stale"])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_a_lying_worker_is_found(kind, dtype):
    x = sequence(np.random.default_rng(6), (2, 512), dtype)
    with codedla.SerialPool(8, faults=faults(f"corrupt:3:1:{kind}")) as pool:
        for _ in range(2):  # a stale reply needs an earlier one
            x = x + x[:, ::-1] ** 2
            with np.errstate(all="raise"):
                got, report = codedla.fft(x, pool=pool, verify="locate", return_report=True)
    assert report.wrong == [3]
    assert report.verified == "locate"
    assert relative(got, reference(x)) < 100 * np.finfo(got.dtype).eps


def test_a_wrong_transform_is_not_handed_out():
    x = sequence(np.random.default_rng(7), 512, "f8")
    with codedla.SerialPool(5, faults=faults("corrupt:2:1:entry")) as pool:
        with pytest.raises(VerificationFailed, match="failed its check in sequence 0"):
            codedla.fft(x, pool=pool, verify="freivalds")
        got = codedla.fft(x, pool=pool)
    assert relative(got, reference(x)) > 1e-12


@pytest.mark.parametrize(("length", "columns"), [(1, 1), (2, 2), (7, 4), (64, 33), (1000, 1000)])
@pytest.mark.parametrize("seed", range(3))
def test_the_projection_in_closed_form(length, columns, seed):
    projection = Projection(length, columns, np.random.default_rng(seed))
    k, n = np.arange(columns), np.arange(length)
    waves = np.exp(-2j * np.pi * np.outer(n, k) / length)
    np.testing.assert_allclose(abs(projection.weights), 1.0)
    np.testing.assert_allclose(waves @ projection.weights, projection.kernel, atol=1e-12 * columns)


def test_a_timeout_and_progress():
    seen = []
    x = np.arange(12.0)
    with simulated() as pool:
        codedla.fft(x, pool=pool, parts=6, progress=lambda *counts: seen.append(counts))
    assert seen == [(count, 6, 8) for count in range(1, 7)]
    with (
        codedla.SimulatedPool(8, delays=lambda rng, n: np.full(n, 5.0)) as pool,
        pytest.raises(NotDecodable, match="the time-out passed"),
    ):
        codedla.fft(x, pool=pool, timeout=1.0)


def test_what_could_lose_digits_is_said():
    x = sequence(np.random.default_rng(8), 20 * 6, "f8")
    late = np.zeros(24)
    late[:4] = 1.0
    with (
        codedla.SimulatedPool(24, delays=lambda rng, n: late) as pool,
        pytest.warns(CodedlaWarning),
    ):
        codedla.fft(x, pool=pool, parts=20, code="mds", nodes="equispaced", tolerate=4)
