"""What late workers cost: thousands of rounds on a virtual clock, no MPI needed.

python examples/late_workers.py
"""

import numpy as np

import codedla
from codedla.engine.stragglers import Delays

ROUNDS = 2000


def main(pool=None):
    """Compare round times of schemes whose workers are late by exponential times."""
    print("100 workers, each late by 10 ms on average; seconds until the answer is there")
    medians = {}
    for code, tolerate in (("uncoded", 0), ("replication", 1), ("mds", 5), ("mds", 20)):
        plan = codedla.make_plan(
            (10_000, 1000), (1000, 1), float, 100, operation="matvec", code=code, tolerate=tolerate
        )
        with codedla.SimulatedPool(100, delays=Delays("exp", (0.01,)), seed=20177) as simulated:
            # A worker's own time shrinks with the number of blocks.
            simulated.task_seconds = 0.1 / plan.grid.m
            times = simulated.round_times(plan.code, ROUNDS)
        median, tail = np.quantile(times, [0.5, 0.99])
        medians[code, tolerate] = median
        print(f"{code:12} tolerates {tolerate:2}: median {median:.4f}, 99th percentile {tail:.4f}")
    return medians["mds", 20] < medians["uncoded", 0]


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
