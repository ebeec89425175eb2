"""Matrix-vector rounds through dask.distributed; the blocks stay on its workers."""

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster


def main() -> None:
    result, size, rounds, workers = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    rng = np.random.default_rng(20177)
    matrix, vectors = rng.standard_normal((size, size)), rng.standard_normal((8, size))
    edges = [size * part // workers for part in range(workers + 1)]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        names = list(client.scheduler_info()["workers"])
        blocks = [
            client.scatter(matrix[start:stop], workers=[name], hash=False)
            for (start, stop), name in zip(itertools.pairwise(edges), names, strict=True)
        ]
        seconds = []
        # The first round also loads what the tasks need.
        for number in range(rounds + 1):
            x = vectors[number % 8]
            began = time.perf_counter()
            # Not pure: the same product would be looked up the next time.
            tasks = [client.submit(np.matmul, block, x, pure=False) for block in blocks]
            y = np.concatenate(client.gather(tasks))
            seconds.append(time.perf_counter() - began)
        off = np.linalg.norm(y - matrix @ x) / np.linalg.norm(y)
    median = statistics.median(seconds[1:])
    result.write_text(json.dumps({"round": median, "error": float(off)}))


if __name__ == "__main__":
    main()
