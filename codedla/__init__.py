"""codedla: distributed matrix work that does not wait for slow or dead ranks.

A master encodes matrix blocks with an erasure code over the reals, hands one share to each worker,
and decodes from the first replies that suffice.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codedla.engine.plan import Plan, make_plan
    from codedla.engine.report import Report
    from codedla.errors import (
        CodedlaError,
        CodedlaWarning,
        MPIUnavailable,
        NotDecodable,
        PoolClosed,
        UsageError,
        VerificationFailed,
        WorkerError,
    )
    from codedla.iterative.asynchronous import AsyncMap
    from codedla.iterative.coded_network import CodedNetwork
    from codedla.iterative.components import pca
    from codedla.iterative.estimators import CodedLogisticRegression, CodedRidge
    from codedla.iterative.gradient import CodedGradient
    from codedla.iterative.linear_inverse import linear_inverse
    from codedla.iterative.lwpd import LWPD
    from codedla.iterative.orthogonal import orthogonal_iteration, truncated_svd
    from codedla.iterative.pagerank import pagerank
    from codedla.iterative.power import power_iteration
    from codedla.iterative.torch_bridge import CodedModule
    from codedla.linalg.exact import integer_matmul
    from codedla.linalg.lagrange import batch_matmul, lagrange_map
    from codedla.linalg.matmul import matmul
    from codedla.linalg.matvec import CodedMatrix, matvec, store
    from codedla.linalg.operator import CodedOperator, aslinearoperator
    from codedla.mpi.pool import MPIPool
    from codedla.pools.serial import SerialPool
    from codedla.pools.simulated import SimulatedPool
    from codedla.transforms.convolution import convolve
    from codedla.transforms.fourier import fft, ifft

__version__ = "0.1.0"

__all__ = [
    "LWPD",
    "AsyncMap",
    "CodedGradient",
    "CodedLogisticRegression",
    "CodedMatrix",
    "CodedModule",
    "CodedNetwork",
    "CodedOperator",
    "CodedRidge",
    "CodedlaError",
    "CodedlaWarning",
    "MPIPool",
    "MPIUnavailable",
    "NotDecodable",
    "Plan",
    "PoolClosed",
    "Report",
    "SerialPool",
    "SimulatedPool",
    "UsageError",
    "VerificationFailed",
    "WorkerError",
    "aslinearoperator",
    "batch_matmul",
    "convolve",
    "fft",
    "ifft",
    "integer_matmul",
    "lagrange_map",
    "linear_inverse",
    "make_plan",
    "matmul",
    "matvec",
    "orthogonal_iteration",
    "pagerank",
    "pca",
    "power_iteration",
    "store",
    "truncated_svd",
]

# Where each public name lives. Modules are imported on first use, so that `import codedla` stays
# light and never needs MPI.
_HOMES = {
    "codedla.engine.plan": ("Plan", "make_plan"),
    "codedla.engine.report": ("Report",),
    "codedla.errors": (
        "CodedlaError",
        "CodedlaWarning",
        "MPIUnavailable",
        "NotDecodable",
        "PoolClosed",
        "UsageError",
        "VerificationFailed",
        "WorkerError",
    ),
    "codedla.iterative.coded_network": ("CodedNetwork",),
    "codedla.iterative.asynchronous": ("AsyncMap",),
    "codedla.iterative.estimators": ("CodedLogisticRegression", "CodedRidge"),
    "codedla.iterative.gradient": ("CodedGradient",),
    "codedla.iterative.components": ("pca",),
    "codedla.iterative.linear_inverse": ("linear_inverse",),
    "codedla.iterative.lwpd": ("LWPD",),
    "codedla.iterative.orthogonal": ("orthogonal_iteration", "truncated_svd"),
    "codedla.iterative.pagerank": ("pagerank",),
    "codedla.iterative.power": ("power_iteration",),
    "codedla.iterative.torch_bridge": ("CodedModule",),
    "codedla.linalg.exact": ("integer_matmul",),
    "codedla.linalg.lagrange": ("batch_matmul", "lagrange_map"),
    "codedla.linalg.matmul": ("matmul",),
    "codedla.linalg.matvec": ("CodedMatrix", "matvec", "store"),
    "codedla.linalg.operator": ("CodedOperator", "aslinearoperator"),
    "codedla.mpi.pool": ("MPIPool",),
    "codedla.pools.serial": ("SerialPool",),
    "codedla.pools.simulated": ("SimulatedPool",),
    "codedla.transforms.convolution": ("convolve",),
    "codedla.transforms.fourier": ("fft", "ifft"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
# What the names need besides codedla's own dependencies.
_EXTRAS = {"sklearn": ("CodedLogisticRegression", "CodedRidge"), "torch": ("CodedModule",)}
_SUBMODULES = ("vandermonde", "kernels", "codes")

# `from codedla import *` takes what there is; asked for by name, the others say what is missing.
for _package, _names in _EXTRAS.items():
    if importlib.util.find_spec(_package) is None:
        for _name in _names:
            __all__.remove(_name)

logging.getLogger("codedla").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"codedla.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'codedla' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME_OF, *_SUBMODULES, "__version__"])
