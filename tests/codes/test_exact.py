"""Exact codes: known bit losses, results at the edge of what fits, primes that are too small."""

import itertools

import numpy as np
import pytest

from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.families.base3 import worst_shift
from codedla.errors import NotDecodable, UsageError

# Two lost blocks: 2 bits more than the power of 2 in the difference of their exponents.
LOST_BITS = {(16, 1): 0, (64, 1): 0, (16, 2): 5, (64, 2): 7, (100, 2): 8, (4, 3): 4}


@pytest.mark.parametrize(("size", "bits"), LOST_BITS.items(), ids=str)
def test_known_losses(size, bits):
    assert worst_shift(*size) == bits


@pytest.mark.parametrize("grid", [Grid(5, 1, 1), Grid(2, 1, 4), Grid(3, 1, 3)], ids=str)
@pytest.mark.parametrize("losses", [1, 2, 3])
def test_the_worst_shift_is_that_of_some_pattern(grid, losses):
    code = get("base3")(grid.outputs + losses, grid)
    sets = itertools.combinations(range(code.n_workers), code.threshold)
    assert max(code.shifts(members).max() for members in sets) == code.lost_bits


def test_values_next_to_the_bound_come_back_and_those_beyond_do_not():
    code = get("base3")(10, Grid(8, 1, 1))
    lost, replied = (0, 4), [1, 2, 3, 5, 6, 7, 8, 9]
    shift = code.shifts(replied).max()
    assert shift == code.lost_bits == 4
    for value, fits in ((2 ** (63 - shift) - 1, True), (2 ** (63 - shift), False)):
        blocks = np.full((8, 1), value)
        replies = code.generator @ blocks
        decoded = (code.weights(replied) @ replies[replied]) >> code.shifts(replied)[:, None]
        assert (decoded[list(lost)] == value).all() == fits


def test_base3_uses_at_most_three_parities():
    code = get("base3")(12, Grid(2, 1, 3))
    assert (code.active, code.tolerates, code.threshold) == (9, 3, 6)
    assert not code.generator_a[9:].any()
    with pytest.raises(NotDecodable):
        code.shifts([0, 1, 2, 3])


@pytest.mark.parametrize("prime", [37, 97, 2_097_143, 2_147_483_647])
@pytest.mark.parametrize("losses", [1, 2, 3, 5])
def test_galois_decodes_over_small_and_large_primes(prime, losses):
    grid = Grid(3, 1, 4)
    code = get("galois")(12 + losses, grid).modulo(prime)
    assert code.prime == prime and code.systematic == (losses <= 3)
    wanted = np.eye(12, dtype=np.int64)
    for lost in itertools.islice(itertools.combinations(range(code.n_workers), losses), 200):
        replied = [w for w in range(code.n_workers) if w not in lost]
        weights = code.weights(replied)
        assert np.array_equal(code.multiplied(weights, code.generator[replied]), wanted)


def test_a_field_that_is_too_small_is_refused():
    with pytest.raises(UsageError, match="at least 25; got 23"):
        get("galois")(14, Grid(3, 1, 4), prime=23)
    with pytest.raises(UsageError, match="needs a prime"):
        get("galois")(14, Grid(3, 1, 4), prime=2_097_145)


def test_the_same_prime_is_the_same_code():
    code = get("galois")(6, Grid(2, 1, 2))
    assert code.modulo(code.prime) is code
    other = code.modulo(101)
    assert (other.n_workers, other.blocks, other.tolerates) == (6, Grid(2, 1, 2), 2)


@pytest.mark.parametrize("name", ["base3", "galois"])
def test_what_decodes_is_not_amplified(name):
    code = get(name)(9, Grid(3, 1, 2))
    assert code.worst_amplification() == (1.0, (0, 1, 2, 3, 4, 5))
    assert code.amplification([0, 1, 4, 5, 7, 8]) == 1.0
    assert code.digits_warning() is None
    with pytest.raises(NotDecodable):
        code.amplification([0, 1, 4, 5, 8])
