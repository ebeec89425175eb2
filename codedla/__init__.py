"""codedla: distributed matrix work that does not wait for slow or dead ranks.

A master encodes matrix blocks with an erasure code over the reals, hands one share to each worker,
and decodes from the first replies that suffice.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Attribute -> module. Imported on first use: `import codedla` stays light and never needs MPI.
_LAZY = {
    "matmul": "codedla.linalg.matmul",
    "matvec": "codedla.linalg.matvec",
    "store": "codedla.linalg.matvec",
    "CodedMatrix": "codedla.linalg.matvec",
    "make_plan": "codedla.engine.plan",
    "Plan": "codedla.engine.plan",
    "Report": "codedla.engine.report",
    "SerialPool": "codedla.pools.serial",
    "SimulatedPool": "codedla.pools.simulated",
    "MPIPool": "codedla.mpi.pool",
    "vandermonde": "codedla.vandermonde",
    "CodedlaError": "codedla.errors",
    "CodedlaWarning": "codedla.errors",
    "MPIUnavailable": "codedla.errors",
    "NotDecodable": "codedla.errors",
    "PoolClosed": "codedla.errors",
    "UsageError": "codedla.errors",
    "VerificationFailed": "codedla.errors",
    "WorkerError": "codedla.errors",
}

__all__ = [*_LAZY, "__version__"]  # noqa: PLE0604 - names are resolved by __getattr__

if TYPE_CHECKING:
    from codedla import vandermonde
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
    from codedla.linalg.matmul import matmul
    from codedla.linalg.matvec import CodedMatrix, matvec, store
    from codedla.mpi.pool import MPIPool
    from codedla.pools.serial import SerialPool
    from codedla.pools.simulated import SimulatedPool

logging.getLogger("codedla").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'codedla' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    value = module if _LAZY[name].endswith("." + name) and name == "vandermonde" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
