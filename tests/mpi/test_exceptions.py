"""Whatever is raised, and wherever: the job ends soon, and says on which rank and why."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.jobs

RAISED = "RuntimeError: raised on purpose: "
TRACEBACK = "Traceback (most recent call last)"

# Place, how the script is run, code (None: any but 0), and what standard error must tell.
ENDS = [
    # the master
    ("master import", "run", None, [TRACEBACK, RAISED]),
    ("master import", "plain", None, [TRACEBACK, RAISED]),
    ("master pool", "run", None, ["rank 0 on", TRACEBACK, RAISED]),
    ("inside", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("inside", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("inside exit", "plain", 7, []),
    ("inside exit", "run", 7, []),
    ("progress", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("progress", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("progress exit", "plain", 7, []),
    ("progress exit", "run", 7, []),
    ("encode", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("encode", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("check", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("fold", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("finish", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("finish", "run", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("hello", "run", 1, ["rank 0 on", TRACEBACK, "UnpicklingError"]),
    ("error", "plain", 1, ["rank 0 on", TRACEBACK, "UnpicklingError"]),
    ("close", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("close", "run", None, ["rank 0 on", TRACEBACK, RAISED]),
    ("master after", "plain", 1, ["rank 0 on", TRACEBACK, RAISED]),
    ("SIGINT", "plain", None, ["rank 0 on", TRACEBACK, "KeyboardInterrupt"]),
    ("SIGINT", "run", 130, ["codedla: interrupted"]),
    ("SIGTERM", "plain", None, []),
    ("SIGTERM", "run", 143, ["codedla: terminated"]),
    # a worker
    ("worker import", "run", None, [TRACEBACK, RAISED]),
    ("worker pool", "run", None, ["rank 2 on", TRACEBACK, RAISED]),
    ("operands", "run", 1, ["rank 2 on", TRACEBACK, RAISED]),
    ("task", "plain", 1, ["WorkerError: rank 2 on", TRACEBACK, RAISED]),
    ("task", "run", 1, ["codedla: error: rank 2 on", TRACEBACK, RAISED]),
    ("task untold", "run", 1, ["codedla: error: rank 2 on", TRACEBACK, "Untold"]),
    ("task exit", "plain", 1, ["WorkerError: rank 2 on", TRACEBACK, "SystemExit: 7"]),
    ("task exit", "run", 1, ["codedla: error: rank 2 on", TRACEBACK, "SystemExit: 7"]),
    ("idle SIGINT", "plain", None, ["rank 2 on", TRACEBACK, "KeyboardInterrupt"]),
    ("worker after", "plain", None, ["rank 2 on", TRACEBACK, RAISED]),
]

# What costs a worker, or only its part of a product: place, how, and what there is to read.
LOSSES = [
    ("orders", "plain", ["rank 2 on", TRACEBACK, RAISED]),
    ("orders", "run", ["rank 2 on", TRACEBACK, RAISED]),
    ("task memory", "plain", ["rank 2 was lost (on ", "out of memory"]),
    ("task memory", "run", ["rank 2 was lost (on ", "out of memory"]),
    ("operands memory", "plain", ["rank 2 was lost (on ", "out of memory"]),
    ("operands memory", "run", ["rank 2 was lost (on ", "out of memory"]),
    ("task SIGTERM", "run", ["rank 2 was lost"]),
    ("task SIGINT", "run", ["rank 2 was lost"]),
    ("idle SIGINT", "run", ["rank 2 was lost"]),
    ("idle SIGTERM", "plain", ["rank 2 was lost"]),
    ("idle SIGTERM", "run", ["rank 2 was lost"]),
]


@pytest.mark.parametrize(("place", "how", "code", "words"), ENDS)
def test_it_ends_the_job(job, place, how, code, words):
    ended = job("places.py", 4, place, how, begins=how == "run")
    seconds = time.time() - ended.data["raised"]
    assert seconds < 10, f"{seconds}: {ended}"
    assert ended.job.code != 0, ended
    if code is not None:
        assert ended.code == code, ended
        assert not ended.job.hung, ended
    for text in words:
        assert text in ended.job.stderr, ended
    if RAISED in words:
        assert f"{RAISED}{place}" in ended.job.stderr, ended


@pytest.mark.parametrize(("place", "how", "words"), LOSSES)
def test_it_is_a_loss_that_is_survived(job, outlives, place, how, words):
    if "memory" not in place:
        outlives()
    ended = job("places.py", 4, place, how, begins=how == "run")
    assert ended.code == 0, ended
    assert not ended.job.hung, ended
    result = ended.data["result"]
    assert result["products"] == 5
    assert result["worst"] < 1e-11
    for text in words:
        assert text in ended.job.stderr, ended
    assert {rank for rank, _ in result["lost"]} <= {2}
    if "memory" in place:
        # Of this cause alone: the rank lives on, and is asked again.
        assert result["lost"]
        assert {"out of memory" in reason for _, reason in result["lost"]} == {True}
        assert {tuple(ranks) for ranks in result["again"]} == {(2,)}
