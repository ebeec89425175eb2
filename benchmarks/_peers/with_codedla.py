"""codedla, as ``codedla matmul`` starts it: a launcher's process, and the ranks under it."""

import os
import sys
from typing import Any

import numpy as np
import report

import codedla


def job(pids: list[int], tolerate: int) -> Any:
    """The master's part."""

    def measure(pool: Any) -> int:
        def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return codedla.matmul(a, b, pool=pool, tolerate=tolerate)

        report.measure(multiply, pids)
        return 0

    return measure


def inside(tolerate: int) -> int:
    """One rank."""
    from codedla.mpi import program, world

    pids = world.import_mpi(finalize=False).COMM_WORLD.gather(os.getpid())
    threads = int(os.environ["OMP_NUM_THREADS"])
    return program.run(job((pids or [])[1:], tolerate), threads=threads)


def main(tolerate: int) -> int:
    from codedla.mpi.launch import run_job

    argv = [sys.executable, __file__, str(tolerate), "inside"]
    return run_job(argv, report.WORKERS + 1, begins=True).code


if __name__ == "__main__":
    sys.exit((inside if sys.argv[2:] else main)(int(sys.argv[1])))
