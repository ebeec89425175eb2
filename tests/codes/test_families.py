"""What is particular to the other families."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codedla import nodes
from codedla.blocks import Grid
from codedla.codes import get
from codedla.codes.families.mds import parity_rows
from codedla.errors import NotDecodable, UsageError


class TestUncoded:
    def test_surplus_workers_are_idle_and_not_counted(self) -> None:
        code = get("uncoded")(7, Grid(2, 1, 2))
        assert (code.active, code.threshold, code.tolerates) == (4, 4, 0)
        assert not code.generator_a[4:].any() and not code.generator_b[4:].any()
        assert code.plain_block(4) is None
        assert not code.decodable([0, 1, 2, 4, 5, 6])
        assert code.decodable([0, 1, 2, 3])

    def test_weights_copy_and_ignore_idle_workers(self) -> None:
        code = get("uncoded")(6, Grid(2, 1, 2))
        expected = np.hstack([np.eye(4), np.zeros((4, 1))])
        assert np.array_equal(code.weights([0, 1, 2, 3, 5]), expected)
        assert code.amplification(range(6)) == 1
        with pytest.raises(NotDecodable, match="all 4 workers that hold a share"):
            code.weights([0, 1, 2, 4])

    def test_no_loss_can_be_asked_for(self) -> None:
        with pytest.raises(UsageError, match="survives 0 lost workers, 1 were asked for"):
            get("uncoded")(6, Grid(2, 1, 2)).require(1)
        assert get("uncoded").grids(6, 1) == []


class TestReplication:
    def test_uneven_copies(self) -> None:
        code = get("replication")(7, Grid(3, 1, 1))
        assert (code.threshold, code.tolerates, code.active) == (6, 1, 7)
        assert [code.plain_block(w) for w in range(7)] == [0, 1, 2, 0, 1, 2, 0]

    @pytest.mark.parametrize("workers", [3, 5, 6, 7, 9])
    def test_decodable_is_coverage(self, workers: int) -> None:
        code = get("replication")(workers, Grid(3, 1, 1))
        for size in range(workers + 1):
            for survivors in itertools.combinations(range(workers), size):
                covered = len({w % 3 for w in survivors}) == 3
                assert code.decodable(survivors) == covered
                assert covered or size < code.threshold

    def test_lowest_copy_is_taken(self) -> None:
        code = get("replication")(6, Grid(1, 1, 2))
        assert np.array_equal(code.weights([1, 2, 3, 4]), [[0, 1, 0, 0], [1, 0, 0, 0]])


class TestMDS:
    def test_grid_is_rows_only(self) -> None:
        with pytest.raises(UsageError, match="does not split the columns of B"):
            get("mds")(6, Grid(2, 1, 2))
        with pytest.raises(UsageError, match="does not split the inner dimension"):
            get("mds")(6, Grid(2, 2, 1))

    def test_one_parity_is_the_plain_sum(self) -> None:
        code = get("mds")(5, Grid(4, 1, 1))
        assert code.integral and np.array_equal(code.generator[4], np.ones(4))
        assert np.array_equal(code.weights([0, 1, 3, 4])[2], [-1, -1, -1, 1])

    @pytest.mark.parametrize(("blocks", "losses"), [(4, 2), (16, 3), (36, 2), (7, 6), (3, 9)])
    def test_parity_rows_have_the_scale_of_the_data(self, blocks: int, losses: int) -> None:
        rows = parity_rows(blocks, losses)
        assert np.linalg.norm(rows, axis=1) == pytest.approx(np.sqrt(blocks))

    def test_neighbouring_workers_may_fail_together(self) -> None:
        """The worst pair is elsewhere: neighbours lie on distant angles."""
        code = get("mds")(66, Grid(64, 1, 1))
        worst, _ = code.worst_amplification()
        neighbours = [
            code.amplification(sorted({*range(66)} - {w, w + 1})) for w in range(0, 63, 4)
        ]
        assert max(neighbours) < worst / 3

    def test_many_losses_fall_back_to_random_rows(self) -> None:
        """Ten neighbouring angles are hopeless among a thousand; random rows are not."""
        complex_points = get("mds")(510, Grid(500, 1, 1), nodes="unity")
        assert complex_points.worst_amplification()[0] > 1e12
        assert get("mds")(510, Grid(500, 1, 1)).worst_amplification()[0] < 1e8

    def test_weights_of_everybody_are_the_transpose(self) -> None:
        code = get("mds")(9, Grid(4, 1, 1), nodes="unity")
        assert np.abs(code.weights(range(9)) - code.generator.conj().T / 9).max() < 1e-15

    def test_node_choices(self) -> None:
        for name, field in (("trig", "real"), ("chebyshev", "real"), ("unity", "complex")):
            code = get("mds")(7, Grid(4, 1, 1), nodes=name)
            assert code.field == field and code.systematic == (name == "trig")
        with pytest.raises(UsageError, match="trig, chebyshev, equispaced, unity; got 'cheb'"):
            get("mds")(7, Grid(4, 1, 1), nodes="cheb")


class TestPolynomial:
    def test_generators_are_powers(self) -> None:
        code = get("polynomial")(7, Grid(2, 1, 3), nodes="equispaced")
        x = code.generator_a[:, 1]
        assert sorted(x) == pytest.approx(nodes.equispaced(7))
        for i, j in itertools.product(range(2), range(3)):
            assert code.generator[:, i * 3 + j] == pytest.approx(x ** (i + 2 * j))

    def test_unity_is_the_default_and_complex(self) -> None:
        code = get("polynomial")(6, Grid(2, 1, 2))
        assert code.nodes == "unity" and code.field == "complex"
        assert np.abs(np.abs(code.generator) - 1).max() < 1e-15

    def test_chebyshev_products_span_all_degrees(self) -> None:
        code = get("polynomial")(12, Grid(3, 1, 4), nodes="chebyshev")
        assert np.linalg.matrix_rank(code.generator) == 12


class TestMatDot:
    def test_threshold(self) -> None:
        for p in (1, 2, 5, 9):
            assert get("matdot").needs(Grid(1, p, 1)) == 2 * p - 1

    def test_gauss_rule_is_valid_and_nearly_the_best(self) -> None:
        code = get("matdot")(11, Grid(1, 4, 1))
        gauss = np.full((1, 11), 1 / 11)
        assert np.abs(gauss @ code.generator - code.wanted).max() < 1e-15
        noise = np.linalg.norm(gauss * code.norms) / 2  # sqrt(p) = 2
        assert 0.9 * noise < code.amplification(range(11)) < noise

    def test_product_of_shares_is_what_the_generator_says(self) -> None:
        rng = np.random.default_rng(613)
        for name in get("matdot").node_choices:
            code = get("matdot")(9, Grid(1, 4, 1), nodes=name)
            a, b = rng.standard_normal(4), rng.standard_normal(4)
            replies = (code.generator_a @ a) * (code.generator_b @ b)
            unknowns = np.linalg.lstsq(code.generator, replies, rcond=None)[0]
            assert np.abs(code.generator @ unknowns - replies).max() < 1e-12
            assert (code.wanted @ unknowns)[0] == pytest.approx(a @ b)

    def test_five_inner_blocks_need_nine_workers(self) -> None:
        with pytest.raises(UsageError, match=r"at least 9 workers.*there are 8.*1x4x1 or 10 ranks"):
            get("matdot")(8, Grid(1, 5, 1))


def test_messages_name_the_cure() -> None:
    with pytest.raises(
        UsageError,
        match=r"blocks 3x3 need at least 9 workers .* there are 8; use --blocks 2x4 or 10 ranks",
    ):
        get("khatri-rao")(8, Grid(3, 1, 3))
    with pytest.raises(UsageError, match=r"use --tolerate 2, --blocks 2x2 or 11 ranks"):
        get("khatri-rao")(8, Grid(2, 1, 3)).require(4)
    with pytest.raises(UsageError, match="has no nodes to choose"):
        get("replication")(8, Grid(2, 1, 3), nodes="unity")
