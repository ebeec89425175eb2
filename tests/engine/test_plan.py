"""Plans: what they say, what they refuse, and how a code is chosen."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import codedla
from codedla.blocks import Grid
from codedla.codes import Code, error_estimate, get, register, unregister
from codedla.engine import choose
from codedla.engine.choose import MOST_COEFFICIENTS, default_tolerate
from codedla.engine.cost import predict
from codedla.engine.plan import Plan, compute_dtype, make_plan
from codedla.errors import CodedlaWarning, UsageError


def plan(rows=100, inner=50, cols=80, dtype=float, workers=8, **options) -> Plan:
    return make_plan((rows, inner), (inner, cols), dtype, workers, **options)


# -- what a plan is ----------------------------------------------------------------------------


def test_it_prints_itself():
    text = str(plan(code="polynomial", blocks=(2, 2), tolerate=2))
    for words in (
        "matmul  (100 x 50) @ (50 x 80)  float64",
        "polynomial, grid 2x2",
        "asked for; grid 2x2 tolerates 2 of 6 workers; 2 workers left idle",
        "6 of 8 used",
        "any 4 of 6 workers",
        "2 slow or dead workers, whichever they are",
        "flop per worker",
        "KiB in all",
        "per worker rank",
        "on the master rank",
        "* |A| |B| / |C| (Frobenius norms) in that set",
    ):
        assert words in text
    assert all(len(line) < 160 for line in text.splitlines())
    assert "warning" not in text


def test_it_is_json_ready():
    data = plan().to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {
        "operation", "code", "grid", "shape", "dtype", "n_workers", "workers_used", "threshold",
        "tolerates", "flops_plain", "flops_worker", "bytes_sent", "bytes_received",
        "memory_worker", "memory_master", "worst_amplification", "predicted_error", "reason",
        "seconds", "speculate", "speeds", "warnings",
    }  # fmt: skip


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().tolerance = 1.0


def test_the_bill():
    made = plan(100, 50, 80, code="uncoded", blocks=(2, 2), tolerate=0)
    assert made.flops_plain == 2 * 100 * 50 * 80
    assert made.flops_worker == made.flops_plain / 4
    assert made.bytes_sent == 4 * (50 * 50 + 50 * 40) * 8
    assert made.bytes_received == 100 * 80 * 8
    assert made.memory_worker == (50 * 50 + 50 * 40 + 2 * 50 * 40) * 8
    assert made.memory_master == (100 * 50 + 50 * 80 + 100 * 80) * 8
    assert made.predicted_error == error_estimate(made.worst_amplification, np.finfo(float).eps)


def test_speculation_is_asked_for_or_part_of_the_code():
    assert not plan().speculate
    asked = plan(speculate=True)
    assert asked.speculate and asked.code.name == plan().code.name
    assert "idle workers" in asked.reason
    assert plan(code="speculative").speculate
    assert get("speculative").purpose == ""  # auto never chooses it
    with pytest.raises(UsageError, match="may see a second share"):
        plan(code="secure-matdot", dtype=int, speculate=True)


def test_the_words_are_right_for_one_and_none():
    assert "nobody: every worker must answer" in str(plan(code="uncoded", tolerate=0))
    assert "1 slow or dead worker\n" in str(plan(tolerate=1))
    assert "nobody without delay" in str(plan(code="speculative"))
    assert "integers are exact" in str(plan(dtype=int))
    assert plan(dtype=int).to_dict()["predicted_error"] == 0.0


def test_sparse_operands_and_complex_codes_are_billed_as_such():
    sparse = plan(code="uncoded", blocks=(2, 2), tolerate=0, nnz=(500, None))
    assert sparse.flops_plain == 0.1 * 2 * 100 * 50 * 80
    real = plan(code="polynomial", nodes="chebyshev", blocks=(2, 2))
    mixed = plan(code="polynomial", nodes="unity", blocks=(2, 2))
    assert (real.compute, mixed.compute) == (np.float64, np.complex128)
    assert mixed.flops_worker == 4 * real.flops_worker
    assert mixed.bytes_received == 2 * real.bytes_received
    assert plan(dtype=np.float32, code="polynomial", blocks=(2, 2)).compute == np.complex64


@pytest.mark.parametrize(
    ("dtype", "exact", "compute"),
    [
        ("?", False, "f8"),
        ("i1", False, "f8"),
        ("u8", True, "i8"),
        ("f2", False, "f4"),
        ("f4", False, "f4"),
        (">f8", False, "f8"),
        ("c8", False, "c8"),
        ("c16", False, "c16"),
    ],
)
def test_compute_dtype(dtype, exact, compute):
    assert compute_dtype(np.dtype(dtype), exact_integers=exact) == np.dtype(compute)


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", np.longdouble, np.clongdouble, "S1"])
def test_unsupported_dtypes(dtype):
    with pytest.raises(UsageError, match=r"operands must be bool.*got dtype"):
        plan(dtype=dtype)


# -- refusals: rule, value, cure ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "at least one worker beside the master; got 1 rank; start with mpirun"),
        ({"tolerate": -1}, "tolerate must be >= 0; got -1"),
        ({"tolerate": 8}, "with 8 workers tolerate is at most 7; got 8; use --tolerate 7"),
        ({"workers": 1, "tolerate": 1}, "with 1 worker tolerate is at most 0"),
        ({"tolerance": 0.0}, "tolerance must be positive; got 0.0"),
        ({"tolerance": -1.0}, "tolerance must be positive; got -1.0"),
        ({"tolerance": float("nan")}, "tolerance must be positive; got nan"),
        ({"code": "reed-solomon"}, "unknown code 'reed-solomon'; the codes are"),
        ({"nodes": "unity"}, "nodes belong to a named code; got nodes='unity'"),
        ({"code": "polynomial", "nodes": "random"}, "nodes of code polynomial must be one of"),
        ({"code": "uncoded", "nodes": "unity"}, "code uncoded has no nodes to choose"),
        ({"code": "mds", "blocks": (2, 2)}, "code mds does not split the columns of B"),
        ({"code": "matdot", "blocks": (2, 2)}, "code matdot does not split the rows of A"),
        ({"blocks": (2, 2, 2, 2)}, "blocks must be one, two or three positive integers"),
        ({"blocks": ()}, "blocks must be one, two or three positive integers"),
        ({"blocks": 0}, "positive integers"),
        ({"blocks": (0, 2)}, "positive integers"),
        ({"blocks": (2.0, 2)}, "positive integers"),
        ({"code": "khatri-rao", "blocks": (3, 3)}, "blocks 3x3 need at least 9 workers"),
        ({"code": "polynomial", "blocks": (2, 2), "tolerate": 5}, "survives 4 lost workers, 5"),
        ({"code": "mds", "blocks": 9}, "blocks 9x1 need at least 9 workers"),
        ({"code": "matdot", "blocks": 9}, "need at least 17 workers"),
        (
            {"code": "uncoded", "tolerate": 1},
            "cannot tolerate 1 of 8 workers; use --tolerate 0 or another",
        ),
    ],
)
def test_refusals(options, words):
    with pytest.raises(UsageError) as caught:
        plan(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_shapes_must_fit():
    with pytest.raises(UsageError, match="got A 3x4 and B 5x6"):
        make_plan((3, 4), (5, 6), float, 4)


# -- the choice -----------------------------------------------------------------------------------


def test_the_default_number_of_losses():
    assert [default_tolerate(n) for n in range(1, 9)] == [0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("workers", range(1, 13))
def test_auto_tolerates_what_the_user_or_the_default_says(workers):
    assert plan(workers=workers).tolerates >= default_tolerate(workers)
    for tolerate in range(workers):
        made = plan(workers=workers, tolerate=tolerate)
        assert made.tolerates >= tolerate
        assert made.code.n_workers <= workers
        assert made.worst_amplification * 2.0**-52 <= 1e-9


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tolerate": 0}, "uncoded"),
        ({"workers": 1}, "uncoded"),
        ({"operation": "matvec", "cols": 1}, "mds"),
        ({"cols": 1}, "mds"),
        ({"rows": 10**6, "inner": 10, "cols": 3}, "mds"),
        ({"rows": 3000, "inner": 3000, "cols": 3000}, "khatri-rao"),
        ({"plain_only": True}, "replication"),
        ({"plain_only": True, "tolerate": 0}, "uncoded"),
        ({"exact_integers": True, "tolerate": 1}, "khatri-rao"),
        ({"exact_integers": True, "tolerate": 2}, "replication"),
        ({"workers": 30, "tolerate": 5, "tolerance": 1e-15}, "replication"),
    ],
)
def test_auto(options, name):
    made = plan(**options)
    assert made.code.name == name
    assert made.reason
    assert made.warnings == ()


def test_idle_workers_are_counted():
    made = plan(10, 10, 10, workers=7, plain_only=True, blocks=(2, 1), tolerate=1)
    assert "left idle" in made.reason
    assert made.pool_workers == 7
    assert made.code.n_workers == 4


@pytest.mark.parametrize(
    ("blocks", "code", "grid"),
    [
        (4, "khatri-rao", {(2, 1, 2), (4, 1, 1), (1, 1, 4)}),
        (3, "mds", {(3, 1, 1)}),
        (3, "matdot", {(1, 3, 1)}),
        ((2, 3), "polynomial", {(2, 1, 3)}),
        ((1, 3, 1), "matdot", {(1, 3, 1)}),
        ((3, 1), "mds", {(3, 1, 1)}),
    ],
)
def test_forms_of_blocks(blocks, code, grid):
    made = plan(code=code, blocks=blocks)
    assert tuple(made.to_dict()["grid"]) in grid
    # Without a number of losses the given blocks use every worker.
    assert made.code.n_workers == 8


def test_blocks_follow_the_shapes():
    tall = plan(10**5, 10, 10, code="khatri-rao", blocks=4)
    wide = plan(10, 10, 10**5, code="khatri-rao", blocks=4)
    assert (tall.grid.m, tall.grid.n) == (4, 1)
    assert (wide.grid.m, wide.grid.n) == (1, 4)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_no_more_blocks_than_rows_when_that_is_possible(rows):
    made = plan(rows, 5, 90, workers=6)
    assert made.grid.m <= max(rows, 1)


def test_exact_integers_are_refused_where_they_would_be_rounded():
    with pytest.raises(UsageError, match="not exact in code polynomial"):
        plan(dtype=np.int64, exact_integers=True, code="polynomial")
    with pytest.raises(UsageError, match="not exact in code khatri-rao"):
        plan(dtype=np.int64, exact_integers=True, code="khatri-rao", blocks=(2, 2), tolerate=2)
    made = plan(dtype=np.int64, exact_integers=True, blocks=(2, 2), tolerate=2)
    assert made.code.field in ("int64", "GF(p)")


def test_codes_that_mix_are_refused_for_nan():
    for code in ("polynomial", "mds", "khatri-rao", "matdot"):
        with pytest.raises(UsageError, match="would spread them"):
            plan(plain_only=True, code=code)
    assert plan(plain_only=True, code="replication").tolerates >= 2


def test_single_precision_is_checked_by_default():
    made = plan(dtype=np.float32, workers=40, tolerate=3)
    assert made.predicted_error <= 1e-3
    assert plan(dtype=np.float32).tolerance == 1e-3
    assert plan(dtype=np.complex64).tolerance == 1e-3
    assert plan().tolerance == 1e-9


def test_a_weak_code_warns():
    weak = {"code": "mds", "nodes": "equispaced", "blocks": (20, 1)}
    made = plan(workers=24, **weak)
    assert len(made.warnings) == 1
    assert "amplifies rounding errors" in made.warnings[0]
    assert "use --nodes trig" in made.warnings[0]
    assert f"warning        {made.warnings[0]}" in str(made)
    with pytest.raises(UsageError, match="the result must be exact"):
        plan(workers=24, strict=True, **weak)
    rng = np.random.default_rng(70009)
    a, b = rng.standard_normal((40, 5)), rng.standard_normal((5, 3))
    with (
        codedla.SerialPool(24) as pool,
        pytest.warns(CodedlaWarning, match="amplifies rounding errors"),
    ):
        codedla.matmul(a, b, pool=pool, **weak)


def test_a_tolerance_that_a_named_code_misses_warns():
    assert plan(code="polynomial", nodes="unity").warnings == ()
    assert plan(code="polynomial", tolerance=1e-17).warnings


def test_a_family_of_copies_from_elsewhere_may_carry_nan():
    @register
    class Mirrored(Code):
        """Copies, the second half in reverse."""

        name = "mirrored"
        splits = ("m",)
        threshold_formula = "N - 1"
        citation = "nobody"
        weakness = "a test"
        systematic = True
        _generators = lambda self: (  # noqa: E731
            np.concatenate([np.eye(self.grid.m), np.eye(self.grid.m)[::-1]]),
            np.ones((2 * self.grid.m, 1)),
        )
        survives = classmethod(lambda cls, n_workers, grid: 1 if n_workers == 2 * grid.m else -1)

    try:
        made = plan(10, 10, 10, workers=6, plain_only=True, code="mirrored")
    finally:
        unregister("mirrored")
    assert made.code.only_plain and made.grid.m == 3


# -- candidates -----------------------------------------------------------------------------------


def test_candidates_are_explained():
    made = plan(workers=16)
    rows = made.explain()
    assert rows[0]["code"] == made.code.name and rows[0]["verdict"].startswith("chosen")
    names = [row["code"] for row in rows]
    assert {"mds", "khatri-rao", "replication", "uncoded"} <= set(names)
    seconds = [row["seconds"] for row in rows if "times the predicted" in row["verdict"]]
    assert seconds and all(s >= 0.98 * rows[0]["seconds"] for s in seconds)
    for row in rows:
        assert row["verdict"]
        if row["grid"] is not None:
            assert row["threshold"] >= 1 and row["bytes"] > 0 and row["memory_worker"] > 0
    assert "tolerates 0" in rows[names.index("uncoded")]["verdict"]
    json.dumps(rows, allow_nan=False)


def test_a_named_code_is_explained_beside_the_others():
    rows = plan(code="matdot", blocks=(1, 2, 1)).explain()
    assert rows[0]["code"] == "matdot"
    assert "asked for" in rows[0]["verdict"]
    assert len(rows) > 3


def test_a_plan_made_by_hand_cannot_be_explained():
    with pytest.raises(UsageError, match="make_plan"):
        dataclasses.replace(plan(), request=None).explain()


def test_memory_is_kept():
    free = plan(3000, 3000, 3000, workers=30)
    needs = free.memory_worker
    assert plan(3000, 3000, 3000, workers=30, memory=needs).grid == free.grid
    verdicts = {
        row["code"]: row["verdict"]
        for row in plan(3000, 3000, 3000, workers=30, memory=needs).explain()
    }
    assert "of a worker's memory, more than" in verdicts["replication"]
    with pytest.raises(UsageError, match="memory"):
        plan(3000, 3000, 3000, workers=30, memory=1000.0)
    with pytest.raises(UsageError, match=r"must fit into the memory allowed.*more blocks"):
        plan(3000, 3000, 3000, workers=30, memory=1000.0, code="khatri-rao")
    with pytest.raises(UsageError, match="memory must be positive"):
        plan(memory=-1.0)


def test_an_approximate_code_says_so():
    made = plan(code="eps-matdot", blocks=(1, 3, 1))
    assert len(made.warnings) == 1 and "eps-matdot is approximate" in made.warnings[0]
    assert made.tolerance >= made.code.method_error > 1e-9
    assert plan(code="eps-matdot", blocks=(1, 3, 1), tolerance=1e-8).tolerance == 1e-8
    with pytest.raises(UsageError, match="eps-matdot is approximate, and integers"):
        plan(code="eps-matdot", blocks=(1, 3, 1), dtype=np.int32)


def test_what_stays_on_the_workers_is_not_sent():
    options = {"operation": "matvec", "nnz": (4_000_000, None), "workers": 20, "tolerate": 2}
    once = plan(20_000, 20_000, 1, **options)
    stored = plan(20_000, 20_000, 1, resident=True, **options)
    assert stored.seconds < once.seconds / 5
    # Dense parities of sparse blocks would be slow in every round.
    assert stored.flops_worker < plan(20_000, 20_000, 1, code="mds", **options).flops_worker / 3


def test_shares_of_sparse_operands_fill_up():
    sparse = plan(3000, 3000, 50, nnz=(90_000, None), code="mds", blocks=10, workers=12)
    coded = predict(sparse.code, sparse.shape, (0.01, 1.0), sparse.compute)
    plain = predict(get("uncoded")(10, Grid(10, 1, 1)), sparse.shape, (0.01, 1.0), sparse.compute)
    # A parity share holds all ten blocks.
    assert coded.flops_worker == pytest.approx(10 * plain.flops_worker)


@pytest.mark.parametrize(
    ("operation", "blocks", "workers", "least"),
    [("matmul", (2, 2), 8, 2), ("matmul", 4, 5, 1), ("matvec", 4, 8, 2), ("matmul", (4, 4), 17, 1)],
)
def test_auto_with_blocks_uses_the_workers_that_are_left_for_losses(
    operation, blocks, workers, least
):
    cols = 1 if operation == "matvec" else 1000
    options = {"operation": operation, "blocks": blocks}
    plan = make_plan((1000, 1000), (1000, cols), "f8", workers, **options)
    assert plan.tolerates >= least
    assert make_plan((1000, 1000), (1000, cols), "f8", 4, **options | {"blocks": 4}).tolerates == 0


def test_auto_takes_the_most_accurate_and_warns_where_none_meets_the_tolerance():
    options = {"blocks": (4, 4), "tolerance": 1e-13}
    plan = make_plan((100, 100), (100, 100), "f8", 24, **options)
    assert "loses about" in plan.warnings[0]
    rows = [
        row for row in plan.explain() if row["tolerates"] and "lost workers" not in row["verdict"]
    ]
    rated = {r["code"]: r["worst_amplification"] for r in rows if "sparse op" not in r["verdict"]}
    assert rated[plan.code.name] == min(rated.values())
    with pytest.raises(UsageError, match="must be exact"):
        make_plan((100, 100), (100, 100), "f8", 24, strict=True, **options)


def test_auto_checks_the_accuracy_of_double_precision_too(monkeypatch):
    usual = make_plan((1000, 1000), (1000, 1000), "f8", 8).code
    with monkeypatch.context() as patch:
        patch.setattr(type(usual), "worst_amplification", lambda code: (1e8, ()))
        choose.forget()
        assert make_plan((1000, 1000), (1000, 1000), "f8", 8).code.name != usual.name
    choose.forget()
    assert make_plan((1000, 1000), (1000, 1000), "f8", 8).code.name == usual.name


def test_what_is_for_sparse_operands_is_not_built_for_dense_ones():
    plan = make_plan((1000, 1000), (1000, 1), "f8", 300, operation="matvec")
    (row,) = [row for row in plan.explain() if row["code"] == "sparse"]
    assert row["grid"] is None
    assert "these are dense" in row["verdict"]


@pytest.mark.parametrize(
    ("name", "many"), [("bivariate", (145, 100)), ("convolutional", 145), ("lt", 9000)]
)
def test_codes_with_several_shares_are_planned_for_many_workers(name, many):
    shapes = ((10**5, 10**5), (10**5, 10**3))
    plan = make_plan(*shapes, "f8", 150, code=name)
    assert plan.code.n_shares * plan.grid.outputs <= MOST_COEFFICIENTS
    assert plan.tolerates >= 2
    with pytest.raises(UsageError, match="more than can be planned for"):
        make_plan(*shapes, "f8", 150, code=name, blocks=many)


@pytest.mark.parametrize("code", ["auto", "polydot"])
def test_products_of_nothing_are_explained(code):
    plan = make_plan((0, 0), (0, 1), "f8", 20, code=code)
    assert any("times the predicted time" in row["verdict"] for row in plan.explain())


@pytest.mark.parametrize("blocks", [(10**6, 10**6), (1000, 1000, 1000), 10**7])
def test_absurd_numbers_of_blocks_are_refused_at_once(blocks):
    with pytest.raises(UsageError, match="blocks are at most 1000000 in all"):
        make_plan((10**9, 10), (10, 10**9), "f8", 8, code="khatri-rao", blocks=blocks)


# -- choices are remembered --------------------------------------------------------------------


def test_equal_requests_get_the_same_code():
    choose.forget()
    first = plan(rows=301)
    assert plan(rows=301).code is first.code
    assert plan(rows=302).code is not first.code
    assert plan(rows=301, tolerate=1).code is not first.code
    choose.forget()
    again = plan(rows=301)
    assert again.code is not first.code
    assert again.to_dict() == first.to_dict()


def test_a_new_code_is_considered_at_once_and_a_removed_one_no_more():
    options = {"rows": 300, "inner": 200, "cols": 250, "workers": 2}
    usual = plan(**options).code
    assert usual.name == "uncoded"
    family = get("uncoded")
    unregister("uncoded")
    try:
        assert plan(**options).code.name != "uncoded"
    finally:
        register(family)
    assert plan(**options).code.name == "uncoded"


def test_refusals_are_not_remembered():
    for _ in range(2):
        with pytest.raises(UsageError, match="nodes belong to a named code"):
            plan(nodes=["unhashable"])
        with pytest.raises(UsageError, match="at least one worker must answer"):
            plan(tolerate=8)


def test_few_choices_of_many_workers_are_remembered():
    choose.forget()
    large = plan(rows=4000, workers=150).code
    assert plan(rows=4000, workers=150).code is large
    for rows in range(4001, 4017):
        plan(rows=rows, workers=4)
    assert plan(rows=4000, workers=150).code is not large


def test_the_cost_is_that_of_the_choice_and_a_changed_plan_has_its_own():
    whole = plan(rows=1000)
    assert whole.cost == predict(whole.code, whole.shape, whole.density, whole.compute)
    half = dataclasses.replace(whole, shape=(500, 50, 80))
    assert half.cost.flops_worker < whole.cost.flops_worker
