"""mpi4py.futures: a task for every worker, its rows and B pickled."""

import os
import time

import numpy as np
import report
from mpi4py.futures import MPIPoolExecutor


def pid_after(seconds: float) -> int:
    """Keep one worker busy, so that the next task goes to another."""
    time.sleep(seconds)
    return os.getpid()


def main() -> None:
    with MPIPoolExecutor() as executor:

        def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            c = np.empty((a.shape[0], b.shape[1]))
            cuts = report.bounds(a.shape[0], report.WORKERS)
            tasks = [executor.submit(np.matmul, a[start:stop], b) for start, stop in cuts]
            for (start, stop), task in zip(cuts, tasks, strict=True):
                c[start:stop] = task.result()
            return c

        pids = set(executor.map(pid_after, [0.2] * report.WORKERS))
        report.measure(multiply, pids)


if __name__ == "__main__":
    main()
