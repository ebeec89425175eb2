"""Masks of private codes: uniformly random residues from the operating system."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.codes.exact import ModularCode

__all__ = ["draw_masks", "uniform_residues"]

Array = NDArray[Any]

_WORDS = 2**32
_AT_ONCE = 2**22
"""Random words asked for in one call."""


def uniform_residues(p: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return independent residues, uniform over ``0 .. p - 1``, that nobody can foresee.

    From 32-bit words of the system's cryptographic source; those beyond the largest multiple of
    ``p`` are thrown away, so that no residue is likelier than another.

    Parameters
    ----------
    p : int
        At most 2**31.
    shape : tuple of int
    """
    fair = _WORDS - _WORDS % p
    residues = np.empty(math.prod(shape), dtype=np.int64)
    filled = 0
    while filled < residues.size:
        due = min(residues.size - filled, _AT_ONCE)
        words = np.frombuffer(secrets.token_bytes(4 * due), dtype=np.uint32)
        words = words[words < fair]
        residues[filled : filled + words.size] = words % p
        filled += words.size
    return residues.reshape(shape)


def draw_masks(
    code: ModularCode, shape_a: tuple[int, int], shape_b: tuple[int, int]
) -> tuple[list[Array], list[Array]]:
    """Return new masks for one product: balanced residues as float64, for A and for B.

    Parameters
    ----------
    code : ModularCode
        Says how many, and modulo what.
    shape_a, shape_b : tuple of int
        Of the largest block of each operand.
    """
    field = code.galois
    masks = [
        [field.balanced(uniform_residues(code.prime, shape)) for _ in range(count)]
        for count, shape in zip(code.masks, (shape_a, shape_b), strict=True)
    ]
    return masks[0], masks[1]
