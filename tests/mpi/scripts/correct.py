"""Many products in one job; every wrong one is reported. Words: element limit, faults."""

from __future__ import annotations

import sys
import traceback
import warnings

import numpy as np
import scipy.sparse as sp
from common import WORDS, faults, note_shared_memory, write
from mpi4py import MPI

import codedla
from codedla.mpi import wire

limit, *specs = WORDS
if int(limit):
    wire.ELEMENT_LIMIT = int(limit)
if not sys.warnoptions:
    warnings.simplefilter("error")

DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
RNG = np.random.default_rng(90017)
# One for each way to cut the operands; all_codes.py has every code.
CODES = ("uncoded", "replication", "mds", "polynomial", "khatri-rao", "matdot")


def operand(shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = RNG.standard_normal(shape)
    if dtype.kind == "b":
        return values > 0
    return (values * (1 - 2j) if dtype.kind == "c" else values).astype(dtype)


LAYOUTS = {
    "F": np.asfortranarray,
    "row stride": lambda x: np.pad(x, ((0, 0), (0, 9)))[:, :-9],
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "reversed rows": lambda x: x[::-1].copy()[::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}
OUTS = {
    "C": lambda shape: np.empty(shape),
    "F": lambda shape: np.empty(shape, order="F"),
    "column block": lambda shape: np.empty((shape[0], shape[1] + 9))[:, 4:-5],
    "strided": lambda shape: np.empty((shape[0] * 2, shape[1] * 2))[::2, ::2],
    "reversed rows": lambda shape: np.empty(shape)[::-1],
}


def cases(n_workers):
    most = max(0, min(2, n_workers - 1))
    for code in CODES:
        for shape in ((7, 5, 6), (120, 90, 110)):
            for dtype in ("f8", "f4", "c16"):
                a, b = operand(shape[:2], dtype), operand(shape[1:], dtype)
                tolerate = 0 if code == "uncoded" else most
                yield f"{code} {shape} {dtype}", a, b, {"code": code, "tolerate": tolerate}
    for dtype in DTYPES:
        a, b = operand((70, 60), dtype), operand((60, 80), dtype)
        yield f"auto {dtype}", a, b, {"tolerate": min(most, 1)}
    for name, change in LAYOUTS.items():
        a, b = operand((150, 100), "f8"), operand((100, 130), "f8")
        yield f"A {name}", change(a), b, {}
        yield f"B {name}", a, change(b), {}
        yield f"B {name} coded", a, change(b), {"code": "polynomial"}
    for name, make in OUTS.items():
        a, b = operand((110, 40), "f8"), operand((40, 90), "f8")
        for code in ("auto", "khatri-rao", "polynomial", "matdot"):
            yield f"out {name} {code}", a, b, {"out": make((110, 90)), "code": code}
    for shape in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (2, 9, 1), (97, 13, 3)):
        yield f"shape {shape}", operand(shape[:2], "f8"), operand(shape[1:], "f8"), {}
    for fmt in ("csr", "csc", "coo", "bsr"):
        a = sp.random_array((200, 150), density=0.1, rng=RNG).asformat(fmt)
        b = sp.random_array((150, 120), density=0.1, rng=RNG).asformat(fmt)
        for code in ("auto", "khatri-rao", "matdot"):
            yield f"{fmt} @ dense {code}", a, operand((150, 70), "f8"), {"code": code}
            yield f"dense @ {fmt} {code}", operand((60, 200), "f8"), a, {"code": code}
            yield f"{fmt} @ {fmt} {code}", a, b, {"code": code}
    huge = sp.csr_array(operand((90, 60), "i8") * (RNG.random((90, 60)) < 0.2))
    yield "sparse integers", huge, operand((60, 30), "i8"), {"tolerate": min(most, 1)}


def wrong(name, pool, a, b, options):
    """Return what is wrong with one product, or None."""
    expected = a @ b
    if sp.issparse(expected):
        expected = expected.toarray()
    product, report = codedla.matmul(a, b, pool=pool, return_report=True, **options)
    if (product.shape, product.dtype) != (expected.shape, expected.dtype):
        return f"{product.dtype} {product.shape}"
    if "out" in options and product is not options["out"]:
        return "out was not used"
    if expected.dtype.kind in "iub":
        return None if np.array_equal(product, expected) else "not equal"
    error = np.linalg.norm((product - expected).astype(complex))
    size = np.linalg.norm(expected.astype(complex))
    if error > (50 * report.error_estimate + 4 * np.finfo(expected.dtype).eps) * size:
        return f"error {error / size:.1e}, estimated {report.error_estimate:.1e}"
    return None


with codedla.MPIPool(MPI.COMM_WORLD, faults=faults(specs)) as pool:
    if pool is not None:
        note_shared_memory()
        bad, done, refused = [], 0, []
        for name, a, b, options in cases(pool.n_workers):
            try:
                complaint = wrong(name, pool, a, b, options)
            except codedla.UsageError as error:
                refused.append(f"{name}: {error}")
                continue
            except Exception:
                complaint = traceback.format_exc()
            if complaint:
                bad.append(f"{name}: {complaint}")
            done += 1
        write("result", {"bad": bad, "done": done, "refused": refused})
write(f"clean{MPI.COMM_WORLD.Get_rank()}", MPI.Is_finalized())
