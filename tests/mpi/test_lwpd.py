"""Training on coded derivatives on real ranks: a worker that sleeps, and one that is killed."""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = pytest.mark.jobs

NETWORKS = [
    "perceptron",
    pytest.param(
        "module",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("torch") is None,
            reason="modules need PyTorch (codedla[torch])",
        ),
    ),
]
UPDATES = ("immediate", "peel", "least-squares")
SLEEP = 0.1


@pytest.fixture
def train(job):
    """Run one training on 7 ranks; return what it found."""

    def run(*words):
        ended = job("lwpd.py", 7, *words)
        assert "result" in ended.data, ended
        return ended.data["result"]

    return run


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("update", UPDATES)
def test_nobody_waits_for_a_sleeping_worker(train, update, network):
    result = train(update, network, "nothing", f"delay:2:{SLEEP}")
    steps = 800 if update == "immediate" else 200
    # Even if each of its replies were used: it sleeps before every one of them.
    assert result["seconds"] < steps * SLEEP / 3
    assert result["accuracy"] > 0.95
    assert result["lost"] == []
    if update != "immediate":
        assert result["off"] < 1e-6, "the gradients are exact"
    else:
        assert max(result["ages"]["2"], default=6) > 5


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("update", UPDATES)
def test_a_worker_is_killed_midway(train, outlives, update, network):
    outlives()
    result = train(update, network, "kill")
    assert result["lost"] == [4]
    assert result["accuracy"] > 0.95
    assert 4 not in result["after"]
    if update == "immediate":
        assert result["used"] == [1, 2, 3, 4, 5, 6]
        assert result["after"] == [1, 2, 3, 5, 6]
    else:
        assert result["off"] < 1e-6, "the gradients are exact"
