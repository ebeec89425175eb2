"""Run the program as a user does: in a process of its own, in an empty directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Answer:
    """What one call of the program gave."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("codedla: error:")]


@pytest.fixture
def program(tmp_path):
    """Call ``codedla`` with the given words in the test's directory."""

    def call(*words: object, timeout: float = 120, before: tuple[str, ...] = (), **env: str):
        done = subprocess.run(
            [*before, sys.executable, "-m", "codedla", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def interrupted(tmp_path):
    """Call ``codedla``, and send it Ctrl-C when a file has appeared."""

    def call(*words: object, when: str, timeout: float = 120):
        process = subprocess.Popen(
            [sys.executable, "-m", "codedla", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As at a terminal, also where the tests run in the background and ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        ranks: list[psutil.Process] = []
        try:
            end = time.monotonic() + timeout
            while not (tmp_path / when).exists() and process.poll() is None:
                assert time.monotonic() < end, "nothing was saved"
                time.sleep(0.02)
            ranks = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        assert len(ranks) > 1, "they were there"
        left = [rank for rank in ranks if rank.is_running() and rank.status() != "zombie"]
        assert not left
        return Answer(process.returncode, out, err)

    return call


@pytest.fixture
def matrices(tmp_path):
    """``A.npy`` (30 x 20) and ``B.npy`` (20 x 10)."""
    rng = np.random.default_rng(2718281)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 10))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    return a, b
