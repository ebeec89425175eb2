"""What every code must do, checked on every registered code, yours included.

``check_code(MyCode)`` runs all of it on one class. The centre is one identity, tried over survivor
sets: encode -> lose workers -> decode gives ``A @ B``, within the error the code itself predicts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from codedla.blocks import Grid, Split
from codedla.codes import Code, available, error_estimate, get, table
from codedla.codes.exact import ExactCode, ModularCode, WrapCode
from codedla.codes.limits import fewest_workers
from codedla.errors import NotDecodable, UsageError

SEED = 58_271
ALL_SETS = 220  # so many survivor sets are all tried: every set of every small code
SAMPLE = 60  # of more, so many are

# Blocks a dimension, by the number of dimensions that the family cuts.
SMALL = {1: (1, 2, 3, 6), 2: (1, 2, 3), 3: (1, 2)}
LARGE = {1: 20, 2: 5, 3: 3}


def small_grids(code_cls: type[Code]) -> Iterator[Grid]:
    """Grids of few blocks, the one of most blocks last."""
    sizes = SMALL[len(code_cls.splits)]
    for shape in itertools.product(*(sizes if d in code_cls.splits else (1,) for d in "mpn")):
        yield Grid(*shape)


def enough_workers(code_cls: type[Code], grid: Grid, losses: int) -> int | None:
    """The fewest workers that survive ``losses`` losses on ``grid``; None if no number does."""
    most = (losses + 1) * code_cls.needs(grid) + losses
    return next((n for n in range(1, most + 1) if code_cls.survives(n, grid) >= losses), None)


def small_codes(code_cls: type[Code]) -> Iterator[Code]:
    """Every node choice on small grids, with 0 to 3 losses."""
    for nodes in code_cls.node_choices or (None,):
        for grid in small_grids(code_cls):
            for losses in range(4):
                workers = enough_workers(code_cls, grid, losses)
                if workers is not None:
                    yield code_cls(workers, grid, nodes=nodes)


def large_codes(code_cls: type[Code]) -> Iterator[Code]:
    """The default nodes on a larger grid."""
    size = LARGE[len(code_cls.splits)]
    grid = Grid(*(size if d in code_cls.splits else 1 for d in "mpn"))
    for losses in (1, 2, 4):
        workers = enough_workers(code_cls, grid, losses)
        if workers is not None:
            yield code_cls(workers, grid)


def subsets(workers: int, size: int) -> Iterator[tuple[int, ...]]:
    """All sets of ``size`` workers, or a seeded sample of them."""
    if math.comb(workers, size) <= ALL_SETS:
        yield from itertools.combinations(range(workers), size)
        return
    rng = np.random.default_rng([SEED, workers, size])
    yield tuple(range(size))
    yield tuple(range(workers - size, workers))
    for _ in range(SAMPLE - 2):
        yield tuple(sorted(int(w) for w in rng.choice(workers, size, replace=False)))


def survivor_sets(code: Code) -> Iterator[tuple[int, ...]]:
    """Sets of exactly ``K`` active workers, then some larger ones; of shares, if they have more."""
    if code.load > 1:
        for lost in subsets(code.active, code.tolerates):
            yield code.shares_without(lost)
        yield from partial_replies(code)
        return
    yield from subsets(code.active, code.threshold)
    if code.tolerates > 1:
        yield from itertools.islice(subsets(code.active, code.threshold + 1), 10)
    yield tuple(range(code.n_workers))


def partial_replies(code: Code) -> Iterator[tuple[int, ...]]:
    """What has come when the replies first suffice, of workers of very different speeds."""
    rng = np.random.default_rng([SEED, code.n_shares])
    for _ in range(10):
        pace = rng.uniform(1, 5, code.n_workers)
        rank = {s: (s // code.n_workers + 1) / pace[code.home(s)] for s in code.shares}
        suffice, told = code.watch(), []
        for share in sorted(code.shares, key=rank.__getitem__):
            told.append(share)
            if suffice(share):
                yield tuple(sorted(told))
                break


def reply_rows(code: Code, shares: tuple[int, ...]) -> np.ndarray:
    """Rows of the generator that these shares' replies are."""
    parts = code.stack[0] * code.stack[2]
    return (np.array(shares)[:, None] * parts + np.arange(parts)).ravel()


def shares(code: Code, A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the workers store: (N, rows, inner) and (N, inner, columns), zero-padded."""
    grid = code.grid
    rows, inner, columns = (
        Split(A.shape[0], grid.m),
        Split(A.shape[1], grid.p),
        Split(B.shape[1], grid.n),
    )
    blocks_a = np.zeros((grid.m * grid.p, rows.size, inner.size), A.dtype)
    blocks_b = np.zeros((grid.p * grid.n, inner.size, columns.size), B.dtype)
    for i, k in itertools.product(range(grid.m), range(grid.p)):
        piece = A[rows.slice(i), inner.slice(k)]
        blocks_a[i * grid.p + k, : piece.shape[0], : piece.shape[1]] = piece
    for k, j in itertools.product(range(grid.p), range(grid.n)):
        piece = B[inner.slice(k), columns.slice(j)]
        blocks_b[k * grid.n + j, : piece.shape[0], : piece.shape[1]] = piece
    # Masks are more blocks, and may be anything.
    rng = np.random.default_rng(SEED)
    masks_a, masks_b = (
        rng.integers(-1000, 1000, (count, *blocks.shape[1:])).astype(blocks.dtype)
        for count, blocks in zip(code.masks, (blocks_a, blocks_b), strict=True)
    )
    blocks_a, blocks_b = np.concatenate([blocks_a, masks_a]), np.concatenate([blocks_b, masks_b])
    u, q, v = code.stack
    share_a = np.tensordot(code.generator_a, blocks_a, axes=1)
    share_b = np.tensordot(code.generator_b, blocks_b, axes=1)
    return _stacked(share_a, code.n_shares, u, q), _stacked(share_b, code.n_shares, q, v)


def _stacked(parts: np.ndarray, count: int, down: int, across: int) -> np.ndarray:
    """Put the ``down x across`` parts of every share side by side."""
    height, width = parts.shape[1:]
    arranged = parts.reshape(count, down, across, height, width).transpose(0, 1, 3, 2, 4)
    return arranged.reshape(count, down * height, across * width)


def sub_blocks(code: Code, replies: np.ndarray) -> np.ndarray:
    """Replies cut into their ``u x v`` sub-blocks, in C order."""
    u, _, v = code.stack
    count, height, width = replies.shape
    cut = replies.reshape(count, u, height // u, v, width // v).transpose(0, 1, 3, 2, 4)
    return cut.reshape(count * u * v, height // u, width // v)


def decode(code: Code, survivors: tuple[int, ...], replies: np.ndarray, A, B) -> np.ndarray:
    """Output blocks from the survivors' replies, joined and stripped of padding."""
    answered = sub_blocks(code, replies[list(survivors)])
    return _joined(code, np.tensordot(code.weights(survivors), answered, axes=1), A, B)


def _joined(code: Code, blocks: np.ndarray, A, B) -> np.ndarray:
    grid = code.grid
    rows, columns = Split(A.shape[0], grid.m), Split(B.shape[1], grid.n)
    C = np.empty((A.shape[0], B.shape[1]), dtype=blocks.dtype)
    for i, j in itertools.product(range(grid.m), range(grid.n)):
        target = C[rows.slice(i), columns.slice(j)]
        target[...] = blocks[i * grid.n + j, : target.shape[0], : target.shape[1]]
    return C


def check_round_trip(code: Code, shape: tuple[int, int, int] = (7, 5, 9)) -> None:
    """Encode, lose workers, decode: ``A @ B`` within the predicted error, for odd shapes."""
    if isinstance(code, ExactCode):
        check_exact_round_trip(code, shape)
        return
    rng = np.random.default_rng(SEED)
    A, B = rng.standard_normal(shape[:2]), rng.standard_normal(shape[1:])
    before = A.copy(), B.copy()
    share_a, share_b = shares(code, A, B)
    replies = share_a @ share_b
    expected = A @ B
    scale = np.linalg.norm(A) * np.linalg.norm(B) / np.linalg.norm(expected)
    for survivors in survivor_sets(code):
        if not code.decodable(survivors):
            with pytest.raises(NotDecodable):
                code.weights(survivors)
            continue
        alpha = code.amplification(survivors)
        assert 0 < alpha < math.inf, f"{describe(code)}: amplification {alpha} of {survivors}"
        C = decode(code, survivors, replies, A, B)
        error = np.linalg.norm(C - expected) / np.linalg.norm(expected)
        # Encoding A, encoding B, multiplying, and weights with sums over them: each contributes an
        # RMS error below the estimate while fewer than 12^2 / 2 terms are summed (a sum of t terms
        # has about eps sqrt(t / 2) / sqrt(12)), so that all have below two estimates. Of so few
        # numbers the error scatters like a single normal one at worst, when one combination of
        # replies dominates; five sigma are exceeded in 6e-7 of the sets, of which there are 4e4.
        allowed = 10 * error_estimate(alpha, np.finfo(float).eps, scale)
        allowed += code.method_error * scale
        assert error <= allowed, f"{describe(code)}: error {error:.1e} from {survivors}"
    assert np.array_equal(A, before[0]) and np.array_equal(B, before[1])


def check_exact_round_trip(code: ExactCode, shape: tuple[int, int, int]) -> None:
    """Encode integers, lose workers, decode: exactly ``A @ B``, up to the size the code allows."""
    rng = np.random.default_rng(SEED)
    if isinstance(code, WrapCode):
        largest = math.isqrt(2 ** (63 - code.lost_bits) // shape[1]) - 1
    else:
        assert isinstance(code, ModularCode)
        largest = code.prime
    A, B = (rng.integers(-largest, largest, size) for size in (shape[:2], shape[1:]))
    share_a, share_b = (code.reduced(share) for share in shares(code, A, B))
    replies = code.reduced(sub_blocks(code, share_a @ share_b))
    expected = A @ B
    for survivors in survivor_sets(code):
        if not code.decodable(survivors):
            with pytest.raises(NotDecodable):
                code.weights(survivors)
            continue
        answered = replies[reply_rows(code, survivors)]
        flat = code.multiplied(code.weights(survivors), answered.reshape(len(answered), -1))
        if isinstance(code, WrapCode):
            flat >>= code.shifts(survivors)[:, None]
        C = _joined(code, flat.reshape(-1, *answered.shape[1:]), A, B)
        difference = C - expected
        if isinstance(code, ModularCode):
            difference = code.reduced(difference)
        assert not difference.any(), f"{describe(code)}: wrong from {survivors}"


def check_weights(code: Code) -> None:
    """Weights reproduce ``wanted``, in the right dtype; order and repetition do not matter."""
    outputs = code.grid.outputs
    exact = isinstance(code, ExactCode)
    kind = np.int64 if exact else np.complex128 if code.field == "complex" else np.float64
    for survivors in itertools.islice(survivor_sets(code), 12):
        if not code.decodable(survivors):
            continue
        weights = code.weights(survivors)
        rows = len(reply_rows(code, survivors))
        assert weights.shape == (outputs, rows) and weights.dtype == kind
        assert not weights.flags.writeable, "cached weights must be read-only"
        rows_of = code.generator[reply_rows(code, survivors)]
        product = code.multiplied(weights, rows_of) if exact else weights @ rows_of
        if isinstance(code, WrapCode):
            product >>= code.shifts(survivors)[:, None]
        slack = 1e-13 * code.grid.outputs * (1 + code.amplification(survivors))
        assert np.abs(product - code.wanted).max() <= slack, describe(code)
        mixed = [*reversed(survivors), survivors[0]]
        again = code.weights(mixed)
        assert np.array_equal(again, weights)
        assert mixed == [*reversed(survivors), survivors[0]], "the argument was changed"
        assert np.array_equal(code.weights(iter(survivors)), weights)


def check_generators(code: Code) -> None:
    """Shapes and dtypes fit the contract; nobody can write to the matrices."""
    grid, (u, q, v), count = code.grid, code.stack, code.n_shares
    kinds = {matrix.dtype for matrix in (code.generator_a, code.generator_b)}
    exact = isinstance(code, ExactCode)
    assert kinds <= ({np.dtype(np.int64)} if exact else {np.dtype(float), np.dtype(complex)})
    assert (np.dtype(np.complex128) in kinds) == (code.field == "complex"), describe(code)
    for matrix, shape in (
        (code.generator_a, (count * u * q, grid.m * grid.p + code.masks[0])),
        (code.generator_b, (count * q * v, grid.p * grid.n + code.masks[1])),
    ):
        assert matrix.shape == shape, describe(code)
        assert not matrix.flags.writeable
        assert np.all(np.isfinite(matrix))
    assert code.generator.shape[0] == count * u * v
    assert code.wanted.shape == (grid.outputs, code.generator.shape[1])
    # So many replies can only determine so many unknowns.
    assert code.generator.shape[1] <= code.threshold * u * v or code.tolerates == 0
    for share in set(range(count)) - set(code.shares):
        assert not code.rows_a(share).any(), describe(code)
    assert {code.home(share) for share in code.shares} == set(range(code.active))


def check_plain_blocks(code: Code) -> None:
    """A plain reply is its output block; a systematic code begins with all of them, in order."""
    for worker in range(code.n_shares):
        block = code.plain_block(worker)
        if block is not None:
            assert code.stack == (1, 1, 1)
        unit = np.zeros(code.generator.shape[1])
        if block is not None:
            unit[block] = 1.0
            assert np.array_equal(code.generator[worker], unit)
    if code.systematic:
        plain = [code.plain_block(worker) for worker in range(code.grid.outputs)]
        assert plain == list(range(code.grid.outputs)), describe(code)


def check_threshold(code: Code) -> None:
    """Any ``K`` replies decode; with fewer, some set does not - and for count codes none."""
    check_watch(code)
    if code.load > 1:
        check_losses(code)
        return
    assert code.threshold + code.tolerates == code.active
    assert all(code.decodable(s) for s in subsets(code.active, code.threshold))
    counting = type(code).decodable is Code.decodable
    whole = np.array_equal(code.wanted, np.eye(code.grid.outputs))
    whole = whole and not isinstance(code, ExactCode)  # least squares is for numbers with digits
    # Evenly spaced losses too: all copies of one block, in a code that repeats blocks.
    evenly = {
        frozenset(range(code.active)) - {gap * i % code.active for i in range(code.tolerates + 1)}
        for gap in range(1, code.active)
    }
    sets = [tuple(sorted(few)) for few in evenly if len(few) == code.threshold - 1]
    sets.extend(subsets(code.active, code.threshold - 1))
    if not counting:
        sets.extend(stuck_sets(code))
    refused = 0
    for few in sets:
        if code.decodable(few):
            assert not counting, f"{describe(code)}: {few} are too few"
            continue
        refused += 1
        if refused > 20:
            break
        with pytest.raises(NotDecodable) as caught:
            code.weights(few)
        assert caught.value.have == few and caught.value.need == code.threshold
        with pytest.raises(NotDecodable):
            code.amplification(few)
        if whole and not code.local_decoding:
            # The refusal is right: the outputs are no combination of these replies.
            rows = code.generator[list(few)]
            nearest = np.linalg.lstsq(rows.T, code.wanted, rcond=None)[0] if few else None
            reached = rows.T @ nearest if few else np.zeros_like(code.wanted)
            assert np.abs(reached - code.wanted).max() > 1e-9, describe(code)
    assert refused, f"{describe(code)}: the threshold {code.threshold} is not tight"
    assert not code.decodable(())


def stuck_sets(code: Code) -> Iterator[tuple[int, ...]]:
    """Sets of ``K - 1`` that do not decode, found by growing: where such sets are rare."""
    rng = np.random.default_rng([SEED, code.active, 2])
    for _ in range(200):
        few: set[int] = set()
        for worker in rng.permutation(code.active):
            few.add(int(worker))
            if code.decodable(few):
                few.remove(int(worker))
        if len(few) == code.threshold - 1:
            yield tuple(sorted(few))


def check_watch(code: Code) -> None:
    """Told one reply after the other, the watch says what ``decodable`` says of all of them."""
    rng = np.random.default_rng([SEED, code.n_shares, 1])
    for _ in range(3):
        order = [int(share) for share in rng.permutation(code.shares)]
        suffice = code.watch()
        for count, share in enumerate(order, 1):
            assert suffice(share) == code.decodable(order[:count]), describe(code)


def check_losses(code: Code) -> None:
    """Any ``tolerates`` lost workers are survived; too few replies are refused."""
    for lost in subsets(code.active, code.tolerates):
        assert code.decodable(code.shares_without(lost)), describe(code)
    few = code.shares[: code.threshold - 1]
    assert not code.decodable(few) and not code.decodable(()), describe(code)
    with pytest.raises(NotDecodable):
        code.weights(few)


def check_worst(code: Code) -> None:
    """The worst amplification is finite, reached by its own set, and never beaten."""
    alpha, survivors = code.worst_amplification()
    assert code.decodable(survivors)
    if code.load == 1:
        assert len(survivors) == code.threshold, describe(code)
    assert alpha == code.amplification(survivors)
    assert math.isfinite(alpha)
    if not code.counts and math.comb(code.active, code.tolerates) > ALL_SETS:
        return  # every pattern takes a solution of its own: not all are tried
    for lost in subsets(code.active, code.tolerates):
        other = code.shares_without(lost)
        assert code.amplification(other) <= alpha * (1 + 1e-6), describe(code)


def check_deterministic(code: Code) -> None:
    """A second object of the same parameters is the same code, bit for bit."""
    twin = type(code)(code.n_workers, code.blocks, nodes=code.nodes)
    everyone = code.shares
    for one, two in (
        (code.generator_a, twin.generator_a),
        (code.generator_b, twin.generator_b),
        (code.weights(everyone), twin.weights(everyone)),
    ):
        assert np.array_equal(one, two), describe(code)
    assert code.worst_amplification() == twin.worst_amplification()


def check_method_error(code: Code) -> None:
    """Only approximate codes are wrong without rounding, and they say by how much."""
    assert code.method_error >= 0 and math.isfinite(code.method_error)
    assert code.approximate or code.method_error == 0, describe(code)


def check_integral(code: Code) -> None:
    """A code that claims to be integral has coefficients and weights -1, 0, 1 only."""
    if not code.integral:
        return
    units = (-1.0, 0.0, 1.0)
    assert np.isin(code.generator_a, units).all() and np.isin(code.generator_b, units).all()
    for lost in subsets(code.active, code.tolerates):
        survivors = code.shares_without(lost)
        assert np.isin(code.weights(survivors), units).all(), describe(code)


def check_refusals(code_cls: type[Code]) -> None:
    """Wrong parameters are refused with the rule and the cure."""
    splits = code_cls.splits
    grid = Grid(*(3 if d in splits else 1 for d in ("m", "p", "n")))
    need = fewest_workers(code_cls, grid)
    with pytest.raises(UsageError, match=rf"at least {need} worker.*{need + 1} ranks"):
        code_cls(need - 1, grid)
    for dimension in {"m", "p", "n"} - set(splits):
        cut = Grid(*(2 if d == dimension else 1 for d in ("m", "p", "n")))
        with pytest.raises(UsageError, match="does not split"):
            code_cls(9, cut)
    with pytest.raises(UsageError, match="nodes"):
        code_cls(need, grid, nodes="no such nodes")
    with pytest.raises(UsageError, match="at least 1"):
        code_cls(0, Grid(1, 1, 1))
    with pytest.raises(UsageError, match="at least 1"):
        code_cls(3, Grid(0, 1, 1))
    code = code_cls(need, grid)
    last = code.n_shares - 1
    with pytest.raises(UsageError, match=f"(workers|shares) are numbered 0 to {last}"):
        code.weights([*range(last + 1), last + 1])
    code.require(code.tolerates)
    with pytest.raises(UsageError, match=f"survives {code.tolerates} lost"):
        code.require(code.tolerates + 1)


def check_grids(code_cls: type[Code]) -> None:
    """The offered grids hold what they promise and are all there are."""
    for workers in (1, 5, 12):
        for losses in (0, 1, 3):
            offered = code_cls.grids(workers, losses)
            assert len(set(offered)) == len(offered)
            for grid in offered:
                assert code_cls(workers, grid).tolerates >= losses
            sizes = [range(1, workers + 1) if d in code_cls.splits else (1,) for d in "mpn"]
            for shape in itertools.product(*sizes):
                fits = code_cls.survives(workers, Grid(*shape)) >= losses
                assert (Grid(*shape) in offered) == fits, (code_cls.name, workers, shape)


def check_table(code_cls: type[Code]) -> None:
    """The entry that users read is complete and says what the class says."""
    rows = {row["name"]: row for row in table()}
    row = rows[code_cls.name]
    for key in ("name", "operation", "threshold", "field", "citation", "weakness"):
        assert isinstance(row[key], str) and row[key].strip(), f"{code_cls.name}: {key} is empty"
    assert row["operation"] in ("matmul", "matvec")
    assert row["field"] in ("real", "complex", "int64", "GF(p)")
    assert isinstance(row["systematic"], bool) and isinstance(row["approximate"], bool)
    assert code_cls.threshold_formula in row["threshold"]
    assert code_cls.__doc__ and code_cls.__doc__.strip()


OBJECT_CHECKS = (
    check_generators,
    check_plain_blocks,
    check_weights,
    check_round_trip,
    check_threshold,
    check_worst,
    check_deterministic,
    check_integral,
    check_method_error,
)
CLASS_CHECKS = (check_refusals, check_grids, check_table)


def check_code(code_cls: type[Code]) -> None:
    """Run every check on a registered code family; raises AssertionError at the first failure."""
    for check in CLASS_CHECKS:
        check(code_cls)
    for code in itertools.chain(small_codes(code_cls), large_codes(code_cls)):
        for object_check in OBJECT_CHECKS:
            object_check(code)


def describe(code: Code) -> str:
    return f"{code.name} {code.nodes or ''} {code.grid} on {code.n_workers} workers"


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("check", CLASS_CHECKS, ids=lambda c: c.__name__)
def test_family(name: str, check) -> None:
    check(get(name))


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("check", OBJECT_CHECKS, ids=lambda c: c.__name__)
def test_small(name: str, check) -> None:
    count = 0
    for code in small_codes(get(name)):
        check(code)
        count += 1
    assert count >= 3


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("check", OBJECT_CHECKS, ids=lambda c: c.__name__)
def test_large(name: str, check) -> None:
    for code in large_codes(get(name)):
        check(code)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 1), (3, 2, 4), (6, 6, 6)], ids=str)
@pytest.mark.parametrize("name", available())
def test_shapes_that_do_not_divide(name: str, shape: tuple[int, int, int]) -> None:
    code_cls = get(name)
    *_, grid = small_grids(code_cls)
    workers = enough_workers(code_cls, grid, 1) or fewest_workers(code_cls, grid)
    check_round_trip(code_cls(workers, grid), shape)
