"""One product that does not wait for its slowest workers.

python examples/matmul.py                 in this process
mpirun -n 7 python examples/matmul.py     a master and six workers
"""

import numpy as np
from _run import run

import codedla


def main(pool):
    """Multiply, and say who answered and how large the error can be."""
    rng = np.random.default_rng(20177)
    A, B = rng.standard_normal((600, 400)), rng.standard_normal((400, 500))
    C, report = codedla.matmul(A, B, pool=pool, tolerate=2, return_report=True)
    print(report.summary())
    error = np.linalg.norm(C - A @ B) / np.linalg.norm(C)
    print(f"true error {error:.1e}")
    return error < 1e-12


if __name__ == "__main__":
    run(main, workers=6)
