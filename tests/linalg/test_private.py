"""Private codes: what any T workers hold is independent of the operands, and new every time."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.private import determinants, reveals, singular_sets
from codedla.engine.stragglers import parse_fault
from codedla.errors import NotDecodable, UsageError
from codedla.galois import Field
from codedla.linalg.masks import draw_masks, uniform_residues

# Small fields in which all masks can be tried: (code, workers, blocks, prime).
SMALL = (
    ("secure-matdot", 5, Grid(1, 2, 1), 7),
    ("secure-matdot:2", 7, Grid(1, 2, 1), 11),
    ("lagrange", 5, Grid(1, 2, 1), 11),
    ("lagrange:2", 5, Grid(1, 1, 1), 11),
    ("gasp", 3, Grid(1, 1, 1), 5),
    ("gasp", 5, Grid(2, 1, 1), 7),
    ("gasp:2", 5, Grid(1, 1, 1), 7),
)


def shares_of_all_masks(code, operand, data):
    """Every worker's share for all masks, scalar blocks: (masks, workers)."""
    generator = code.generator_a if operand == 0 else code.generator_b
    masks = itertools.product(range(code.prime), repeat=code.masks[operand])
    blocks = np.array([[*data, *mask] for mask in masks])
    return blocks @ generator.T % code.prime


@pytest.mark.parametrize("case", SMALL, ids=lambda c: f"{c[0]}-{c[2]}-p{c[3]}")
@pytest.mark.parametrize("operand", [0, 1])
def test_any_colluders_see_every_combination_equally_often(case, operand):
    name, workers, grid, prime = case
    code = get(name)(workers, grid, prime=prime)
    count = (grid.m * grid.p, grid.p * grid.n)[operand]
    rng = np.random.default_rng(prime)
    for data in [np.zeros(count, int), *rng.integers(0, prime, (4, count))]:
        shares = shares_of_all_masks(code, operand, data)
        for colluders in itertools.combinations(range(workers), code.colluders):
            seen = np.unique(shares[:, colluders], axis=0)
            # As many different views as masks: each appears exactly once, whatever the data.
            assert len(seen) == prime**code.colluders == len(shares)
        # One more worker, and the data matter: all masks together show only part of what can be.
        more = np.unique(shares[:, : code.colluders + 1], axis=0)
        assert len(more) == prime**code.colluders < prime ** (code.colluders + 1)


@pytest.mark.parametrize("colluders", [1, 2, 3])
@pytest.mark.parametrize("name", ["secure-matdot", "lagrange", "gasp"])
def test_masks_of_any_colluders_are_invertible(name, colluders):
    family = get(f"{name}:{colluders}")
    assert family.colluders == colluders and family.name.startswith(name)
    grid = Grid(2, 1, 3) if name == "gasp" else Grid(1, 3, 1)
    code = family(family.needs(grid) + 2, grid)
    assert code.masks == (colluders, colluders) and code.tolerates == 2
    for generator, blocks in (
        (code.generator_a, grid.m * grid.p),
        (code.generator_b, grid.p * grid.n),
    ):
        assert reveals(generator[:, blocks:], code.prime) is None


def test_variants_are_named_by_the_number_of_colluders():
    assert get("gasp:1") is get("gasp") and get("gasp:2") is get("gasp:2")
    assert get("gasp:2").name == "gasp:2"
    for name in (
        "gasp:x",
        "gasp:65",
        "gasp:-1",
        "gasp:",
        "gasp:02",
        "gasp:٢",
        "gasp:" + 5000 * "1",
    ):
        with pytest.raises(UsageError, match="T from 0 to 64"):
            get(name)
    with pytest.raises(UsageError, match="no variants"):
        get("uncoded:2")


def test_gasp_has_the_published_numbers_of_workers():
    # D'Oliveira et al.: 18 at 3 x 3 blocks and two colluders; m n + m + n at one.
    assert get("gasp:2").needs(Grid(3, 1, 3)) == 18
    for m, n in itertools.product(range(1, 6), repeat=2):
        assert get("gasp").needs(Grid(m, 1, n)) == m * n + m + n
        assert get("gasp:0").needs(Grid(m, 1, n)) == m * n
    for colluders in range(1, 6):
        assert get(f"gasp:{colluders}").needs(Grid(1, 1, 1)) == 2 * colluders + 1


def test_gasp_decodes_from_every_set():
    code = get("gasp:2")(14, Grid(2, 1, 2))
    assert code.threshold == 11
    assert singular_sets(code.generator, code.prime, 10**6) == 0
    assert all(code.decodable(s) for s in itertools.combinations(range(14), 11))
    with pytest.raises(UsageError, match="found no 40 points"):
        _ = get("gasp:2")(40, Grid(2, 1, 2), prime=41).points


def test_determinants():
    rng = np.random.default_rng(2)
    for p in (5, 2_097_143):
        field, matrices = Field(p), rng.integers(0, p, (60, 4, 4))
        matrices[::3, 1] = matrices[::3, 0] * 2 % p
        matrices[1, 0, 0] = 0
        found = determinants(matrices, p)
        assert [field.rank(m) == 4 for m in matrices] == (found != 0).tolist()
    assert determinants(np.array([[[0, 1], [1, 0]]]), 7).tolist() == [6]
    assert reveals(np.array([[1], [2], [7]]), 7) == (2,)
    assert singular_sets(np.array([[1, 0], [2, 0], [0, 1]]), 7, 10) == 1


def test_residues_are_uniform_and_new():
    p = 11
    drawn = uniform_residues(p, (400, 250))
    counts = np.bincount(drawn.ravel(), minlength=p)
    expected = drawn.size / p
    # Beyond 60 with 10 degrees of freedom once in 3e8 times.
    assert counts.size == p and ((counts - expected) ** 2 / expected).sum() < 60
    assert not np.array_equal(uniform_residues(2_097_143, (9,)), uniform_residues(2_097_143, (9,)))
    assert uniform_residues(3, (0, 4)).shape == (0, 4)
    code = get("gasp:2")(11, Grid(2, 1, 2))
    left, right = draw_masks(code, (3, 5), (5, 4))
    assert [mask.shape for mask in left] == [(3, 5)] * 2 and len(right) == 2
    assert all(np.abs(mask).max() <= code.prime // 2 for mask in left + right)


class Recording(codedla.SerialPool):
    """A pool that remembers what its workers were sent."""

    def compute(self, job, share, worker, matrices):
        self.sent = getattr(self, "sent", [])
        self.sent.append((worker, *(np.array(matrix) for matrix in matrices)))
        super().compute(job, share, worker, matrices)


@pytest.mark.parametrize("case", ["gasp", "gasp:2", "secure-matdot", "secure-matdot:2", "lagrange"])
@pytest.mark.parametrize("largest", [5, 2**40])
def test_products_are_exact_and_no_share_is_sent_twice(case, largest):
    rng = np.random.default_rng(7)
    A, B = rng.integers(-largest, largest, (9, 8)), rng.integers(-largest, largest, (8, 7))
    blocks = (2, 2) if case.startswith("gasp") else (1, 2, 1)
    with Recording(13) as pool:
        for _ in range(2):
            C, report = codedla.matmul(
                A, B, pool=pool, code=case, blocks=blocks, return_report=True
            )
            assert np.array_equal(C, A @ B) and report.code == case
        sent = [pair for worker, *pair in pool.sent if worker == 0]
    # The same products again, and all rounds of one: other shares each time.
    assert len(sent) >= 2
    for one, two in itertools.combinations(sent, 2):
        assert not np.array_equal(one[0], two[0]) and not np.array_equal(one[1], two[1])


def test_no_worker_is_given_a_second_share():
    A = np.arange(16).reshape(4, 4)
    dead = [parse_fault(f"kill:{rank}:0") for rank in (1, 2, 3)]
    with codedla.SerialPool(5, faults=dead[:2]) as pool:
        assert np.array_equal(
            codedla.matmul(A, A, pool=pool, code="secure-matdot", blocks=(1, 1, 1)), A @ A
        )
    with codedla.SerialPool(5, faults=dead) as pool:
        with pytest.raises(NotDecodable, match="no worker may see the share of another"):
            codedla.matmul(A, A, pool=pool, code="secure-matdot", blocks=(1, 1, 1))
        # Where nothing is hidden, others help out.
        codedla.matmul(A, A, pool=pool, code="secure-matdot:0", blocks=(1, 2, 1))


def test_too_few_workers_are_told_how_many_it_takes():
    A = np.eye(2, dtype=int)
    with codedla.SerialPool(6) as pool:
        for code, tolerate, text in (
            ("gasp:4", None, "'gasp:4' needs at least 9 workers; got 6; use 10 ranks"),
            ("lagrange:2", 2, "cannot tolerate 2 of 6 workers; use --tolerate 1 or 8 ranks"),
            ("base3", 4, "cannot tolerate 4 of 6 workers; use --tolerate 3 or another code"),
        ):
            with pytest.raises(UsageError, match=text):
                codedla.matmul(A, A, pool=pool, code=code, tolerate=tolerate)


def test_only_dense_integers_can_be_hidden():
    sp = pytest.importorskip("scipy.sparse")
    A = np.eye(6)
    with codedla.SerialPool(9) as pool:
        with pytest.raises(UsageError, match="for integers"):
            codedla.matmul(A, A, pool=pool, code="gasp", blocks=(2, 2))
        with pytest.raises(UsageError, match="sparse"):
            codedla.matmul(sp.eye_array(6, dtype=int), A.astype(int), pool=pool, code="gasp")


def test_a_liar_is_named_by_projection_too():
    A = np.arange(30).reshape(5, 6)
    B = A.T.copy()
    for code, blocks in (("gasp", (2, 2)), ("secure-matdot", (1, 2, 1)), ("lagrange", (1, 2, 1))):
        with (
            codedla.SerialPool(9, faults=[parse_fault("corrupt:2:1")]) as pool,
            pytest.warns(codedla.CodedlaWarning, match="rank 2 was not used"),
        ):
            C, report = codedla.matmul(
                A, B, pool=pool, code=code, blocks=blocks, verify="locate", return_report=True
            )
        assert np.array_equal(C, A @ B) and report.wrong == [2]


def test_the_page_on_private_codes_runs():
    page = (Path(__file__).parents[2] / "docs" / "private.md").read_text()
    names: dict[str, object] = {}
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(program, names)  # the page's own assertions are the test
