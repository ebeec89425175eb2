"""Run a benchmark as users do, and read what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(name: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Return what ``benchmarks/NAME`` printed, and its JSON document.

    Parameters
    ----------
    name : str
        File name.
    folder : Path
        Where it runs: an empty one, as it must not need anything there.
    options : str
        Of its command line.
    """
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options, "--json", "out.json"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(BENCHMARKS.parent), "PATH": "", "OPENBLAS_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text())
