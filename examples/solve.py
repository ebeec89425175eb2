"""SciPy's solvers on a coded operator: the matrix stays on the workers, nobody waits for the late.

python examples/solve.py                 in this process
mpirun -n 9 python examples/solve.py     a master and eight workers
"""

import numpy as np
from _run import run
from scipy.sparse.linalg import cg, eigsh, lsqr

import codedla


def main(pool):
    """Solve a symmetric system and a least-squares problem, and find eigenvalues."""
    rng = np.random.default_rng(60293)
    n = 400
    noise = rng.standard_normal((n, n)) / np.sqrt(n)
    A = noise @ noise.T + np.eye(n)
    b = rng.standard_normal(n)
    with codedla.aslinearoperator(A, pool=pool, adjoint="hermitian") as op:
        x, info = cg(op, b, rtol=1e-10)
        values = eigsh(op, k=3, return_eigenvectors=False)
        rounds = op.totals.rounds
    residual = np.linalg.norm(A @ x - b) / np.linalg.norm(b)
    gap = abs(np.sort(values) / np.linalg.eigvalsh(A)[-3:] - 1).max()
    print(f"cg and eigsh: {rounds} rounds, residual {residual:.1e}, eigenvalues to {gap:.1e}")

    T, y = rng.standard_normal((n, 50)), rng.standard_normal(n)
    # One stored set of shares serves T @ x and T.T @ y.
    with codedla.aslinearoperator(T, pool=pool, adjoint="shared") as op:
        found = lsqr(op, y, atol=1e-12, btol=1e-12)[0]
        late = dict(op.totals.stragglers)
    error = np.linalg.norm(found - np.linalg.lstsq(T, y)[0])
    print(f"lsqr: error {error:.1e}; rounds that did not wait for a rank: {late}")
    return info == 0 and residual < 1e-9 and gap < 1e-10 and error < 1e-8


if __name__ == "__main__":
    run(main, workers=8)
