"""The coded convolution agrees with SciPy's and NumPy's, whoever is late, lost or lying."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

import codedla
from codedla.codes import registry
from codedla.engine import spectral
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable, UsageError, VerificationFailed

LATE = np.array([0, 9, 0, 0, 9, 0, 0, 0.0])
MODES = ["full", "same", "valid"]
METHODS = ["auto", "direct", "fft"]


def simulated():
    return codedla.SimulatedPool(8, delays=lambda rng, n: LATE)


def faults(*specs):
    return [parse_fault(spec) for spec in specs]


def sequence(rng, length, dtype):
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(max(limits.min, -1000), min(limits.max, 1000), length, dtype=dtype)
    x = 3 * rng.standard_normal(length)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(length)
    return x > 0 if dtype == "?" else x.astype(dtype)


def numpy_convolution(a, b, mode):
    """NumPy's convolution with SciPy's meaning of the mode."""
    full = np.convolve(a, b)
    if mode == "full":
        return full
    if mode == "same":
        return full[(b.size - 1) // 2 :][: a.size]
    return np.convolve(a, b, "valid")


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    dtypes=st.tuples(*2 * [st.sampled_from(["f4", "f8", "c8", "c16"])]),
    mode=st.sampled_from(MODES),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 2**32),
)
def test_it_agrees_with_scipy(lengths, dtypes, mode, method, seed):
    rng = np.random.default_rng(seed)
    a, b = (sequence(rng, n, dtype) for n, dtype in zip(lengths, dtypes, strict=True))
    with simulated() as pool:
        got, report = codedla.convolve(
            a, b, mode, method, pool=pool, verify="locate", return_report=True
        )
    expected = scipy.signal.convolve(a.astype(complex), b.astype(complex), mode, "direct")
    assert got.dtype == np.result_type(a, b)
    assert got.shape == expected.shape
    eps, size = np.finfo(got.dtype).eps, np.linalg.norm(a) * np.linalg.norm(b)
    assert abs(got - expected).max() <= 20 * eps * (report.amplification + 1) * size
    assert report.verified == "locate"
    assert not report.wrong


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    dtypes=st.tuples(*2 * [st.sampled_from(["i1", "u1", "i4", "u4", "i8", "u8", "?"])]),
    mode=st.sampled_from(MODES),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 2**32),
)
def test_integers_are_exactly_numpys(lengths, dtypes, mode, method, seed):
    rng = np.random.default_rng(seed)
    a, b = (sequence(rng, n, dtype) for n, dtype in zip(lengths, dtypes, strict=True))
    with simulated() as pool:
        got, report = codedla.convolve(a, b, mode, method, pool=pool, return_report=True)
    expected = numpy_convolution(a, b, mode)
    assert got.dtype == expected.dtype
    if got.dtype.kind == "f":  # int64 with uint64 is a float to NumPy, too
        np.testing.assert_allclose(got, expected, atol=1e-9 * max(abs(expected).max(), 1.0))
        return
    np.testing.assert_array_equal(got, expected)
    assert report.error_estimate == 0.0


@pytest.mark.parametrize("tolerate", [0, 1, 2])
def test_integers_that_wrap_around(tolerate):
    rng = np.random.default_rng(21)
    a, b = rng.integers(-(2**63), 2**63 - 1, 301), rng.integers(-(2**63), 2**63 - 1, 200)
    with codedla.SerialPool(8, faults=faults("delay:1:1")) as pool:
        got = codedla.convolve(a, b, pool=pool, tolerate=tolerate)
        with pytest.raises(UsageError, match="no check in linear time"):
            codedla.convolve(a, b, pool=pool, tolerate=tolerate, verify="freivalds")
        with pytest.raises(UsageError, match="not exact in code"):
            codedla.convolve(a, b, pool=pool, code="polynomial", blocks=(2, 2))
    np.testing.assert_array_equal(got, np.convolve(a, b))


def test_integers_too_large_for_transforms_are_multiplied_out():
    rng = np.random.default_rng(22)
    a, b = rng.integers(-(2**21), 2**21, 400), rng.integers(-(2**19), 2**19, 300)
    with simulated() as pool:
        got = codedla.convolve(a, b, pool=pool)
        with pytest.raises(UsageError, match="must be exact"):
            codedla.convolve(a, b, pool=pool, method="fft", code="khatri-rao", blocks=(2, 2))
    np.testing.assert_array_equal(got, np.convolve(a, b))


@pytest.mark.parametrize(
    ("code", "nodes", "blocks"),
    [
        ("khatri-rao", None, (2, 3)),
        ("khatri-rao", None, (6, 1)),
        ("polynomial", None, (3, 2)),
        ("polynomial", "chebyshev", (2, 2)),
        ("mds", None, (6, 1)),
        ("mds", None, 5),
        ("replication", None, (2, 2)),
        ("uncoded", None, (4, 2)),
    ],
)
def test_codes_and_numbers_of_pieces(code, nodes, blocks):
    rng = np.random.default_rng(23)
    a, b = sequence(rng, 1001, "f8"), sequence(rng, 205, "f8")
    late = faults("delay:1:2", "slow:4:3")
    with codedla.SerialPool(8, faults=late) as pool:
        got, report = codedla.convolve(
            a, b, pool=pool, code=code, nodes=nodes, blocks=blocks, return_report=True
        )
    assert report.code == code
    m, n = blocks if isinstance(blocks, tuple) else (blocks, 1)
    assert report.grid == f"{m}x{n}"
    np.testing.assert_allclose(got, np.convolve(a, b), atol=1e-11)


@pytest.mark.parametrize("code", registry.available())
@pytest.mark.parametrize("blocks", [None, (2, 1), (2, 2)])
def test_every_code_is_right_or_refused(code, blocks):
    rng = np.random.default_rng(27)
    a, b = sequence(rng, 300, "f8"), sequence(rng, 40, "f8")
    with codedla.SerialPool(12, faults=faults("delay:1:1", "slow:2:3")) as pool:
        try:
            got, report = codedla.convolve(
                a, b, pool=pool, code=code, blocks=blocks, return_report=True, verify="locate"
            )
        except UsageError as error:
            assert code not in ("khatri-rao", "polynomial", "replication", "uncoded"), error
            return
    assert report.code == code
    assert not report.wrong
    np.testing.assert_allclose(got, np.convolve(a, b), atol=1e-10)


def test_a_short_operand_is_not_cut():
    with codedla.SerialPool(8) as pool:
        _, report = codedla.convolve(np.ones(10_000), np.ones(5), pool=pool, return_report=True)
        assert (report.code, report.grid) == ("mds", "6x1")
        _, report = codedla.convolve(np.ones(999), np.ones(1000), pool=pool, return_report=True)
        assert (report.code, report.grid) in (("khatri-rao", "2x3"), ("khatri-rao", "3x2"))
    assert report.shapes == {"a": [999], "b": [1000], "c": [1998]}
    assert report.threshold == 6


@pytest.mark.parametrize("kind", [codedla.SerialPool, codedla.SimulatedPool])
@pytest.mark.parametrize("lost", [(1, 2), (5, 8), (2, 3, 4, 6, 7)])
def test_lost_workers_are_done_without(kind, lost):
    rng = np.random.default_rng(24)
    a, b = sequence(rng, 300, "f8"), sequence(rng, 200, "c8")
    with kind(8, faults=faults(*(f"kill:{rank}:0" for rank in lost))) as pool:
        got, report = codedla.convolve(a, b, pool=pool, return_report=True)
    assert sorted(report.lost) == list(lost)
    np.testing.assert_allclose(got, np.convolve(a, b), atol=1e-10)


@pytest.mark.filterwarnings("ignore:rank 3 was not used")
@pytest.mark.parametrize("kind", ["entry", "scale"])
@pytest.mark.parametrize("dtype", ["f8", "c8", "i4"])
def test_a_lying_worker_is_found(kind, dtype):
    rng = np.random.default_rng(25)
    a, b = sequence(rng, 300, dtype), sequence(rng, 200, dtype)
    with codedla.SerialPool(8, faults=faults(f"corrupt:3:1:{kind}")) as pool:
        got, report = codedla.convolve(a, b, pool=pool, verify="locate", return_report=True)
    assert report.wrong == [3]
    np.testing.assert_allclose(got, np.convolve(a, b), rtol=1e-3, atol=1e-2)


def test_a_wrong_convolution_is_not_handed_out():
    a, b = np.arange(1.0, 100.0), np.ones(30)
    with (
        codedla.SerialPool(5, faults=faults("corrupt:2:1:entry")) as pool,
        pytest.raises(VerificationFailed, match="the convolution failed its check"),
    ):
        codedla.convolve(a, b, pool=pool, verify="freivalds", blocks=(2, 1))


ONES = np.ones(10)


@pytest.mark.parametrize(
    ("a", "b", "options", "text"),
    [
        (np.ones((2, 5)), ONES, {}, r"a must be a sequence .* got shape \(2, 5\)"),
        (ONES, np.ones(0), {}, r"b must be a sequence"),
        (ONES, np.array([1.0, np.nan]), {}, "b must be finite"),
        (ONES, np.array(["x"]), {}, "b: operands must be"),
        (1e200 * ONES, 1e150 * ONES, {}, "far from overflow"),
        (ONES, ONES, {"mode": "middle"}, "mode must be one of"),
        (ONES, ONES, {"method": "slow"}, "method must be one of"),
        (ONES, ONES, {"verify": "auto"}, "verify of a transform"),
        (ONES, ONES, {"blocks": (2, 1, 2)}, "blocks must be numbers of pieces"),
        (ONES, ONES, {"blocks": (11, 1)}, "at most their lengths 10 and 10"),
        (ONES, ONES, {"blocks": (3, 2)}, "needs at least 6 workers|6"),
        (ONES, ONES, {"code": "matdot", "blocks": (2, 1)}, "matdot"),
        (ONES, ONES, {"tolerate": 7}, "at least one worker must answer"),
    ],
)
def test_refusals(a, b, options, text):
    with codedla.SerialPool(5) as pool, pytest.raises(UsageError, match=text):
        codedla.convolve(a, b, pool=pool, **options)


def test_a_timeout():
    with (
        codedla.SimulatedPool(8, delays=lambda rng, n: np.full(n, 5.0)) as pool,
        pytest.raises(NotDecodable, match="the time-out passed"),
    ):
        codedla.convolve(ONES, ONES, pool=pool, timeout=1.0)


# -- what a worker does --------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(1, 1), (5000, 3), (3, 5000), (700, 699), (40_000, 200)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["f8", "c16", "i8"])
def test_panels_make_up_the_convolution(lengths, method, dtype, monkeypatch):
    monkeypatch.setattr(spectral, "_PANEL_TERMS", 1e4)
    rng = np.random.default_rng(26)
    a, b = (sequence(rng, (2, n), dtype) for n in lengths)
    asked = []

    def carry_on(between=True, /):
        asked.append(between)
        return True

    got = spectral.convolve((a, b), None, carry_on, method=method)
    expected = np.array([np.convolve(x, y) for x, y in zip(a, b, strict=True)])
    size = np.linalg.norm(a) * np.linalg.norm(b)
    np.testing.assert_allclose(got, expected, atol=1e-14 * size)
    assert asked
    assert got.dtype == expected.dtype


@pytest.mark.parametrize("method", METHODS)
def test_a_convolution_stops_between_panels(method, monkeypatch):
    monkeypatch.setattr(spectral, "_PANEL_TERMS", 1e4)
    answers = iter([True, True, False])
    a, b = np.ones((1, 100_000)), np.ones((1, 300))
    assert spectral.convolve((a, b), None, lambda *_: next(answers), method=method) is None
