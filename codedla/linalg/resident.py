"""What workers keep of B: parts that several shares, or several products, have in common."""

from __future__ import annotations

from typing import Any

from codedla.codes.base import Code
from codedla.engine.round import Pool

__all__ = ["resident_keys"]


def resident_keys(code: Code, pool: Pool) -> tuple[int, ...]:
    """Return an id for every share's part of B; shares with the same part have the same id."""
    # A plain block is sent without padding, and so it is no coded share of the same weights.
    parts: list[Any] = []
    for share in range(code.n_shares):
        block, weights = code.plain_block(share), code.rows_b(share)
        if block is not None:
            parts.append(block % code.grid.n)
        elif weights.size == 1 and weights[0, 0] == 1:
            parts.append(0)  # B itself
        else:
            parts.append(weights.tobytes())
    keys = {part: pool.new_key() for part in dict.fromkeys(parts)}
    return tuple(keys[part] for part in parts)
