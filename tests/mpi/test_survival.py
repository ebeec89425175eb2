"""Workers that die, freeze, lag or lie at the worst moment: the products are right all the same."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

IN_PIECES = {"OMPI_MCA_smsc": "^cma,xpmem,knem", "OMPI_MCA_btl_sm_max_send_size": "32768"}
"""Without single copies, and in small pieces, a reply can stop half-way."""


@pytest.fixture
def survive(job, outlives):
    """Run a scenario and look at what must hold for all of them."""
    outlives()

    def run(n_ranks, *words, code=0, hangs=False, **env):
        ended = job("survival.py", n_ranks, *words, begins=True, **env)
        assert ended.code == code, ended
        assert ended.job.reported
        assert hangs or not ended.job.hung, ended
        assert ended.data["result"]["worst"] < 1e-10
        return ended.data["result"], ended.job.stderr

    return run


@pytest.mark.parametrize("moment", ["order", "between", "compute", "send", "stop", "leave"])
def test_a_worker_is_killed(survive, moment):
    # Whoever dies after its goodbye may keep the others in MPI_Finalize: that is bounded.
    result, stderr = survive(5, "killed", moment, hangs=moment == "leave")
    assert len(result["reports"]) == 5
    assert all(set(r["lost"]) <= {"2"} for r in result["reports"])
    if moment not in ("stop", "leave"):
        assert set(result["reports"][-1]["lost"]) == {"2"}
        assert stderr.count("WARNING:codedla:rank 2 on ") == 1
        assert max(r["seconds"] for r in result["reports"]) < 3, "found from the failed request"


def test_more_workers_are_killed_than_tolerated(survive):
    result, _ = survive(9, "many")
    for report in result["reports"][3:]:
        assert set(report["lost"]) == {"1", "4", "7"}
        assert report["redispatched"]
        assert set(report["redispatched"]) <= {1, 4, 7}
        assert set(report["responders"]) == {2, 3, 5, 6, 8}


def test_a_lost_share_of_a_stored_matrix_is_not_sent_every_round(survive):
    result, _ = survive(9, "stored")
    vector = 8 * 300
    before, after = result["reports"][3:10], result["reports"][11:]
    assert all(r["redispatched"] for r in after)
    share = result["matrix"] / 7
    # Only who gets a share for the first time is sent it, which is everybody once at most.
    sent_again = [r for r in after if r["sent"] > 8 * vector]
    assert len(sent_again) < 8
    assert sum(r["sent"] for r in after) < len(after) * 8 * vector + 8 * share
    assert after[-1]["sent"] <= 8 * vector
    assert before


def test_a_frozen_worker_is_replaced_and_taken_back(survive):
    result, stderr = survive(5, "frozen")
    first, second, third, fourth = result["reports"][:4]
    assert 2 in first["responders"]
    assert 2 < second["seconds"] < 5
    assert second["redispatched"] == [2]
    assert max(third["seconds"], fourth["seconds"]) < 1, "it is waited for once"
    woken = result["reports"][result["woken"] :]
    assert sum(2 in r["responders"] for r in woken) > len(woken) / 2
    assert max(r["seconds"] for r in woken) < 2
    assert "rank 2 on " in stderr
    assert "is back" in stderr


def test_all_workers_are_frozen(survive):
    _, stderr = survive(5, "deserted", code=3)
    (line,) = [x for x in stderr.splitlines() if x.startswith("codedla: error:")]
    for text in ("threshold 3", *(f"rank {rank} (on " for rank in range(1, 5))):
        assert text in line


@pytest.mark.parametrize("polls", [0, 2])
@pytest.mark.parametrize("target", ["none", "out", "map"])
def test_a_reply_stops_half_way_and_goes_on_later(survive, target, polls):
    result, _ = survive(5, "reply", target, polls, **IN_PIECES)
    first = result["reports"][0]
    assert first["redispatched"] == [2]
    assert 2 < first["seconds"] < 6
    assert result["stopped"] == "T", "it went on only after the product was complete"
    assert result["unharmed"]
    assert 2 in result["reports"][-1]["responders"]


@pytest.mark.parametrize("how", ["busy", "deaf"])
def test_a_slow_worker_is_replaced_after_the_deadline(survive, how):
    """It may hear that it is not needed any more, or answer when it is done."""
    result, _ = survive(5, "late", how)
    assert len(result["reports"]) == 12
    for report in result["reports"]:
        assert report["redispatched"] == [2]
        assert report["notes"][0].endswith("no answer within 0.25 s")
    assert sorted(r["seconds"] for r in result["reports"])[6] < 0.7


@pytest.mark.parametrize("kind", ["entry", "nan", "scale", "stale", "flip"])
def test_a_lying_worker_is_named_and_not_believed(survive, kind):
    result, stderr = survive(5, "lying", f"corrupt:2:1:{kind}")
    wrong = [r["wrong"] for r in result["reports"]]
    assert all(ranks in ([], [2]) for ranks in wrong), "nobody else is accused"
    if kind != "flip":  # the lowest bits cannot be told from rounding
        assert [2] in wrong
        assert "rank 2 on " in stderr
        assert "answered wrongly" in stderr


def test_answers_that_come_twice(survive):
    result, _ = survive(5, "twice")
    assert [r["redispatched"] for r in result["reports"]] == [[1]] * 8


@pytest.mark.alone
def test_two_workers_freeze_and_go_on_at_random(survive):
    result, _ = survive(9, "chaos", 1, 200, "mds")
    assert len(result["reports"]) == 200
    assert max(r["seconds"] for r in result["reports"]) < 2, "tolerated: nobody waits"


def test_a_worker_that_is_needed_freezes_at_random(survive):
    result, _ = survive(9, "chaos", 2, 40, "uncoded")
    assert len(result["reports"]) == 40
    assert any(r["redispatched"] for r in result["reports"])


def test_a_second_pool_needs_living_ranks(survive, job):
    ended = job("second_pool.py", 5)
    assert ended.code == 0 and "result" in ended.data, ended
    result = ended.data["result"]
    assert result["first"]
    assert "all ranks of its communicator alive; got one that failed" in result["second"]
    assert result["others"], "a communicator without the lost rank will do"
