"""Operands that workers read from files and encode themselves: ``encode="workers"``."""

from __future__ import annotations

from typing import Any

import numpy as np

from codedla.blocks import Split
from codedla.codes.exact import ExactCode
from codedla.engine.arguments import check_choice
from codedla.engine.plan import Plan
from codedla.engine.recipe import RecipeEncoder
from codedla.errors import UsageError
from codedla.linalg.operands import Checked
from codedla.views import file_view

__all__ = ["ENCODE", "check_encode", "mapped", "recipe_encoder"]

ENCODE = ("master", "workers")
"""Values of ``encode=``."""

_PLAIN_DRIVERS = ("sec2", "stdio")
"""Of h5py: the others keep a file in memory, or in several files."""

_CURE = (
    "pass numpy.load(path, mmap_mode='r') or a contiguous HDF5 dataset in a file that all hosts "
    "see under the same path, or use encode='master'"
)


def check_encode(encode: str, verify: str) -> str:
    """Check the option; return what ``verify="auto"`` stands for with it.

    Raises
    ------
    UsageError
        There is no such place to encode.
    """
    check_choice(encode, "encode", ENCODE)
    # Checks read the operands on the master, which is what encoding on the workers spares.
    return "off" if encode == "workers" and verify == "auto" else verify


def mapped(value: Any, name: str) -> Any:
    """Return an HDF5 dataset as a map of its file, and anything else as it is.

    Raises
    ------
    UsageError
        The dataset is chunked, compressed or empty, or its file is none by itself.
    """
    identity: Any = getattr(value, "id", None)
    if not hasattr(identity, "get_offset"):
        return value
    if value.file.driver not in _PLAIN_DRIVERS:
        raise UsageError(
            f"{name} must lie in one ordinary HDF5 file, for workers to read; got one of driver "
            f"{value.file.driver!r}; save it in a file, or use encode='master'"
        )
    offset = identity.get_offset()
    if offset is None or value.external:
        raise UsageError(
            f"{name} must be an HDF5 dataset that lies in one piece in its file, for workers to "
            f"read; got the chunked, empty or external {value.name!r}; write it without chunks, "
            "or use encode='master'"
        )
    return np.memmap(value.file.filename, value.dtype, "r", offset, value.shape)


def recipe_encoder(
    operand: Checked, name: str, plan: Plan, rows: Split, cols: Split
) -> RecipeEncoder:
    """Return an encoder whose shares the workers make from the operand's file.

    Parameters
    ----------
    operand : Checked
    name : str
        How messages call it.
    plan : Plan
    rows, cols : Split

    Raises
    ------
    UsageError
        The operand lies in no file, or not as it is to be computed with.
    """
    if isinstance(plan.code, ExactCode):
        raise UsageError(
            f"workers encode floats; code {plan.code.name!r} computes with remainders of integers "
            "that the master makes; use encode='master'"
        )
    view = file_view(operand.matrix) if isinstance(operand.matrix, np.ndarray) else None
    if view is None:
        raise UsageError(
            f"{name} must lie in a file, dense, for workers to encode it; got a matrix in memory, "
            f"or one whose file has been replaced, or mapped with mode 'c'; {_CURE}"
        )
    if np.dtype(view.dtype) != plan.compute:
        raise UsageError(
            f"{name} must hold {plan.compute}, in which this product is computed, for workers to "
            f"encode it; got {np.dtype(view.dtype)}; convert the file, or use encode='master'"
        )
    return RecipeEncoder(view, rows, cols)
