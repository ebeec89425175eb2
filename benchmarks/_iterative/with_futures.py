"""Matrix-vector rounds through mpi4py.futures, tasks pickled; run as ``-m mpi4py.futures``."""

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py.futures import MPIPoolExecutor


def main() -> None:
    result, size, rounds, workers = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    rng = np.random.default_rng(20177)
    matrix, vectors = rng.standard_normal((size, size)), rng.standard_normal((8, size))
    edges = [size * part // workers for part in range(workers + 1)]
    blocks = [matrix[start:stop] for start, stop in itertools.pairwise(edges)]
    with MPIPoolExecutor() as executor:
        executor.bootup(wait=True)
        seconds = []
        # The first round also opens connections.
        for number in range(rounds + 1):
            x = vectors[number % 8]
            began = time.perf_counter()
            tasks = [executor.submit(np.matmul, block, x) for block in blocks]
            y = np.concatenate([task.result() for task in tasks])
            seconds.append(time.perf_counter() - began)
        off = np.linalg.norm(y - matrix @ x) / np.linalg.norm(y)
    median = statistics.median(seconds[1:])
    result.write_text(json.dumps({"round": median, "error": float(off)}))


if __name__ == "__main__":
    main()
