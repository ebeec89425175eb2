"""Vandermonde solvers: against exact fractions, residuals, and the NumPy twin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedla import _reference, kernels
from codedla import vandermonde as vm
from codedla.errors import UsageError

BASES = ("monomial", "chebyshev")


def exact_matrix(nodes, basis):
    rows = []
    for node in nodes:
        row = [Fraction(1), Fraction(node)]
        for _ in nodes:
            step = Fraction(node) * row[-1]
            row.append(2 * step - row[-2] if basis == "chebyshev" else step)
        rows.append(row[: len(nodes)])
    return rows


def exact_solve(matrix, rhs):
    """Gauss-Jordan elimination in fractions."""
    k = len(matrix)
    work = [[*row, Fraction(b)] for row, b in zip(matrix, rhs, strict=True)]
    for i in range(k):
        pivot = next(r for r in range(i, k) if work[r][i] != 0)
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [entry / work[i][i] for entry in work[i]]
        for r in range(k):
            if r != i:
                work[r] = [a - work[r][i] * b for a, b in zip(work[r], work[i], strict=True)]
    return [row[-1] for row in work]


def transposed(matrix):
    return [list(column) for column in zip(*matrix, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.integers(-6, 6), min_size=1, max_size=6, unique=True),
    coefficients=st.lists(st.integers(-9, 9), min_size=6, max_size=6),
    basis=st.sampled_from(BASES),
    transpose=st.booleans(),
    order=st.sampled_from(["leja", None]),
)
def test_integer_systems_are_solved_exactly(nodes, coefficients, basis, transpose, order):
    """Right-hand sides of a known integer solution: every intermediate result is a fraction with
    a small denominator, so what remains is a few roundings."""
    k = len(nodes)
    matrix = exact_matrix(nodes, basis)
    matrix = transposed(matrix) if transpose else matrix
    solution = [Fraction(c) for c in coefficients[:k]]
    rhs = [sum(a * x for a, x in zip(row, solution, strict=True)) for row in matrix]
    got = vm.solve(nodes, [float(b) for b in rhs], basis=basis, transpose=transpose, order=order)
    scale = max(1.0, max(abs(float(b)) for b in rhs))
    np.testing.assert_allclose(got, [float(x) for x in solution], rtol=0, atol=1e-13 * scale)


def test_differences_of_integers_are_exact():
    """No rounding at all where every divided difference is an integer."""
    nodes = np.arange(8)
    values = np.array([n**5 - 3 * n**2 + 7 for n in range(8)], float)
    want = [7, 0, -3, 0, 0, 1, 0, 0]
    assert (vm.solve(nodes, values, order=None) == want).all()


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.integers(-40, 40), min_size=1, max_size=7, unique=True),
    rhs=st.lists(st.integers(-9, 9), min_size=7, max_size=7),
    basis=st.sampled_from(BASES),
    transpose=st.booleans(),
)
def test_rational_solutions(nodes, rhs, basis, transpose):
    k = len(nodes)
    points = [Fraction(n, 32) for n in nodes]
    matrix = exact_matrix(points, basis)
    matrix = transposed(matrix) if transpose else matrix
    want = np.array([float(x) for x in exact_solve(matrix, rhs[:k])])
    got = vm.solve(np.array(nodes) / 32, np.array(rhs[:k]), basis=basis, transpose=transpose)
    M = np.array([[float(a) for a in row] for row in matrix])
    spread = np.abs(np.linalg.inv(M)) @ np.abs(M) @ np.abs(want)
    assert (np.abs(got - want) <= 1e-13 * (spread + np.abs(want).max())).all()


@settings(max_examples=40, deadline=None)
@given(
    k=st.integers(0, 24),
    width=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
    basis=st.sampled_from(BASES),
    transpose=st.booleans(),
    is_complex=st.booleans(),
)
def test_residual_is_small(k, width, seed, basis, transpose, is_complex):
    """Well conditioned cases: Chebyshev points, or complex roots of unity for monomials."""
    rng = np.random.default_rng(seed)
    if basis == "monomial":
        nodes = np.exp(2j * np.pi * np.arange(k) / max(k, 1))
    else:
        nodes = np.cos((np.arange(k) + 0.5) * np.pi / max(k, 1))
    nodes = rng.permutation(nodes)
    rhs = rng.standard_normal((k, width))
    if is_complex:
        rhs = rhs + 1j * rng.standard_normal((k, width))
    kept = rhs.copy()
    M = vm.matrix(nodes, basis=basis)
    got = vm.solve(nodes, rhs, basis=basis, transpose=transpose)
    assert got.shape == rhs.shape
    assert (rhs == kept).all()
    residual = (M.T if transpose else M) @ got - rhs
    assert np.abs(residual).max(initial=0) <= 1e-10 * max(1, np.abs(rhs).max(initial=0))


@pytest.mark.parametrize("chebyshev", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("kind", ["real", "complex rhs", "complex nodes"])
def test_kernel_matches_twin(isa, rng, chebyshev, transpose, kind):
    for k in (1, 2, 3, 9, 40):
        angles = (np.arange(k) + 0.5) * np.pi / k
        nodes = np.exp(2j * angles) if kind == "complex nodes" else np.cos(angles)
        nodes = np.ascontiguousarray(nodes[_reference.leja_order(nodes)])
        for width in (1, 7, 8, 31, 32, 33, 200):
            x = rng.standard_normal((k, width))
            if kind != "real":
                x = x + 1j * rng.standard_normal((k, width))
            want = x.copy()
            kernels.vandermonde_solve(nodes, x, transpose=transpose, chebyshev=chebyshev)
            _reference.vandermonde_solve(nodes, want, transpose, chebyshev, 0)
            np.testing.assert_allclose(x, want, rtol=0, atol=1e-11 * np.abs(want).max())


@pytest.mark.parametrize(
    ("node_type", "rhs_type", "result"),
    [
        ("float64", "float32", "float32"),
        ("int64", "int32", "float64"),
        ("float64", "complex64", "complex64"),
        ("complex128", "float32", "complex64"),
        ("complex128", "float64", "complex128"),
        ("float32", "float64", "float64"),
    ],
)
def test_types_of_the_result(node_type, rhs_type, result):
    nodes = np.array([1, 2, -1]).astype(node_type)
    rhs = np.array([[3, 1], [7, 4], [1, 1]]).astype(rhs_type)
    got = vm.solve(nodes, rhs)
    assert got.dtype == result
    np.testing.assert_allclose(vm.matrix(nodes) @ got, rhs, rtol=1e-6)


def test_single_precision_is_computed_in_double(rng):
    nodes = np.cos((np.arange(12) + 0.5) * np.pi / 12)
    rhs = rng.standard_normal(12).astype(np.float32)
    assert (vm.solve(nodes, rhs) == vm.solve(nodes, rhs.astype(float)).astype(np.float32)).all()


def test_shapes_of_right_hand_sides(rng):
    nodes = np.array([0.5, -1.0, 2.0])
    rhs = rng.standard_normal((3, 4))
    got = vm.solve(nodes, np.asfortranarray(rhs))
    assert got.shape == (3, 4)
    for column in range(4):
        assert (vm.solve(nodes, rhs[:, column]) == got[:, column]).all()
    rhs.flags.writeable = False
    vm.solve(nodes, rhs, transpose=True)
    assert vm.solve(nodes, np.empty((3, 0))).shape == (3, 0)


def test_empty_systems():
    assert vm.solve([], []).shape == (0,)
    assert vm.solve([], np.empty((0, 4))).shape == (0, 4)
    assert vm.solve([], np.empty((0, 4)), transpose=True, basis="chebyshev").shape == (0, 4)
    assert vm.inverse([]).shape == (0, 0)
    assert vm.matrix([]).shape == (0, 0)
    assert vm.matrix([], 3).shape == (0, 3)
    assert vm.barycentric_weights([]).shape == (0,)
    assert vm.leja_order([]).shape == (0,)


def test_one_node(isa):
    assert vm.solve([5.0], [3.0]) == 3
    assert vm.inverse([5.0]) == 1
    assert vm.barycentric_weights([5.0]) == 1
    assert vm.leja_order([5.0]) == 0


@settings(max_examples=50, deadline=None)
@given(nodes=st.lists(st.integers(-20, 20), min_size=1, max_size=8, unique=True))
def test_parker_traub_against_fractions(nodes):
    k = len(nodes)
    points = [Fraction(n, 8) for n in nodes]
    matrix = exact_matrix(points, "monomial")
    unit = [[int(i == j) for i in range(k)] for j in range(k)]
    columns = [exact_solve(matrix, e) for e in unit]
    want = np.array([[float(columns[i][j]) for i in range(k)] for j in range(k)])
    got = vm.inverse(np.array(nodes) / 8)
    assert (np.abs(got - want) <= 1e-11 * np.abs(want).max(axis=0)).all()


def test_inverse_of_roots_of_unity_is_the_fourier_matrix(isa):
    k = 16
    nodes = np.exp(2j * np.pi * np.arange(k) / k)
    want = np.exp(-2j * np.pi * np.outer(np.arange(k), np.arange(k)) / k) / k
    np.testing.assert_allclose(vm.inverse(nodes), want, atol=1e-14)


@pytest.mark.parametrize("make", [np.cos, lambda a: np.exp(2j * a)], ids=["real", "complex"])
def test_small_kernels_match_their_twins(make):
    for k in (1, 2, 5, 17):
        nodes = make((np.arange(k) + 0.5) * np.pi / k)
        for name in ("barycentric_weights", "parker_traub_inverse"):
            got, want = getattr(kernels, name)(nodes), getattr(_reference, name)(nodes)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())
    order = kernels.leja_order(nodes)
    assert sorted(order) == list(range(17))


@settings(max_examples=50, deadline=None)
@given(nodes=st.lists(st.integers(-30, 30), min_size=1, max_size=9, unique=True))
def test_barycentric_weights_against_fractions(nodes):
    want = []
    for x in nodes:
        product = Fraction(1)
        for y in nodes:
            product *= Fraction(x - y) if y != x else 1
        want.append(float(1 / product))
    np.testing.assert_allclose(vm.barycentric_weights(nodes), want, rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(nodes=st.lists(st.floats(-10, 10), min_size=1, max_size=12, unique=True))
def test_leja_order_is_greedy(nodes):
    """Every choice is the best one up to rounding."""
    points = np.array(nodes)
    order = vm.leja_order(points)
    assert sorted(order) == list(range(len(nodes)))
    assert abs(points[order[0]]) == np.abs(points).max()
    for position in range(1, len(nodes)):
        distances = np.abs(points[:, None] - points[order[:position]]).prod(axis=1)
        if distances.max() > 1e-280:  # below that the products in this test lose their digits
            assert distances[order[position]] >= distances.max() * (1 - 1e-12)


def test_leja_order_survives_many_nodes():
    """Products of 2000 distances would overflow without rescaling."""
    nodes = np.linspace(-1e3, 1e3, 2000)
    assert sorted(vm.leja_order(nodes)) == list(range(2000))
    assert vm.leja_order([0.0, 1.0, -1.0, 0.5]).tolist() == [1, 2, 0, 3]


def test_leja_order_keeps_more_digits(rng):
    """Why it is the default: increasing order of mixed signs loses digits."""
    nodes = np.linspace(-1, 1, 24)
    coefficients = rng.standard_normal(24)
    values = vm.matrix(nodes) @ coefficients
    M = vm.matrix(nodes)
    residual = {
        order: np.abs(M @ vm.solve(nodes, values, order=order) - values).max()
        for order in ("leja", None)
    }
    assert residual["leja"] < 0.1 * residual[None]


@pytest.mark.parametrize("basis", BASES)
def test_matrix(basis):
    nodes = np.array([-0.5, 0.25, 1.0])
    want = (
        np.vander(nodes, 6, increasing=True)
        if basis == "monomial"
        else np.polynomial.chebyshev.chebvander(nodes, 5)
    )
    np.testing.assert_allclose(vm.matrix(nodes, 6, basis), want, atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vm.solve([1, 2, 3, 2], np.ones(4)), r"nodes\[1\] and nodes\[3\] are both 2"),
        (lambda: vm.inverse([0.0, -0.0]), r"nodes\[0\] and nodes\[1\]"),
        (lambda: vm.barycentric_weights([1j, 1, 1j]), r"nodes\[0\] and nodes\[2\]"),
        (lambda: vm.solve([1, np.inf], [1, 2]), r"must be finite, got nodes\[1\] = inf"),
        (lambda: vm.leja_order([np.nan]), r"must be finite, got nodes\[0\] = nan"),
        (lambda: vm.solve([[1.0, 2.0]], [1, 2]), r"nodes must be 1-D, got shape \(1, 2\)"),
        (lambda: vm.solve(["a"], [1]), "nodes must hold integers, reals or complex"),
        (lambda: vm.solve([1.0], [True]), "rhs must hold integers, reals or complex"),
        (lambda: vm.solve([1.0], np.ones(1, object)), "rhs must hold .* got dtype object"),
        (lambda: vm.solve([1.0], np.ones(1, "g")), "at most double precision, got dtype"),
        (lambda: vm.solve([1.0, 2.0], [1.0]), r"shape \(2,\) or \(2, width\).*got \(1,\)"),
        (lambda: vm.solve([1.0], np.ones((1, 1, 1))), r"got \(1, 1, 1\)"),
        (lambda: vm.solve([1.0], [1.0], basis="legendre"), "basis must be one of .*'legendre'"),
        (lambda: vm.solve([1.0], [1.0], order="up"), "order must be 'leja' or None, got 'up'"),
        (lambda: vm.matrix([1.0], -1), "columns must be an integer of at least 0, got -1"),
        (lambda: vm.matrix([1.0], 1.5), "columns must be an integer of at least 0, got 1.5"),
        (lambda: vm.matrix([1.0], 2, "legendre"), "basis must be one of"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()
