"""Power iteration on a stored matrix: its shares stay on the workers, only vectors travel.

python examples/power_iteration.py                 in this process
mpirun -n 7 python examples/power_iteration.py     a master and six workers
"""

import numpy as np
from _run import run

import codedla


def main(pool):
    """Find the largest eigenvalue of a symmetric matrix."""
    rng = np.random.default_rng(20177)
    n = 300
    noise = rng.standard_normal((n, n)) / np.sqrt(n)
    A = noise + noise.T + 5 * np.ones((n, n)) / n
    x = rng.standard_normal(n)
    with codedla.store(A, pool=pool, tolerate=2) as stored:
        for _ in range(100):
            x /= np.linalg.norm(x)
            y = stored @ x
            eigenvalue, x = float(x @ y), y
    expected = np.linalg.eigvalsh(A)[-1]
    print(f"largest eigenvalue {eigenvalue:.10f}, NumPy says {expected:.10f}")
    return abs(eigenvalue - expected) < 1e-8


if __name__ == "__main__":
    run(main, workers=6)
