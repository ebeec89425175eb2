"""The shipped job scripts on a Slurm cluster, whole and while it falls apart.

The wanted end is always the same: the job COMPLETED with exit code 0 and the product is right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("cluster.sh")
CANNOT = 77
DONE = ("COMPLETED", "0:0")
#: Eight workers on three nodes, three ranks each; as many late workers as keep a product waiting.
SPREAD = "--nodes=3 --ntasks=9 --ntasks-per-node=3"
LATE = ("--inject", "delay:1:8", "--inject", "delay:2:8", "--inject", "delay:3:8")
#: Two workers, which both sleep in each of six panels.
PANELS = ("--panel-rows", 100, "--inject", "delay:1:2", "--inject", "delay:2:2")


def product_is_right(folder, want):
    np.testing.assert_allclose(np.load(folder / "C.npy"), want, rtol=1e-9, atol=1e-9)
    assert not list(folder.glob(".C.npy*")), "something unfinished is left"
    return json.loads((folder / "C.npy.json").read_text())


def saved(folder) -> bool:
    """Whether a panel is on disk."""
    return (folder / ".C.npy.codedla-journal").exists()


def test_three_nodes_are_up_within_a_minute(cluster):
    assert cluster.call("sinfo", "-h", "-N", "-o", "%N %t").splitlines() == [
        "n1 idle",
        "n2 idle",
        "n3 idle",
    ]
    assert cluster.seconds < 60


def test_not_beside_another_cluster(cluster, tmp_path):
    environ = {**cluster.environ, "CODEDLA_SLURM_DIR": str(tmp_path / "other")}
    done = subprocess.run(
        [SCRIPT, "up"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == CANNOT
    assert "is not ours" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert cluster.call("sinfo", "-h", "-o", "%t") == "idle"


def test_only_as_root():
    with SCRIPT.open() as script:
        done = subprocess.run(
            ["bash", "-s", "up"],
            stdin=script,
            cwd="/",
            user=65534,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (CANNOT, 1)
    assert "root" in done.stderr


# ---------------------------------------------------------------- as shipped


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_matmul(request, submit, tmp_path, matrices, name):
    script = {"openmpi": "matmul.sbatch", "mpich": "matmul-mpich.sbatch"}[name]
    environment = request.getfixturevalue(name)
    job = submit(environment, script, "--nodes=3", "A.npy", "B.npy", "C.npy")
    assert job.end() == DONE, job.log
    report = product_is_right(tmp_path, matrices)
    assert report["n_workers"] == 8
    assert not report["lost"]


def test_matvec(submit, openmpi, tmp_path):
    import scipy.sparse

    rng = np.random.default_rng(1380649)
    a = scipy.sparse.random_array((300, 200), density=0.1, rng=rng, format="csr")
    x = rng.standard_normal(200)
    scipy.sparse.save_npz(tmp_path / "A.npz", a)
    np.save(tmp_path / "x.npy", x)
    job = submit(openmpi, "matvec.sbatch", "--nodes=3", "A.npz", "x.npy", "y.npy")
    assert job.end() == DONE, job.log
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), a @ x, rtol=1e-9, atol=1e-9)


def test_bench(submit, openmpi):
    job = submit(openmpi, "bench.sbatch", "--nodes=3 --ntasks=5", 100, "--repeats", 1)
    assert job.end() == DONE, job.log
    assert "100 x 100 float64 on 5 ranks" in job.log
    assert "- When all ranks are well" in job.log


def test_what_cannot_succeed_is_tried_once(submit, openmpi):
    job = submit(openmpi, "matmul.sbatch", "--ntasks=3", "A.npy", "B.npy", "C.npy")
    assert job.end() == ("FAILED", "2:0"), job.log
    assert job.tries == 1
    assert "A.npy" in job.log


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_lost_process(request, submit, tmp_path, matrices, name):
    script = {"openmpi": "matmul.sbatch", "mpich": "matmul-mpich.sbatch"}[name]
    environment = request.getfixturevalue(name)
    words = ("A.npy", "B.npy", "C.npy", "--tolerate", 2, *LATE)
    job = submit(environment, script, SPREAD, *words)
    job.under_way()
    os.kill(job.rank(3), signal.SIGKILL)
    assert job.end() == DONE, job.log
    assert job.tries == 1
    report = product_is_right(tmp_path, matrices)
    assert 3 not in report["responders"]


def test_a_lost_node_with_mpich(submit, mpich, cluster, tmp_path, matrices):
    """Three of eight workers go with it, one more than is tolerated."""
    late = [word for rank in (6, 7, 8) for word in ("--inject", f"delay:{rank}:20")]
    words = ("A.npy", "B.npy", "C.npy", "--tolerate", 2, *late)
    job = submit(mpich, "matmul-mpich.sbatch", SPREAD, *words)
    job.under_way()
    cluster.lose("n3")
    assert job.end() == DONE, job.log
    assert job.tries == 1
    report = product_is_right(tmp_path, matrices)
    assert not {6, 7, 8} & set(report["responders"])


def test_a_lost_node_with_open_mpi(submit, openmpi, cluster, tmp_path, matrices):
    """The try is lost with it; the next one goes on."""
    options = "--nodes=3 --ntasks=3 --ntasks-per-node=1"
    job = submit(openmpi, "matmul.sbatch", options, "A.npy", "B.npy", "C.npy", *PANELS)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    cluster.lose("n3")
    job.until(lambda: job.tries == 2, 60, "second try")
    cluster.restore("n3")
    assert job.end() == DONE, job.log
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_lost_master(request, submit, tmp_path, matrices, name):
    """The try is lost with it; the next one goes on."""
    script = {"openmpi": "matmul.sbatch", "mpich": "matmul-mpich.sbatch"}[name]
    environment = request.getfixturevalue(name)
    job = submit(environment, script, "--ntasks=3", "A.npy", "B.npy", "C.npy", *PANELS)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    os.kill(job.rank(0), signal.SIGKILL)
    job.until(lambda: job.tries == 2, 60, "second try")
    assert job.end() == DONE, job.log
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


def test_the_first_node_lost(submit, openmpi, cluster, tmp_path, matrices):
    """With it go the master and the batch script: Slurm tries again, and codedla goes on."""
    options = "--nodes=3 --ntasks=3 --ntasks-per-node=1"
    job = submit(openmpi, "matmul.sbatch", options, "A.npy", "B.npy", "C.npy", *PANELS)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    cluster.lose("n1")
    job.until(lambda: job.tries == 2, 90, "second try")
    cluster.restore("n1")
    assert job.end() == DONE, job.log
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


# ---------------------------------------------------------------- stopped and tried again


def test_time_is_up(submit, openmpi, tmp_path, matrices):
    """Slurm sends the signal up to half a minute early: here, 20 to 50 s after the start."""
    options = "--nodes=3 --ntasks=3 --time=2 --signal=B:TERM@70"
    late = [word for rank in (1, 2) for word in ("--inject", f"delay:{rank}:4")]
    words = ("A.npy", "B.npy", "C.npy", "--panel-rows", 50, *late)
    job = submit(openmpi, "matmul.sbatch", options, *words)
    job.until(lambda: job.tries == 2, 70, "second try")
    assert "panels are safe" in job.log
    assert job.end() == DONE, job.log
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_told_to_stop(request, submit, cluster, tmp_path, matrices, name):
    """The same signal by hand, at a known moment."""
    script = {"openmpi": "matmul.sbatch", "mpich": "matmul-mpich.sbatch"}[name]
    environment = request.getfixturevalue(name)
    job = submit(environment, script, "--ntasks=3", "A.npy", "B.npy", "C.npy", *PANELS)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    cluster.call("scancel", "--batch", "--signal=TERM", job.number)
    job.until(lambda: job.tries == 2, 30, "second try")
    assert job.end() == DONE, job.log
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


def test_requeue(submit, mpich, cluster, tmp_path, matrices):
    words = ("A.npy", "B.npy", "C.npy", *PANELS)
    job = submit(mpich, "matmul-mpich.sbatch", "--ntasks=3", *words)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    cluster.call("scontrol", "requeue", job.number)
    assert job.end() == DONE, job.log
    assert job.tries == 2
    assert product_is_right(tmp_path, matrices)["panels"]["resumed"] >= 1


def test_tries_are_bounded(submit, openmpi, tmp_path, matrices):
    words = ("A.npy", "B.npy", "C.npy", *PANELS)
    job = submit(openmpi, "matmul.sbatch", "--ntasks=3", *words, CODEDLA_RETRIES="0")
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    os.kill(job.rank(0), signal.SIGKILL)
    assert job.end() == ("FAILED", "1:0"), job.log
    assert saved(tmp_path)


def test_cancelled_is_not_tried_again(submit, openmpi, cluster, tmp_path, matrices):
    job = submit(openmpi, "matmul.sbatch", "--ntasks=3", "A.npy", "B.npy", "C.npy", *PANELS)
    job.until(lambda: saved(tmp_path), 60, "finished panel")
    cluster.call("scancel", job.number)
    assert job.end()[0] == "CANCELLED"
    time.sleep(2)
    assert (job.facts["JobState"], job.tries) == ("CANCELLED", 1)
    assert saved(tmp_path)
