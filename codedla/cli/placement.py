"""What is wrong with where ranks run and how many threads they have, and the cure, in a line each.

Ranks are described by :func:`codedla.mpi.cores.describe`, with their number under ``rank``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Trouble", "numbers", "oversubscribed", "seat", "troubles"]

Rank = Mapping[str, Any]


class Trouble(NamedTuple):
    """Something that makes products slow, and what to do about it."""

    text: str
    cure: str


#: OpenBLAS kernels without AVX2, as it names them, which it takes for processors that it does not
#: know: products run at a fifth of the speed.
_OLD = frozenset(
    (
        *("prescott", "northwood", "banias", "core2", "penryn", "dunnington", "nehalem", "atom"),
        *("sandybridge", "athlon", "opteron", "opteron_sse3", "barcelona", "bobcat"),
        *("bulldozer", "katmai", "coppermine", "generic"),
    )
)


def numbers(values: Iterable[int]) -> str:
    """Return whole numbers as a person writes them: ``0-3, 7``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def seat(rank: Rank) -> str:
    """Return where a rank runs and what its BLAS is, on one line."""
    cores, blas = rank["cores"], rank["blas"]
    bound = "not bound" if len(cores) == rank["present"] else f"bound to {numbers(cores)}"
    text = f"on {rank['host']}, {len(cores)} of {_count(rank['present'], 'core')} ({bound})"
    if blas is None:
        return f"{text}, BLAS not recognised"
    name = " ".join(filter(None, (blas["api"], blas["version"], blas["architecture"])))
    return f"{text}, {_count(blas['threads'], 'BLAS thread')}, {name}"


def oversubscribed(ranks: Sequence[Rank]) -> bool:
    """Tell whether a host has more workers than cores for them, so that they take turns."""
    for host in {rank["host"] for rank in ranks}:
        here = [rank for rank in ranks if rank["host"] == host and rank["rank"] != 0]
        if len(here) > len({core for rank in here for core in rank["cores"]}):
            return True
    return False


def troubles(ranks: Sequence[Rank]) -> list[Trouble]:
    """Return what is wrong and what to do about it, for each host and then for all of them.

    Parameters
    ----------
    ranks : sequence of mapping
        All ranks of a job.

    Returns
    -------
    list of Trouble
    """
    found: list[Trouble] = []
    hosts = dict.fromkeys(rank["host"] for rank in ranks)
    for host in hosts:
        found += _on_host(host, [rank for rank in ranks if rank["host"] == host])
    found += _of_blas(ranks)
    return found


def _on_host(host: str, ranks: Sequence[Rank]) -> Iterator[Trouble]:
    cores = {core for rank in ranks for core in rank["cores"]}
    # The master waits while the others compute.
    busy = [rank for rank in ranks if rank["rank"] != 0] or ranks
    threads = sum(_threads(rank) for rank in busy)
    most = max(_threads(rank) for rank in busy)
    together: dict[int, list[int]] = {}
    for rank in ranks:
        if len(rank["cores"]) == 1:
            together.setdefault(rank["cores"][0], []).append(rank["rank"])
    crowded = {core: some for core, some in together.items() if len(some) > 1}
    for core, some in crowded.items():
        if ranks[0]["present"] > 1:
            yield Trouble(
                f"ranks {numbers(some)} on {host} are all bound to core {core} and take turns",
                "bind each to a core of its own, or none: mpirun --bind-to none, srun "
                "--cpu-bind=none",
            )
    if most > 1 and threads > len(cores):
        yield Trouble(
            f"{_count(len(busy), 'worker')} with up to {most} BLAS threads on "
            f"{_count(len(cores), 'core')} of {host}: they wait for each other",
            "codedla --threads auto, or OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
        )
    elif len(busy) > len(cores):
        if not crowded:
            yield Trouble(
                f"{len(busy)} workers share {_count(len(cores), 'core')} of {host}",
                "good enough for trying things out; for speed start at most one worker per core",
            )
    else:
        yield from _too_narrow(busy)
        used = threads + len(ranks) - len(busy)
        if 2 * used <= len(cores):
            yield Trouble(
                f"{_count(len(busy), 'worker')} with {_count(threads, 'BLAS thread')} in all on "
                f"{host} leave {len(cores) - used} of {len(cores)} cores idle",
                "codedla --threads auto, or start more ranks",
            )
        first = ranks[0]
        siblings = len(first["cores"]) // max(first["physical"], 1)
        if siblings > 1 and threads > len(cores) // siblings:
            yield Trouble(
                f"{threads} threads on {_count(len(cores) // siblings, 'core')} of {host}, each "
                f"with {siblings} hardware threads: products gain little from the second",
                "as many ranks times threads as there are cores; srun --hint=nomultithread",
            )
    granted = min((r["quota"] for r in ranks if r["quota"] is not None), default=None)
    if granted is not None and threads > granted + 0.01 and granted < len(cores):
        yield Trouble(
            f"ranks on {host} get the time of {granted:.1f} cores for "
            f"{_count(threads, 'BLAS thread')}",
            "give the container or job more CPU, or start fewer ranks",
        )
    load = max(rank["load"] for rank in ranks)
    # The ranks themselves may have been running for a while.
    if load > ranks[0]["present"] + len(ranks):
        yield Trouble(
            f"host {host} is busy with other work: a load of {load:.0f} on "
            f"{_count(ranks[0]['present'], 'core')}",
            "ask for whole nodes (sbatch --exclusive), or measure again later",
        )


def _too_narrow(ranks: Sequence[Rank]) -> Iterator[Trouble]:
    narrow = [rank for rank in ranks if _threads(rank) > len(rank["cores"])]
    if narrow:
        most = max(_threads(rank) for rank in narrow)
        yield Trouble(
            f"ranks {numbers(r['rank'] for r in narrow)} on {narrow[0]['host']} have more BLAS "
            f"threads ({most}) than cores they are bound to ({len(narrow[0]['cores'])})",
            f"mpirun --map-by slot:PE={most}, srun --cpus-per-task={most}, or fewer threads",
        )


def _of_blas(ranks: Sequence[Rank]) -> Iterator[Trouble]:
    unknown = [rank["rank"] for rank in ranks if rank["blas"] is None]
    if unknown:
        yield Trouble(
            f"the BLAS of ranks {numbers(unknown)} is not recognised: its threads cannot be "
            "limited",
            "set OMP_NUM_THREADS=1 for all ranks",
        )
    kinds: dict[tuple[str, str], list[Rank]] = {}
    for rank in ranks:
        if rank["blas"] is not None:
            blas = rank["blas"]
            kinds.setdefault((blas["api"], str(blas["architecture"])), []).append(rank)
    for (api, kernel), some in kinds.items():
        flags = set.intersection(*(set(rank["flags"]) for rank in some))
        better = _better_kernel(kernel, flags) if api == "openblas" else ""
        if better:
            yield Trouble(
                f"OpenBLAS uses its {kernel} kernel on ranks {numbers(r['rank'] for r in some)}, "
                f"whose processors can do {' and '.join(sorted(flags & {'avx2', 'avx512f'}))}: "
                "products may take five times as long",
                f"OPENBLAS_CORETYPE={better}, or a newer OpenBLAS (pip's NumPy brings one)",
            )
    if len(kinds) > 1:
        names = ", ".join(
            f"{kernel} on ranks {numbers(rank['rank'] for rank in some)}"
            for (_, kernel), some in kinds.items()
        )
        yield Trouble(
            f"ranks compute with different kernels ({names}): some will be slower",
            "ask for nodes of one kind, or let --tolerate cover the slow ones",
        )


def _better_kernel(kernel: str, flags: set[str]) -> str:
    """Return the OpenBLAS kernel to ask for, or nothing where the one it has is good."""
    if not {"avx2", "fma"} <= flags or kernel.casefold() not in _OLD:
        return ""
    return "SkylakeX" if {"avx512f", "avx512bw"} <= flags else "Haswell"


def _threads(rank: Rank) -> int:
    return 1 if rank["blas"] is None else int(rank["blas"]["threads"])


def _count(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
