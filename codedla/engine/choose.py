"""Choose the code family and the block grid for one product, and say why.

Candidates are the families that say what they are good for (:attr:`Code.purpose`). Each is tried on
the grid that is cheapest for it; what a round costs is predicted by :mod:`codedla.engine.cost`. The
cheapest candidate wins that is allowed by

* the operation and the shapes: families that code A alone for a vector;
* the entries: only plain copies keep NaN and Inf in their places, only integer weights and copies
  and codes made for integers keep those beyond ``2**53`` exact;
* the losses to be tolerated, the memory of a rank, and the tolerance in the worst survivor set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from codedla.blocks import Grid
from codedla.codes import registry
from codedla.codes.base import Code
from codedla.codes.cache import Recent
from codedla.codes.exact import ExactCode, WrapCode
from codedla.codes.limits import most_tolerated
from codedla.codes.peeling import PeelingCode
from codedla.engine.cost import Cost, in_bytes, predict
from codedla.engine.grids import grids_to_try, named_grid
from codedla.errors import UsageError
from codedla.measured.speeds import speeds

__all__ = [
    "Candidate",
    "Choice",
    "Request",
    "candidates",
    "choose",
    "default_tolerate",
    "forget",
    "too_many_shares",
]

_PREFERRED = ("uncoded", "khatri-rao", "mds", "replication")
"""Of equally fast candidates the first of these is chosen, khatri-rao where it cuts B as well."""
ROUND = 5e-4
"""Seconds that any round takes, however small: below, differences of the prediction say nothing."""
MOST_COEFFICIENTS = 20_000_000
"""Largest generator of a code with several shares a worker; three times that much is planned in."""
MOST_UNKNOWNS = 1000
"""Most blocks that such a code solves for without peeling: the time grows with the cube."""
_ALIKE = 0.02
"""Candidates whose predicted times differ by less are equally fast."""
_REMEMBERED = 16
"""Choices that are remembered, and below in all coefficients of their codes, roughly."""
_REMEMBERED_COEFFICIENTS = 200_000


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
    compute: np.dtype
    memory: float | None = None
    largest: int | None = None
    bits: int = 64
    resident: bool = False


@dataclass(frozen=True)
class Candidate:
    """A family on the grid that is cheapest for it.

    Parameters
    ----------
    name : str
    code : Code or None
        None where no grid fits the workers and losses.
    cost : Cost or None
    refused : str
        Why it may not be chosen; empty if it may.
    """

    name: str
    code: Code | None
    cost: Cost | None
    refused: str = ""

    @property
    def seconds(self) -> float:
        """Predicted time of the round; infinite where there is no code."""
        return math.inf if self.cost is None else self.cost.seconds


@dataclass(frozen=True)
class Choice:
    """The code that was chosen, why, what it costs, and what the user should know."""

    code: Code
    reason: str
    cost: Cost
    warnings: tuple[str, ...] = ()


def default_tolerate(n_workers: int) -> int:
    """Return how many losses are tolerated when the user does not say."""
    return 0 if n_workers < 3 else 1 if n_workers < 6 else 2


# The same product comes again and again; weighing all codes takes longer than a small one.
_chosen: Recent[Choice] = Recent(_REMEMBERED)


def choose(request: Request) -> Choice:
    """Return the code for ``request``.

    Choices are remembered: equal requests get the same code object, which then also remembers the
    decoding weights of its survivor sets.

    Raises
    ------
    UsageError
        No code fits; the message says what would.
    """
    _check_tolerate(request)
    if not isinstance(request.nodes, str | None):
        return _new_choice(request)  # to be refused, with a message of its own
    # Whatever else the choice depends on is part of the key, so that nothing stale is found.
    key = (request, registry.families(), speeds())
    known = _chosen.get(key)
    if known is None:
        known = _new_choice(request)
        size = known.code.n_shares * known.code.grid.outputs
        _chosen.put(key, known, _REMEMBERED_COEFFICIENTS // max(size, 1))
    return known


def forget() -> None:
    """Forget earlier choices, as is necessary after changing a code family in place."""
    _chosen.clear()


def _new_choice(request: Request) -> Choice:
    """Choose, without a look at earlier choices."""
    if request.code != "auto":
        return _named(request)
    if request.nodes is not None:
        raise UsageError(
            f"nodes belong to a named code; got nodes={request.nodes!r} with code 'auto'; "
            "name the code, e.g. code='polynomial'"
        )
    offered = candidates(request)
    fit = [(c.code, c.cost) for c in offered if c.code and c.cost and not c.refused]
    for code, cost in fit:
        if not _too_inaccurate(request, code):
            return Choice(code, _reason(request, code, code.purpose), cost)
    if fit:
        # None meets the tolerance with these blocks and losses: the best is taken, and says so.
        best, cost = min(fit, key=lambda pair: pair[0].worst_amplification()[0])
        warning = best.digits_warning(request.eps, request.tolerance) or ""
        if request.strict:
            raise UsageError(f"the result must be exact; {warning}; or use code='replication'")
        return Choice(best, _reason(request, best, best.purpose), cost, (warning,))
    _check_memory(request, offered)
    if request.exact_integers:
        raise UsageError(
            "integer entries this large are exact only with integer weights (tolerate=1), over "
            f"finite fields or as plain copies; got tolerate={_tolerate(request)} with "
            f"{request.n_workers} workers, and no such code fits; use a smaller tolerate, more "
            "workers, or cast to float64"
        )
    refusals = {candidate.name: candidate.refused for candidate in offered if candidate.refused}
    usual = "replication" if request.plain_only else "mds" if _vector(request) else "khatri-rao"
    raise UsageError(refusals.get(usual) or "no code fits these blocks and workers")


def candidates(request: Request) -> list[Candidate]:
    """Return every family that could be chosen for a request, the cheapest first.

    Those that cannot be, for the reason they give, come last.
    """
    found = [_candidate(request, name) for name in _eligible(request)]
    if request.tolerate is None and request.blocks is not None:
        found = _tolerant(request, found)
    fit = [c for c in found if not c.refused]
    # Products of nothing take no time at all.
    best = min((c.seconds for c in fit), default=1.0) or 1.0

    def order(candidate: Candidate) -> tuple[float, bool, int]:
        code, rank = candidate.code, len(_PREFERRED)
        if candidate.name in _PREFERRED:
            rank = _PREFERRED.index(candidate.name)
        if candidate.refused or code is None:
            return math.inf, False, rank
        if candidate.name == "khatri-rao" and code.blocks.n == 1:
            rank += 2  # A alone is cut: codes made for that are at least as accurate
        # Among those alike: decoding least is best, then the families that are named first.
        alike = round(math.log((candidate.seconds + ROUND) / (best + ROUND)) / math.log1p(_ALIKE))
        return alike, not code.systematic, rank

    return sorted(found, key=order)


def _tolerant(request: Request, found: list[Candidate]) -> list[Candidate]:
    """Refuse what tolerates less than is usual and than others do with the blocks asked for."""
    most = max((c.code.tolerates for c in found if c.code and not c.refused), default=0)
    wanted = min(most, default_tolerate(request.n_workers))
    return [
        replace(c, refused=f"code {c.name} tolerates {c.code.tolerates} of {wanted} lost workers")
        if c.code is not None and not c.refused and c.code.tolerates < wanted
        else c
        for c in found
    ]


def _eligible(request: Request) -> Iterator[str]:
    """Yield the names of the families that this operation may use."""
    vector = _vector(request)
    for name in registry.available():
        family = registry.get(name)
        if not family.purpose:
            continue
        if issubclass(family, ExactCode) and request.largest is None:
            continue
        # A vector is not worth coding, but families for two operands can leave B in one piece.
        if vector and "m" not in family.splits:
            continue
        yield name


def _vector(request: Request) -> bool:
    return request.operation == "matvec" or request.shape[2] == 1


def _candidate(request: Request, name: str) -> Candidate:
    """Build the family on its cheapest grid and see what speaks against it."""
    if registry.get(name).preserves_sparsity and min(request.density) >= 1.0:
        # Before anything of it is built: its search for good coefficients takes a while.
        refused = f"code {name} is for sparse operands, these are dense"
        return Candidate(name, None, None, refused=refused)
    try:
        code = _build(request, name, _grids(request, name))
    except UsageError as error:
        return Candidate(name, None, None, refused=str(error))
    cost = _predict(request, code)
    return Candidate(name, code, cost, refused=_obstacle(request, code, cost))


def _predict(request: Request, code: Code) -> Cost:
    dtype = _replies(request, code)
    return predict(
        code,
        request.shape,
        request.density,
        dtype,
        request.largest,
        resident=request.resident,
    )


def _obstacle(request: Request, code: Code, cost: Cost) -> str:
    """Return why a code may not be chosen, or an empty string."""
    if request.plain_only and not code.only_plain:
        return (
            "entries are NaN, Inf or so large that sums could overflow: only copies are safe, and "
            f"code {code.name} mixes blocks"
        )
    usual = default_tolerate(request.n_workers)
    if request.tolerate is None and request.blocks is None and code.tolerates < usual:
        return f"code {code.name} tolerates {code.tolerates} of the usual {usual} lost workers"
    inexact = _inexact(request, code)
    if inexact:
        return inexact
    return _too_large(request, code.name, cost)


def _too_large(request: Request, name: str, cost: Cost) -> str:
    """Return by how much a code exceeds the memory of a worker, or an empty string."""
    if request.memory is None or cost.memory_worker <= request.memory:
        return ""
    return (
        f"code {name} needs {in_bytes(cost.memory_worker)} of a worker's memory, more than the "
        f"{in_bytes(request.memory)} allowed"
    )


def _check_memory(request: Request, offered: list[Candidate]) -> None:
    """Refuse if codes would fit but for their memory; name the one that needs the least."""
    large = [
        (c.cost.memory_worker, c.refused)
        for c in offered
        if c.cost is not None and c.refused and c.refused == _too_large(request, c.name, c.cost)
    ]
    if not large:
        return
    rest = ", and no other for these losses takes less" if len(large) > 1 else ""
    fewer = " or a smaller tolerate" if _tolerate(request) else ""
    raise UsageError(f"{min(large)[1]}{rest}; allow more, or use more workers{fewer}")


def _inexact(request: Request, code: Code) -> str:
    """Return why a code may not compute with these integers, or an empty string."""
    if request.largest is not None and code.approximate:
        return f"code {code.name} is approximate, and integers are to be exact"
    if not isinstance(code, ExactCode):
        if request.exact_integers and not (code.integral or code.only_plain):
            return f"integer entries this large are not exact in code {code.name}"
        return ""
    if request.largest is None:
        return f"code {code.name} is for integers, got floating point or complex numbers"
    if isinstance(code, WrapCode) and code.lost_bits:
        most = 2 ** (63 - code.lost_bits)
        # Narrow results wrap around, and need no more bits than they have.
        if request.largest >= most and request.bits > 64 - code.lost_bits:
            return (
                f"code {code.name} with blocks {code.blocks} and {code.tolerates} losses is exact "
                f"below {most:.1e}, entries of the product may reach {float(request.largest):.1e}"
            )
    return ""


def _too_inaccurate(request: Request, code: Code) -> bool:
    """Tell whether the worst survivor set misses the tolerance."""
    if not request.eps or code.only_plain or isinstance(code, ExactCode):
        return False
    return code.worst_amplification()[0] * request.eps > request.tolerance


def _replies(request: Request, code: Code) -> np.dtype:
    if isinstance(code, ExactCode):
        return code.computes
    if code.field == "complex":
        return np.result_type(request.compute, np.complex64)
    return request.compute


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
    n_workers = request.n_workers
    return most_tolerated(family, n_workers, default_tolerate(n_workers))


def _named(request: Request) -> Choice:
    code = _build(request, request.code, _grids(request, request.code))
    warnings = []
    cost = _predict(request, code)
    needed = cost.memory_worker
    if request.memory is not None and needed > request.memory:
        raise UsageError(
            f"a worker's shares and replies must fit into the memory allowed, "
            f"{in_bytes(request.memory)}; code {request.code!r} with blocks {code.blocks} needs "
            f"{in_bytes(needed)}; use more blocks, more workers or code='auto'"
        )
    if request.plain_only and not code.only_plain:
        raise UsageError(
            "entries are NaN, Inf or so large that coded sums could overflow, and code "
            f"{request.code!r} would spread them to other entries; use code='replication', "
            "code='uncoded' or code='auto'"
        )
    inexact = _inexact(request, code)
    if inexact:
        raise UsageError(
            f"{inexact}; use code='galois', code='replication', code='khatri-rao' with tolerate=1, "
            "or cast to float64"
            if request.largest is not None
            else f"{inexact}; cast them to integers, or use another code"
        )
    unusual = bool(code.node_choices) and code.nodes != code.node_choices[0]
    if request.eps and (unusual or request.check_accuracy) and not code.only_plain:
        warning = code.digits_warning(request.eps, request.tolerance)
        if warning and request.strict:
            raise UsageError(f"the result must be exact; {warning}; or use code='replication'")
        warnings += [warning] if warning else []
    return Choice(code, _reason(request, code, "asked for"), cost, tuple(warnings))


def _grids(request: Request, name: str) -> Iterator[Grid]:
    family = registry.get(name)
    if request.blocks is not None:
        return iter([named_grid(request, family)])
    return grids_to_try(request, family, _tolerate_by(request, family))


def _no_grid(family: type[Code], losses: int, workers: int) -> str:
    """Say why no grid suits a code, and what would."""
    whole = Grid(1, 1, 1)
    least = family.needs(whole)
    if workers < least:
        return (
            f"code {family.name!r} needs at least {least} workers; got {workers}; use "
            f"{least + 1} ranks"
        )
    counts = range(least + losses, 8 * (least + losses))
    enough = next((n for n in counts if family.survives(n, whole) >= losses), None)
    ranks = "another code" if enough is None else f"{enough + 1} ranks"
    fewer = min(family.survives(workers, whole), losses - 1)
    cure = f"--tolerate {fewer} or {ranks}" if fewer >= 0 else ranks
    return f"code {family.name!r} cannot tolerate {losses} of {workers} workers; use {cure}"


def _build(request: Request, name: str, grids: Iterator[Grid]) -> Code:
    """Build the code for the first grid, on no more workers than the request needs."""
    family = registry.get(name)
    refused = _no_grid(family, _tolerate(request), request.n_workers)
    for grid in grids:
        code = family(request.n_workers, grid, nodes=request.nodes)
        refused = too_many_shares(code)
        if not refused:
            break
    else:
        raise UsageError(refused)
    wanted = request.tolerate
    if wanted is None and request.blocks is None:
        wanted = _tolerate_by(request, family)
    if wanted is None:
        return code
    code.require(wanted)
    if code.load > 1:
        return code  # what any further worker has done counts
    enough = (n for n in range(1, request.n_workers) if family.survives(n, grid) >= wanted)
    fewest = next(enough, request.n_workers)
    return code if fewest == request.n_workers else family(fewest, grid, nodes=request.nodes)


def too_many_shares(code: Code) -> str:
    """Return why the master could not plan so many shares in reasonable time, or nothing."""
    if code.load == 1:
        return ""
    shares, outputs = code.n_shares, code.grid.outputs
    # What is not peeled is solved for all at once.
    most = math.inf if isinstance(code, PeelingCode) else MOST_UNKNOWNS
    if shares * outputs <= MOST_COEFFICIENTS and outputs <= most:
        return ""
    return (
        f"code {code.name} with blocks {code.blocks} on {code.n_workers} workers would have "
        f"{shares} shares of {outputs} blocks, more than can be planned for; use fewer blocks, "
        "fewer workers or code='auto'"
    )


def _reason(request: Request, code: Code, why: str) -> str:
    idle = request.n_workers - code.n_workers
    spare = f"; {idle} worker{'s' * (idle != 1)} left idle" if idle else ""
    return (
        f"{why}; grid {code.blocks} tolerates {code.tolerates} of {code.n_workers} workers{spare}"
    )
