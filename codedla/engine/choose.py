"""Choose the code family and the block grid for one product, and say why.

The time of a round is modelled as the longest worker's flops plus what passes through the master;
the grid with the smallest sum wins. The family follows from what the operands allow:

* only plain copies keep NaN and Inf in their places: ``replication`` (``uncoded`` when nothing may
  be lost);
* one coded operand (``n = 1``): ``mds``; two coded operands: ``khatri-rao``;
* exact integers beyond 2**53: a code with integer weights, else ``replication``;
* if the worst survivor set would lose more digits than the tolerance allows, the next candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from codedla.blocks import Grid
from codedla.codes import registry
from codedla.codes.base import Code
from codedla.errors import UsageError

__all__ = ["Choice", "Request", "choose", "default_tolerate"]

FLOPS = 2e10
"""Assumed speed of one worker, flop/s: only the ratio to the bandwidth matters here."""
BANDWIDTH = 4e9
"""Assumed bandwidth of the master's memory and links, bytes/s."""


@dataclass(frozen=True)
class Request:
    """Everything the choice depends on; see :func:`codedla.engine.plan.make_plan`."""

    operation: str
    shape: tuple[int, int, int]
    n_workers: int
    code: str
    blocks: int | tuple[int, ...] | None
    tolerate: int | None
    nodes: str | None
    eps: float
    itemsize: int
    tolerance: float
    check_accuracy: bool
    strict: bool
    plain_only: bool
    exact_integers: bool
    density: tuple[float, float]


@dataclass(frozen=True)
class Choice:
    """The code that was chosen, why, and what the user should know."""

    code: Code
    reason: str
    warnings: tuple[str, ...] = ()


def default_tolerate(n_workers: int) -> int:
    """Return how many losses are tolerated when the user does not say."""
    return 0 if n_workers < 3 else 1 if n_workers < 6 else 2


def choose(request: Request) -> Choice:
    """Return the code for ``request``.

    Raises
    ------
    UsageError
        No code fits; the message says what would.
    """
    _check_tolerate(request)
    if request.code != "auto":
        return _named(request)
    if request.nodes is not None:
        raise UsageError(
            f"nodes belong to a named code; got nodes={request.nodes!r} with code 'auto'; "
            "name the code, e.g. code='polynomial'"
        )
    refused: list[str] = []
    for family, why in _families(request):
        try:
            code = _build(request, family, _grids(request, family))
        except UsageError as error:
            refused.append(str(error))
            continue
        if request.exact_integers and not (code.integral or code.only_plain):
            continue
        if request.check_accuracy and request.eps and not code.only_plain:
            alpha = code.worst_amplification()[0]
            if alpha * request.eps > request.tolerance:
                refused.append(
                    f"{family} could lose too many digits (worst amplification {alpha:.0e})"
                )
                continue
        return Choice(code, _reason(request, code, why))
    if request.exact_integers:
        raise UsageError(
            "integer entries this large are exact only with integer weights (tolerate=1) or plain "
            f"copies; got tolerate={_tolerate(request)} with {request.n_workers} workers; "
            "use tolerate=1, code='replication' with more workers, or cast to float64"
        )
    raise UsageError(refused[0] if refused else "no code fits these blocks and workers")


def _check_tolerate(request: Request) -> None:
    n = request.n_workers
    if request.tolerate is None:
        return
    if request.tolerate >= n:
        raise UsageError(
            f"at least one worker must answer: with {n} worker{'s' * (n != 1)} tolerate is at most "
            f"{n - 1}; got {request.tolerate}; use --tolerate {n - 1} or at least "
            f"{request.tolerate + 2} ranks"
        )


def _tolerate(request: Request) -> int:
    if request.tolerate is not None:
        return request.tolerate
    return default_tolerate(request.n_workers)


def _tolerate_by(request: Request, family: type[Code]) -> int:
    """Return the losses to tolerate: the user's number, or the default as far as ``family`` can."""
    if request.tolerate is not None:
        return request.tolerate
    usual = default_tolerate(request.n_workers)
    return next((s for s in range(usual, 0, -1) if family.grids(request.n_workers, s)), 0)


def _families(request: Request) -> Iterator[tuple[str, str]]:
    """Yield candidate families for ``code='auto'``, best first, with the reason in words."""
    lossless = _tolerate(request) == 0 and request.blocks is None
    if request.plain_only:
        why = "entries are NaN, Inf or so large that sums could overflow: only copies are safe"
        yield ("uncoded" if lossless else "replication"), why
        return
    if lossless:
        yield "uncoded", "nothing may be lost, so nothing is coded"
    if request.exact_integers:
        yield "khatri-rao", "all-ones parity is exact in wrap-around integers"
        yield "replication", "plain copies are exact in integers"
        return
    if request.operation == "matvec" or request.shape[2] == 1:
        yield "mds", "one operand is coded, the vector goes to everybody"
    elif _one_sided(request):
        yield "mds", "coding A alone moves fewest bytes for these shapes"
    yield "khatri-rao", "systematic: nothing to decode unless a worker is late"
    yield "polynomial", "the systematic codes lose too many digits here"
    yield "replication", "only plain copies keep the accuracy asked for"


def _one_sided(request: Request) -> bool:
    """Tell whether the best grid for two coded operands leaves B in one piece anyway."""
    if _tolerate(request) == 1 and request.blocks is None:
        return False
    grids = list(_grids(request, "khatri-rao"))
    return bool(grids) and grids[0].n == 1


def _named(request: Request) -> Choice:
    code = _build(request, request.code, _grids(request, request.code))
    warnings = []
    if request.plain_only and not code.only_plain:
        raise UsageError(
            "entries are NaN, Inf or so large that coded sums could overflow, and code "
            f"{request.code!r} would spread them to other entries; use code='replication', "
            "code='uncoded' or code='auto'"
        )
    if request.exact_integers and not (code.integral or code.only_plain):
        raise UsageError(
            f"integer entries this large are not exact in code {request.code!r}; use "
            "code='replication', code='khatri-rao' with tolerate=1, or cast to float64"
        )
    unusual = bool(code.node_choices) and code.nodes != code.node_choices[0]
    if request.eps and (unusual or request.check_accuracy) and not code.only_plain:
        warning = code.digits_warning(request.eps, request.tolerance)
        if warning and request.strict:
            raise UsageError(f"the result must be exact; {warning}; or use code='replication'")
        warnings += [warning] if warning else []
    return Choice(code, _reason(request, code, "asked for"), tuple(warnings))


def _grids(request: Request, name: str) -> Iterator[Grid]:
    """Yield the grids to try for family ``name``, cheapest first."""
    family = registry.get(name)
    if request.blocks is not None:
        yield _explicit(request, family)
        return
    rows, inner, cols = request.shape
    allowed = family.grids(request.n_workers, _tolerate_by(request, family))
    limits = (max(rows, 1), max(inner, 1), max(cols, 1))
    fitting = [grid for grid in allowed if _fits(grid, limits)]
    yield from sorted(fitting or allowed, key=lambda grid: _seconds(request, grid))


def _fits(grid: Grid, limits: tuple[int, int, int]) -> bool:
    return grid.m <= limits[0] and grid.p <= limits[1] and grid.n <= limits[2]


def _explicit(request: Request, family: type[Code]) -> Grid:
    """Turn the user's ``blocks`` into a grid of this family."""
    blocks = request.blocks
    parts = (blocks,) if isinstance(blocks, int) else blocks or ()
    if len(parts) == 3:
        return Grid(*parts)
    if len(parts) == 2:
        return Grid(parts[0], 1, parts[1])
    count = parts[0]
    shapes = [grid for grid in _factorings(count) if _cuts_only(grid, family.splits)]
    if not shapes:
        raise UsageError(
            f"code {family.name!r} has no grid of {count} blocks; give blocks as MxN or MxPxN"
        )
    return min(shapes, key=lambda grid: _seconds(request, grid))


def _cuts_only(grid: Grid, dimensions: tuple[str, ...]) -> bool:
    return all(getattr(grid, d) == 1 or d in dimensions for d in ("m", "p", "n"))


def _factorings(count: int) -> Iterator[Grid]:
    for m in range(1, count + 1):
        if count % m == 0:
            yield Grid(m, 1, count // m)
    yield Grid(1, count, 1)


def _build(request: Request, name: str, grids: Iterator[Grid]) -> Code:
    """Build the code for the first grid, on no more workers than the request needs."""
    family = registry.get(name)
    grid = next(grids, None)
    if grid is None:
        s, n = _tolerate(request), request.n_workers
        raise UsageError(
            f"code {name!r} cannot tolerate {s} of {n} workers; "
            "use a smaller --tolerate or more ranks"
        )
    code = family(request.n_workers, grid, nodes=request.nodes)
    wanted = request.tolerate
    if wanted is None and request.blocks is None:
        wanted = _tolerate_by(request, family)
    if wanted is None:
        return code
    code.require(wanted)
    enough = (n for n in range(1, request.n_workers) if family.survives(n, grid) >= wanted)
    fewest = next(enough, request.n_workers)
    return code if fewest == request.n_workers else family(fewest, grid, nodes=request.nodes)


def _seconds(request: Request, grid: Grid) -> float:
    """Model the round: one worker's flops, and all bytes through the master."""
    m, inner, n = request.shape
    flops = (
        2.0 * m * inner * n * request.density[0] * request.density[1] / (grid.m * grid.p * grid.n)
    )
    share_a = m * inner / (grid.m * grid.p) * request.density[0]
    share_b = inner * n / (grid.p * grid.n) * request.density[1]
    reply = m * n / (grid.m * grid.n)
    entries = request.n_workers * (share_a + share_b + reply)
    seconds = flops / FLOPS + entries * request.itemsize / BANDWIDTH
    # Among equals prefer the squarer grid: shares of both operands stay small.
    return seconds * (1.0 + 1e-6 * abs(math.log(grid.m / grid.n)))


def _reason(request: Request, code: Code, why: str) -> str:
    idle = request.n_workers - code.n_workers
    spare = f"; {idle} worker{'s' * (idle != 1)} left idle" if idle else ""
    return (
        f"{why}; grid {code.blocks} tolerates {code.tolerates} of {code.n_workers} workers{spare}"
    )
