"""Solvers on coded operators, on real ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs


def test_nobody_waits_for_a_late_rank(job):
    ended = job("operators.py", 5, "solvers")
    result = ended.data["result"]
    for name in ("cg", "eigsh", "svds separate", "svds shared", "lsqr separate", "lsqr shared"):
        assert result[name] < 1e-10, name
    assert result["rounds"] > 200
    assert result["late"] > 20
    assert result["seconds"] < 0.1 * result["rounds"] / 2
    assert "a Hermitian matrix is square" in result["refused"]
    assert ended.code == 0


def test_workers_forget_a_closed_operator(job):
    result = job("operators.py", 5, "memory").data["result"]
    for adjoint in ("separate", "shared"):
        assert result[f"keys {adjoint}"] == 0
        assert result[f"held {adjoint}"] > 2000 * 1500 * 8, "shares are there"
        assert result[f"growth {adjoint}"] < 5_000_000
        assert result[f"open {adjoint}"] < 16
