"""Rounds that are under way together, on real ranks: any three of four workers decode each."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

ROUNDS = 12
SHARE_OF_A, SHARE_OF_B = 80 * 600 * 8, 600 * 800 * 8


@pytest.fixture
def stream(job, outlives):
    """Run scenarios and look at what must hold for all of them."""
    outlives()

    def run(*words):
        ended = job("stream.py", 5, *words, begins=True)
        assert ended.code == 0, ended
        assert not ended.job.hung, ended
        results = ended.data["results"]
        for result in results:
            assert result["worst"] < 1e-9
            if not result["raised"]:
                assert len(result["rounds"]) == ROUNDS
                assert all(len(ranks) >= 3 for ranks in result["rounds"])
        return results

    return run


def by(result, rank):
    """How many rounds a rank's replies were used in."""
    return sum(rank in ranks for ranks in result["rounds"])


def test_workers_share_the_rounds_whatever_happens_to_one(stream):
    healthy, raised, paused, again, killed, last = stream(
        "healthy", "raise", "paused", "again", "killed", "last"
    )
    assert healthy["events"] == []
    # Nobody computes for all rounds: three replies suffice, and there are four workers.
    assert all(by(healthy, rank) > 0 for rank in (1, 2, 3, 4))
    assert sum(map(len, healthy["rounds"])) <= 3 * ROUNDS + 4
    # B was sent once to each worker, and of A little more than what was needed.
    assert healthy["sent"] < 4 * SHARE_OF_B + (3 * ROUNDS + 16) * SHARE_OF_A

    assert raised["raised"] == "'done'"
    assert len(raised["rounds"]) == 3

    # Neither the pause nor the silence after which a worker is given up was waited for.
    assert paused["seconds"] < max(1.5, 4 * healthy["seconds"])
    assert by(again, 2) > 0, "it is back"

    assert ["lost", 2] in killed["events"]
    assert by(last, 2) == 0
    assert last["events"] == [["lost", 2]]
    assert killed["seconds"] < max(2.5, 4 * healthy["seconds"])


def test_what_a_slow_worker_finishes_counts(stream):
    (result,) = stream("slow", "slow:3:5")
    assert result["events"] == []
    assert 0 < by(result, 3) < ROUNDS


def test_a_late_worker_is_not_waited_for(stream):
    (result,) = stream("late", "delay:4:5")
    assert result["seconds"] < 4
    assert by(result, 4) == 0


def test_a_liar_is_found_once(stream):
    (result,) = stream("wrong", "corrupt:2:1")
    assert by(result, 2) == 0
    assert result["events"].count(["wrong", 2]) == 1


def test_a_round_that_fails_ends_them_all(stream):
    failed, after = stream("fails", "after", "raise:1:4")
    assert "raise" in failed["raised"]
    assert len(failed["rounds"]) < ROUNDS
    assert not after["raised"]
