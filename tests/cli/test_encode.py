"""The program with ``--encode workers``: next to nothing is sent, and what it cannot do is said."""

from __future__ import annotations

import json

import numpy as np
import pytest

from codedla.mpi.launch import find_launcher

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine"),
]


def test_operands_are_not_sent(program, tmp_path):
    rng = np.random.default_rng(66041)
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 100))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    words = ("matmul", "A.npy", "B.npy", "-o", "C.npy", "--encode", "workers")
    done = program(*words, "--ranks", 4, "--json")
    assert (done.code, done.err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=0, atol=1e-11)
    assert json.loads(done.out)["bytes"]["sent"] < 3 * 2 * 1000
    for options in (("--panel-rows", 10), ("--panel-columns", 10)):
        refused = program(*words, "--force", "--ranks", 4, *options)
        assert refused.code == 2
        assert "--encode workers computes a product at once" in refused.err


def test_a_sparse_operand_is_refused(program, tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    np.save(tmp_path / "B.npy", np.eye(20))
    sparse.save_npz(tmp_path / "A.npz", sparse.eye_array(20, format="csr"))
    done = program("matmul", "A.npz", "B.npy", "-o", "C.npy", "--ranks", 3, "--encode", "workers")
    assert done.code == 2
    assert "A must lie in a file, dense, for workers to encode it" in done.err
