"""Evaluation points: accuracy of the angles, orthogonality of the bases, the stride."""

from __future__ import annotations

import math

import numpy as np
import pytest

from codedla import nodes
from codedla.errors import UsageError

COUNTS = [1, 2, 3, 4, 5, 8, 12, 97, 100, 1000]


@pytest.mark.parametrize("count", COUNTS)
def test_roots_of_unity_are_correct_to_the_last_place(count: int) -> None:
    points = nodes.unity(count)
    for j in range(count):
        angle = np.longdouble(2) * np.longdouble(j) * np.arccos(np.longdouble(-1)) / count
        assert abs(points[j].real - float(np.cos(angle))) <= 2.0**-53
        assert abs(points[j].imag - float(np.sin(angle))) <= 2.0**-53


def test_quarter_turns_are_exact() -> None:
    assert nodes.unity(4).tolist() == [1, 1j, -1, -1j]
    assert nodes.unity(8)[[0, 2, 4, 6]].tolist() == [1, 1j, -1, -1j]


@pytest.mark.parametrize("count", [5, 18, 105, 1000])
def test_powers_do_not_accumulate_rounding(count: int) -> None:
    powers = nodes.unity_powers(
        np.arange(count), np.array([0, 1, count - 1, count, 7 * count]), count
    )
    points = nodes.unity(count)
    assert np.array_equal(powers[:, 0], np.ones(count))
    assert np.array_equal(powers[:, 1], points)
    assert np.array_equal(powers[1:, 2], points[:0:-1])
    assert np.array_equal(powers[:, 3:], np.ones((count, 2)))


@pytest.mark.parametrize("count", COUNTS)
def test_chebyshev_points(count: int) -> None:
    points = nodes.chebyshev(count)
    assert np.all(np.diff(points) < 0) and np.all(np.abs(points) < 1)
    assert np.array_equal(points, -points[::-1]), "not antisymmetric"
    assert np.abs(np.cos(count * np.arccos(points))).max() < 1e-12 * count


@pytest.mark.parametrize("count", COUNTS)
def test_equispaced_points(count: int) -> None:
    points = nodes.equispaced(count)
    assert points.shape == (count,)
    assert np.array_equal(points, -points[::-1])
    if count > 1:
        assert points[0] == -1 and points[-1] == 1


@pytest.mark.parametrize("count", [1, 2, 9, 64, 101])
def test_chebyshev_basis_is_orthogonal_and_right(count: int) -> None:
    index = np.arange(count)
    basis = nodes.chebyshev_basis(index, index, count)
    assert np.abs(basis.T @ basis - count * np.eye(count)).max() < 1e-13 * count
    by_recurrence = np.polynomial.chebyshev.chebvander(nodes.chebyshev(count), count - 1)
    by_recurrence[:, 1:] *= math.sqrt(2)
    assert np.abs(basis - by_recurrence).max() < 1e-11


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (5, 4), (6, 5), (18, 16), (20, 20), (21, 21)]
)
def test_trigonometric_basis_is_orthogonal(count: int, columns: int) -> None:
    basis = nodes.trigonometric_basis(np.arange(count), columns, count)
    assert np.abs(basis.T @ basis - count * np.eye(columns)).max() < 1e-13 * count


@pytest.mark.parametrize(
    ("count", "losses", "expected"),
    [
        (18, 2, 5),
        (21, 5, 4),
        (39, 3, 14),
        (41, 5, 8),
        (66, 2, 23),
        (67, 3, 22),
        (69, 5, 14),
        (105, 5, 22),
    ],
)
def test_stride_table(count: int, losses: int, expected: int) -> None:
    assert nodes.stride(count, losses) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 12, 64, 69, 210])
@pytest.mark.parametrize("losses", [0, 1, 2, 5, 60])
def test_stride_is_coprime_and_spread_is_a_permutation(count: int, losses: int) -> None:
    losses = min(losses, count - 1)
    assert math.gcd(nodes.stride(count, losses), count) == 1
    assert sorted(nodes.spread(count, losses)) == list(range(count))


def test_stride_saves_five_digits_when_neighbours_fail() -> None:
    count, losses = 69, 5
    survivors = np.arange(losses, count)
    exponents = np.arange(count - losses)
    plain = nodes.unity_powers(survivors, exponents, count)
    spread = nodes.unity_powers(nodes.spread(count, losses)[survivors], exponents, count)
    assert np.linalg.cond(plain) > 1e5
    assert np.linalg.cond(spread) < 5


def test_functions_at_workers() -> None:
    degrees, place = np.array([0, 3, 1]), nodes.spread(9, 3)
    assert len(set(place.tolist())) == 9 and place[1] != 1
    unity = nodes.at_workers("unity", degrees, 9, 3)
    assert np.abs(unity - nodes.unity(9)[place, None] ** degrees).max() < 1e-15
    x = nodes.chebyshev(9)[place]
    found = nodes.at_workers("chebyshev", degrees, 9, 3)
    expected = np.column_stack([np.ones(9), math.sqrt(2) * (4 * x**3 - 3 * x), math.sqrt(2) * x])
    assert np.abs(found - expected).max() < 1e-14
    found = nodes.at_workers("chebyshev-powers", degrees, 9, 3)
    assert np.array_equal(found, x[:, None] ** degrees)
    x = nodes.equispaced(9)[place]
    assert np.array_equal(nodes.at_workers("equispaced", degrees, 9, 3), x[:, None] ** degrees)
    with pytest.raises(UsageError, match="chebyshev-powers or equispaced; got 'trig'"):
        nodes.at_workers("trig", degrees, 9, 3)
