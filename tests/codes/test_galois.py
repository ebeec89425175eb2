"""Arithmetic modulo primes against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla import galois
from codedla.errors import UsageError
from codedla.remainders import crt

PRIMES = [2, 3, 5, 257, 65537, 1048573, 134217689, 2147483647]


def _trial(number):
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def test_primes_are_those_of_trial_division():
    numbers = [*range(3000), *range(2**31 - 60, 2**31)]
    assert [n for n in numbers if galois.is_prime(n)] == [n for n in numbers if _trial(n)]


@pytest.mark.parametrize("composite", [2047, 1373653, 25326001, 3215031 * 3, 561, 2**31 - 3])
def test_pseudoprimes_are_found_out(composite):
    assert not galois.is_prime(composite)


def test_a_field_needs_a_prime():
    with pytest.raises(UsageError, match=r"needs a prime p; got 15; the next one below is 13"):
        galois.Field(15)
    with pytest.raises(UsageError, match="below 2"):
        galois.Field(2**31 + 11)
    with pytest.raises(UsageError, match="least is 2"):
        galois.Field(1)


@pytest.mark.parametrize("inner", [1, 2, 100, 4096, 8192, 10**6, 10**9])
def test_largest_prime_obeys_the_bound_and_the_next_one_does_not(inner):
    p = galois.largest_prime(inner)
    assert inner * (p // 2) ** 2 + 2 * p < 2**53 and galois.longest_sum(p) >= inner
    larger = next(q for q in range(p + 1, p + 1000) if _trial(q))
    assert inner * (larger // 2) ** 2 + 2 * larger >= 2**53


def test_primes_below_are_the_largest():
    assert galois.primes_below(100, 4) == (97, 89, 83, 79)
    with pytest.raises(UsageError, match="only 4 primes below 10"):
        galois.primes_below(10, 5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PRIMES), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_matmul_is_exact(p, inner, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**63), 2**63, (3, inner), dtype=np.int64)
    b = rng.integers(0, 2**64, (inner, 2), dtype=np.uint64)
    got = galois.Field(p).matmul(a, b)
    assert got.dtype == np.int64
    assert np.array_equal(got, (a.astype(object) @ b.astype(object)) % p)


@pytest.mark.parametrize("p", PRIMES)
def test_matmul_of_extreme_residues_is_exact(p):
    a, b = np.full((2, 777), p // 2), np.full((777, 3), p // 2 + 1)
    expected = 777 * (p // 2) * (p // 2 + 1) % p
    assert (galois.Field(p).matmul(a, b) == expected).all()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PRIMES), st.lists(st.integers(-(2**80), 2**80), min_size=1, max_size=9))
def test_elementwise_arithmetic_is_pythons(p, values):
    field = galois.Field(p)
    array = np.array(values, dtype=object)
    assert field.reduce(array).tolist() == [v % p for v in values]
    assert field.multiply(array, array[::-1]).tolist() == [
        x * y % p for x, y in zip(values, values[::-1], strict=True)
    ]
    exponents = [abs(v) % 1000 for v in values]
    assert field.power(array, exponents).tolist() == [
        pow(v, e, p) for v, e in zip(values, exponents, strict=True)
    ]
    units = [v for v in values if v % p]
    assert field.inv(np.array(units, dtype=object)).tolist() == [pow(v, -1, p) for v in units]
    balanced = field.balanced(array)
    assert balanced.dtype == np.float64
    assert all((int(r) - v) % p == 0 for r, v in zip(balanced.tolist(), values, strict=True))
    assert np.abs(balanced).max() <= p // 2


@pytest.mark.parametrize("p", [2, 3, 97, 1048573])
def test_balance_reduces_floats_next_to_every_boundary(p):
    near = np.arange(-3, 4)
    centres = np.array([0, p // 2, p, 3 * p // 2, (2**53 // p - 4) * p + p // 2, -7 * p - p // 2])
    whole = (centres[:, None] + near).ravel()
    got = galois.balance(whole.astype(float), p)
    assert np.array_equal(got.astype(int) % p, whole % p)
    assert got.max() <= p // 2 and got.min() >= p // 2 - p + 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PRIMES), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_systems_over_the_field(p, size, seed):
    field = galois.Field(p)
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, p, (size, size))
    sides = rng.integers(0, p, (size, 2))
    null = field.null_space(matrix)
    assert field.rank(matrix) + null.shape[1] == size
    assert not field.matmul(matrix, null).any() and field.rank(null) == null.shape[1]
    if null.shape[1]:
        with pytest.raises(np.linalg.LinAlgError, match="dependent"):
            field.inverse(matrix)
        return
    assert np.array_equal(field.matmul(matrix, field.inverse(matrix)), np.eye(size))
    assert np.array_equal(field.matmul(matrix, field.solve(matrix, sides)), sides)
    assert field.solve(matrix, sides[:, 0]).shape == (size,)


def test_a_tall_system_is_solved_or_found_contradictory():
    field = galois.Field(101)
    matrix = field.vandermonde(range(6), 3)
    right = field.matmul(matrix, [[5], [6], [7]])
    assert field.solve(matrix, right).ravel().tolist() == [5, 6, 7]
    right[4] += 1
    with pytest.raises(np.linalg.LinAlgError, match="contradict"):
        field.solve(matrix, right)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PRIMES[3:]), st.lists(st.integers(0, 2**31), min_size=1, max_size=12))
def test_interpolation_gives_back_the_coefficients(p, coefficients):
    field = galois.Field(p)
    points = np.arange(len(coefficients)) * 3 + 1
    values = field.evaluate(coefficients, points)
    assert field.interpolate(points, values).tolist() == [c % p for c in coefficients]


def test_interpolation_needs_distinct_points():
    with pytest.raises(UsageError, match="must differ modulo 5"):
        galois.Field(5).interpolate([1, 6], [0, 0])


def test_vandermonde_takes_degrees_in_any_order():
    got = galois.Field(7).vandermonde([2, 3], [3, 0, 1])
    assert got.tolist() == [[1, 1, 2], [6, 1, 3]]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(-(2**200), 2**200), min_size=1, max_size=5))
def test_crt_gives_back_every_integer_below_half_the_product(count, values):
    primes = galois.primes_below(2**22, count)
    product = int(np.prod(np.array(primes, dtype=object)))
    numbers = [v % product - (product - 1) // 2 for v in values]
    residues = [np.array([v % p for v in numbers]) for p in primes]
    assert crt(residues, primes, wrap=False).tolist() == numbers
    wrapped = crt(residues, primes)
    assert wrapped.dtype == np.int64
    assert [int(w) % 2**64 for w in wrapped] == [v % 2**64 for v in numbers]


def test_crt_refuses_what_does_not_match():
    with pytest.raises(UsageError, match="different primes"):
        crt([np.zeros(1), np.zeros(1)], [7, 7])
    with pytest.raises(UsageError, match="one array of residues"):
        crt([np.zeros(1)], [5, 7])


def test_residues_are_of_integers():
    field = galois.Field(7)
    assert field.reduce([8.0, -1.0]).tolist() == [1, 6]
    with pytest.raises(UsageError, match="fractions"):
        field.reduce([0.5])
    with pytest.raises(UsageError, match="complex"):
        field.reduce([1j])
    with pytest.raises(UsageError, match="no inverse"):
        field.inv([1, 14])
    with pytest.raises(UsageError, match="negative"):
        field.power(2, -1)
    with pytest.raises(UsageError, match="square"):
        field.inverse([[1, 2]])
