"""Gradient codes: every survivor set of the exact ones, the bounds of the approximate ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla.codes.gradient import SCHEMES, make_gradient_code
from codedla.codes.gradient.design import DIFFERENCE_SETS
from codedla.codes.gradient.heterogeneous import loads_of
from codedla.errors import NotDecodable, UsageError

APPROXIMATE = sorted(name for name, family in SCHEMES.items() if family.approximate)


def survivor_sets(code, lost=None):
    lost = code.stragglers if lost is None else lost
    return itertools.combinations(range(code.n_workers), code.n_workers - lost)


def residual(code, survivors):
    rows = sorted(survivors)
    return np.linalg.norm(code.B[rows].T @ code.weights(rows)[0] - 1)


@pytest.mark.parametrize("n", range(1, 13))
def test_cyclic_decodes_from_every_survivor_set(n):
    for s in range(n):
        code = make_gradient_code("cyclic", n, s, seed=3)
        assert max(residual(code, each) for each in survivor_sets(code)) < 1e-9
        assert max(code.amplification(each) for each in survivor_sets(code)) < 5e3


@pytest.mark.parametrize(("n", "s"), [(4, 1), (6, 2), (9, 2), (12, 3), (12, 5)])
def test_fractional_repetition_decodes_from_every_survivor_set(n, s):
    code = make_gradient_code("fractional", n, s)
    assert max(residual(code, each) for each in survivor_sets(code)) < 1e-14
    one_of_each = range(0, n, s + 1)
    assert code.decodable(set(one_of_each))
    assert residual(code, one_of_each) == 0
    with pytest.raises(NotDecodable):
        code.weights(range(n - s - 1))


@pytest.mark.parametrize(("n", "s"), [(3, 1), (5, 2), (6, 2), (8, 3), (10, 4), (12, 2)])
def test_heterogeneous_loads_decode_from_every_survivor_set(n, s):
    speeds = 1.0 + np.arange(n) % 4
    code = make_gradient_code("heterogeneous", n, s, seed=5, speeds=speeds)
    assert max(residual(code, each) for each in survivor_sets(code)) < 1e-9
    counts = [len(code.parts(w)) for w in range(n)]
    assert counts == code.loads.tolist()
    assert sum(counts) == code.n_parts * (s + 1)
    assert np.corrcoef(counts, speeds)[0, 1] > 0.9
    assert (np.count_nonzero(code.B, axis=0) == s + 1).all()


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=9),
    st.integers(1, 20),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_loads_add_up(speeds, n_parts, copies):
    copies = min(copies, len(speeds))
    loads = loads_of(speeds, n_parts, copies)
    assert loads.sum() == n_parts * copies
    assert (loads <= n_parts).all()
    order = np.argsort(speeds, kind="stable")
    # Of equal speeds the one that comes first may have one part more.
    assert (np.diff(loads[order]) >= -1).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "d"), [(6, 3), (9, 3), (10, 4), (12, 5), (7, 7), (5, 1)])
def test_expanders_stay_within_their_bound(n, d, seed):
    code = make_gradient_code("expander", n, 2, seed=seed, degree=d)
    assert np.array_equal(np.count_nonzero(code.B, axis=1), np.full(n, d))
    assert np.array_equal(code.B, code.B.T)
    for lost in range(min(5, n)):
        code = make_gradient_code("expander", n, lost, seed=seed, degree=d)
        bound = (code.second / d) ** 2 * n * lost / (n - lost)
        assert code.bound() == pytest.approx(bound, abs=1e-9)
        worst = max(residual(code, each) ** 2 for each in survivor_sets(code))
        assert worst <= bound + 1e-9


@pytest.mark.parametrize("scheme", APPROXIMATE)
@pytest.mark.parametrize(("n", "s"), [(7, 1), (7, 3), (11, 2)])
def test_residuals_of_approximate_codes_stay_within_their_bound(scheme, n, s):
    code = make_gradient_code(scheme, n, s, seed=11)
    found = [residual(code, each) ** 2 for each in survivor_sets(code)]
    assert max(found) <= code.bound() + 1e-9
    assert code.residual(range(n - s)) == pytest.approx(np.sqrt(found[0]), abs=1e-7)
    # An approximation that is worse than none would be no code.
    assert max(found) < n


def test_a_larger_expander_degrades_gracefully():
    code = make_gradient_code("expander", 60, 0, seed=7, degree=6)
    # Random graphs are nearly as good as graphs can be (Alon and Boppana: 2 sqrt(d - 1)).
    assert code.second < 2 * np.sqrt(5) + 0.6


@pytest.mark.parametrize(("v", "k"), DIFFERENCE_SETS)
def test_difference_sets_make_designs(v, k):
    code = make_gradient_code("bibd", v, 1, degree=k)
    common = (code.B @ code.B.T) * k * k
    expected = np.full((v, v), code.common) + (k - code.common) * np.eye(v)
    np.testing.assert_allclose(common, expected, atol=1e-12)


def test_designs_have_one_residual_for_all_survivor_sets():
    code = make_gradient_code("bibd", 7, 3, degree=3)
    found = [residual(code, each) ** 2 for each in survivor_sets(code)]
    np.testing.assert_allclose(found, code.bound(), atol=1e-12)
    assert code.bound() > 0


def test_the_same_seed_gives_the_same_code():
    for scheme in SCHEMES:
        s = 0 if scheme == "uncoded" else 2
        n = 11 if scheme == "bibd" else 9
        one, two = (make_gradient_code(scheme, n, s, seed=29) for _ in range(2))
        assert np.array_equal(one.B, two.B)
        assert not one.B.flags.writeable
        assert one.parts(0) == tuple(np.flatnonzero(one.B[0]))


@pytest.mark.parametrize(
    ("scheme", "n", "s", "more", "words"),
    [
        ("cyclical", 6, 1, {}, "'cyclic'"),
        ("cyclic", 3, 3, {}, "more than 3 workers"),
        ("cyclic", 3, -1, {}, "at least 0"),
        ("cyclic", 5, 2, {"errors": 2}, "more than 6 workers"),
        ("cyclic", 5, 2, {"speeds": [1]}, "none"),
        ("fractional", 8, 2, {}, "use 6 or 9"),
        ("heterogeneous", 3, 1, {"speeds": [1, 2]}, "3 positive numbers"),
        ("heterogeneous", 3, 1, {"speeds": [1, 0, 2]}, "3 positive numbers"),
        ("expander", 6, 1, {"degree": 7}, "1 to 6 parts"),
        ("stochastic", 6, 1, {"clusters": 7}, "1 to 6 clusters"),
        ("stochastic", 6, 1, {"inside": 1.5}, "probabilities"),
        ("bibd", 8, 1, {}, "block designs are there for"),
        ("bibd", 7, 1, {"degree": 5}, "3 or 4"),
        ("uncoded", 4, 1, {}, "waits for everybody"),
    ],
)
def test_impossible_codes_are_refused_with_a_cure(scheme, n, s, more, words):
    with pytest.raises(UsageError, match=words):
        make_gradient_code(scheme, n, s, **more)
