"""What the README shows works, and what it lists exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from codedla.cli.main import build_parser
from codedla.codes import registry
from codedla.mpi.launch import command, find_launcher
from tests.cli.conftest import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


def test_there_are_five_examples():
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=["one-process", "many-ranks", "stored", "transforms", "iterating"]
)
def test_examples(tmp_path, example):
    path = tmp_path / "product.py"
    path.write_text(example)
    line = [sys.executable, str(path)]
    if "MPIPool" in example:
        launcher = find_launcher()
        if launcher is None:
            pytest.skip("no mpirun on this machine")
        line = command(launcher, 5, line)
    done = subprocess.run(
        line,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = re.findall(r"largest error: (\S+)", done.stdout)
    assert errors
    assert max(map(float, errors)) < 1e-11
    differences = re.findall(r"differs by: (\S+)", done.stdout)
    assert len(differences) == example.count("differs by:")
    assert max(map(float, differences), default=0.0) < 1e-7


def test_the_table_lists_every_code():
    section = README.split("## Codes")[1].split("\n## ")[0]
    table = "".join(line for line in section.splitlines() if line.startswith("|"))
    named = re.findall(r"`([a-z][\w-]*)`", table)
    assert sorted(named) == sorted(registry.available())


def test_commands_shown_are_understood():
    parser = build_parser()
    commands = "matmul|matvec|plan|codes|doctor|demo|solve|pagerank|train|bench|simulate"
    shown = re.findall(rf"codedla ((?:{commands})\b[^`#\n]*)", README)
    assert len(shown) > 5 and {"solve", "pagerank", "train"} <= {line.split()[0] for line in shown}
    for words in shown:
        if "NAME" not in words:
            parser.parse_args((words + (" --ranks 9" if words == "plan" else "")).split())


@pytest.mark.jobs
def test_killing_it(tmp_path):
    """The faults of the section "Kill it": right, and the warnings name who it was."""
    launcher = find_launcher()
    if launcher is None or not launcher.ulfm:
        pytest.skip("needs an MPI that goes on when a rank is killed")
    (words,) = re.findall(r"codedla (matmul.*--inject kill.*)", README)
    rng = np.random.default_rng(70117)
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 260))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    done = subprocess.run(
        [sys.executable, "-m", "codedla", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, atol=1e-10)
    for rank, fate in ((2, "lost"), (4, "lost"), (7, "not used")):
        assert f"warning: rank {rank} was {fate}" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "B.npy", "C.npy"]


def test_links_lead_somewhere(tmp_path):
    done = subprocess.run(
        # The pages of all codes are links alike, and half a minute of measuring.
        [sys.executable, ROOT / "docs" / "build.py", tmp_path, "--codes", "uncoded", "mds"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
