"""Dask: ``dask.array`` on a local cluster of worker processes, four row blocks for each."""

import os

import dask.array as da
import numpy as np
import report
from distributed import Client, LocalCluster

BLOCKS = 4  # for each worker, so that a slow one can have fewer


def main() -> None:
    cluster = LocalCluster(
        n_workers=report.WORKERS,
        threads_per_worker=int(os.environ["OMP_NUM_THREADS"]),
        processes=True,
        dashboard_address=None,
        local_directory=str(report.folder()),
    )
    with cluster, Client(cluster) as client:

        def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            rows = -(-a.shape[0] // (BLOCKS * report.WORKERS))
            left = da.from_array(a, chunks=(rows, -1))
            return (left @ da.from_array(b, chunks=-1)).compute()

        report.measure(multiply, client.run(os.getpid).values())


if __name__ == "__main__":
    main()
