"""The table of codes, and codes from outside the package."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from codedla import codes
from codedla.blocks import Grid
from codedla.codes import Code, available, get, register, table, unregister
from codedla.errors import UsageError


def third_party(**changes) -> type[Code]:
    """A code as somebody else might write it."""

    def generators(self: Code) -> tuple[np.ndarray, np.ndarray]:
        a = np.vander(np.linspace(1, 2, self.n_workers), self.grid.m, increasing=True)
        return a, np.ones((self.n_workers, 1))

    members = {
        "name": "third-party",
        "operation": "matvec",
        "splits": ("m",),
        "threshold_formula": "k",
        "field": "real",
        "citation": "nobody",
        "weakness": "a test",
        "_generators": generators,
        "__doc__": "A code from elsewhere.",
        **changes,
    }
    return type("ThirdParty", (Code,), members)


@pytest.fixture
def registered():
    yield register(third_party())
    unregister("third-party")


def test_the_built_in_codes_are_there() -> None:
    assert {"uncoded", "replication", "mds", "polynomial", "khatri-rao", "matdot"} <= set(
        available()
    )


def test_third_parties_register_at_run_time(registered) -> None:
    assert get("third-party") is registered
    assert "third-party" in [row["name"] for row in table()]
    code = registered(5, Grid(3, 1, 1))
    for survivors in ((0, 1, 2), (1, 3, 4), (0, 1, 3, 4)):
        assert code.weights(survivors) @ code.generator[list(survivors)] == pytest.approx(np.eye(3))


def test_workers_without_a_share_are_not_counted() -> None:
    """A coded, not systematic family that gives only the first five workers a share."""

    def generators(self: Code) -> tuple[np.ndarray, np.ndarray]:
        a = np.zeros((self.n_workers, self.grid.m))
        a[: self.active] = np.vander(np.linspace(1, 2, self.active), self.grid.m)
        return a, np.ones((self.n_workers, 1))

    family = third_party(
        _generators=generators,
        active_workers=classmethod(lambda cls, n_workers, grid: min(5, n_workers)),
        survives=classmethod(lambda cls, n_workers, grid: min(5, n_workers) - grid.m),
    )
    code = family(8, Grid(3, 1, 1))
    assert (code.active, code.threshold, code.tolerates) == (5, 3, 2)
    assert not code.decodable([0, 1, 5, 6, 7]) and code.decodable([0, 1, 4])
    weights = code.weights([0, 1, 4, 6, 7])
    assert np.array_equal(weights, np.hstack([code.weights([0, 1, 4]), np.zeros((3, 2))]))
    alpha, survivors = code.worst_amplification()
    everything = itertools.combinations(range(5), 3)
    assert alpha == max(map(code.amplification, everything)) and max(survivors) < 5


def test_duplicates_are_refused(registered) -> None:
    with pytest.raises(UsageError, match=r"'third-party' is already .*ThirdParty"):
        register(third_party())
    assert get("third-party") is registered


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        get("polinomial")
    for name in available():
        assert name in str(caught.value)
    with pytest.raises(UsageError, match=r"did you mean polynomial.*; the codes are"):
        get("polinomial")
    with pytest.raises(UsageError, match="'zzz'; the codes are"):
        get("zzz")
    with pytest.raises(UsageError, match="unknown code"):
        unregister("polinomial")


@pytest.mark.parametrize("attribute", ["name", "threshold_formula", "citation", "weakness"])
def test_incomplete_classes_are_refused(attribute: str) -> None:
    with pytest.raises(UsageError, match=f"lacks {attribute}"):
        register(third_party(**{attribute: ""}))
    assert "third-party" not in available()


def test_generators_of_the_wrong_shape_are_named() -> None:
    wrong = third_party(_generators=lambda self: (np.ones((2, 2)), np.ones((2, 1))))
    with pytest.raises(ValueError, match=r"shape \(5, 3\) is due, got \(2, 2\)"):
        wrong(5, Grid(3, 1, 1)).generator_a  # noqa: B018


def test_table_is_json() -> None:
    rows = json.loads(json.dumps(table()))
    assert [row["name"] for row in rows] == available()
    assert all(row["threshold"].count("e.g.") == 1 for row in rows)


def test_importing_codes_is_light() -> None:
    import subprocess
    import sys

    script = (
        "import sys, codedla.codes; print([m for m in ('scipy', 'mpi4py') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert codes.error_estimate(0.0, 1e-16) == 1e-16
