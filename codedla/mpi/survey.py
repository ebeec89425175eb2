"""Ask all ranks of a job where they run and what they compute with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from codedla.mpi import world
from codedla.mpi.cores import describe, resolve_threads

__all__ = ["main", "survey"]


def survey(threads: int | str = 1) -> dict[str, Any] | None:
    """Meet all ranks; collective.

    Parameters
    ----------
    threads : int or "auto"
        BLAS threads that they are to describe themselves with; afterwards they have as many as
        before.

    Returns
    -------
    dict or None
        On rank 0 ``size``, ``library``, ``fault_tolerance`` and ``ranks``: what
        :func:`codedla.mpi.cores.describe` gives on each, with its ``rank`` and, where it says more
        than BLAS does, the ``threads`` asked for.
    """
    import numpy  # noqa: F401  so that its BLAS is there to be limited
    from threadpoolctl import threadpool_limits

    mpi = world.import_mpi()
    comm = mpi.COMM_WORLD
    with threadpool_limits(resolve_threads(threads, comm)):
        everyone = comm.gather({"rank": comm.Get_rank(), **describe()})
    if everyone is None:
        return None
    first = mpi.Get_library_version().splitlines()[0].split(",")[0]
    return {
        "size": comm.Get_size(),
        "library": " ".join(first.split()),
        "fault_tolerance": world.fault_tolerant(),
        "ranks": everyone,
    }


def main(threads: str) -> None:
    """Be a rank of the job that ``codedla doctor`` starts; rank 0 prints the survey as JSON."""
    said = survey(threads if threads == "auto" else int(threads))
    if said is None:
        return
    print(json.dumps(said), flush=True)
    done = Path(os.environ["CODEDLA_DONE"])
    fresh = done.with_name(done.name + ".new")
    fresh.write_text("0")
    fresh.replace(done)
