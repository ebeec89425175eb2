"""Products that are cut into panels by themselves: everything that a whole product can do."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.engine.plan import make_plan
from codedla.engine.stragglers import parse_fault
from codedla.errors import CodedlaWarning, NotDecodable, UsageError, VerificationFailed
from codedla.linalg import stream
from codedla.linalg.product import Product

RNG = np.random.default_rng(50053)
A, B = RNG.standard_normal((203, 40)), RNG.standard_normal((40, 30))


@pytest.fixture
def pool(monkeypatch):
    """Workers of this process that are given panels of a few rows, and a count of the rounds."""
    monkeypatch.setattr(stream, "PANEL_SECONDS", 1e-9)
    monkeypatch.setattr(stream, "LEAST_ROWS", 8)

    class Counting(codedla.SerialPool):
        streams = True
        rounds = 0

        def run(self, job):
            self.rounds += 1
            return super().run(job)

    def make(*faults, workers=5):
        return Counting(workers, faults=[parse_fault(fault) for fault in faults])

    return make


CASES = {
    "floats": (A, B),
    "single": (A.astype("f4"), B.astype("f4")),
    "complex": (A + 1j, B),
    "halves": (A.astype("f2"), B.astype("f2")),
    "columns": (np.asfortranarray(A), B[:, ::-1]),
    "bool": (A > 0, B > 0),
    "small integers": (A.astype("i4"), B.astype("i1")),
    "sparse": (sp.random_array((203, 40), density=0.1, rng=RNG, format="coo"), B),
    "both sparse": (
        sp.random_array((203, 40), density=0.1, rng=RNG, format="csc"),
        sp.random_array((40, 30), density=0.2, rng=RNG, format="csr"),
    ),
}


@pytest.mark.parametrize(
    "code", ["auto", "mds", "polynomial", "matdot", "bivariate", "replication"]
)
@pytest.mark.parametrize("case", CASES)
def test_panels_give_the_product(pool, case, code):
    a, b = CASES[case]
    dense = [x.toarray() if hasattr(x, "toarray") else x for x in (a, b)]
    expected = dense[0] @ dense[1]
    with pool("kill:2:0") as workers:
        try:
            with pytest.warns(CodedlaWarning) as said:
                c, report = codedla.matmul(a, b, pool=workers, code=code, return_report=True)
        except UsageError:
            pytest.skip("not a code for these operands")
    assert workers.rounds > 3
    assert c.dtype == expected.dtype
    exact = expected.dtype.kind in "iub"
    tolerance = 0 if exact else {"f2": 1e-2, "f4": 1e-3}.get(expected.dtype.str[1:], 1e-9)
    np.testing.assert_allclose(c, expected, atol=tolerance * 40, rtol=tolerance)
    assert report.shapes["C"] == [203, 30]
    assert set(report.lost) == {2}
    assert 2 not in report.responders
    assert [str(w.message) for w in said].count(report.warnings[-1]) == 1


def test_small_products_stay_whole(pool, monkeypatch):
    with pool() as workers:
        codedla.matmul(A[:10], B, pool=workers)
        assert workers.rounds == 1
        workers.streams = False
        codedla.matmul(A, B, pool=workers)
        assert workers.rounds == 2
    monkeypatch.undo()
    plan = make_plan((1000, 1000), (1000, 1000), "f8", 5)
    whole = stream.panel_rows(Product(plan, pool()), "auto")
    assert whole == 1000


@pytest.mark.parametrize(
    ("shape", "workers", "least", "most"),
    [((4000, 4000, 4000), 3, 8, 32), ((40000, 1000, 10), 3, 1, 1), ((100, 9000, 9000), 3, 1, 1)],
)
def test_how_many_panels(shape, workers, least, most):
    m, inner, n = shape
    pool = codedla.SimulatedPool(workers)
    pool.streams = True
    plan = make_plan((m, inner), (inner, n), "f8", workers)
    rows = stream.panel_rows(Product(plan, pool), "auto")
    assert least <= -(-m // rows) <= most
    assert rows % plan.grid.m == 0 or rows == m


@pytest.mark.parametrize("verify", ["spares", "auto", "freivalds", "locate"])
def test_verified_products(pool, verify):
    with pool() as workers:
        c, report = codedla.matmul(
            A, B, pool=workers, code="mds", verify=verify, return_report=True
        )
    np.testing.assert_allclose(c, A @ B, atol=1e-12)
    assert report.verified == ("off" if verify == "auto" else verify)
    assert (workers.rounds == 1) == (verify == "spares")


def test_a_liar_is_named_once(pool):
    with pool("corrupt:1:1") as workers, pytest.warns(CodedlaWarning) as said:
        c, report = codedla.matmul(A, B, pool=workers, verify="locate", return_report=True)
    np.testing.assert_allclose(c, A @ B, atol=1e-12)
    assert report.wrong == [1]
    assert sum("rank 1 was not used" in str(warning.message) for warning in said) == 1


def test_a_wrong_product_is_not_handed_out(pool):
    with pool("corrupt:1:1") as workers, pytest.raises(VerificationFailed, match="failed the"):
        codedla.matmul(A, B, pool=workers, tolerate=0, verify="freivalds")


def test_operands_that_cannot_be_checked_are_refused(pool):
    broken = A.copy()
    broken[100, 0] = np.inf
    with pool() as workers, pytest.raises(VerificationFailed, match="NaN or Inf"):
        codedla.matmul(broken, B, pool=workers, verify="freivalds")


@pytest.mark.parametrize("order", ["C", "F"])
def test_out(pool, order):
    out = np.full((203, 30), np.nan, order=order)
    with pool() as workers:
        assert codedla.matmul(A, B, pool=workers, out=out) is out
        assert workers.rounds > 1
        with pytest.raises(UsageError, match="out must be a float64 array of shape"):
            codedla.matmul(A, B, pool=workers, out=out[1:])
    np.testing.assert_allclose(out, A @ B, atol=1e-12)


def test_out_may_overlap_the_operands(pool):
    memory = RNG.standard_normal((230, 203))
    a, out = memory[:203], memory[20:223]
    b = RNG.standard_normal((203, 203))
    expected = a @ b
    with pool() as workers:
        codedla.matmul(a, b, pool=workers, out=out)
    np.testing.assert_allclose(out, expected, atol=1e-10)


def test_memory_maps(pool, tmp_path):
    np.save(tmp_path / "a.npy", A)
    a = np.load(tmp_path / "a.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float64, (203, 30))
    with pool() as workers:
        assert codedla.matmul(a, B, pool=workers, out=out) is out
    out.flush()
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), A @ B, atol=1e-12)


def test_progress_counts_all_panels(pool):
    seen = []
    with pool() as workers:
        codedla.matmul(A, B, pool=workers, progress=lambda *three: seen.append(three))
        rounds = workers.rounds
    done, needed, total = zip(*seen, strict=True)
    assert list(done) == sorted(done) and done[-1] == needed[-1]
    assert set(needed) == {needed[0]} and needed[0] % rounds == 0 and total[0] % rounds == 0


def test_the_time_out_is_that_of_the_product(pool):
    with pool() as workers, pytest.raises(NotDecodable, match="the time-out passed"):
        codedla.matmul(A, B, pool=workers, timeout=1e-9)


def test_a_reply_that_stopped_half_way_does_not_reach_the_product(pool, monkeypatch):
    """One decoder has to go on in a copy; what arrives in its old memory later is not seen."""
    places = []

    with pool() as workers:
        run = workers.run

        def detaching(job):
            finish = job.decoder.finish

            def finished(responders):
                if len(places) == 1:
                    places.append(job.decoder.output)
                    job.decoder.detach()
                finish(responders)
                places.append(None)

            job.decoder.finish = finished
            return run(job)

        monkeypatch.setattr(workers, "run", detaching)
        c = codedla.matmul(A, B, pool=workers, code="mds")
    late = next(place for place in places if place is not None)
    late[...] = np.nan
    np.testing.assert_allclose(c, A @ B, atol=1e-12)
