"""How much memory a product in panels takes of the master's and of a worker's.

Every figure is an upper bound that a test or a benchmark compares with what was measured: what a
limit of the address space allows must be known before it is met.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codedla.codes.exact import ModularCode
from codedla.engine.arithmetic import accumulating
from codedla.engine.cost import in_bytes
from codedla.engine.plan import Plan
from codedla.errors import UsageError
from codedla.measured.memory import Budget

__all__ = ["OPEN_ROUNDS", "PanelMemory", "panel_memory", "too_small"]

OPEN_ROUNDS = 3
"""Panels of which the master holds the operands at a time, at the most: those under way."""
WORKING = 64 << 20
"""Bytes for what does not grow with the panels: tiles, windows of files, a thread of BLAS."""


@dataclass(frozen=True)
class PanelMemory:
    """What one process needs at the most while a product is computed in panels.

    Parameters
    ----------
    master : float
        Bytes of the part of B and of the panels of A and C under way on the master, with
        everything that is encoded and decoded from them.
    worker : float
        Bytes of one worker: its share of B, two shares of A, two replies.
    """

    master: float
    worker: float


def panel_memory(
    plan: Plan,
    dtypes: tuple[np.dtype, np.dtype],
    *,
    in_memory: tuple[bool, bool] = (False, False),
    rounds: int = OPEN_ROUNDS,
) -> PanelMemory:
    """Return the memory that panels of a plan's shape need.

    Parameters
    ----------
    plan : Plan
        Of one panel.
    dtypes : (dtype, dtype)
        Of A and of B as they are stored.
    in_memory : (bool, bool)
        Which operands are in memory anyway: dense panels of theirs are views.
    rounds : int
        Panels under way at a time.

    Returns
    -------
    PanelMemory
    """
    (m, inner, n), grid, (u, q, v) = plan.shape, plan.grid, plan.code.stack
    height, depth, width = -(-m // grid.m), -(-inner // grid.p), -(-n // grid.n)
    item = plan.compute.itemsize
    share_a, share_b = u * q * height * depth * item, q * v * depth * width * item
    reply = u * v * height * width * item
    coded = sum(plan.code.plain_block(share) is None for share in plan.code.shares)

    def held(entries: int, which: int) -> float:
        dtype, density = dtypes[which], plan.density[which]
        if density < 1.0:
            # Entries and their indices, as they are and cut for the encoder.
            return entries * density * (dtype.itemsize + item + 2 * 12)
        # Other dtypes than that of the shares are cast as a whole.
        stored = 0 if in_memory[which] else entries * dtype.itemsize
        return stored + (entries * item if dtype != plan.compute else 0)

    of_a = held(m * inner, 0) + coded * share_a
    of_b = held(inner * n, 1) + coded * share_b
    # The decoded matrix and, if it is of another dtype, the result.
    of_c = m * n * (item + (plan.dtype.itemsize if plan.dtype != plan.compute else 0))
    # Replies to coded shares, and what is folded into them in double precision.
    of_c += coded * reply * (1 + accumulating(plan.compute).itemsize // item)
    if isinstance(plan.code, ModularCode):
        # One round after the other, whose results are kept and put together in the end.
        largest = 0 if plan.request is None else plan.request.largest or 0
        of_c += m * n * item * (len(plan.code.primes(depth * q, largest)) + 3)
    # A worker that stopped half-way keeps a panel of A and a reply of its own alive.
    late = max(plan.tolerates, 1)
    master = rounds * (of_a + of_c) + of_b + late * (of_a + reply)
    # Right-hand sides of the check of replies: a few columns as long as rows of A.
    blocks = grid.p * grid.n
    master += 8 * inner * (5 * blocks + plan.code.n_shares) + WORKING
    return PanelMemory(float(master), float(share_b + 2 * (share_a + reply)))


def too_small(needed: float, available: Budget, what: str) -> UsageError:
    """Return the error that says that the master's memory does not suffice."""
    return UsageError(
        f"{what} needs {in_bytes(needed + available.base)} of {available.measure} on the master "
        f"({in_bytes(available.base)} for the program itself); {available.limit} leaves "
        f"{in_bytes(max(available.bytes + available.base, 0))}; raise the limit"
    )
