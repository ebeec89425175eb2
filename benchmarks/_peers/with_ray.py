"""Ray: B once in the object store, four tasks of rows for each worker."""

import os
import time

import numpy as np
import ray
import report

BLOCKS = 4  # for each worker, so that a slow one can have fewer


@ray.remote
def pid_after(seconds: float) -> int:
    """Keep one worker busy, so that the next task goes to another."""
    time.sleep(seconds)
    return os.getpid()


@ray.remote
def product(rows: np.ndarray, b: np.ndarray) -> np.ndarray:
    return rows @ b


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = np.empty((a.shape[0], b.shape[1]))
    cuts = report.bounds(a.shape[0], BLOCKS * report.WORKERS)
    shared = ray.put(b)
    tasks = [product.remote(a[start:stop], shared) for start, stop in cuts]
    for (start, stop), task in zip(cuts, tasks, strict=True):
        c[start:stop] = ray.get(task)
    return c


def main() -> None:
    operand = os.stat(report.folder() / "A.npy").st_size
    ray.init(
        num_cpus=report.WORKERS,
        include_dashboard=False,
        object_store_memory=max(8 * operand, 1 << 28),
        log_to_driver=False,
        logging_level="warning",
        _node_ip_address="127.0.0.1",
        _temp_dir=str(report.folder()),  # the path of a socket has 107 bytes at most,
    )
    pids = set(ray.get([pid_after.remote(0.5) for _ in range(report.WORKERS)]))
    report.measure(multiply, pids)
    ray.shutdown()


if __name__ == "__main__":
    main()
