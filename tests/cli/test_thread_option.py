"""``--threads``: a number or auto, on the command line as in a real job."""

from __future__ import annotations

import numpy as np
import pytest

from codedla.cli.main import build_parser
from codedla.mpi.launch import find_launcher

WORDS = ["matmul", "A", "B", "-o", "C"]


def test_values():
    parse = build_parser().parse_args
    assert parse(WORDS).threads == 1
    assert parse([*WORDS, "--threads", "4"]).threads == 4
    assert parse([*WORDS, "--threads", "auto"]).threads == "auto"


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "AUTO"])
def test_what_is_none(program, value):
    done = program(*WORDS, "--threads", value)
    assert done.code == 2
    assert "argument --threads" in done.error_lines[0]


@pytest.mark.skipif(find_launcher() is None, reason="no mpirun on this machine")
def test_auto_in_a_job(program, matrices, tmp_path):
    a, b = matrices
    done = program("matmul", "A.npy", "B.npy", "-o", "C.npy", "--ranks", 2, "--threads", "auto")
    assert done.code == 0, done.err
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-12, atol=1e-12)
