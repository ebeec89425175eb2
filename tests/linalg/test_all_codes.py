"""Every registered code multiplies: any kind of operand, shapes that do not divide, a lost worker.

What codes are in themselves is tested by ``tests/conformance.py``; here they go the whole way
through encoding, pools, decoding and the check of the product.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import scipy.sparse as sp

import codedla
from codedla.blocks import Grid
from codedla.codes import available, get
from codedla.codes.exact import ExactCode
from codedla.engine.stragglers import Delays, Fault
from codedla.errors import UsageError, VerificationFailed
from tests.conformance import enough_workers

FLOATS = [name for name in available() if not issubclass(get(name), ExactCode)]
EXACT = [name for name in available() if issubclass(get(name), ExactCode)]

KINDS = ("float64", "float32", "complex128", "sparse A", "sparse B", "both sparse")
# Rows, inner dimension, columns: nothing divides evenly; then fewer rows than there are blocks.
SHAPES = ((23, 17, 13), (2, 1, 3))


def operands(kind, shape, seed):
    rng = np.random.default_rng([71, seed])
    (rows, inner, columns) = shape
    A, B = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    if kind == "float32":
        return A.astype(np.float32), B.astype(np.float32)
    if kind == "complex128":
        return A + 1j * rng.standard_normal(A.shape), B - 1j * rng.standard_normal(B.shape)
    if kind in ("sparse A", "both sparse"):
        A = sp.csr_array(A * (rng.random(A.shape) < 0.2))
    if kind in ("sparse B", "both sparse"):
        B = sp.csc_array(B * (rng.random(B.shape) < 0.2))
    return A, B


def setting(name, size=2):
    """Blocks, and as many workers as survive one loss: none of the code that survives nothing."""
    family = get(name)
    grid = Grid(*(size if d in family.splits else 1 for d in "mpn"))
    workers = enough_workers(family, grid, 1)
    if workers is None:
        return grid, enough_workers(family, grid, 0), 0
    return grid, workers, 1


def pools(workers, lost, seed):
    faults = [Fault("kill", w, 0.0) for w in lost]
    yield codedla.SerialPool(workers, faults=faults)
    yield codedla.SimulatedPool(workers, delays=Delays("exp", (1.0,)), faults=faults, seed=seed)


def multiply(name, A, B, pool, grid, **options):
    """Through the function that is for this code."""
    if get(name).operation == "matvec":
        return codedla.matvec(A, B, pool=pool, code=name, blocks=(grid.m, 1, 1), **options)
    blocks = (grid.m, grid.p, grid.n)
    return codedla.matmul(A, B, pool=pool, code=name, blocks=blocks, **options)


def dense(matrix):
    return matrix.toarray() if sp.issparse(matrix) else matrix


@pytest.mark.filterwarnings("ignore:code .* is approximate")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLOATS)
def test_products(name, kind):
    seed = zlib.crc32(f"{name} {kind}".encode())
    grid, workers, losses = setting(name)
    for shape in SHAPES:
        A, B = operands(kind, shape, seed)
        expected = dense(A) @ dense(B)
        size = np.linalg.norm(expected)
        options = {"verify": "freivalds", "return_report": True}
        if get(name).approximate:
            options["tolerance"] = 100.0
        for turn, pool in enumerate(pools(workers, [(seed + 1) % workers][:losses], seed)):
            with pool:
                C, report = multiply(name, A, B, pool, grid, **options)
            assert C.shape == expected.shape and C.dtype == expected.dtype, turn
            error = np.linalg.norm(C - expected)
            assert error <= (50 * report.error_estimate + 1e-14) * size, (turn, report.grid)
            # The estimate itself has to be small, or a wrong product would pass for a bad code.
            if not get(name).approximate:
                scale = np.linalg.norm(dense(A)) * np.linalg.norm(dense(B))
                assert report.error_estimate * size <= 1e4 * np.finfo(C.dtype).eps * scale + 1e-300
            assert report.verified == "freivalds"


@pytest.mark.parametrize("name", EXACT)
def test_integer_products(name):
    seed = zlib.crc32(name.encode())
    grid, workers, losses = setting(name)
    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        A = rng.integers(-99, 100, shape[:2])
        B = rng.integers(-99, 100, shape[1:])
        for pool in pools(workers, [(seed + 1) % workers][:losses], seed):
            with pool:
                C = multiply(name, A, B, pool, grid, verify="freivalds")
            np.testing.assert_array_equal(C, A @ B)
            assert C.dtype == A.dtype


@pytest.mark.filterwarnings("ignore:rank .* was not used")
@pytest.mark.parametrize("name", [name for name in FLOATS if not get(name).approximate])
def test_a_wrong_answer_is_never_handed_out(name):
    """Found in the product by the check, or in the reply, and done without."""
    grid, workers, _ = setting(name)
    A, B = operands("float64", SHAPES[0], 5)
    for mode in ("freivalds", "locate"):
        handed_out = 0
        for liar in range(workers):
            with codedla.SerialPool(workers, faults=[Fault("corrupt", liar, 1.0)]) as pool:
                try:
                    C, report = multiply(name, A, B, pool, grid, verify=mode, return_report=True)
                except VerificationFailed:
                    assert mode == "freivalds"
                    continue
            error = np.linalg.norm(C - A @ B) / np.linalg.norm(A @ B)
            assert error <= 50 * report.error_estimate
            handed_out += 1
        # Whoever lies, some lies do not matter: a reply that was not needed, or not used.
        assert handed_out == workers or mode == "freivalds"


@pytest.mark.parametrize("name", [name for name in FLOATS if get(name).operation == "matvec"])
def test_stored_matrices(name):
    rng = np.random.default_rng(9)
    grid, workers, _ = setting(name, 3)
    A = rng.standard_normal((29, 11))
    with (
        codedla.SerialPool(workers, faults=[Fault("kill", 1, 0.0)]) as pool,
        codedla.store(A, pool=pool, code=name, blocks=(grid.m, 1, 1)) as stored,
    ):
        for x in (rng.standard_normal(11), rng.standard_normal((11, 2)), 1j * np.ones(11)):
            y = stored @ x
            error = np.linalg.norm(y - A @ x)
            assert error <= 50 * stored.last_report.error_estimate * np.linalg.norm(A @ x)


@pytest.mark.parametrize("name", FLOATS)
def test_nan_is_refused_or_stays_where_it_belongs(name):
    grid, workers, _ = setting(name)
    A, B = operands("float64", SHAPES[0], 6)
    A[3, 4] = np.nan
    with codedla.SerialPool(workers) as pool:
        try:
            C = multiply(name, A, B, pool, grid)
        except UsageError as error:
            assert "would spread them" in str(error)
            return
    np.testing.assert_array_equal(np.isnan(C), np.isnan(A @ B))
